"""Loading by name, folder or Hub id, and fetching from the Hub."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from llm_agents.errors import UserError
from llm_agents.methods import LoadedAgent, has_base, is_agent, load_agent, load_network_agent
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.bundled import ALIASES, bundled_alias
from llm_agents.policies.nethack_files import is_nethack_agent, load_nethack_network
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.policies.pickled_adapters import PICKLED_WEIGHTS, converted
from llm_agents.rewards import MessageReward, PolicyReward
from llm_agents.rewards.folder import WANTED, download, is_hub_id
from llm_agents.zoo.integrity import check_digests, verify
from llm_agents.zoo.layout import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    POINTER_FILE,
    PULLED_FILE,
    REWARD_FILE,
    AdapterInfo,
    entry_folder,
    is_entry,
    kind_of,
    read_json,
    replace_folder,
    write_json,
)
from llm_agents.zoo.registry import show

log = logging.getLogger(__name__)


Pretrained = LanguagePolicy | PolicyReward | MessageReward | LoadedAgent | NetworkPlayer
"""What `load_pretrained` returns."""


def load_pretrained(
    name: str,
    *,
    base: str | None = None,
    revision: str | None = None,
    trainable: bool = False,
    quantization: Literal["nf4", "int8"] | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: str | None = None,
) -> Pretrained:
    """Load a language policy, a reward model or an agent, ready to use.

    Args:
        name: Zoo name (``lightning zoo list``), folder, Hub id, or the alias of a base model.
            Adapters written by plain PEFT will do.
        base: Base model to use in place of the recorded one: the same weights elsewhere.
        revision: Revision of the adapter on the Hub.
        trainable: Leave the adapter trainable; a policy or its agent only.
        quantization: Load the base in 4 or 8 bits.
        dtype: Type of the base's weights.
        device: Where it runs; the accelerator by default, if there is one.

    Returns:
        In evaluation mode: a `PolicyReward` for a reward model and a `MessageReward` for one of
        game messages; for an agent an object with `act` (`play_pretrained` lets it play); else a
        `LanguagePolicy`.

    Raises:
        UserError: Nothing of that name was found, its base is not known, or an option means
            nothing for what was found.
    """
    options = _Options(base, trainable, quantization, dtype, device)
    if name in ALIASES or is_whole_model(Path(name)):
        return _policy(None, replace(options, base=base or name))
    folder = find_folder(name, revision=revision)
    kind = kind_of(folder)
    if kind == "policy":
        return _policy(folder, options)
    if kind == "agent":
        return _agent(folder, options)
    if trainable:
        raise UserError(f"`{name}` is a reward model, which is loaded frozen: drop `trainable`")
    if (folder / REWARD_FILE).is_file():
        return PolicyReward.from_pretrained(
            str(folder), base=base, quantization=quantization, dtype=dtype, device=options.target
        )
    options.refuse(name, "quantization", "dtype")
    return MessageReward.from_pretrained(str(folder), base=base, device=options.target)


def load_policy(
    name: str,
    *,
    base: str | None = None,
    revision: str | None = None,
    trainable: bool = False,
    quantization: Literal["nf4", "int8"] | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: str | None = None,
) -> LanguagePolicy:
    """Load the language policy of a name: of an agent the model that it thinks with.

    Args: As for `load_pretrained`.

    Raises:
        UserError: There is none of that name, or it is a reward or an agent without a language
            model.
    """
    options = _Options(base, trainable, quantization, dtype, device)
    if name in ALIASES or is_whole_model(Path(name)):
        return _policy(None, replace(options, base=base or name))
    folder = find_folder(name, revision=revision)
    if kind_of(folder) == "reward":
        raise UserError(f"expected a policy, but `{name}` is a reward model, which judges text")
    if is_nethack_agent(folder) or (is_agent(folder) and not has_base(folder)):
        raise UserError(f"expected a policy, but the agent `{name}` has no language model")
    return _policy(folder, options)


@dataclass(frozen=True)
class _Options:
    """How something is loaded; see `load_pretrained`."""

    base: str | None
    trainable: bool
    quantization: Literal["nf4", "int8"] | None
    dtype: Literal["float32", "bfloat16", "float16"]
    device: str | None

    @property
    def target(self) -> str:
        """Return where it is to run."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def refuse(self, name: str, *options: str) -> None:
        """Raise if an option was given that means nothing for what was found.

        Raises:
            UserError: Names the option.
        """
        for option in options:
            default = {"trainable": False, "dtype": "float32"}.get(option)
            if getattr(self, option) != default:
                raise UserError(
                    f"`{name}` is a network of its own, not an adapter of a language model: drop "
                    f"`{option}`"
                )


