"""Motif's data set of pairs on disk: arrays of the published names, opened memory-mapped.

``data/`` holds one array per observation key, ``info/`` one per fact of the source episode and
``preference/`` one per annotator; the first axis is the pair, the second the side of the pair.
Paper: arXiv 2310.00166, section 3. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike, NDArray

from llm_agents.envs.nethack_screen import message_text, status_text
from llm_agents.errors import UserError
from llm_agents.rewards.annotator import UNKNOWN

AnyArray = NDArray[Any]


class Field(NamedTuple):
    """Form of an array: what follows the pair and the side, and the type of a number.

    Args:
        shape: After ``[N, 2, L]`` in ``data/``, after ``[N, 2]`` in ``info/``.
        dtype: Not an object type.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike


def preference_path(folder: Path, annotator: str) -> Path:
    """Return the file of an annotator's preferences."""
    return folder / "preference" / f"{annotator}.npy"


@dataclass(frozen=True)
class MotifPairs:
    """Pairs of short stretches of play, opened for reading.

    Args:
        folder: Root of the data set.
        data: Memory-mapped ``[N, 2, L, …]`` by observation key.
        info: Memory-mapped ``[N, 2]`` by fact of the episode.
        preferences: Memory-mapped ``[N]`` int8 by annotator.
        visible: ``[M]`` int64, the pairs that every annotator knows; all without annotators.
        num_pairs: N.
    """

    folder: Path
    data: Mapping[str, AnyArray]
    info: Mapping[str, AnyArray]
    preferences: Mapping[str, AnyArray]
    visible: NDArray[np.int64]
    num_pairs: int

    @classmethod
    def open(
        cls,
        folder: Path | str,
        keys: Sequence[str] = ("message",),
        preferences: Sequence[str] = (),
    ) -> MotifPairs:
        """Open a data set.

        Args:
            folder: Root of the data set.
            keys: Names of arrays of ``data/`` or ``info/``.
            preferences: Names of annotators.

        Raises:
            UserError: A key has no file, a file is damaged, or the arrays don't belong together.
        """
        root = Path(folder)
        files = {part: _files_of(root / part) for part in ("data", "info", "preference")}
        missing = [key for key in keys if key not in files["data"] | files["info"]]
        missing += [name for name in preferences if name not in files["preference"]]
        if missing or not (keys or preferences):
            found = ", ".join(f"{part}/{key}" for part in files for key in sorted(files[part]))
            raise UserError(
                f"expected arrays {', '.join(f'`{key}`' for key in missing) or 'to open'} in the "
                f"pairs `{root}`, found {found or 'none'}: name others, or collect or annotate them"
            )
        data = {key: _mapped(files["data"][key]) for key in keys if key in files["data"]}
        info = {key: _mapped(files["info"][key]) for key in keys if key not in files["data"]}
        labels = {name: _mapped(files["preference"][name]) for name in preferences}
        count = _check_shapes(root, data, info, labels)
        visible = np.ones(count, dtype=bool)
        for name, label in labels.items():
            _check_labels(files["preference"][name], label)
            visible &= np.asarray(label) != UNKNOWN
        return cls(root, data, info, labels, np.flatnonzero(visible), count)

    @classmethod
    def create(
        cls,
        folder: Path | str,
        data: Mapping[str, AnyArray],
        info: Mapping[str, AnyArray] | None = None,
    ) -> MotifPairs:
        """Write arrays that are in memory as a new data set, and open it.

        Args:
            folder: Holds no pairs yet.
            data: ``[N, 2, L, …]`` by observation key, at least one.
            info: ``[N, 2]`` by fact.

        Raises:
            UserError: The folder holds pairs already.
            ValueError: The arrays don't belong together.
        """
        facts, data = dict(info or {}), dict(data)
        count, _, length = next(iter(data.values())).shape[:3]
        with pair_writer(
            Path(folder),
            num_pairs=count,
            length=length,
            data={key: Field(array.shape[3:], array.dtype) for key, array in data.items()},
            info={key: Field(array.shape[2:], array.dtype) for key, array in facts.items()},
        ) as arrays:
            for key, array in (data | facts).items():
                if array.shape != arrays[key].shape:
                    raise ValueError(
                        f"expected `{key}` of shape {arrays[key].shape} like the other arrays, "
                        f"got {array.shape}"
                    )
                arrays[key][...] = array
        return cls.open(folder, tuple(data | facts))

    @property
    def length(self) -> int:
        """Return L, the steps of a side; 1 where no observation is open."""
        return int(next(iter(self.data.values())).shape[2]) if self.data else 1

    def __len__(self) -> int:
        """Return the number of visible pairs."""
        return len(self.visible)

    def __getitem__(self, place: int) -> dict[str, Any]:
        """Return a visible pair: ``idx``, each array's entry, and ``<annotator>_pref``."""
        row = int(self.visible[place])
        item: dict[str, Any] = {"idx": place % len(self.visible)}
        for key, array in {**self.data, **self.info}.items():
            entry = np.array(array[row])
            item[key] = entry.astype(np.int32) if key == "blstats" else entry
        for name, label in self.preferences.items():
            item[f"{name}_pref"] = int(label[row])
        return item

    def labels(self, annotator: str) -> NDArray[np.int8]:
        """Return ``[M]`` int8: an annotator's preference of each visible pair."""
        return np.asarray(self.preferences[annotator])[self.visible].astype(np.int8)

    def fingerprint(self) -> str:
        """Return a digest of the open arrays' contents: part of every cache key."""
        digest = hashlib.sha256()
        for part in (self.data, self.info, self.preferences):
            for key in sorted(part):
                digest.update(f"{key} {part[key].shape} {part[key].dtype} ".encode())
                for start in range(0, self.num_pairs, 4096):
                    digest.update(np.ascontiguousarray(part[key][start : start + 4096]).tobytes())
        return digest.hexdigest()


