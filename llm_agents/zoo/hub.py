"""Folders by name or Hub id, fetched from the Hub where they are not here."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from llm_agents.entries import ZOO, find_entry, is_hub_id, is_of_here, is_whole_model
from llm_agents.errors import UserError
from llm_agents.policies.bundled import ALIASES, bundled_alias
from llm_agents.rewards.folder import WANTED, download
from llm_agents.zoo.integrity import check_digests, verify
from llm_agents.zoo.layout import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    POINTER_FILE,
    PULLED_FILE,
    AdapterInfo,
    is_entry,
    read_json,
    replace_folder,
    write_json,
)
from llm_agents.zoo.registry import show

log = logging.getLogger(__name__)

PICKLED_WEIGHTS = "adapter_model.bin"  # as PEFT called it before safetensors


def find_folder(name: str, *, revision: str | None = None) -> Path:
    """Return the local folder of a zoo name, folder or Hub id, with the weights in it.

    Raises:
        UserError: Nothing of that name was found.
    """
    folder = find_entry(name)
    if folder is None:
        on_hub = is_hub_id(name) and not is_of_here(name)
        folder = _from_hub(name, revision) if on_hub else _from_zoo(name, revision)
    elif not is_entry(folder):
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"expected what was trained in the folder `{name}`: an adapter, a reward, an agent, or "
            f"the run that it is of; found {found}. `lightning zoo list` shows what there is"
        )
    if (folder / POINTER_FILE).is_file():
        return _follow_pointer(folder)
    verify(folder, where=f"`{name}`")
    if not (folder / ADAPTER_WEIGHTS).is_file() and (folder / PICKLED_WEIGHTS).is_file():
        from llm_agents.policies.pickled_adapters import converted

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
    if is_whole_model(folder):
        return folder
    if not is_entry(folder):
        raise UserError(
            f"the repository `{repo_id}` holds neither an adapter (`{ADAPTER_CONFIG}`) nor a whole "
            "model (`config.json`)"
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
        repo_id = show(name.removeprefix(ZOO)).repo_id
        if repo_id is None:
            raise UserError(f"`{name}` is not on the Hub: expected `owner/name`")
    source = find_folder(str(repo_id), revision=revision)
    if is_whole_model(source):
        raise UserError(
            f"`{repo_id}` is a whole model, which needs no copy: give its Hub id as the base of a "
            "recipe, or wherever a policy is asked for"
        )
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
