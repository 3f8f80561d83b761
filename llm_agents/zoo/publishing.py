"""Publishing a folder on the Hub: checked first, then one commit.

A run of ``publish`` reads the folder, refuses what must not leave the machine, builds the card,
writes what would be sent to a staging folder, and, unless it is a dry run, sends it as one atomic
commit. Sending the same again changes nothing.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from llm_agents.entries import MESSAGE_REWARD_FILE, is_hub_id
from llm_agents.errors import UserError
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.zoo.card import build_card, check_card, merge_cards
from llm_agents.zoo.facts import gather_facts
from llm_agents.zoo.integrity import HASHES_FILE, write_hashes
from llm_agents.zoo.layout import (
    ADAPTER_CONFIG,
    AGENT_FILE,
    CARD_FILE,
    INFO_FILE,
    POINTER_FILE,
    RECIPE_FILE,
    REWARD_FILE,
    entry_folder,
    is_entry,
    read_json,
    write_json,
)
from llm_agents.zoo.outside_files import (
    find_files,
    local_paths,
    read_files,
    short_names,
    with_short_names,
    write_files,
    zoo_names,
)
from llm_agents.zoo.privacy import refuse_private, without_here
from llm_agents.zoo.provenance import Provenance, refuse_uncommitted

log = logging.getLogger(__name__)

PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz"}
WEIGHTS = (
    r"adapter_model\.safetensors|\w+_head\.safetensors|network\.safetensors"
    r"|nethack_agent\.safetensors|message_encoder\.safetensors"
)
REPLACED = re.compile(
    rf"{WEIGHTS}|\w+_head\.json|replay\.(mp4|gif|html)|[\w.-]+_eval_results\.jsonl"
)
SENT = re.compile(
    rf"{WEIGHTS}|adapter_config\.json|adapter_base\.json|\w+_head\.json|network\.json|agent\.json"
    r"|nethack_agent\.json|message_reward\.json|reward\.json|llm_agents\.json|provenance\.json|files\.json"
    r"|recipe\.yaml|results\.(json|png)|[\w.-]+_eval_results\.jsonl|[\w.-]+\.png"
    r"|replay\.(mp4|gif|html)|LICENSE|(special_tokens_map|added_tokens)\.json"
    r"|tokenizer(_config)?\.json|chat_template\.jinja|\w+\.model|vocab\.json|merges\.txt"
)


@dataclass(frozen=True)
class PublishReport:
    """What was sent, or would be.

    Args:
        repo_id: Repository on the Hub.
        staged: Folder with exactly the files of the commit.
        files: Their names.
        left_out: Files of the folder that are not part of a publication.
        warnings: What the publisher should know.
        commit: Address of the commit; None in a dry run.
    """

    repo_id: str
    staged: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    commit: str | None


def publish(
    folder: str | Path,
    repo_id: str,
    *,
    dry_run: bool = False,
    base_model: str | None = None,
    license: str | None = None,  # the Hub's word
    datasets: tuple[str, ...] | None = None,
    private: bool = False,
    revision: str | None = None,
    allow_dirty: bool = False,
    staging: str | Path | None = None,
    token: str | None = None,
) -> PublishReport:
    """Publish an adapter, a reward model or an agent on the Hub.

    Args:
        folder: Folder of what was trained, with its ``results.json``.
        repo_id: ``owner/name`` on the Hub; made if it isn't there.
        dry_run: Write what would be sent to the staging folder and send nothing.
        base_model: Hub id of the base, where the folder records only a local path.
        license: Licence identifier; the recipe's ``publish.license``, else ``apache-2.0``.
        datasets: Hub ids of the training data; the recipe's ``publish.datasets`` by default.
        private: Make a new repository private.
        revision: Branch to commit to, made if it isn't there; the main one by default.
        allow_dirty: Publish though no commit holds the code that it was trained with.
        staging: Where what is sent is written; ``publish/<name>`` beside the folder by default.
        token: Access token; the one that ``hf auth login`` stored by default.

    Returns:
        What was sent, or would be.

    Raises:
        UserError: The folder is not fit to be published; every reason is named.
    """
    source = _source(folder, repo_id, base_model)
    warnings = _dirt(source, refuse=not (allow_dirty or dry_run), allowed=allow_dirty)
    staged = Path(staging or source.parent / "publish" / repo_id.rpartition("/")[2])
    left_out, renamed = stage(source, staged, base_model=base_model)
    warnings += [f"{RECIPE_FILE}: {line}" for line in renamed]
    base = map_base(staged, base_model, warnings)
    facts = gather_facts(source, repo_id, *base, license=license, datasets=datasets, staged=staged)
    _write_card(staged, build_card(facts))
    commit = None
    if not dry_run:
        from llm_agents.zoo.sending import send

        commit = send(
            staged,
            repo_id,
            private=private,
            token=token,
            merge=merge_cards,
            is_ours=_is_ours,
            revision=revision,
        )
    for warning in warnings:
        log.warning(warning)
    files = tuple(sorted(path.name for path in staged.iterdir()))
    return PublishReport(repo_id, staged, files, tuple(left_out), tuple(warnings), commit)


def _write_card(staged: Path, card: str) -> None:
    """Write a card among what is to be sent, and look through everything once more."""
    (staged / CARD_FILE).write_text(card, encoding="utf8")
    check_card(card)
    refuse_private(staged)


def _source(folder: str | Path, repo_id: str, base_model: str | None) -> Path:
    """Return the folder that is published, once names and content are known to be fit."""
    source = entry_folder(Path(folder))
    for kind, name in (("repository", repo_id), ("base model", base_model or repo_id)):
        if not is_hub_id(name):
            raise UserError(f"expected a {kind} `owner/name`, got `{name}`")
    if not source.is_dir() or not is_entry(source):
        raise UserError(f"expected a folder with an adapter or an agent, got `{folder}`")
    refuse_unfit(source)
    return source


def _is_ours(name: str) -> bool:
    """Return whether a file of this name can only be of an earlier publication."""
    return REPLACED.fullmatch(name) is not None


def _dirt(source: Path, *, refuse: bool, allowed: bool) -> list[str]:
    """Return what is to be said of changes that no commit holds, or refuse to go on."""
    try:
        refuse_uncommitted(source, Provenance.read(source))
    except UserError as error:
        if refuse:
            raise
        return [] if allowed else [f"this would be refused: {error}"]
    return []


def stage(
    source: Path,
    staged: Path,
    *,
    base_model: str | None = None,
    checkpoints: Path | None = None,
) -> tuple[list[str], list[str]]:
    """Write to a new folder what of another one is published, with digests.

    Paths of this machine get names that say nothing of it; those of data keep the digest of what
    they hold.

    Args:
        source: Folder of what was trained.
        staged: Made anew.
        base_model: What a base that is a path of this machine is called.
        checkpoints: A folder of entries beside the zoo's own.

    Returns:
        Names of the files that are left out, and a line for each path that was renamed.
    """
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    left_out = stage_files(source, staged)
    said = _stage_recipe(source, staged, base_model, checkpoints)
    _shorten_results(staged)
    provenance = Provenance.read(source)
    if provenance is not None:
        provenance.write(staged)
    write_hashes(staged)
    return left_out, said


def _stage_recipe(
    source: Path, staged: Path, base_model: str | None, checkpoints: Path | None
) -> list[str]:
    """Write the recipe with names for others, and the digests of the files that it names."""
    path = staged / RECIPE_FILE
    if not path.is_file():
        return []
    text = without_here(path.read_text(encoding="utf8"))
    values = yaml.safe_load(text)
    if not isinstance(values, dict):
        return []
    entries = zoo_names(values, checkpoints)
    text = with_short_names(text, entries)
    renamed = short_names(local_paths(yaml.safe_load(text)))
    if base_model is not None:
        renamed = [replace(e, name=base_model) if e.key.endswith(".base") else e for e in renamed]
    path.write_text(with_short_names(text, renamed), encoding="utf8")
    here = {entry.path: entry.name for entry in renamed}
    files = [
        replace(file, name=here.get(file.name, without_here(file.name)))
        for file in read_files(source) or find_files(yaml.safe_load(text))
    ]
    write_files(staged, files)
    digests = {file.name: f" (SHA-256 {file.sha256[:16]}…)" for file in files}
    return [
        f"`{entry.key}` is called `{entry.name}`, not by its path on this machine"
        f"{digests.get(entry.name, '')}"
        for entry in renamed
    ]


def _shorten_results(staged: Path) -> None:
    """Leave of a folder of this machine, that results name, its last part."""
    path = staged / RESULTS_FILE
    if not path.is_file():
        return
    text = path.read_text(encoding="utf8")
    renamed = short_names(local_paths(json.loads(text)))
    if renamed:
        path.write_text(with_short_names(text, renamed), encoding="utf8")


def refuse_unfit(folder: Path) -> None:
    """Raise if a folder lacks results, or holds pickles or base weights."""
    faults = []
    if not (folder / RESULTS_FILE).is_file():
        faults.append(f"there is no `{RESULTS_FILE}`: run `lightning evaluate {folder}` first")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    pickles = [path.relative_to(folder).as_posix() for path in files if path.suffix in PICKLES]
    if pickles:
        faults.append(f"pickles may run code where they are loaded: remove {', '.join(pickles)}")
    weights = [
        path.relative_to(folder).as_posix()
        for path in files
        if path.suffix == ".gguf"
        or (path.suffix == ".safetensors" and SENT.fullmatch(path.name) is None)
    ]
    if weights:
        faults.append(
            f"weights of a base model are not ours to publish: remove {', '.join(weights)}"
        )
    if (folder / POINTER_FILE).is_file():
        faults.append(f"its weights are on the Hub already (`{POINTER_FILE}`)")
    links = [path.relative_to(folder).as_posix() for path in files if path.is_symlink()]
    if links:
        faults.append(f"links lead out of the folder: replace {', '.join(links)} by the files")
    if faults:
        raise UserError(f"`{folder}` is not fit to be published: " + "; ".join(faults))


def stage_files(source: Path, staged: Path) -> list[str]:
    """Copy the files of a publication; return the names of the others."""
    left_out = []
    for path in sorted(source.iterdir()):
        if path.is_file() and SENT.fullmatch(path.name):
            shutil.copyfile(path, staged / path.name)
        elif path.name not in (CARD_FILE, HASHES_FILE) and not path.name.startswith("."):
            left_out.append(path.name)
    return left_out


def map_base(
    staged: Path, base_model: str | None, warnings: list[str]
) -> tuple[str | None, str | None]:
    """Write the base's Hub id into the staged files; return it and the revision.

    A local path says nothing to anyone else, and shows a user's name: it is replaced, or left out.
    """
    config: dict[str, Any] = (
        read_json(staged / ADAPTER_CONFIG) if (staged / ADAPTER_CONFIG).is_file() else {}
    )
    recorded = config.get("base_model_name_or_path")
    base = base_model or (recorded if isinstance(recorded, str) and is_base_id(recorded) else None)
    if base is None and config:
        warnings.append(
            "the base model is not known on the Hub: the card names none. Give `base_model`, its "
            "Hub id, if it has one"
        )
    if config:
        config["base_model_name_or_path"] = base
        write_json(staged / ADAPTER_CONFIG, config)
    for file in (INFO_FILE, REWARD_FILE, AGENT_FILE, MESSAGE_REWARD_FILE, "adapter_base.json"):
        if (staged / file).is_file():
            values = read_json(staged / file)
            _replace_paths(values, base)
            if isinstance(values.get("scorer"), dict):
                _replace_paths(values["scorer"], base)
            write_json(staged / file, values)
    revision = config.get("revision")
    return base, revision if isinstance(revision, str) else None


def _replace_paths(values: dict[str, Any], base: str | None) -> None:
    """Put the base's Hub id, or nothing, in place of a base that is a place on this machine."""
    for key in ("base", "base_model_name_or_path", "source"):
        if isinstance(values.get(key), str) and looks_like_path(str(values[key])):
            values[key] = base or ""


def is_base_id(name: str) -> bool:
    """Return whether a recorded base can only be meant as a Hub id, not as a folder here."""
    return is_hub_id(name) and not Path(name).exists()


def looks_like_path(name: str) -> bool:
    """Return whether a recorded base is a place on this machine, rather than an alias or Hub id."""
    return not is_base_id(name) and ("/" in name or "\\" in name or name.startswith("~"))