@contextmanager
def pair_writer(
    folder: Path,
    *,
    num_pairs: int,
    length: int,
    data: Mapping[str, Field],
    info: Mapping[str, Field],
) -> Iterator[dict[str, AnyArray]]:
    """Give writable memory-mapped arrays that become the data set when the block ends well.

    Until then they are hidden files in a folder of their own; a block that fails leaves no pairs.

    Args:
        folder: Root of the data set; holds no pairs yet.
        num_pairs: N.
        length: L.
        data: Observation keys.
        info: Facts of the episodes.

    Raises:
        UserError: The folder holds pairs already.
        ValueError: There is no pair, no step or no key.
    """
    if num_pairs < 1 or length < 1 or not data or set(data) & set(info):
        raise ValueError(
            f"expected pairs, steps and keys that differ, got {num_pairs} pairs of {length} steps "
            f"of {sorted(data)} and {sorted(info)}"
        )
    if _files_of(folder / "data"):
        raise UserError(f"the folder `{folder}` holds pairs already: choose another, or delete it")
    wanted = {
        folder / "data" / f"{key}.npy": (key, (num_pairs, 2, length, *field.shape), field.dtype)
        for key, field in data.items()
    } | {
        folder / "info" / f"{key}.npy": (key, (num_pairs, 2, *field.shape), field.dtype)
        for key, field in info.items()
    }
    arrays: dict[str, AnyArray] = {}
    hidden: dict[Path, Path] = {}
    with ExitStack() as undo:
        for path, (key, shape, dtype) in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden[path] = path.with_name(f".{path.name}.{os.getpid()}")
            undo.callback(hidden[path].unlink, missing_ok=True)
            arrays[key] = open_memmap(hidden[path], mode="w+", dtype=dtype, shape=shape)
        yield arrays
        for array in arrays.values():
            array.flush()  # type: ignore[attr-defined]  # a memmap
        # Observations last: whoever sees one of them finds every fact.
        for path in sorted(wanted, key=lambda path: path.parent.name, reverse=True):
            os.replace(hidden[path], path)


# --- captions


