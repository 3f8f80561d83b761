"""From files as others publish them to rows: JSON lines, JSON arrays, CSV, TSV, parquet, the Hub.

A source is a file (text plain or compressed by gzip), a folder that `datasets` can read, or a Hub
data set id as in `llm_agents.data.reading`. What a file is, is told by its first bytes, then by its
name. Rows come one at a time: some of these files have millions.
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

from llm_agents.data.dataset_rows import Role, arrow_rows, dataset_rows, parquet_rows
from llm_agents.data.row_fields import RowError, require_unicode
from llm_agents.errors import UserError

RawRow = Mapping[str, object]
Sources = str | list[str]

_GZIP = b"\x1f\x8b"
_ARCHIVES = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"\xfd7zXZ": "an xz archive",
    b"BZh": "a bzip2 archive",
}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


def raw_rows(source: str, role: Role = "train") -> Iterator[tuple[str, RawRow]]:
    """Yield where each row of a source is, for messages, and its content.

    CSV and TSV files are read with quote handling, their first line names the columns.

    Args:
        source: A file, a folder or a Hub id.
        role: Which split of a data set without a named one.

    Raises:
        UserError: It is not found, damaged, or a row is no object.
    """
    path = Path(source).expanduser()
    number = 0
    for where, row in file_rows(path) if path.is_file() else dataset_rows(source, role):
        number += 1
        if isinstance(row, RowError):
            raise UserError(f"{where}: {row}")
        if not isinstance(row, Mapping):
            raise UserError(f"{where}: expected an object, got {type(row).__name__}")
        yield where, row
    if not number:
        raise UserError(f"{source}: expected at least one row, got an empty file")


def file_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield where each row of a file is, and its content, or what is wrong with it as `RowError`.

    Raises:
        UserError: The file is none of those that are read.
    """
    kind = file_kind(path)
    if kind == ".parquet":
        return parquet_rows(path)
    if kind == ".arrow":
        return arrow_rows(path)
    if kind in (".csv", ".tsv"):
        return _csv_rows(path, "\t" if kind == ".tsv" else ",")
    return _json_rows(path)


def file_kind(path: Path) -> str:
    """Return how a file is read: ``.parquet``, ``.arrow``, ``.csv``, ``.tsv``, else JSON."""
    start = _start(path)
    if start.startswith(b"PAR1"):
        return ".parquet"
    for magic, name in _ARCHIVES.items():
        if start.startswith(magic):
            raise UserError(
                f"{path}: expected JSON, CSV, TSV or parquet, got {name}: unpack it, or save its "
                "rows as one of these"
            )
    return _kind(path)


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


def _start(path: Path) -> bytes:
    """Return the first bytes of a file."""
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as fault:
        raise UserError(f"{path}: cannot be read: {fault.strerror or fault}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open a file, whose first bytes tell whether it is compressed."""
    if _start(path).startswith(_GZIP) or path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def _lines(path: Path) -> Iterator[bytes | RowError]:
    """Yield the lines of a file; where it is damaged, what is wrong, and nothing more."""
    try:
        with _open(path) as lines:
            yield from lines
    except _DAMAGED as fault:
        yield RowError(
            f"expected a complete gzip file, got damaged data ({fault}) from here on: download or "
            "compress it again"
        )
    except OSError as fault:
        raise UserError(f"{path}: cannot be read: {fault.strerror or fault}") from None


def _decoded(line: bytes) -> str:
    """Return a line as text, without the mark that some programs begin files with."""
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise RowError(f"expected UTF-8 text, got {fault}: save the file as UTF-8") from None


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[str, object]]:
    """Yield the rows of a CSV file, by the names of its first line."""
    csv.field_size_limit(sys.maxsize)  # comments may be longer than Python's 131,072
    faults: list[RowError] = []
    reader = csv.DictReader(_csv_lines(path, faults), strict=True, delimiter=delimiter)
    while True:
        try:
            row = next(reader, None)
            where = f"{path}:{reader.reader.line_num}"
            if faults:
                yield where, faults.pop()
            elif row is None:
                return
            else:
                yield where, _checked(row, len(reader.fieldnames or ()))
        except csv.Error as fault:
            where = f"{path}:{reader.reader.line_num}"
            yield where, RowError(f"expected CSV, got {fault}")


def _csv_lines(path: Path, faults: list[RowError]) -> Iterator[str]:
    """Yield lines as text, bytes that are none escaped; what is damaged goes to `faults`."""
    for number, line in enumerate(_lines(path)):
        if isinstance(line, RowError):
            faults.append(line)
            return
        yield line.decode("utf-8-sig" if not number else "utf-8", errors="surrogateescape")


