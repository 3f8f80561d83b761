"""A store on disk for hidden states of token sequences, found by their content.

States are appended to data files, then a record of fixed size to an index: data first, so that a
process killed at any moment leaves a store that lacks its last sequences and is otherwise whole.
Reading copies nothing: the data files are memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from filelock import FileLock
from torch import Tensor

from llm_agents.errors import UserError

_logger = logging.getLogger(__name__)

_FORMAT_VERSION = 1
# key, data file, first token, tokens, checksum of the data; then the checksum of those.
_RECORD = struct.Struct("<32sIQII")
_RECORD_SIZE = _RECORD.size + 4
_GIB = 1024**3


class _Entry(NamedTuple):
    """Where one sequence's states lie."""

    file: int
    start: int
    length: int
    checksum: int


def content_key(token_ids: Sequence[int] | Tensor) -> bytes:
    """Return the key of a sequence: the SHA-256 digest of its token ids.

    Args:
        token_ids: ``[L]`` ids, prompt and response together, without padding.
    """
    ids = torch.as_tensor(token_ids, dtype=torch.int64, device="cpu")
    return hashlib.sha256(ids.contiguous().numpy().astype("<i8").tobytes()).digest()


class TrunkStore:
    """Hidden states ``[L, H]`` by content key, shared by every process that opens the folder.

    Writers take a lock for each `put`; readers need none and see what others have written since.

    Args:
        folder: Made if it isn't there. One store holds the states of one trunk: name the folder
            after everything that determines them.
        hidden_size: H.
        dtype: Precision of the states, kept exactly.
        max_file_bytes: A new data file is begun when one has reached this size.

    Raises:
        UserError: The folder can't be written, or holds states of another size or precision.
    """

    def __init__(
        self,
        folder: Path | str,
        hidden_size: int,
        dtype: torch.dtype,
        max_file_bytes: int = 4 * _GIB,
    ) -> None:
        self.folder = Path(folder)
        self.hidden_size = hidden_size
        self.dtype = dtype
        self._max_file_bytes = max_file_bytes
        self._token_bytes = hidden_size * dtype.itemsize
        self._entries: dict[bytes, _Entry] = {}
        self._verified: set[bytes] = set()
        self._ends: dict[int, int] = {}  # data file → tokens in it
        self._maps: dict[int, Tensor] = {}
        self._index_read = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.folder / ".lock")
            with self._lock:
                self._check_description()
        except OSError as error:
            raise UserError(
                f"can't write the trunk cache {self.folder}: {error.strerror}. Choose another "
                "folder, or set LLM_AGENTS_CACHE"
            ) from error
        self._refresh()

    def __len__(self) -> int:
        """Return the number of sequences, those of other processes included."""
        self._refresh()
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        """Tell whether the states of `key` are stored and undamaged."""
        return isinstance(key, bytes) and self._read(key) is not None

    @property
    def num_bytes(self) -> int:
        """Return the size of all states in bytes."""
        self._refresh()
        return sum(self._ends.values()) * self._token_bytes

    def describe(self) -> str:
        """Return one line about what is stored, for logs."""
        self._refresh()
        tokens = sum(self._ends.values())
        size = tokens * self._token_bytes / _GIB
        return (
            f"{len(self._entries):,} sequences, {tokens:,} tokens, {size:.2f} GiB "
            f"in {len(self._ends)} file(s) at {self.folder}"
        )

    def get(self, keys: Sequence[bytes]) -> list[Tensor | None]:
        """Return the states of each key, None where they are not stored.

        The tensors share memory with the file system's cache; changing one changes no file.

        Args:
            keys: Content keys, see `content_key`.

        Returns:
            ``[L, H]`` each, on the CPU, in the store's precision.
        """
        return [self._read(key) for key in keys]

    def read_padded(self, keys: Sequence[bytes], length: int | None = None) -> Tensor | None:
        """Return the states of several sequences in one right-padded tensor.

        Args:
            keys: Content keys.
            length: Width of the result; the longest sequence if None.

        Returns:
            ``[B, L, H]`` with zeros as padding, or None if any sequence is missing.
        """
        rows = self.get(keys)
        present = [row for row in rows if row is not None]
        if len(present) < len(rows) or not present:
            return None
        width = max(len(row) for row in present)
        if length is not None and length < width:
            raise ValueError(
                f"expected `length` of at least {width}, the longest row, got {length}"
            )
        padded = torch.empty(len(rows), length or width, self.hidden_size, dtype=self.dtype)
        for target, row in zip(padded, present, strict=True):
            target[: len(row)] = row
            target[len(row) :] = 0
        return padded

    def put(self, keys: Sequence[bytes], states: Sequence[Tensor]) -> None:
        """Store the states of each key; a key that is there already is left as it is.

        Args:
            keys: Content keys.
            states: ``[L, H]`` each, L at least 1, in the store's precision, on any device.

        Raises:
            UserError: The disk is full or the folder can't be written.
        """
        if len(keys) != len(states):
            raise ValueError(f"expected as many states as keys ({len(keys)}), got {len(states)}")
        for key, state in zip(keys, states, strict=True):
            self._check(key, state)
        try:
            with self._lock:
                self._refresh()
                self._append(dict(zip(keys, states, strict=True)))
        except OSError as error:
            raise UserError(
                f"can't write the trunk cache {self.folder}: {error.strerror}. Free some room, "
                "choose another folder, or switch the trunk cache off"
            ) from error

    def _check(self, key: bytes, state: Tensor) -> None:
        """Raise unless `key` and `state` fit this store."""
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes (see `content_key`), got {len(key)}")
        if state.dim() != 2 or state.shape[1] != self.hidden_size or not len(state):
            raise ValueError(
                f"expected states of shape (L, {self.hidden_size}) with L ≥ 1, "
                f"got {tuple(state.shape)}"
            )
        if state.dtype != self.dtype:
            raise TypeError(f"expected states in {self.dtype}, got {state.dtype}")

    def _check_description(self) -> None:
        """Write what the store holds if it is new; raise if it holds something else."""
        expected = {
            "format_version": _FORMAT_VERSION,
            "hidden_size": self.hidden_size,
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        path = self.folder / "store.json"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(expected) + "\n", encoding="utf-8")
            unfinished.replace(path)
            return
        found = json.loads(path.read_text(encoding="utf-8"))
        if found != expected:
            raise UserError(
                f"the trunk cache {self.folder} holds {found}, expected {expected}: choose another "
                "folder, or delete this one"
            )

    def _refresh(self) -> None:
        """Read the index records that were written since the last look."""
        path = self.folder / "index"
        size = path.stat().st_size if path.exists() else 0
        whole = size - size % _RECORD_SIZE  # what follows is the torn tail of a killed process
        if whole <= self._index_read:
            return
        with path.open("rb") as file:
            file.seek(self._index_read)
            data = file.read(whole - self._index_read)
        data_sizes: dict[int, int] = {}
        for at in range(0, len(data) - len(data) % _RECORD_SIZE, _RECORD_SIZE):
            record, checksum = data[at : at + _RECORD.size], data[at + _RECORD.size :][:4]
            if zlib.crc32(record).to_bytes(4, "little") != checksum:
                continue
            key, number, start, length, data_checksum = _RECORD.unpack(record)
            if number not in data_sizes:
                data_file = self._data_file(number)
                data_sizes[number] = data_file.stat().st_size if data_file.exists() else 0
            # A record without its data can only come from a power cut.
            if (start + length) * self._token_bytes <= data_sizes[number]:
                self._entries[key] = _Entry(number, start, length, data_checksum)
                self._ends[number] = max(self._ends.get(number, 0), start + length)
        self._index_read = whole

    def _append(self, states: dict[bytes, Tensor]) -> None:
        """Write the states that are not stored yet, then their records; the lock is held."""
        new = {key: state for key, state in states.items() if self._find(key) is None}
        if not new:
            return
        records = []
        number = max(self._ends, default=0)
        start = self._ends.get(number, 0)
        file = self._open(number)
        try:
            for key, state in new.items():
                if start and (start + len(state)) * self._token_bytes > self._max_file_bytes:
                    file.close()
                    number, start = number + 1, 0
                    file = self._open(number)
                # From the last indexed sequence on: what a killed process left is written over.
                file.seek(start * self._token_bytes)
                data = _bytes_of(state.detach().cpu().contiguous())
                file.write(data)
                record = _RECORD.pack(key, number, start, len(state), zlib.crc32(data))
                records.append(record + zlib.crc32(record).to_bytes(4, "little"))
                start += len(state)
        finally:
            file.close()
        with (self.folder / "index").open("ab") as index:
            index.truncate(self._index_read)  # drops a torn tail; the lock is held and all is read
            index.write(b"".join(records))
        self._refresh()

    def _open(self, number: int) -> BinaryIO:
        """Open a data file for writing anywhere in it."""
        path = self._data_file(number)
        path.touch()
        return path.open("r+b")

    def _data_file(self, number: int) -> Path:
        """Return the path of a data file."""
        return self.folder / f"states-{number:05d}.bin"

    def _find(self, key: bytes) -> _Entry | None:
        """Return where the states of `key` lie, looking for new records if it isn't known."""
        if key not in self._entries:
            self._refresh()
        return self._entries.get(key)

    def _read(self, key: bytes) -> Tensor | None:
        """Return the states of `key` from the memory map, checked when they are first read."""
        entry = self._find(key)
        if entry is None:
            return None
        end = entry.start + entry.length
        state = self._map(entry.file, end)[entry.start : end]
        if key not in self._verified:
            if zlib.crc32(_bytes_of(state)) != entry.checksum:
                _logger.warning(
                    "the trunk cache %s holds a damaged sequence, which will be computed again",
                    self.folder,
                )
                del self._entries[key]
                return None
            self._verified.add(key)
        return state

    def _map(self, number: int, end: int) -> Tensor:
        """Return a data file as ``[tokens, H]``, mapped at least up to token `end`."""
        mapped = self._maps.get(number)
        if mapped is None or len(mapped) < end:
            with self._data_file(number).open("rb") as file:
                # A private map: writable for torch's sake, without a way back to the file.
                size = self._ends[number] * self._token_bytes
                buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
            mapped = torch.frombuffer(buffer, dtype=self.dtype).view(-1, self.hidden_size)
            self._maps[number] = mapped
        return mapped


def _bytes_of(state: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor without copying them."""
    array = state.view(torch.uint8).numpy()
    return memoryview(array)  # type: ignore[arg-type]  # arrays are buffers; stubs say so from 3.12
