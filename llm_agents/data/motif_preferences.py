"""A file of preferences while it is made: several processes write to it, and any may be killed.

The array is made at once at its full size, with every pair unknown, under a temporary name. From
then on single values are written in place, and only values that are known: so whatever a process
that was killed left behind, a value is right or unknown, and unknown pairs are what is left to do.
A record beside the array says how its values come about; other values don't go into it.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib import format as npy
from numpy.typing import NDArray

from llm_agents.errors import UserError
from llm_agents.rewards.annotator import UNKNOWN, Preferences

log = logging.getLogger(__name__)

Record = Mapping[str, object]


def record_digest(record: Record) -> str:
    """Return 8 hexadecimal digits that change with what a record says."""
    return hashlib.sha256(_as_text(record).encode()).hexdigest()[:8]


class PreferenceFile:
    """Preferences of N pairs on disk.

    Args:
        path: The array, which exists.
        num_pairs: N.
    """

    def __init__(self, path: Path, num_pairs: int) -> None:
        self.path, self.num_pairs = path, num_pairs
        self._offset = _offset(path, num_pairs)

    @classmethod
    def open(
        cls, path: Path, num_pairs: int, record: Record, *, start_over: range | None = None
    ) -> PreferenceFile:
        """Open the file of an annotation, made anew if it is not there.

        Args:
            path: The array; its record has the ending ``.json``.
            num_pairs: N.
            record: What the preferences depend on, as JSON values.
            start_over: Pairs that become unknown again, which must be claimed (see `claimed`). All
                of them may also change the record.

        Raises:
            UserError: The file was made in another way, is another data set's, or is damaged.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_hidden(path, "lock")):
            is_all = start_over is not None and len(start_over) == num_pairs
            if is_all and path.is_file():
                # Values first: whenever this is killed, no value stands under another's record.
                _write(path, _unknown(num_pairs))
                _write(path.with_suffix(".json"), _as_text(record).encode())
            elif not path.is_file():
                _write(path.with_suffix(".json"), _as_text(record).encode())
                _write(path, _unknown(num_pairs))
            else:
                _check_record(path, record)
                _restore_cut(path, num_pairs)
            file = cls(path, num_pairs)
            if start_over is not None and not is_all:
                file._put(start_over.start, np.full(len(start_over), UNKNOWN, dtype=np.int8))
        return file

    def read(self) -> Preferences:
        """Return ``[N]`` int8."""
        data = self.path.read_bytes()[self._offset :]
        preferences = np.frombuffer(data, dtype=np.int8)
        if len(preferences) != self.num_pairs or not ((preferences | 3) == 3).all():
            raise UserError(
                f"expected {self.num_pairs} preferences from 0 to 3 in `{self.path}`, found others:"
                " delete the file, or start over"
            )
        return preferences

    def write(self, index: NDArray[np.int64], preferences: Preferences) -> None:
        """Write the known ones of `preferences`, those of the pairs `index`, both ``[n]``."""
        known = preferences != UNKNOWN
        index, preferences = index[known], preferences[known]
        order = np.argsort(index)
        runs = np.flatnonzero(np.diff(index[order]) != 1) + 1
        for places in np.split(order, runs):
            if len(places):
                self._put(int(index[places[0]]), preferences[places])

    def flush(self) -> None:
        """Let what was written survive the machine, too."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())

    def _put(self, start: int, preferences: Preferences) -> None:
        """Write consecutive preferences in place; processes may write to other places meanwhile."""
        with self.path.open("r+b") as file:
            os.pwrite(file.fileno(), preferences.astype(np.int8).tobytes(), self._offset + start)


@contextmanager
def claimed(path: Path, part: range) -> Iterator[None]:
    """Be the only process that annotates the pairs `part` of a file inside.

    A claim is a locked file that is named after its pairs, so that chunks of any number exclude
    each other where they overlap; the lock of a process that was killed is gone with it.

    Args:
        path: The array, which need not exist yet.
        part: Pairs; none of them may be claimed by another.

    Raises:
        UserError: Another process annotates some of these pairs.
    """
    if not part:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_hidden(path, "lock")):
        for claim, other in _claims(path):
            if other.start < part.stop and part.start < other.stop:
                _expect_free(claim, other, path, part)
        mine = FileLock(_hidden(path, f"{part.start}-{part.stop}.claim.lock"))
        mine.acquire(timeout=0)
    try:
        yield
    finally:
        mine.release()


def _claims(path: Path) -> list[tuple[Path, range]]:
    """Return the claims on pairs of a file, those that processes left behind included."""
    pattern = re.compile(rf"\.{re.escape(path.stem)}\.(\d+)-(\d+)\.claim\.lock")
    found = [(other, pattern.fullmatch(other.name)) for other in sorted(path.parent.iterdir())]
    return [(other, range(int(m[1]), int(m[2]))) for other, m in found if m is not None]


def _expect_free(claim: Path, other: range, path: Path, part: range) -> None:
    """Take away a claim whose process is gone; raise if it isn't. The file's lock is held."""
    try:
        with FileLock(claim, timeout=0):
            claim.unlink(missing_ok=True)
    except Timeout as error:
        raise UserError(
            f"another process is annotating the pairs {other.start} to {other.stop - 1} of "
            f"`{path}`, and this chunk has {part.start} to {part.stop - 1}: let it finish, or take "
            "another chunk"
        ) from error


def _hidden(path: Path, ending: str) -> Path:
    """Return a hidden file beside `path`."""
    return path.with_name(f".{path.stem}.{ending}")


def _as_text(record: Record) -> str:
    """Return a record as JSON, the same for the same record."""
    return json.dumps(record, indent=2, sort_keys=True) + "\n"


def _unknown(num_pairs: int) -> bytes:
    """Return the bytes of an array file in which every pair is unknown."""
    file = io.BytesIO()
    npy.write_array(file, np.full(num_pairs, UNKNOWN, dtype=np.int8), allow_pickle=False)
    return file.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = _hidden(path, f"{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _check_record(path: Path, record: Record) -> None:
    """Raise unless the file was made as `record` says."""
    beside = path.with_suffix(".json")
    try:
        found: Any = json.loads(beside.read_text(encoding="utf8"))
    except FileNotFoundError as error:
        raise UserError(
            f"`{path}` was not made here, as nothing says how (`{beside.name}` is missing): choose "
            "another `name`"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(f"`{beside}` is not JSON: delete it together with `{path.name}`") from error
    expected = json.loads(_as_text(record))
    if found != expected:
        different = ", ".join(_differences(found, expected)) or "its form"
        raise UserError(
            f"`{path}` was made in another way ({different} differ): choose another `name`, or "
            "start over with all chunks as one"
        )


def _differences(found: Any, expected: Any, name: str = "") -> list[str]:  # noqa: ANN401  # JSON
    """Return where two JSON values differ, as dotted names."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return [] if found == expected else [name or "everything"]
    keys = [*expected, *(key for key in found if key not in expected)]
    return [
        place
        for key in keys
        for place in _differences(found.get(key), expected.get(key), f"{name}.{key}".strip("."))
    ]


def _offset(path: Path, num_pairs: int) -> int:
    """Return where the values of an array file begin.

    Raises:
        UserError: It is no array of `num_pairs` int8.
    """
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"version {version}")
            shape, _, dtype = npy.read_array_header_1_0(file)
            offset = file.tell()
    except (ValueError, EOFError) as error:
        raise UserError(
            f"`{path}` is no NumPy array ({error}): delete it; its pairs are then annotated anew"
        ) from error
    if shape != (num_pairs,) or dtype != np.int8:
        raise UserError(
            f"expected int8 of shape ({num_pairs},) in `{path}`, got {dtype} of {shape}: it is "
            "of other pairs; choose another `name`"
        )
    return offset


def _restore_cut(path: Path, num_pairs: int) -> None:
    """Give a file that was cut its size back; what was cut off is unknown."""
    missing = _offset(path, num_pairs) + num_pairs - path.stat().st_size
    if missing > 0:
        log.warning("`%s` was cut: %d pairs at its end are annotated again", path, missing)
        with path.open("ab") as file:
            file.write(bytes([UNKNOWN]) * missing)
            file.flush()
            os.fsync(file.fileno())