def _policy(folder: Path | None, options: _Options) -> LanguagePolicy:
    """Load a base model with the adapter in a folder, if there is one."""
    base = options.base
    if folder is not None and not (folder / ADAPTER_CONFIG).is_file():
        base, folder = str(_whole_model(folder)), None
    chosen, base_revision = (base, None) if base or folder is None else recorded_base(folder)
    policy = LanguagePolicy.from_pretrained(
        str(chosen),
        adapter=str(folder) if folder is not None else None,
        revision=base_revision,
        quantization=options.quantization,
        dtype=options.dtype,
        trainable=options.trainable,
    )
    if options.quantization is None:  # quantized weights are placed when they are loaded
        policy = policy.to(options.target)
    return policy.eval()


def _agent(folder: Path, options: _Options) -> LoadedAgent | NetworkPlayer:
    """Load an agent with what it thinks with."""
    if is_agent(folder) and has_base(folder):
        return load_agent(folder, _policy(folder, options))
    options.refuse(folder.name, "base", "trainable", "quantization", "dtype")
    if is_nethack_agent(folder):
        return NetworkPlayer(load_nethack_network(folder).to(options.target))
    return load_network_agent(folder).to(options.target)


def is_whole_model(folder: Path) -> bool:
    """Return whether a folder holds a whole model rather than an adapter."""
    return (folder / "config.json").is_file() and not is_entry(folder)


def _whole_model(folder: Path) -> Path:
    """Return the folder of an agent of which all weights were trained.

    Raises:
        UserError: It is an agent without a language model.
    """
    if not (folder / "config.json").is_file():
        raise UserError(
            f"the agent in `{folder}` has no language model: play it with `lightning evaluate`"
        )
    return folder


def find_folder(name: str, *, revision: str | None = None) -> Path:
    """Return the local folder of a zoo name, folder or Hub id, with the weights in it.

    Raises:
        UserError: Nothing of that name was found.
    """
    folder = entry_folder(Path(name).expanduser())
    if not is_entry(folder):
        if folder.is_dir():
            found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise UserError(f"expected `{ADAPTER_CONFIG}` in the folder `{name}`, found {found}")
        folder = _from_hub(name, revision) if is_hub_id(name) else _from_zoo(name, revision)
    if (folder / POINTER_FILE).is_file():
        return _follow_pointer(folder)
    verify(folder, where=f"`{name}`")
    if not (folder / ADAPTER_WEIGHTS).is_file() and (folder / PICKLED_WEIGHTS).is_file():
        return converted(folder)
    return folder


def _from_zoo(name: str, revision: str | None) -> Path:
    """Return the folder of an entry of the registry."""
    entry = show(name)
    if entry.folder is not None:
        return entry.folder
    if entry.repo_id is None:
        raise UserError(f"the entry `{name}` has neither a folder nor a repository")
    return _from_hub(entry.repo_id, revision)


