"""Weights of a Keras RoBERTa under PyTorch's names and in PyTorch's layout.

Read from a saved model or checkpoint of TensorFlow, an HDF5 file, or an ``.npz``; neither Keras nor
TensorFlow is needed, and nothing in the file is executed.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.rewards.tensor_bundle import read_checkpoint

_TRUNK = "roberta/"
_LAST_PARTS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "embeddings": "weight",
    "weight": "weight",
}


class ConvertedWeights(NamedTuple):
    """A RoBERTa with a head, from Keras.

    Args:
        encoder: Tensors of a ``RobertaModel``, by its names.
        head: Tensors of the linear layers above it, by their names in the file.
        num_transposed: Kernels of the encoder that were transposed.
    """

    encoder: dict[str, Tensor]
    head: dict[str, Tensor]
    num_transposed: int


def read_keras_weights(path: str | Path) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of a Keras model by the names of its variables.

    Args:
        path: Folder of a TensorFlow saved model or checkpoint, its ``.index``, an ``.h5`` or
            ``.hdf5`` file of a model or of its weights, or an ``.npz``.

    Raises:
        UserError: There is nothing, it is damaged, or h5py is not installed.
    """
    path = Path(path).expanduser()
    if path.suffix in (".h5", ".hdf5"):
        found = _read_hdf5(path)
    elif path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"`{path}` holds no plain arrays: {error}") from error
    else:
        found = read_checkpoint(path)
    return {re.sub(r":\d+$", "", name): value for name, value in found.items()}


def convert_roberta(weights: dict[str, NDArray[np.generic]]) -> ConvertedWeights:
    """Give the tensors of a Keras RoBERTa PyTorch's names and layout.

    A dense layer's kernel is ``[in, out]`` in Keras and ``[out, in]`` in PyTorch, also where it is
    square and nothing but the numbers tells. Optimizer state and whatever else is no layer's
    parameter is left out.

    Args:
        weights: As `read_keras_weights` returns them.

    Raises:
        UserError: There is no RoBERTa among them, or two tensors claim the same place.

    Example:
        >>> kernel = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
        >>> found = convert_roberta({"m/roberta/pooler/dense/kernel": kernel})
        >>> torch.tensor([1.0, 0.0]) @ found.encoder["pooler.dense.weight"].T
        tensor([1., 2.])
    """
    encoder: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    num_transposed = 0
    for name, value in weights.items():
        before, _, last = name.rpartition("/")
        if last not in _LAST_PARTS or not np.issubdtype(value.dtype, np.floating):
            continue
        tensor = torch.from_numpy(np.array(value, dtype=np.float32))
        is_kernel = last == "kernel"
        if is_kernel:
            tensor = tensor.T.contiguous()
        prefix, mark, inner = before.rpartition(_TRUNK)
        if mark and (not prefix or prefix.endswith("/")):
            inner = re.sub(r"layer_\._(\d+)", r"layer.\1", inner).replace("/", ".")
            ours = f"{inner}.{_LAST_PARTS[last]}"
            if ours in encoder:
                raise UserError(f"the Keras weights hold `{ours}` twice, once as `{name}`")
            encoder[ours] = tensor
            num_transposed += is_kernel
        else:
            head[f"{before}/{_LAST_PARTS[last]}"] = tensor
    if not encoder:
        shown = ", ".join(sorted(weights)[:3]) or "nothing"
        raise UserError(f"found no RoBERTa among the Keras weights: they are called {shown}")
    return ConvertedWeights(encoder, head, num_transposed)


def _read_hdf5(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return every array of an HDF5 file by its path."""
    try:
        import h5py
    except ImportError as error:
        raise UserError(
            "reading HDF5 files needs h5py: pip install 'llm-agents[keras]', or give the saved "
            "model's folder"
        ) from error
    found: dict[str, NDArray[np.generic]] = {}

    def keep(name: str, item: object) -> None:
        """Take an array along."""
        if isinstance(item, h5py.Dataset) and not name.startswith("optimizer_weights/"):
            found[name] = np.asarray(item[()])

    try:
        with h5py.File(path, "r") as file:
            file.visititems(keep)
    except OSError as error:
        raise UserError(f"cannot read `{path}` as HDF5: {error}") from error
    return found
