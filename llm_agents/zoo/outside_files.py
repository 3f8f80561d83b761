"""Files that a recipe names and that do not lie in its entry, each with its digest.

Dialogues, pairs and trajectories are large, or not ours to hand on: an entry holds their names and
SHA-256 alone, in ``files.json``. Whoever evaluates or trains again is told which file is missing,
and a file of the same name that holds something else is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llm_agents.entries import ZOO, entry_folder, is_entry, shipped_folders, zoo_name
from llm_agents.errors import UserError
from llm_agents.whole_files import sha256, write_json
from llm_agents.zoo.integrity import HASHES_FILE
from llm_agents.zoo.layout import read_json

FILES_FILE = "files.json"
DATA_KEYS = ("train", "validation", "test", "folder")
"""Arguments of a recipe's data module that may name files."""


@dataclass(frozen=True)
class OutsideFile:
    """A file, or a folder of files, that a recipe names.

    Args:
        key: Key of the recipe, such as ``data.test``.
        name: As the recipe names it.
        sha256: Of the file; of a folder that of the list of its files' names and digests.
        num_bytes: Of all that is in it.
    """

    key: str
    name: str
    sha256: str
    num_bytes: int

    def check(self, path: Path) -> None:
        """Raise unless `path` holds what was recorded.

        Raises:
            UserError: Names both digests.
        """
        found, _ = digest_of(path)
        if found != self.sha256:
            raise UserError(
                f"`{path}` is not the `{self.name}` that `{self.key}` names: its SHA-256 is "
                f"{found[:16]}…, expected {self.sha256[:16]}…. Numbers of one may not be compared "
                "with those of the other: give the right file, or yours under another name"
            )