def _from_hub(repo_id: str, revision: str | None) -> Path:
    """Return a repository's snapshot, with pickled weights too where there are no others."""
    folder = download(repo_id, revision)
    if not is_entry(folder):
        raise UserError(
            f"the repository `{repo_id}` holds no adapter (no `{ADAPTER_CONFIG}`): a whole model "
            "is given as the base of a recipe"
        )
    has_weights = (folder / ADAPTER_WEIGHTS).is_file() or (folder / POINTER_FILE).is_file()
    if not has_weights and (folder / ADAPTER_CONFIG).is_file():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            hf_hub_download(repo_id, PICKLED_WEIGHTS, revision=revision)
        except EntryNotFoundError as error:
            raise UserError(f"the repository `{repo_id}` holds no adapter weights") from error
    return folder


def _follow_pointer(folder: Path) -> Path:
    """Fetch the weights that a folder's `hub.json` names, and check their digests."""
    pointer = read_json(folder / POINTER_FILE)
    repo_id, revision, files = (pointer.get(key) for key in ("repo_id", "revision", "files"))
    if not (isinstance(repo_id, str) and isinstance(revision, str) and isinstance(files, dict)):
        raise UserError(f"expected `repo_id`, `revision` and `files` in `{folder / POINTER_FILE}`")
    fetched = _from_hub(repo_id, revision)
    check_digests(fetched, files, where=f"`{repo_id}` at {revision}")
    return fetched


def recorded_base(folder: Path) -> tuple[str, str | None]:
    """Return the base model of an adapter's folder and its revision.

    Raises:
        UserError: It is not recorded, or is a path that is not on this machine.
    """
    info = AdapterInfo.read(folder)
    if info is not None:
        return info.base, info.revision
    config = read_json(folder / ADAPTER_CONFIG)
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base, str) or not base:
        raise UserError(f"`{folder / ADAPTER_CONFIG}` names no base model: give `base`")
    if not is_hub_id(base) and base not in ALIASES and not Path(base).exists():
        raise UserError(
            f"the adapter in `{folder}` was trained on `{base}`, a path that is not on this "
            "machine: give `base`, the same model's Hub id or folder"
        )
    alias = bundled_alias(base)
    if alias is not None:
        log.warning(
            "the adapter in `%s` names the base %s: using the bundled `%s`, a 4-bit rounding "
            "of it; give base=%r for the exact weights",
            folder,
            base,
            alias,
            base,
        )
        return alias, None
    return base, revision if isinstance(revision, str) else None


def pull(name: str, folder: str | Path | None = None, *, revision: str | None = None) -> Path:
    """Copy an adapter, a reward model or an agent from the Hub into a folder.

    The folder's ``pulled.json`` says where it came from, at which commit.

    Args:
        name: Hub id, or a zoo name that is on the Hub.
        folder: Where to; ``checkpoints/<repository name>`` by default. It is replaced when the copy
            is whole.
        revision: Branch, tag or commit.

    Returns:
        The folder.
    """
    repo_id: str | None = name
    if not is_hub_id(name):
        repo_id = show(name).repo_id
        if repo_id is None:
            raise UserError(f"`{name}` is not on the Hub: expected `owner/name`")
    source = find_folder(str(repo_id), revision=revision)
    snapshot = _whole_snapshot(str(repo_id), revision)
    target = Path(folder) if folder else Path("checkpoints") / str(repo_id).split("/")[1]
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    for place in (snapshot, source):  # follows the links of the Hub's cache
        shutil.copytree(place, unfinished, dirs_exist_ok=True)
    write_json(unfinished / PULLED_FILE, {"repo_id": repo_id, "commit": snapshot.name})
    verify(unfinished, where=f"`{repo_id}`")
    replace_folder(unfinished, target)
    return target


def _whole_snapshot(repo_id: str, revision: str | None) -> Path:
    """Return the folder of a repository that holds texts of answers and replays too."""
    from huggingface_hub import snapshot_download

    found = download(repo_id, revision)
    more = ["*.jsonl", "replay.*", "LICENSE"]
    return Path(snapshot_download(repo_id, revision=found.name, allow_patterns=[*WANTED, *more]))
