"""From files, folders, Hub ids and rows in memory to examples.

A source is ``sample`` (the task's bundled data) or ``sample:NAME`` (another's), a path of a
JSON-lines file (plain or ``.gz``), a folder that `datasets` can read, a Hub data set id, or a list
of these. Rows may also be in memory: a list of dicts, a ``datasets.Dataset``, or a ``DatasetDict``,
of which the split of the role is read. The format is told by the first row of each source: see
`llm_agents.data.rows`.

A Hub id may name more than the repository: ``owner/name/FOLDER@REVISION:SPLIT``.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

from llm_agents.data.base import DropReport, Example
from llm_agents.data.rows import FORMATS, RowError, RowFormat, UnusableRowError, format_of
from llm_agents.errors import UserError
from llm_agents.messages import quietly
from llm_agents.policies.bundled import cache_folder

Rows = Iterable[Mapping[str, Any]]
Source = str | Rows
Sources = str | list[str] | Rows
Role = Literal["train", "validation", "test"]
OnMalformed = Literal["error", "skip"]

SAMPLES = ("comet", "faithdial", "hha", "reddit", "reddit_neg", "wow")
_SAMPLE_ENDINGS = {"train": "", "validation": "_validation", "test": "_test"}

_HUB_ID = re.compile(
    r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<folder>[\w./-]+))?(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?"
)
_FILE_SUFFIXES = (".json", ".jsonl", ".gz", ".ndjson")


def read_examples(
    source: Sources,
    *,
    role: Role = "train",
    samples: str = "hha",
    on_malformed: OnMalformed = "error",
    roleless_paragraphs: Literal["drop", "keep"] = "drop",
) -> tuple[list[Example], DropReport]:
    """Read all examples of a source, in order.

    Args:
        source: ``"sample"``, a path, a Hub id, a list of these, or rows in memory.
        role: Which bundled sample, and which split of a data set without a named one.
        samples: Which bundled data ``sample`` stands for: ``hha``, ``comet``, ``reddit`` …
        on_malformed: Whether a row that can't be read stops the run or is skipped and counted.
        roleless_paragraphs: What becomes of paragraphs of an hh-rlhf dialogue that begin with no
            role: PRO's conversion drops them, ``"keep"`` leaves them in their turn.

    Returns:
        The examples, and what was left out.

    Raises:
        UserError: If a source is not found, is empty, or has a malformed row.
    """
    examples: list[Example] = []
    report = DropReport()
    sources = as_sources(source)
    if not sources:
        raise UserError(f"expected at least one {role} source, got an empty list")
    for one in sources:
        if isinstance(one, str):
            name = _bundled(one, samples, role)
            rows = _stored_rows(name, role)
        else:
            name, rows = source_name(one), _memory_rows(one, role)
        found, counts = _read_one(name, rows, on_malformed, roleless_paragraphs == "keep")
        examples += found
        report += counts
    return examples, report


def as_sources(source: Sources | list[Source] | None) -> list[Source]:
    """Return sources as a list; rows in memory are one source.

    Example:
        >>> as_sources("a.jsonl"), as_sources([{"prompt": "Hi"}])
        (['a.jsonl'], [[{'prompt': 'Hi'}]])
    """
    if source is None:
        return []
    if isinstance(source, str):
        return [source]
    if isinstance(source, list) and not any(_is_row(one) for one in source):
        return list(source)
    return [cast(Rows, source)]


def _is_row(value: object) -> bool:
    """Return whether a value is a row rather than a data set with splits, a mapping too."""
    return isinstance(value, Mapping) and type(value).__module__.partition(".")[0] != "datasets"


def source_name(source: Source) -> str:
    """Return a short name for results: ``harmless_base`` for ``…/harmless_base.json.gz``.

    Example:
        >>> source_name("data/helpful_base.json.gz"), source_name("owner/name:test")
        ('helpful_base', 'name-test')
        >>> source_name([{"prompt": "Hi"}])
        'rows'
    """
    if not isinstance(source, str):
        return "rows"
    name = source.rstrip("/").rsplit("/", 1)[-1]
    for suffix in (".gz", *_FILE_SUFFIXES):
        name = name.removesuffix(suffix)
    return re.sub(r"[^\w.-]+", "-", name)


def shown(source: Sources | list[Source] | None) -> str:
    """Return a source in words, for messages: rows in memory are counted, not printed."""
    names = [one if isinstance(one, str) else "rows in memory" for one in as_sources(source)]
    return ", ".join(names)


def _stored_rows(source: str, role: Role) -> Iterator[tuple[str, object]]:
    """Yield the rows of a file, a folder or a Hub data set, and where they are."""
    path = Path(source).expanduser()
    return _file_rows(path) if path.is_file() else dataset_rows(source, role)


def _memory_rows(source: Rows, role: Role) -> Iterator[tuple[str, object]]:
    """Yield the rows of a list or a `datasets` object, and where they are."""
    if isinstance(source, Mapping):
        if role not in source:
            raise UserError(
                f"expected the split {role!r} in the data set given for {role}, got "
                f"{', '.join(map(str, source)) or 'none'}: give one split of it"
            )
        source = source[role]
    for number, row in enumerate(source):
        yield f"rows[{number}]", row


def _read_one(
    name: str, rows: Iterable[tuple[str, object]], on_malformed: OnMalformed, keep_paragraphs: bool
) -> tuple[list[Example], DropReport]:
    """Read the rows of one source."""
    reader = _RowReader(name, on_malformed, keep_paragraphs)
    examples = [example for where, row in rows if (example := reader.read(where, row)) is not None]
    if not reader.report.rows:
        raise UserError(f"{name}: expected at least one row, got none")
    return examples, reader.report


class _RowReader:
    """Reads the rows of one file, whose format its first readable row tells."""

    def __init__(self, name: str, on_malformed: OnMalformed, keep_paragraphs: bool) -> None:
        self.name = name
        self.skip = on_malformed == "skip"
        self.keep_paragraphs = keep_paragraphs
        self.format: RowFormat | None = None
        self.report = DropReport()

    def read(self, where: str, row: object) -> Example | None:
        """Return the example of `row`, or None if it is left out."""
        self.report.rows += 1
        try:
            if isinstance(row, RowError):
                raise row
            if self.format is None:
                self.format = format_of(row)
            return FORMATS[self.format](row, {"source": self.name}, self.keep_paragraphs)
        except UnusableRowError as unusable:
            self.report.dropped[str(unusable)] += 1
        except RowError as fault:
            if not self.skip:
                raise UserError(
                    f"{where}: {fault}; correct the row, or leave it out with "
                    "data.rules.on_malformed: skip"
                ) from None
            self.report.dropped["malformed"] += 1
        return None


def _file_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield where each line of a JSON-lines file is, and its content or what is wrong with it."""
    number = 0
    is_gzip = path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield f"{path}:{number}", _parse(line, is_first=number == 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
        raise UserError(
            f"{path}:{number + 1}: expected a complete gzip file, got damaged data ({fault}): "
            "download or compress it again"
        ) from None


def _parse(line: bytes, *, is_first: bool) -> object:
    """Return the JSON value of a line, or the fault."""
    try:
        return json.loads(line.decode("utf-8-sig" if is_first else "utf-8"))
    except UnicodeDecodeError as fault:
        return RowError(f"expected UTF-8 text, got {fault}")
    except json.JSONDecodeError as fault:
        start = line[:60].decode("utf-8", errors="replace").strip()
        cure = " (a whole JSON array? `jq -c '.[]'` makes lines of it)" if start[0] == "[" else ""
        return RowError(f"expected one JSON object a line, got {start!r}: {fault}{cure}")


def sample_file(name: str) -> Path:
    """Return where a bundled sample is."""
    return Path(str(files("llm_agents.data") / "samples" / name))


def _bundled(source: str, samples: str, role: Role) -> str:
    """Return the path of a bundled sample; any other source is itself."""
    first, colon, name = source.partition(":")
    if first != "sample":
        return source
    path = sample_file(f"{name or samples}{_SAMPLE_ENDINGS[role]}.jsonl")
    if (colon and not name) or not path.is_file():
        raise UserError(
            f"expected `sample`, or `sample:` and one of {', '.join(SAMPLES)}, got {source!r}"
        )
    return str(path)


def dataset_rows(source: str, role: Role) -> Iterator[tuple[str, object]]:
    """Yield where each row of a `datasets` folder or Hub data set is, and its content.

    Raises:
        UserError: There is no such data set, or it has no such split.
    """
    folder_name, _, folder_split = source.rpartition(":")
    local = next((c for c in (source, folder_name) if c and Path(c).expanduser().is_dir()), None)
    match = _HUB_ID.fullmatch(source)
    if local is None and (match is None or source.endswith(_FILE_SUFFIXES)):
        raise UserError(
            f"expected {role} data at {source!r}: no such file, and it is no Hub data set id; "
            f"give a JSON-lines file, a folder, owner/name, or sample (looked in {Path.cwd()})"
        )
    if local is not None:
        split = folder_split if local == folder_name else role
        return _load_dataset(source, str(Path(local).expanduser()), split)
    assert match is not None  # told above
    return _load_dataset(
        source,
        match["name"],
        match["split"] or role,
        data_dir=match["folder"],
        revision=match["revision"],
    )


def _load_dataset(
    source: str,
    path: str,
    split: str,
    data_dir: str | None = None,
    revision: str | None = None,
) -> Iterator[tuple[str, object]]:
    """Yield the rows of one split."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    cache = str(cache_folder() / "datasets")
    try:
        with quietly():
            splits = load_dataset(path, data_dir=data_dir, revision=revision, cache_dir=cache)
    except DatasetNotFoundError as fault:
        raise UserError(
            f"expected the data set {source!r} as a file, a folder or on the Hub, found none of "
            f"them ({fault}); if it is private or gated, log in with `hf auth login`"
        ) from None
    except (DatasetsError, OSError, ValueError) as fault:
        raise UserError(
            f"expected to read the data set {source!r}, got {type(fault).__name__}: {fault}; "
            "download it and give its JSON-lines files if the Hub can't be reached"
        ) from None
    if split not in splits:
        raise UserError(
            f"expected the split {split!r} in {source!r}, got {', '.join(splits)}: name one of "
            f"these as {source.removesuffix(':' + split)}:SPLIT"
        )
    for number, row in enumerate(splits[split], start=1):
        yield f"{source}[{split}]:{number}", dict(row)
