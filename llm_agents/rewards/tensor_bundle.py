"""The tensors of a TensorFlow checkpoint or saved model, read without TensorFlow.

A checkpoint is an index (a sorted table of keys and descriptions) and files of raw numbers. Nothing
in it is executed: a saved model's graph is never looked at.

Format: ``tensorflow/core/util/tensor_bundle`` and ``core/lib/io/table_format.txt`` (TensorFlow 2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_agents.errors import UserError

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_BLOCK_TRAILER_BYTES = 5  # one byte for the compression, four for a checksum
_STRING = 7
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_OPTIMIZER = ("optimizer/", "/.OPTIMIZER_SLOT/")  # its moments carry the variables' own names

Fields = dict[int, list[int | bytes]]


class _Entry(NamedTuple):
    """Where a tensor's numbers are."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


def read_checkpoint(path: str | Path) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of a checkpoint by the names of their variables.

    Where the checkpoint knows its variables' full names (Keras models do), these are the keys;
    else the checkpoint's own keys are. The optimizer's state is left out.

    Args:
        path: Folder of a saved model or checkpoint, or its ``….index`` file.

    Raises:
        UserError: There is no checkpoint, or it is damaged or of a form that is not read.
    """
    index = _index_file(Path(path))
    entries: dict[str, _Entry] = {}
    num_shards = 1
    try:
        for key, value in _table(index.read_bytes()):
            fields = _fields(value)
            if not key:
                num_shards = int(_number(fields, 1, 1))
            elif 7 not in fields and not _is_optimizers(key):  # 7: slices of a split variable
                entries[key.decode("utf8")] = _entry(fields)
        names = _full_names(index, entries, num_shards)
        return {
            names.get(key, key): _tensor(index, entry, num_shards)
            for key, entry in entries.items()
            if entry.dtype in _DTYPES
        }
    except (struct.error, IndexError, ValueError, OSError) as error:
        raise UserError(f"`{index}` is no TensorFlow checkpoint that is read: {error}") from error


def _is_optimizers(key: bytes) -> bool:
    """Return whether a key belongs to the optimizer's state."""
    text = key.decode("utf8")
    return text.startswith(_OPTIMIZER[0]) or _OPTIMIZER[1] in text


def _index_file(path: Path) -> Path:
    """Return the index of the checkpoint at `path`."""
    if path.suffix == ".index" and path.is_file():
        return path
    for folder in (path / "variables", path):
        found = sorted(folder.glob("*.index"))
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise UserError(f"expected one checkpoint in `{folder}`, found {names}: name one")
    raise UserError(f"expected a TensorFlow checkpoint at `{path}`: found no `….index` file")


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a sorted table."""
    if len(content) < _FOOTER_BYTES:
        raise ValueError("it is too short")
    footer = content[-_FOOTER_BYTES:]
    if struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("it does not end as one")
    _, place = _varint(footer, 0)
    _, place = _varint(footer, place)  # so far the place of the table's own metadata
    offset, place = _varint(footer, place)
    size, _ = _varint(footer, place)
    for _, handle in _block(content, offset, size):
        block_offset, after = _varint(handle, 0)
        block_size, _ = _varint(handle, after)
        yield from _block(content, block_offset, block_size)


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of one block; keys share the beginning of the key before."""
    block = content[offset : offset + size]
    if len(content) < offset + size + _BLOCK_TRAILER_BYTES:
        raise ValueError("a block is cut off")
    if content[offset + size]:
        raise ValueError("its index is compressed, which TensorFlow's own checkpoints are not")
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (num_restarts + 1)
    place, key = 0, b""
    while place < end:
        shared, place = _varint(block, place)
        rest, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + block[place : place + rest]
        place += rest
        yield key, block[place : place + length]
        place += length


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """Return the number at `place`, seven bits a byte, and the place after it."""
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
        shift += 7


def _fields(message: bytes) -> Fields:
    """Return a protocol buffer's fields by number."""
    found: Fields = {}
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, place = _varint(message, place)
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            value = int.from_bytes(message[place : place + width], "little")
            place += width
        elif kind == 2:
            length, place = _varint(message, place)
            value = message[place : place + length]
            place += length
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _number(fields: Fields, field: int, default: int = 0) -> int:
    """Return a number of a message."""
    value = fields.get(field, [default])[0]
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value


def _messages(fields: Fields, field: int) -> list[bytes]:
    """Return the messages or texts of a repeated field."""
    return [value for value in fields.get(field, []) if isinstance(value, bytes)]


def _entry(fields: Fields) -> _Entry:
    """Return where a tensor is."""
    shape: list[int] = []
    for message in _messages(fields, 2):
        shape += [_number(_fields(dim), 1) for dim in _messages(_fields(message), 2)]
    return _Entry(
        _number(fields, 1), tuple(shape), _number(fields, 3), _number(fields, 4), _number(fields, 5)
    )


def _content(index: Path, entry: _Entry, num_shards: int) -> bytes:
    """Return the bytes of a tensor."""
    name = f"{index.stem}.data-{entry.shard:05d}-of-{num_shards:05d}"
    with (index.parent / name).open("rb") as file:
        file.seek(entry.offset)
        content = file.read(entry.size)
    if len(content) != entry.size:
        raise ValueError(f"`{name}` is cut off")
    return content


def _tensor(index: Path, entry: _Entry, num_shards: int) -> NDArray[np.generic]:
    """Return a tensor's numbers."""
    numbers = np.frombuffer(_content(index, entry, num_shards), dtype=_DTYPES[entry.dtype])
    return numbers.reshape(entry.shape)


def _full_names(index: Path, entries: dict[str, _Entry], num_shards: int) -> dict[str, str]:
    """Return the variables' own names by checkpoint key, as the object graph tells them."""
    entry = entries.get(_GRAPH_KEY)
    if entry is None or entry.dtype != _STRING:
        return {}
    content = _content(index, entry, num_shards)
    length, place = _varint(content, 0)
    graph = content[place + 4 : place + 4 + length]  # after the checksum of the lengths
    names: dict[str, str] = {}
    for node in _messages(_fields(graph), 1):
        for attribute in _messages(_fields(node), 2):
            fields = _fields(attribute)
            full, key = _messages(fields, 2), _messages(fields, 3)
            if full and key and full[0] and not _is_optimizers(key[0]):
                names[key[0].decode("utf8")] = full[0].decode("utf8")
    return names if len(set(names.values())) == len(names) else {}
