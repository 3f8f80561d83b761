"""Published learning curves of Motif, ``motif_results.pkl``, read without running what is in it.

A pickle is a program. This reader knows the handful of calls that plain lists, dictionaries,
numbers and NumPy arrays are made of, has its own stand-ins for them, and refuses every other name;
NumPy's own rebuilding, which trusts the file about its memory, is never called. The file's inner
names are not documented, so any nesting of task, method and seed is understood.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_agents.errors import UserError
from llm_agents.whole_files import write_text

_DEPTH = 12
_MOST_VALUES = 10_000_000
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[SU]\d{1,4}|O8?)")
_STEPS = re.compile(r"(env_?|time_?|total_?)*(steps?|frames?)|x")
_RETURNS = re.compile(r".*(return|reward|score).*|y")


@dataclass(frozen=True)
class PublishedCurve:
    """A learning curve of one seed.

    Args:
        task: As the file spells it.
        method: Likewise; empty where the file names none.
        seed: Number of the curve among those of its task and method.
        timesteps: ``[t]`` steps of the world.
        returns: ``[t]`` average return at each.
    """

    task: str
    method: str
    seed: int
    timesteps: tuple[float, ...]
    returns: tuple[float, ...]


def read_motif_results(path: str | Path) -> tuple[PublishedCurve, ...]:
    """Read learning curves from Motif's pickle, or from what `write_motif_results` wrote.

    Args:
        path: A file ending in ``.pkl``, ``.pickle`` or ``.json``.

    Raises:
        UserError: The file is missing or damaged, holds anything but plain values, or no curves.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"expected a file of learning curves, found none at `{path}`")
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"`{path}` is not JSON: {error}") from error
    else:
        found = read_plain_pickle(path)
    curves = tuple(_numbered(_curves(found, (), 0)))
    if not curves:
        raise UserError(
            f"found no learning curves in `{path}`: expected steps and returns of equal length, "
            f"by task and method; it holds {_sketch(found)}"
        )
    return curves


def write_motif_results(path: str | Path, curves: Sequence[PublishedCurve]) -> None:
    """Write curves as JSON: ``{task: {method: {"timesteps": [seed][t], "returns": [seed][t]}}}``.

    Args:
        path: Written under a temporary name and renamed.
        curves: Any number.
    """
    tree: dict[str, dict[str, dict[str, list[list[float]]]]] = {}
    for curve in sorted(curves, key=lambda curve: curve.seed):
        entry = tree.setdefault(curve.task, {}).setdefault(
            curve.method, {"timesteps": [], "returns": []}
        )
        entry["timesteps"].append(list(curve.timesteps))
        entry["returns"].append(list(curve.returns))
    write_text(Path(path), json.dumps(tree) + "\n")


# --- the pickle


def read_plain_pickle(path: Path) -> Any:  # noqa: ANN401  (whatever plain values are in it)
    """Return the plain values of a pickle: None, numbers, text, lists, dictionaries, arrays.

    Args:
        path: The file.

    Raises:
        UserError: It names a class or function that plain values don't need, or is damaged.
    """
    try:
        loaded = _PlainUnpickler(BytesIO(path.read_bytes())).load()
        return _plain(loaded, 0, itertools.count())
    except _RefusedError as error:
        raise UserError(
            f"`{path}` holds more than numbers, lists, dictionaries and arrays: {error}; it was "
            "not read, as opening such a file runs what its writer put there"
        ) from error
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise UserError(f"`{path}` is no whole pickle: {type(error).__name__}: {error}") from error


class _RefusedError(Exception):
    """A pickle asks for what plain values don't need."""


