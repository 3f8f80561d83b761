"""From files as others publish them to rows: JSON lines, JSON arrays, CSV, TSV, the Hub.

A source is a file (plain or ``.gz``), a folder that `datasets` can read, or a Hub data set id as in
`llm_agents.data.reading`. Rows come one at a time: some of these files have millions.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from llm_agents.data.reading import Role, dataset_rows
from llm_agents.errors import UserError

RawRow = Mapping[str, object]
Sources = str | list[str]


def raw_rows(source: str, role: Role = "train") -> Iterator[tuple[str, RawRow]]:
    """Yield where each row of a source is, for messages, and its content.

    CSV files (``.csv``) are read with quote handling, their first line names the columns.

    Args:
        source: A file, a folder or a Hub id.
        role: Which split of a data set without a named one.

    Raises:
        UserError: It is not found, damaged, or a row is no object.
    """
    path = Path(source).expanduser()
    if not path.is_file():
        found: Iterator[tuple[str, object]] = dataset_rows(source, role)
    elif _kind(path) == ".csv":
        found = _csv_rows(path)
    else:
        found = _json_rows(path)
    for where, row in found:
        if not isinstance(row, Mapping):
            raise UserError(f"{where}: expected an object, got {type(row).__name__}")
        yield where, row


def tsv_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line of a tab-separated file is, and its fields.

    Quotes are characters like any other: such files have stray ones, at which a reader that
    handles quotes would join lines.
    """
    with _text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}:{number}", line.rstrip("\r\n").split("\t")


def is_tsv(source: str) -> bool:
    """Return whether a source is a tab-separated file, by its name."""
    return _kind(Path(source)) == ".tsv"


def text_field(row: RawRow, name: str, where: str) -> str:
    """Return a row's text, without blanks around it.

    Raises:
        UserError: There is no such text.
    """
    value = row.get(name)
    if not isinstance(value, str):
        came = f"no such key beside {', '.join(map(str, row))}" if name not in row else repr(value)
        raise UserError(f"{where}: expected text in `{name}`, got {came[:120]}")
    return value.strip()


def number_field(row: RawRow, name: str, where: str) -> float:
    """Return a row's number, which a CSV has as text.

    Raises:
        UserError: There is no such number.
    """
    value = row.get(name)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except ValueError:
        raise UserError(f"{where}: expected a number in `{name}`, got {value!r}") from None


def as_list(sources: Sources | None) -> list[str]:
    """Return sources as a list."""
    if sources is None:
        return []
    return [sources] if isinstance(sources, str) else list(sources)


def source_digest(source: str) -> str:
    """Return a digest of a file's bytes; of anything else its name."""
    path = Path(source).expanduser()
    if not path.is_file():
        return source
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kind(path: Path) -> str:
    """Return a file name's ending, ``.gz`` left out of account."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    """Open a file as text, plain or compressed."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as lines:
                yield lines
        else:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                yield lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
        raise UserError(
            f"{path}: expected a complete gzip file, got damaged data ({fault}): download or "
            "compress it again"
        ) from None
    except UnicodeDecodeError as fault:
        raise UserError(f"{path}: expected UTF-8 text, got {fault}") from None
    except OSError as fault:
        raise UserError(f"{path}: cannot be read: {fault.strerror or fault}") from None


def _csv_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the rows of a CSV file, by the names of its first line."""
    csv.field_size_limit(sys.maxsize)  # comments may be longer than Python's 131,072
    with _text(path) as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise UserError(
                        f"{where}: expected {len(reader.fieldnames or ())} fields like the first "
                        "line, got another number"
                    )
                yield where, row
        except csv.Error as fault:
            raise UserError(f"{path}:{reader.reader.line_num}: expected CSV, got {fault}") from None


def _json_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the items of a JSON array, or the lines of a file of JSON lines."""
    with _text(path) as lines:
        start, first = 1, lines.readline()
        while first and not first.strip():
            start, first = start + 1, lines.readline()
        if first.lstrip().startswith("["):
            yield from _array(path, first + lines.read())
            return
        for number, line in enumerate(_chained(first, lines), start):
            if line.strip():
                yield f"{path}:{number}", _parsed(line, f"{path}:{number}")
        if not first:
            raise UserError(f"{path}: expected at least one row, got an empty file")


def _array(path: Path, text: str) -> Iterator[tuple[str, object]]:
    """Yield the items of a JSON array."""
    values = _parsed(text, str(path))
    assert isinstance(values, Sequence)  # it begins with a bracket
    for number, value in enumerate(values, start=1):
        yield f"{path}[{number}]", value


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    """Yield a line that was read already, then the others."""
    if first:
        yield first
    yield from rest


def _parsed(text: str, where: str) -> object:
    """Return a JSON value."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as fault:
        raise UserError(f"{where}: expected JSON, got {text[:60].strip()!r}: {fault}") from None