def _checked(row: dict[str, str], count: int) -> object:
    """Return a row of a CSV file, or what is wrong with it."""
    if None in row or None in row.values():
        return RowError(f"expected {count} fields like the first line, got another number")
    try:
        require_unicode(row)
    except RowError:
        return RowError("expected UTF-8 text, got other bytes: save the file as UTF-8")
    return row


def _json_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the items of a JSON array, or the lines of a file of JSON lines."""
    lines = _lines(path)
    head: list[bytes | RowError] = []
    filled = 0  # lines that are not blank
    for line in lines:
        head.append(line)
        filled += isinstance(line, RowError) or bool(line.strip())
        if filled == 2 or (filled and not _begins_array(head)):
            break
    if _begins_array(head) and (filled < 2 or not _is_value(head)):
        yield from _array(path, [*head, *lines])
        return
    for number, line in enumerate(_chained(head, lines), start=1):
        if isinstance(line, RowError):
            yield f"{path}:{number}", line
        elif line.strip():
            yield f"{path}:{number}", _parsed(line)


def _begins_array(lines: Sequence[bytes | RowError]) -> bool:
    """Return whether the first line that is not blank begins with a bracket."""
    filled = [line for line in lines if isinstance(line, RowError) or line.strip()]
    first = filled[0] if filled else b""
    return isinstance(first, bytes) and first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _is_value(lines: Sequence[bytes | RowError]) -> bool:
    """Return whether the first line that is not blank is a JSON value, or one far too deep."""
    first = next(line for line in lines if isinstance(line, RowError) or line.strip())
    try:
        json.loads(b"" if isinstance(first, RowError) else first.removeprefix(b"\xef\xbb\xbf"))
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _array(path: Path, lines: Sequence[bytes | RowError]) -> Iterator[tuple[str, object]]:
    """Yield the items of a JSON array, and where each of them begins."""
    last = lines[-1]
    try:
        text = "".join(_decoded(line) for line in lines if not isinstance(line, RowError))
    except RowError as fault:
        number = next(n for n, line in enumerate(lines, 1) if not _is_text(line))
        yield f"{path}:{number}", fault
        return
    place, line, item, at_end = text.index("[") + 1, 1, 0, False
    seen = 0  # up to where the line breaks are counted
    while not at_end:
        place = _after_blanks(text, place)
        line += text.count("\n", seen, place)
        seen, where = place, f"{path}:{line}"
        if text[place : place + 1] == "]" and not item:
            break
        try:
            value, place = _item(text, place)
        except (ValueError, RecursionError) as fault:
            yield where, last if isinstance(last, RowError) else _no_json(text[place:], fault)
            return
        item += 1
        yield f"{path}[{item}]", value
        place = _after_blanks(text, place)
        at_end = text[place : place + 1] != ","
        place += not at_end
    if text[place : place + 1] != "]" or text[place + 1 :].strip():
        rest = text[place : place + 60].strip()
        line += text.count("\n", seen, place)
        found = RowError(f"expected a comma or the array's only end, got {rest!r}")
        yield f"{path}:{line}", last if isinstance(last, RowError) else found


def _after_blanks(text: str, place: int) -> int:
    """Return the place of the next character that JSON has no blank for."""
    while text[place : place + 1] in (" ", "\t", "\r", "\n"):
        place += 1
    return place


def _is_text(line: bytes | RowError) -> bool:
    """Return whether a line is UTF-8."""
    try:
        return isinstance(line, RowError) or bool(_decoded(line) or True)
    except RowError:
        return False


def _chained(
    first: Sequence[bytes | RowError], rest: Iterator[bytes | RowError]
) -> Iterator[bytes | RowError]:
    """Yield lines that were read already, then the others."""
    yield from first
    yield from rest


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object, which may have no key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowError(f"expected every key once, got {twice!r} twice")
    return found


def _parsed(line: bytes) -> object:
    """Return the JSON value of a line, or what is wrong with it."""
    try:
        text = _decoded(line)
        return json.loads(text, object_pairs_hook=_object)
    except RowError as fault:
        return fault
    except (ValueError, RecursionError) as fault:
        return _no_json(text, fault)


def _item(text: str, place: int) -> tuple[object, int]:
    """Return an array's item, or what is wrong with its keys, and where it ends."""
    try:
        return json.JSONDecoder(object_pairs_hook=_object).raw_decode(text, place)
    except RowError as fault:
        return fault, json.JSONDecoder().raw_decode(text, place)[1]


def _no_json(text: str, fault: Exception) -> RowError:
    """Return what is wrong with a text that should be JSON."""
    start = text[:60].strip() if text.strip() else text[:20]
    return RowError(f"expected one JSON object a line, got {start!r}: {fault}")