class _Dtype:
    """A type of numbers or text as a pickle spells it."""

    def __init__(self, name: object = "", *flags: object) -> None:
        del flags
        if not isinstance(name, str) or _DTYPE.fullmatch(name) is None:
            raise _RefusedError(f"arrays of type {name!r}")
        self.dtype = np.dtype(object) if "O" in name else np.dtype(name)

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "="
        if order == "<":
            self.dtype = self.dtype.newbyteorder("<")
        elif order == ">":
            self.dtype = self.dtype.newbyteorder(">")
        elif order not in ("|", "="):
            raise _RefusedError(f"a byte order of {order!r}")


class _Array:
    """An array before its contents are known."""

    value: Any = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _RefusedError("an array of another form")
        _, shape, dtype, is_fortran, content = state
        self.value = _array(content, dtype, shape, "F" if is_fortran else "C")


def _array(content: object, dtype: object, shape: object, order: object) -> Any:  # noqa: ANN401
    """Return an array, or nested lists where its items are objects."""
    if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
        raise _RefusedError("an array of another form")
    sizes = tuple(int(size) for size in shape)
    if min(sizes, default=0) < 0 or order not in ("C", "F"):
        raise _RefusedError(f"an array of shape {sizes} in order {order!r}")
    count = math.prod(sizes)
    if dtype.dtype == np.dtype(object):
        if not isinstance(content, list) or len(content) != count:
            raise _RefusedError("an array of objects whose size is wrong")
        items = np.empty(count, dtype=object)
        for place, item in enumerate(content):
            items[place] = item
        return items.reshape(sizes, order=order).tolist()
    if not isinstance(content, bytes | bytearray) or len(content) != count * dtype.dtype.itemsize:
        raise _RefusedError("an array whose size is wrong")
    return np.frombuffer(bytes(content), dtype.dtype).reshape(sizes, order=order)


def _reconstruct(*arguments: object) -> _Array:
    """Stand for NumPy's empty array."""
    del arguments
    return _Array()


def _from_buffer(content: object, dtype: object, shape: object, order: object) -> _Array:
    """Stand for NumPy's array over a buffer."""
    found = _Array()
    found.value = _array(content, dtype, shape, order)
    return found


def _scalar(dtype: object, content: object = b"") -> _Array:
    """Stand for one NumPy number."""
    found = _Array()
    found.value = _array(content, dtype, (1,), "C")[0]
    return found


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Stand for what protocol 2 writes in place of bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"text in the encoding {encoding!r}")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """Stand for empty bytes, which protocol 2 writes as a call."""
    return b""


def _new_dict(*arguments: object) -> dict[Any, Any]:
    """Stand for an ordered dictionary, or one with a default, before its entries."""
    del arguments
    return {}


