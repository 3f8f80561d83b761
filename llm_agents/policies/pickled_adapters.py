"""Adapters that were published as a pickle: read without running code, kept as safetensors.

A-LoL's authors published theirs in this way, before PEFT wrote safetensors.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors.torch import save_file
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.policies.bundled import build_once, cache_folder
from llm_agents.whole_files import sha256

_logger = logging.getLogger(__name__)

PICKLED_WEIGHTS = "adapter_model.bin"
_SAFE_WEIGHTS = "adapter_model.safetensors"


def converted(folder: Path) -> Path:
    """Return a copy of an adapter's folder whose pickled weights became safetensors.

    The pickle is read by torch's weights-only reader, which runs no code in it. The copy lies in
    the user's cache under the digest of the weights and of what is copied beside them.

    Raises:
        UserError: The file holds more than tensors, or is damaged.
    """
    source = folder / PICKLED_WEIGHTS
    beside = sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix in {".json", ".md", ".yaml"}
    )
    parts = [f"{path.name} {sha256(path)}" for path in (source, *beside)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    target = cache_folder() / "adapters" / digest[:16]

    def build(unfinished: Path) -> None:
        _logger.info("converting %s to safetensors in %s", source, target)
        save_file(_read(source), unfinished / _SAFE_WEIGHTS, metadata={"format": "pt"})
        for path in beside:
            shutil.copyfile(path, unfinished / path.name)

    return build_once(target, build)


def _read(source: Path) -> dict[str, Tensor]:
    """Return the tensors in a pickle."""
    refusal = (
        f"`{source.name}` of the adapter is a pickle that holds more than tensors, and might run "
        "code: it is not read"
    )
    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise UserError(refusal) from error
    except (RuntimeError, EOFError) as error:
        raise UserError(
            f"`{source.name}` of the adapter can't be read; fetch it again: {error}"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(refusal)
    return {str(key): value.clone().contiguous() for key, value in state.items()}
