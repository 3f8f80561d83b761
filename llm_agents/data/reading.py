"""From files, folders, Hub ids and rows in memory to examples.

A source is ``sample`` (the task's bundled data) or ``sample:NAME`` (another's), a path of a file
(JSON lines or an array, CSV or TSV, plain or compressed by gzip; parquet), a folder that `datasets`
can read or has saved, a Hub data set id, or a list of these. Rows may also be in memory: a list of
dicts, a ``datasets.Dataset``, or a ``DatasetDict``, of which the split of the role is read. The
layout of each row is told by its keys: see `llm_agents.data.rows`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

from llm_agents.data.base import DropReport, Example
from llm_agents.data.dataset_rows import FILE_SUFFIXES, Role, dataset_rows
from llm_agents.data.raw_rows import file_kind, file_rows
from llm_agents.data.row_fields import TEXT_KEYS, RowError, UnusableRowError, require_unicode
from llm_agents.data.rows import Layout, RowReading, read_row
from llm_agents.errors import UserError

Rows = Iterable[Mapping[str, Any]]
Source = str | Rows
Sources = str | list[str] | Rows
OnMalformed = Literal["error", "skip"]

SAMPLES = ("comet", "faithdial", "hha", "reddit", "reddit_neg", "wow")
_SAMPLE_ENDINGS = {"train": "", "validation": "_validation", "test": "_test"}


def read_examples(
    source: Sources,
    *,
    role: Role = "train",
    samples: str = "hha",
    on_malformed: OnMalformed = "error",
    roleless_paragraphs: Literal["drop", "keep"] = "keep",
) -> tuple[list[Example], DropReport]:
    """Read all examples of a source, in order.

    Args:
        source: ``"sample"``, a path, a Hub id, a list of these, or rows in memory.
        role: Which bundled sample, and which split of a data set without a named one.
        samples: Which bundled data ``sample`` stands for: ``hha``, ``comet``, ``reddit`` …
        on_malformed: Whether a row that can't be read stops the run or is skipped and counted.
        roleless_paragraphs: What becomes of paragraphs of an hh-rlhf dialogue that begin with no
            role: ``"keep"`` leaves them in their turn, PRO's conversion drops them.

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
    for suffix in (".gz", *FILE_SUFFIXES):
        name = name.removesuffix(suffix)
    return re.sub(r"[^\w.-]+", "-", name)


def shown(source: Sources | list[Source] | None) -> str:
    """Return a source in words, for messages: rows in memory are counted, not printed."""
    names = [one if isinstance(one, str) else "rows in memory" for one in as_sources(source)]
    return ", ".join(names)


def _stored_rows(source: str, role: Role) -> Iterator[tuple[str, object]]:
    """Yield the rows of a file, a folder or a Hub data set, and where they are."""
    path = Path(source).expanduser()
    if not path.is_file():
        return dataset_rows(source, role)
    if file_kind(path) in (".csv", ".tsv"):
        return ((where, _from_cells(row)) for where, row in file_rows(path))
    return file_rows(path)


def _from_cells(row: object) -> object:
    """Return a row of a CSV file with the values that its cells hold as text; empty ones are none.

    Lists and objects are written as JSON, or as Python prints them. Where a text is meant, only a
    list of messages is read so.
    """
    if not isinstance(row, Mapping):
        return row
    return {name: _value(name, cell) for name, cell in row.items() if cell.strip()}


def _value(name: str, cell: str) -> object:
    """Return what a cell holds."""
    found: object = cell
    if cell.lstrip().startswith(("[", "{")):
        try:
            found = json.loads(cell)
        except (ValueError, RecursionError):
            try:
                found = ast.literal_eval(cell.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                return cell
    elif name not in (*TEXT_KEYS, "responses", "references"):
        try:
            number = float(cell)
        except ValueError:
            return cell
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    if name not in TEXT_KEYS:
        return found
    is_dialogue = isinstance(found, list) and all(isinstance(one, Mapping) for one in found)
    return found if is_dialogue and found else cell


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
    """Reads the rows of one source."""

    def __init__(self, name: str, on_malformed: OnMalformed, keep_paragraphs: bool) -> None:
        self.name = name
        self.skip = on_malformed == "skip"
        self.layout: Layout | None = None
        self.report = DropReport()
        self.reading = RowReading(keep_paragraphs, self.report.changed)

    def read(self, where: str, row: object) -> Example | None:
        """Return the example of `row`, or None if it is left out."""
        self.report.rows += 1
        try:
            if isinstance(row, RowError):
                raise row
            require_unicode(row)
            example, layout, fields = read_row(
                row, {"source": self.name}, self.reading, self.layout
            )
        except UnusableRowError as unusable:
            self.report.dropped[str(unusable)] += 1
        except (RowError, RecursionError) as fault:
            if not self.skip:
                raise UserError(
                    f"{where}: {fault}; correct it, or leave it out with "
                    "data.rules.on_malformed: skip"
                ) from None
            self.report.dropped["malformed"] += 1
        else:
            self.layout = self.layout or layout
            self.report.layouts[f"{layout} ({', '.join(fields.read_keys)})"] += 1
            self.report.unread.update(fields.unread)
            return example
        return None


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