def group_messages(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Collapse runs of equal messages and leave out empty ones, which end a run nevertheless.

    Args:
        texts: Of L consecutive steps.

    Returns:
        The groups, a run of c > 1 as ``text (xc)``, and the first step of each; ``[0]`` if there is
        no group.

    Example:
        >>> group_messages(["a", "a", "", "b"])
        (['a (x2)', 'b'], [0, 3])
    """
    groups: list[str] = []
    starts: list[int] = []
    first = 0
    for place in range(1, len(texts) + 1):
        if place < len(texts) and texts[place] == texts[first]:
            continue
        if texts[first]:
            count = place - first
            groups.append(texts[first] if count == 1 else f"{texts[first]} (x{count})")
            starts.append(first)
        first = place
    return groups, starts or [0]


def caption(messages: AnyArray, blstats: AnyArray | None = None) -> str:
    """Return what a language model is told of one side of a pair.

    Args:
        messages: ``[L, 256]`` uint8.
        blstats: ``[L, 27]``; None leaves the statistics out.
    """
    groups, starts = group_messages([message_text(message) for message in messages])
    if blstats is None:
        return "\n".join(groups)
    stats = [status_text(blstats[start]) for start in starts]
    return "\n".join(
        f"{group} {stat}" if group else stat
        for group, stat in zip(groups or [""], stats, strict=True)
    )


@dataclass(frozen=True)
class CaptionTable:
    """The captions of many pairs, each distinct one once.

    Args:
        texts: K distinct captions, in the order in which they first come.
        index: ``[M, 2]`` int64, the caption of each side of each pair.
        counts: ``[K]`` int64, how often each occurs.
    """

    texts: tuple[str, ...]
    index: NDArray[np.int64]
    counts: NDArray[np.int64]


def caption_table(
    pairs: MotifPairs, rows: NDArray[np.int64] | None = None, *, with_stats: bool = False
) -> CaptionTable:
    """Return the captions of pairs; a side that has been seen is not put into words again.

    Args:
        pairs: With ``message`` open, and ``blstats`` for statistics.
        rows: ``[M]`` numbers of pairs among all N; None takes the visible ones.
        with_stats: Add the status line's numbers.

    Raises:
        ValueError: The arrays that it needs are not open.
    """
    needed = ("message", "blstats") if with_stats else ("message",)
    if any(key not in pairs.data for key in needed):
        raise ValueError(f"expected {needed} to be open, got {tuple(pairs.data)}")
    chosen = pairs.visible if rows is None else rows
    index = np.empty((len(chosen), 2), dtype=np.int64)
    places: dict[str, int] = {}
    known: dict[bytes, int] = {}
    for start in range(0, len(chosen), 4096):
        part = chosen[start : start + 4096]
        arrays = [np.asarray(pairs.data[key][part]) for key in needed]
        for pair in range(len(part)):
            for side in range(2):
                sides = [array[pair, side] for array in arrays]
                key = b"".join(array.tobytes() for array in sides)
                if key not in known:
                    known[key] = places.setdefault(caption(*sides), len(places))
                index[start + pair, side] = known[key]
    counts = np.bincount(index.ravel(), minlength=len(places)).astype(np.int64)
    return CaptionTable(tuple(places), index, counts)


# --- which stretches of play make pairs


class Stretch(NamedTuple):
    """L consecutive steps of an episode.

    Args:
        episode: Its number.
        start: Its first step.
    """

    episode: int
    start: int


def sample_pairs(lengths: Sequence[int], length: int, seed: int) -> list[tuple[Stretch, Stretch]]:
    """Draw the pairs of a data set from recorded episodes.

    An episode of T steps gives ⌊T / L⌋ stretches, drawn without replacement from its T − L + 1
    starts, so that they may overlap; those of all episodes are shuffled together, and neighbors
    make pairs. One that is left over is dropped.

    Args:
        lengths: T of each episode.
        length: L, ≥ 1.
        seed: Another seed draws others.
    """
    generator = np.random.default_rng(seed)
    pool: list[Stretch] = []
    for number, steps in enumerate(lengths):
        if steps >= length:
            starts = generator.choice(steps - length + 1, size=steps // length, replace=False)
            pool += [Stretch(number, int(start)) for start in starts]
    order = generator.permutation(len(pool))
    shuffled = [pool[place] for place in order[: len(pool) // 2 * 2]]
    return list(zip(shuffled[::2], shuffled[1::2], strict=True))


# --- reading


def _files_of(folder: Path) -> dict[str, Path]:
    """Return the arrays of a folder by key: the file's name up to its first dot."""
    if not folder.is_dir():
        return {}
    files = sorted(path for path in folder.glob("*.npy") if not path.name.startswith("."))
    return {path.name.split(".")[0]: path for path in files}


def _mapped(path: Path) -> AnyArray:
    """Open an array read-only without reading it."""
    try:
        array: AnyArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(
            f"expected a whole NumPy array of plain numbers in `{path}`: {error}; copy it again"
        ) from error
    return array


def _check_shapes(
    root: Path,
    data: Mapping[str, AnyArray],
    info: Mapping[str, AnyArray],
    labels: Mapping[str, AnyArray],
) -> int:
    """Return N; raise if two arrays disagree about it, or about the other axes that they share."""
    heads: dict[str, tuple[int, ...]] = {}
    faults: list[str] = []
    first = next(iter([*data.values(), *info.values(), *labels.values()]))
    count = int(first.shape[0]) if first.ndim else 0
    length = next((array.shape[2] for array in data.values() if array.ndim > 2), 1)
    for part, arrays, expected in (
        ("data", data, (count, 2, length)),
        ("info", info, (count, 2)),
        ("preference", labels, (count,)),
    ):
        for key, array in arrays.items():
            head = array.shape if part == "preference" else array.shape[: len(expected)]
            heads[f"{part}/{key}"] = tuple(array.shape)
            if tuple(head) != expected:
                faults.append(f"{part}/{key} begins {expected}")
    if not count and not faults:
        raise UserError(f"expected at least one pair in `{root}`, got none: collect pairs first")
    if faults:
        found = ", ".join(f"{name} {shape}" for name, shape in heads.items())
        raise UserError(
            f"expected the pairs `{root}` to have arrays of one size ({'; '.join(faults)}), got "
            f"{found}: their files are of different data sets or were cut"
        )
    return count


def _check_labels(path: Path, label: AnyArray) -> None:
    """Raise if preferences are not 0 to 3."""
    values = np.unique(label)
    if label.dtype.kind not in "iu" or any(value not in range(4) for value in values.tolist()):
        raise UserError(
            f"expected whole numbers from 0 to 3 in the preferences `{path}`, got {label.dtype} "
            f"with {', '.join(str(value) for value in values[:8])}"
        )
