"""Pairs of observations in memory: each distinct observation once, and which pairs it is in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_agents.data.motif_layout import MotifPairs
from llm_agents.errors import UserError
from llm_agents.types import MessageObservations, MessagePairs

_CHUNK = 8192


class Distinct(NamedTuple):
    """Which observations of some pairs are equal.

    Args:
        steps: ``[P, 2, L]`` int64, the distinct observation of each step.
        first: ``[M, 3]`` int64: pair (of all N), side and step where each occurs first.
    """

    steps: Tensor
    first: NDArray[np.int64]


def find_distinct(pairs: MotifPairs, keys: Sequence[str]) -> Distinct:
    """Find the distinct observations of the visible pairs, by the exact bytes of some keys.

    Args:
        pairs: With `keys` open.
        keys: Arrays of ``data/``; two observations are equal where all of these are.
    """
    length = pairs.length
    places: dict[bytes, int] = {}
    first: list[tuple[int, int, int]] = []
    index = np.empty((len(pairs.visible), 2, length), dtype=np.int64)
    for start in range(0, len(pairs.visible), _CHUNK):
        chosen = pairs.visible[start : start + _CHUNK]
        rows = _bytes_of([pairs.data[key][chosen] for key in keys], len(chosen) * 2 * length)
        _, where, inverse = np.unique(rows, return_index=True, return_inverse=True)
        found = np.empty(len(where), dtype=np.int64)
        for number, place in enumerate(where.tolist()):
            name = hashlib.blake2b(rows[place].tobytes(), digest_size=16).digest()
            if name not in places:
                pair, side, step = np.unravel_index(place, (len(chosen), 2, length))
                places[name] = len(first)
                first.append((int(chosen[pair]), int(side), int(step)))
            found[number] = places[name]
        index[start : start + len(chosen)] = found[inverse.ravel()].reshape(-1, 2, length)
    return Distinct(torch.from_numpy(index), np.array(first, dtype=np.int64).reshape(-1, 3))


def _bytes_of(arrays: Sequence[NDArray[Any]], count: int) -> NDArray[np.void]:
    """Return ``[count]`` items, each the bytes of one observation."""
    flat = [np.ascontiguousarray(array).reshape(count, -1).view(np.uint8) for array in arrays]
    joined = np.ascontiguousarray(np.concatenate(flat, 1))
    items: NDArray[np.void] = joined.view(np.dtype((np.void, joined.shape[1])))[:, 0]
    return items


@dataclass(frozen=True)
class PairTable:
    """Known pairs with their preferences; messages in memory, larger observations on disk.

    Args:
        pairs: Opened with one annotator.
        keys: What observations hold beside the message.
        distinct: Which observations are equal.
        messages: ``[M, 256]`` uint8, of the distinct observations.
        preferences: ``[P]`` int64.
        scores: ``[P, 2]`` float64; NaN where the data set has none.
    """

    pairs: MotifPairs
    keys: tuple[str, ...]
    distinct: Distinct
    messages: Tensor
    preferences: Tensor
    scores: Tensor

    @classmethod
    def read(cls, pairs: MotifPairs, annotator: str, keys: Sequence[str]) -> PairTable:
        """Read what is needed of a data set.

        Args:
            pairs: With `keys` and the annotator open; ``score`` too if there are scores.
            annotator: Whose preferences.
            keys: What the observations are to hold; ``message`` is always among it.

        Raises:
            UserError: A key's shape or type is not the game's.
        """
        wanted = ("message", *(key for key in keys if key != "message"))
        for key, shape in (("message", (256,)), ("blstats", (27,)), ("glyphs", (21, 79))):
            if key in wanted and pairs.data[key].shape[3:] != shape:
                raise UserError(
                    f"expected `data/{key}` of shape (N, 2, L, {', '.join(map(str, shape))}) in "
                    f"`{pairs.folder}`, got {pairs.data[key].shape}"
                )
        if pairs.data["message"].dtype != np.uint8:
            raise UserError(
                f"expected `data/message` of bytes (uint8) in `{pairs.folder}`, got "
                f"{pairs.data['message'].dtype}"
            )
        distinct = find_distinct(pairs, wanted)
        scores = np.full((len(pairs.visible), 2), np.nan)
        if "score" in pairs.info:
            scores = np.asarray(pairs.info["score"][pairs.visible], dtype=np.float64)
        return cls(
            pairs,
            wanted,
            distinct,
            torch.from_numpy(_taken(pairs, "message", distinct.first)),
            torch.from_numpy(pairs.labels(annotator).astype(np.int64)),
            torch.from_numpy(scores),
        )

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.preferences)

    def observations(self, numbers: Tensor) -> MessageObservations:
        """Return the distinct observations `numbers` (``[K]`` int64)."""
        parts: dict[str, Tensor] = {"message": self.messages[numbers]}
        first = self.distinct.first[numbers.numpy()]
        for key in self.keys[1:]:
            found = _taken(self.pairs, key, first)
            parts[key] = torch.from_numpy(found.astype(np.int64))
        return MessageObservations(**parts)

    def batch(self, places: Sequence[int] | Tensor) -> MessagePairs:
        """Return the pairs at `places`, each distinct observation among them once."""
        chosen = torch.as_tensor(places)
        numbers, index = torch.unique(self.distinct.steps[chosen], return_inverse=True)
        return MessagePairs(
            observations=self.observations(numbers),
            index=index,
            preferences=self.preferences[chosen],
            rows=torch.from_numpy(self.pairs.visible)[chosen],
            scores=self.scores[chosen],
        )

    def counts(self, places: Tensor) -> Tensor:
        """Return ``[M]`` int64: how often each distinct observation occurs in the pairs."""
        numbers = self.distinct.steps[places].flatten()
        return torch.bincount(numbers, minlength=len(self.messages))

    def chunks(self, numbers: Tensor, size: int) -> Iterator[MessageObservations]:
        """Yield the distinct observations `numbers`, `size` at a time."""
        for part in torch.split(numbers, size):
            yield self.observations(part)


def _taken(pairs: MotifPairs, key: str, first: NDArray[np.int64]) -> NDArray[Any]:
    """Return ``[K, …]``: the entries of an array at (pair, side, step)."""
    return np.ascontiguousarray(pairs.data[key][first[:, 0], first[:, 1], first[:, 2]])
