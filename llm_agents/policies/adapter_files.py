"""Adapters as files: where they are, and whether they belong to a base."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from llm_agents.entries import PUBLISHED, ZOO, absent, find_entry
from llm_agents.errors import UserError
from llm_agents.policies.base_model import LoadedBase, num_layers
from llm_agents.policies.bundled import ALIASES
from llm_agents.policies.pickled_adapters import PICKLED_WEIGHTS, converted

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
BASE_FILE = "adapter_base.json"


def locate_adapter(name: str, revision: str | None = None) -> Path:
    """Return the folder of an adapter: a folder or entry of the zoo here, or a Hub id's download.

    Weights that were published as a pickle are converted into a folder of the user's cache.

    Args:
        name: Folder, of a run too; name of the zoo (see `llm_agents.entries`); Hub id.
        revision: Of a repository on the Hub.

    Raises:
        UserError: There is no such folder or repository, or it holds no adapter.
    """
    here = find_entry(name)
    is_here = here is not None
    repo_id = PUBLISHED.get(name.removeprefix(ZOO), name)
    if here is None and "/" not in repo_id:
        raise UserError(
            f"adapter {name!r}: there is no such folder ({Path(name).expanduser().absolute()}) and "
            f"no entry of the zoo is called so: {absent(name)}"
        )
    folder = here or _download(repo_id, revision, ["*.json", "*.safetensors"])
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"adapter {name!r}: {folder} has no adapter_config.json")
    if (folder / WEIGHTS_FILE).is_file():
        return folder
    if not is_here:
        folder = _download(repo_id, revision, ["*.json", PICKLED_WEIGHTS])
    if not (folder / PICKLED_WEIGHTS).is_file():
        raise UserError(f"adapter {name!r}: {folder} has no adapter_model.safetensors")
    return converted(folder)


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    """Return the snapshot of a repository with the files that match."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise UserError(
            f"adapter {name!r}: there is no such folder ({Path(name).expanduser().absolute()}), "
            f"and the Hub gave none: {error}"
        ) from error


def check_base(base: LoadedBase, folder: Path, recorded: str | None) -> None:
    """Raise if an adapter was made for a base of another name or size."""
    sizes = base_sizes(base.model)
    file = folder / BASE_FILE
    if file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
        theirs = {key: stored.get(key) for key in sizes}
        if theirs != sizes:
            raise UserError(
                f"the adapter {folder} was trained on {recorded!r} with {_say(theirs)}; the base "
                f"{base_name(base)!r} has {_say(sizes)}: name the base it was trained on"
            )
    _check_vocabulary(base, folder, recorded)
    if recorded is None or not _is_public_name(recorded):
        return  # a path on the machine where it was trained
    own = base.name if base.resolved.kind in ("tiny", "hub") else base.resolved.hub_id
    if own is not None and recorded.lower() not in (own.lower(), base.name.lower()):
        raise UserError(
            f"the adapter {folder} was trained on {recorded!r}, the base given is {own!r}: give "
            f"`base: {recorded}`; or, to use equal weights under another name, give the base as a "
            "folder"
        )


def _is_public_name(name: str) -> bool:
    """Tell whether `name` is an alias or a Hub id and not a path."""
    return name in ALIASES or (
        re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()
    )


def _check_vocabulary(base: LoadedBase, folder: Path, recorded: str | None) -> None:
    """Raise if the adapter's own embedding or head has another number of tokens."""
    expected = base_sizes(base.model)["vocab_size"]
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118  # a file handle, not a mapping
            if "lora_" in key or not any(part in key for part in ("embed", "lm_head", "wte")):
                continue
            shape = file.get_slice(key).get_shape()
            if len(shape) == 2 and "position" not in key and shape[0] != expected:
                raise UserError(
                    f"the adapter {folder} (trained on {recorded!r}) has a vocabulary of "
                    f"{shape[0]} tokens ({key}), the base {base_name(base)!r} has {expected}: use "
                    "the base with the resized vocabulary that it was trained on"
                )


def base_sizes(model: PreTrainedModel) -> dict[str, int]:
    """Return the sizes that an adapter's base must agree in."""
    embeddings: Any = model.get_input_embeddings()
    return {
        "vocab_size": int(embeddings.weight.shape[0]),
        "hidden_size": int(model.config.hidden_size),
        "num_layers": num_layers(model),
    }


def _say(sizes: Mapping[str, int | None]) -> str:
    """Write sizes for a message."""
    return ", ".join(f"{key} {value}" for key, value in sizes.items())


def base_name(base: LoadedBase) -> str:
    """Return the name by which adapters know this base."""
    return base.resolved.hub_id or base.name


def copy_tensors(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Overwrite `own` with `state`, which must hold the same names and shapes."""
    wrong = sorted(set(own) ^ set(state)) or sorted(
        name for name in own if own[name].shape != state[name].shape
    )
    if wrong:
        raise UserError(
            f"the saved weights hold {len(state)} tensors, this policy trains {len(own)}; "
            f"{len(wrong)} don't fit, as {wrong[0]}: resume with the same base and options"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])