def digest_of(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file or of a folder's contents, and their bytes."""
    if path.is_file():
        return sha256(path), path.stat().st_size
    inside = [file for file in sorted(path.rglob("*")) if file.is_file() and _counts(file, path)]
    lines = (f"{file.relative_to(path).as_posix()} {sha256(file)}\n" for file in inside)
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return digest, sum(file.stat().st_size for file in inside)


def _counts(file: Path, folder: Path) -> bool:
    """Return whether a file belongs to a folder's contents: hidden ones are somebody's notes."""
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def data_places(recipe: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each text of a recipe that may name a file or folder of data, with its key."""
    data = recipe.get("data")
    arguments = (data.get("init_args") if isinstance(data, Mapping) else None) or {}
    for key in DATA_KEYS:
        value = arguments.get(key)
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str):
                yield f"data.{key}", text


def find_files(recipe: Mapping[str, Any]) -> list[OutsideFile]:
    """Return the files of data that a recipe names and that are here, with their digests."""
    found = []
    for key, name in data_places(recipe):
        path = Path(name).expanduser()
        if path.exists():
            found.append(OutsideFile(key, name, *digest_of(path)))
    return found


def read_files(folder: Path) -> list[OutsideFile]:
    """Return what an entry says of the files outside it; nothing if it says nothing."""
    path = folder / FILES_FILE
    if not path.is_file():
        return []
    entries = read_json(path).get("files")
    try:
        return [OutsideFile(**entry) for entry in entries or []]
    except TypeError as error:
        raise UserError(f"`{path}` is not a list of files with digests: {error}") from error


def write_files(folder: Path, files: list[OutsideFile]) -> None:
    """Write what is known of the files outside an entry; nothing where there are none."""
    path = folder / FILES_FILE
    if files:
        write_json(path, {"files": [asdict(entry) for entry in files]})
    else:
        path.unlink(missing_ok=True)


# --- names that say nothing of this machine -------------------------------------------------------

PATH_KEYS = {*DATA_KEYS, "adapter", "base", "cache", "directory", "output", "path", "players"}
_ABSOLUTE = re.compile(r"(?:file://)?(?:/[\w.@~+-]+){2,}/?|[A-Za-z]:[\\/][^\n]+|~/[^\n]+")
_ROOTED = re.compile(r"(?:file://)?/[^\n]*[^/\s][^\n]*|[A-Za-z]:[\\/][^\n]+|~[\w.-]*/[^\n]+")


@dataclass(frozen=True)
class Renamed:
    """A path of this machine and what a publication calls it.

    Args:
        key: Key of the recipe.
        path: As the recipe names it.
        name: What others read.
    """

    key: str
    path: str
    name: str


def local_paths(values: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every absolute path among the values of a recipe, with its key."""
    for place, text in _texts(values, key):
        names_one = place.rpartition(".")[2] in PATH_KEYS  # elsewhere a text may begin with a slash
        if (_ROOTED if names_one else _ABSOLUTE).fullmatch(text.strip()):
            yield place, text


def short_names(paths: Iterable[tuple[str, str]]) -> list[Renamed]:
    """Return what a publication calls paths of this machine.

    What follows the last folder called ``runs`` or ``checkpoints`` says nothing of who and where
    the user is, and is kept; of others the last part. Two that would be called the same get a part
    of a digest.

    Example:
        >>> [entry.name for entry in short_names([("data.train", "/home/ada/hha/train.jsonl")])]
        ['train.jsonl']
    """
    renamed: dict[str, Renamed] = {}
    for key, path in paths:
        if path in renamed:
            continue
        parts = [part for part in re.split(r"[\\/]+", path.removeprefix("file:")) if part]
        marks = [at for at, part in enumerate(parts[:-1]) if part in ("runs", "checkpoints")]
        name = "/".join(parts[marks[-1] :] if marks else parts[-1:])
        if name in {other.name for other in renamed.values()}:
            stem, dot, ending = name.partition(".")
            name = f"{stem}-{hashlib.sha256(path.encode()).hexdigest()[:8]}{dot}{ending}"
        renamed[path] = Renamed(key, path, name)
    return list(renamed.values())


def with_short_names(text: str, renamed: Iterable[Renamed]) -> str:
    """Return a text with paths of this machine replaced by what a publication calls them."""
    for entry in sorted(renamed, key=lambda entry: len(entry.path), reverse=True):
        bounds = rf"(?<![\w./~-]){re.escape(entry.path)}(?![\w/-])"
        text = re.sub(bounds, lambda _, name=entry.name: name, text)  # type: ignore[misc]
    return text


def zoo_names(values: object, checkpoints: Path | None = None) -> list[Renamed]:
    """Return the adapters and rewards of a recipe that are entries of the zoo under other names.

    A run names the reward that paid it, or the adapter that it began with, as it lay beside it;
    nobody else has that folder. What has an entry's very weights is that entry.

    Args:
        values: Content of a recipe.
        checkpoints: A folder of entries beside the zoo's own.
    """
    places = [t for key, t in _texts(values) if key.rpartition(".")[2] in ("adapter", "path")]
    here = [(text, entry_folder(Path(text).expanduser())) for text in dict.fromkeys(places)]
    here = [(text, folder) for text, folder in here if zoo_name(text) is None and is_entry(folder)]
    if not here:
        return []
    folders = [*sorted((checkpoints or Path("checkpoints")).glob("*")), *shipped_folders()]
    known = {
        tuple(sorted(read_json(folder / HASHES_FILE).items())): folder.name
        for folder in folders
        if (folder / HASHES_FILE).is_file()
    }
    found = []
    for text, folder in here:
        weights = tuple((path.name, sha256(path)) for path in sorted(folder.glob("*.safetensors")))
        if weights and weights in known:
            found.append(Renamed("", text, f"{ZOO}{known[weights]}"))
    return found


def _texts(values: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a recipe with its key."""
    if isinstance(values, Mapping):
        for name, inner in values.items():
            part = "" if name == "init_args" else str(name)
            yield from _texts(inner, ".".join(filter(None, (key, part))))
    elif isinstance(values, list | tuple):
        for inner in values:
            yield from _texts(inner, key)
    elif isinstance(values, str):
        yield key, values