_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _new_dict,
    ("collections", "defaultdict"): _new_dict,
    ("builtins", "list"): list,
    ("builtins", "dict"): _new_dict,
    ("builtins", "bytes"): _no_bytes,
}


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows stand-ins for plain values and nothing else."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        """Return the stand-in of a name; refuse every other."""
        module = module.replace("numpy._core", "numpy.core").replace("__builtin__", "builtins")
        found = _KNOWN.get((module, name))
        if found is None:
            raise _RefusedError(f"it asks for `{module}.{name}`")
        return found

    def persistent_load(self, pid: object) -> Any:  # noqa: ANN401
        """Refuse references to objects outside the file."""
        raise _RefusedError(f"it refers to {pid!r} outside the file")


def _plain(value: object, depth: int, count: Iterator[int]) -> Any:  # noqa: ANN401
    """Return a value with arrays in place of their stand-ins.

    A value may stand in many places of a small file, so what they come to together is bounded.
    """
    if depth > _DEPTH or next(count) > _MOST_VALUES:
        raise _RefusedError(f"more than {_MOST_VALUES:,} values, or nested more than {_DEPTH} deep")
    if isinstance(value, _Array):
        value = value.value
    if isinstance(value, dict):
        return {key: _plain(entry, depth + 1, count) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, depth + 1, count) for entry in value]
    if value is None or isinstance(value, str | bytes | int | float | np.ndarray | np.generic):
        return value
    raise _RefusedError(f"a value of type {type(value).__name__}")


# --- from any nesting to curves


def _curves(
    node: object, path: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]]:
    """Yield (path of names, steps, returns) of every curve below a node."""
    if depth > _DEPTH:
        return
    if isinstance(node, Mapping):
        steps = _entry(node, _STEPS)
        returns = _entry(node, _RETURNS)
        if steps is not None and returns is not None:
            yield from _paired(steps, returns, path)
            return
        for name, child in node.items():
            yield from _curves(child, (*path, str(name)), depth + 1)
    elif isinstance(node, list | np.ndarray) and _is_pair(node):
        yield from _paired(node[0], node[1], path)
    elif isinstance(node, list):
        for child in node:
            yield from _curves(child, path, depth + 1)


def _paired(
    steps: object, returns: object, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]]:
    """Yield the curves of steps and returns, which may both be divided by method."""
    if isinstance(returns, Mapping):
        for name, child in returns.items():
            own = steps.get(name) if isinstance(steps, Mapping) else steps
            yield from _paired(own, child, (*path, str(name)))
        return
    xs, ys = _seeds(steps), _seeds(returns)
    if len(xs) == 1:
        xs = xs * len(ys)
    if len(xs) != len(ys):
        return
    for x, y in zip(xs, ys, strict=True):
        if len(x) == len(y):
            yield path, x, y


def _is_pair(node: list[Any] | NDArray[Any]) -> bool:
    """Return whether two things without names are steps, which rise, and returns.

    Two seeds, each a pair of its own, look alike; but these share their steps.
    """
    if len(node) != 2:
        return False
    first, second = _seeds(node[0]), _seeds(node[1])
    if not first or not second or not all(_rises(row) for row in first):
        return False
    return not (len(first) == len(second) == 2 and first[0] == second[0])


def _rises(row: tuple[float, ...]) -> bool:
    """Return whether each number is larger than the one before."""
    return all(a < b for a, b in pairwise(row))


def _entry(node: Mapping[Any, Any], pattern: re.Pattern[str]) -> object:
    """Return the only entry whose name fits; None if there is none or more than one."""
    found = [
        value
        for name, value in node.items()
        if isinstance(name, str) and pattern.fullmatch(name.lower())
    ]
    return found[0] if len(found) == 1 else None


def _seeds(value: object) -> list[tuple[float, ...]]:
    """Return the rows of numbers: one for a flat sequence, none for anything else."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list) or not value:
        return []
    if all(_is_number(entry) for entry in value):
        return [tuple(float(entry) for entry in value)]
    rows = [_seeds(entry) for entry in value]
    return [row[0] for row in rows] if all(len(row) == 1 for row in rows) else []


def _is_number(value: object) -> bool:
    """Return whether a value is a real number."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _numbered(
    found: Iterator[tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]],
) -> Iterator[PublishedCurve]:
    """Yield curves with their number among those of the same task and method."""
    counts: dict[tuple[str, str], int] = {}
    for path, steps, returns in found:
        key = (path[0] if path else "", "/".join(path[1:]))
        yield PublishedCurve(*key, counts.get(key, 0), steps, returns)
        counts[key] = counts.get(key, 0) + 1


def _sketch(value: object, depth: int = 0) -> str:
    """Return the form of a value in a few words."""
    if isinstance(value, np.ndarray):
        form: NDArray[Any] = value
        return f"array {form.shape}"
    if isinstance(value, Mapping):
        names = ", ".join(
            f"{name!r}: {_sketch(entry, depth + 1)}" if depth < 2 else repr(name)
            for name, entry in list(value.items())[:4]
        )
        return f"{{{names}{', …' if len(value) > 4 else ''}}}"
    if isinstance(value, list):
        inner = _sketch(value[0], depth + 1) if value and depth < 3 else ""
        return f"list of {len(value)}{f' {inner}' if inner else ''}"
    return type(value).__name__
