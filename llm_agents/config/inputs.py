"""Files and folders that a recipe reads: where a path leads, and which of them are missing.

A path in a recipe is looked for beside the recipe first, then below the working folder, where the
stages before it have written; one that was typed on the command line is looked for below the
working folder only. What was trained is named as in `llm_agents.entries`, so that it is found from
every folder. ``NEWEST`` in a path is the newest complete run (see `llm_agents.training.past_runs`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from llm_agents.config.reading import Document, Fault, Key, RecipeError, Value, dotted
from llm_agents.config.schema import is_subclass
from llm_agents.config.sources import Definition, NotFound, locate
from llm_agents.entries import (
    PUBLISHED,
    ZOO,
    absent,
    find_entry,
    is_entry,
    is_hub_id,
    is_of_here,
)
from llm_agents.errors import UserError
from llm_agents.training.past_runs import with_newest

Input = Literal["data", "file", "folder", "trained", "base"]
"""Rows or a Hub data set; a file or folder of one's own; what was trained; a base model."""

_DATA: Mapping[str, Input] = {"train": "data", "validation": "data", "test": "data"}
INPUTS: Mapping[str, Mapping[str, Input]] = {
    "llm_agents.data.OfflineDataModule": _DATA,
    "llm_agents.data.CloningData": {"train": "file"},
    "llm_agents.data.MotifData": {"folder": "folder"},
    "llm_agents.data.MotifAnnotation": {"directory": "folder"},
    "llm_agents.data.CometPreparation": _DATA,
    "llm_agents.data.WowPreparation": _DATA,
    "llm_agents.data.RedditPreparation": {"positive": "data", "negative": "data"},
    "llm_agents.policies.LanguagePolicy.from_pretrained": {"base": "base", "adapter": "trained"},
    "llm_agents.rewards.PolicyReward.from_pretrained": {"path": "trained"},
    "llm_agents.rewards.MessageReward.from_pretrained": {"path": "trained"},
    "llm_agents.rewards.DiversityReward.from_file": {"path": "data"},
}
"""Arguments of classes and class methods that name what is read."""

