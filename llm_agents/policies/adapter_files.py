"""Adapters as files: where they are, and whether they belong to a base."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from llm_agents.entries import INFO_FILE, PUBLISHED, ZOO, absent, find_entry
from llm_agents.errors import UserError
from llm_agents.policies.base_model import LoadedBase, num_layers
from llm_agents.policies.bundled import ALIASES
from llm_agents.policies.pickled_adapters import PICKLED_WEIGHTS, converted
from llm_agents.whole_files import write_json

if TYPE_CHECKING:
    from peft import PeftConfig
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


def check_base(base: LoadedBase, folder: Path, config: PeftConfig) -> None:
    """Raise if an adapter was made for a base of another name or size."""
    recorded: str | None = config.base_model_name_or_path
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
    _check_vocabulary(base, folder, config)
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


def _check_vocabulary(base: LoadedBase, folder: Path, config: PeftConfig) -> None:
    """Raise if the adapter's own embedding or head has another number of tokens.

    Beside an adapter of the embedding or the head, PEFT writes the base's own matrix. It may be
    there, if it is the base's own.
    """
    expected = base_sizes(base.model)["vocab_size"]
    weights = dict(base.model.named_parameters(remove_duplicate=False))
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118  # a file handle, not a mapping
            named = any(part in key for part in ("embed", "lm_head", "wte"))
            if not named or "lora_" in key or "trainable_tokens" in key:
                continue
            shape = file.get_slice(key).get_shape()
            if len(shape) == 2 and "position" not in key and shape[0] != expected:
                raise UserError(
                    f"the adapter {folder} (trained on {config.base_model_name_or_path!r}) has a "
                    f"vocabulary of {shape[0]} tokens ({key}), the base {base_name(base)!r} has "
                    f"{expected}: use the base with the resized vocabulary that it was trained on"
                )
            own = weights.get(_own_name(key))
            if key in of_base([key], config) and (
                own is None or not _equal(file.get_tensor(key), own)
            ):
                raise UserError(
                    f"the adapter {folder} comes with an embedding or head of its base ({key}) "
                    f"whose values are not those of {base_name(base)!r}: use the base that it was "
                    "trained on; if its embeddings were changed there, merge the adapter by PEFT's "
                    "`merge_and_unload` and take the result as the base"
                )


def check_biases(config: PeftConfig, folder: Path, *, trainable: bool) -> None:
    """Raise for an adapter to train that has trained the base's own biases."""
    if getattr(config, "bias", "none") == "none" or not trainable:
        return
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        biases = sorted(key for key in file.keys() if key.endswith(".bias") and "lora_" not in key)  # noqa: SIM118
    if biases:
        raise UserError(
            f"the adapter {folder} has trained biases of its base (`bias: {config.bias}`), of "  # type: ignore[attr-defined]  # LoRA's
            "which PEFT holds one set, so that no frozen copy could be the reference: load it "
            "with `trainable=False` and write the base with it by `policy.merge(folder)`, then "
            "start from that"
        )
    config.bias = "none"  # type: ignore[attr-defined]  # the base has no biases: nothing is lost


def of_base(keys: Iterable[str], config: PeftConfig) -> set[str]:
    """Return those of an adapter's tensors that are the base's own embedding or head."""
    trained = tuple(f"{name}.weight" for name in getattr(config, "modules_to_save", None) or ())
    # With tied weights, what is trained of one end is in the file under the other's name too.
    is_both = bool(trained) and bool(getattr(config, "ensure_weight_tying", False))
    inner = r"\.base_layer" if is_both else r"(\.base_layer)?"
    whole = re.compile(rf"(embed\w*|lm_head|wte){inner}\.weight$")
    return {key for key in keys if whole.search(key) and not key.endswith(trained)}


def _own_name(key: str) -> str:
    """Return the base's name of a tensor that lies in an adapter's file."""
    return key.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _equal(first: Tensor, second: Tensor) -> bool:
    """Tell whether two matrices are one, in the precision of the second."""
    return first.shape == second.shape and torch.equal(first.to(second), second.detach())


def unshared(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state` with a copy of each tensor that an earlier name stands for too."""
    seen: set[int] = set()
    found = {}
    for name, tensor in state.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return found


def base_sizes(model: PreTrainedModel) -> dict[str, int]:
    """Return the sizes that an adapter's base must agree in."""
    embeddings: Any = model.get_input_embeddings()
    return {
        "vocab_size": int(embeddings.weight.shape[0]),
        "hidden_size": int(model.config.get_text_config().hidden_size),
        "num_layers": num_layers(model),
    }


def _say(sizes: Mapping[str, int | None]) -> str:
    """Write sizes for a message."""
    return ", ".join(f"{key} {value}" for key, value in sizes.items())


def base_name(base: LoadedBase) -> str:
    """Return the name by which adapters know this base."""
    return base.resolved.hub_id or base.name


def write_info(folder: Path, base: str, revision: str | None, heads: Iterable[str]) -> None:
    """Write which base an adapter's folder belongs to, and which heads lie in it.

    A base that is a path is written whole, so that it is found from every folder.
    """
    if Path(base).expanduser().exists():
        base = str(Path(base).expanduser().absolute())
    write_json(folder / INFO_FILE, {"base": base, "revision": revision, "heads": list(heads)})


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