_ROW_FILES = (
    *(".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".npy"),
    *(".gz", ".zst", ".xz", ".bz2", ".zip", ".yaml", ".yml", ".pkl"),
)
_WORDS = ("sample", "held_out")


def place_inputs(document: Document) -> None:
    """Rewrite the paths of what a recipe reads, in place: from the recipe's folder to ours.

    A path that leads nowhere from the recipe's folder stays as it is, and so does every name.
    """
    for key, holder, name, kind in _inputs(document.values, ()):
        value = holder[name]
        if isinstance(value, list):
            holder[name] = [
                _placed(document, (*key, index), item, kind) for index, item in enumerate(value)
            ]
        else:
            holder[name] = _placed(document, key, value, kind)


def _placed(document: Document, key: Key, value: Value, kind: Input) -> Value:
    """Return one text with its path as it is seen from the working folder."""
    if not isinstance(value, str) or not value or value.startswith((ZOO, "sample:")):
        return value
    value = with_newest(value)
    place = document.place(key)
    folder = Path(place.source).parent
    if place.line is None or folder == Path() or value in _WORDS:
        return value
    if kind in ("trained", "base") and "/" not in value and not value.startswith("."):
        return value  # a name
    path, colon, split = value, "", ""
    if kind == "data" and not (folder / value).exists():
        path, colon, split = value.rpartition(":")
    if not path or Path(path).expanduser().is_absolute() or not (folder / path).exists():
        return value
    return f"{os.path.normpath(folder / path)}{colon}{split}"


def check_inputs(document: Document) -> None:
    """Refuse a recipe that reads what is not there, before anything is loaded.

    What may be on the Hub is left to whoever fetches it.

    Raises:
        RecipeError: Names every file and folder that is missing.
    """
    faults = []
    for key, holder, name, kind in _inputs(document.values, ()):
        value = holder[name]
        for item in value if isinstance(value, list) else [value]:
            message = missing(item, kind) if isinstance(item, str) else None
            if message is not None:
                faults.append(Fault(document.place(key), dotted(key), message))
    if faults:
        raise RecipeError(faults)


def missing(text: str, kind: Input) -> str | None:
    """Return what is wrong with a text that names an input; None if it is there, or may be.

    Args:
        text: From a recipe, or from the command line.
        kind: What it is to name.
    """
    path = Path(text).expanduser()
    if kind == "trained":
        return _untrained(text)
    if kind == "base":
        return _no_base(text, path)
    if kind == "data":
        whole, _, _ = text.rpartition(":")
        known = text.partition(":")[0] in _WORDS or (whole and Path(whole).expanduser().exists())
        on_hub = not text.endswith(_ROW_FILES) and not _is_path(text) and not is_of_here(text)
        if known or on_hub:
            return None
    if path.exists() and not (kind == "folder" and not path.is_dir()):
        return None
    if kind in ("file", "folder") and text in _WORDS:  # what is bundled
        return None
    what = {"data": "data", "file": "a file", "folder": "a folder"}[kind]
    return f"expected {what} at `{text}`, but there is none{_neighbours(path)}"


def _untrained(text: str) -> str | None:
    """Return why a text names nothing that was trained."""
    found = find_entry(text)
    if found is not None:
        if is_entry(found) or (found / "config.json").is_file():
            return None
        return f"expected the folder of what was trained, but `{text}` holds none: {absent(text)}"
    if text.removeprefix(ZOO) in PUBLISHED or (is_hub_id(text) and not is_of_here(text)):
        return None
    return f"expected what was trained, but there is no folder or entry `{text}`: {absent(text)}"


def _no_base(text: str, path: Path) -> str | None:
    """Return why a text names no base model, as far as that can be told without the Hub."""
    if not (_is_path(text) or path.is_dir() or text.endswith(".gguf")):
        return None
    from llm_agents.policies.bundled import check_path

    try:
        check_path(text)
    except UserError as error:
        return str(error)
    return None


def _is_path(text: str) -> bool:
    """Return whether a text can only be a path."""
    return text.startswith(("/", "./", "../", "~"))


def _neighbours(path: Path) -> str:
    """Return the end of a message: where was looked, and what is called alike there."""
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder `{folder}` (looked from {Path.cwd()})"
    near = get_close_matches(path.name, sorted(p.name for p in folder.iterdir()), n=1, cutoff=0.6)
    return f": did you mean `{folder / near[0]}`?" if near else f" (looked from {Path.cwd()})"


def _inputs(value: Value, key: Key) -> Iterator[tuple[Key, dict[str, Value], str, Input]]:
    """Yield each argument that names an input: its key, who holds it, its name, its kind."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _inputs(item, (*key, index))
    if not isinstance(value, dict):
        return
    path, arguments = value.get("class_path"), value.get("init_args")
    if isinstance(path, str) and isinstance(arguments, dict):
        for name, kind in _of_class(path).items():
            if name in arguments:
                yield (*key, "init_args", name), arguments, name, kind
    for name, item in value.items():
        yield from _inputs(item, (*key, name))


@cache
def _of_class(path: str) -> Mapping[str, Input]:
    """Return the inputs of what a recipe names by its class."""
    found = _definition(path)
    if found is None:
        return {}
    for known, arguments in INPUTS.items():
        expected = _definition(known)
        if expected is None:
            continue
        is_method = expected.owner is not None or found.owner is not None
        same = found.identity == expected.identity
        if same or (not is_method and is_subclass(found, expected) is True):
            return arguments
    return {}


def _definition(path: str) -> Definition | None:
    """Return what a dotted name stands for, if its source tells."""
    try:
        return locate(path)
    except NotFound:
        return None
