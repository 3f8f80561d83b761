"""Which rows make up each micro-batch: a stream that position and seed decide.

The rows of one optimizer step (all its micro-batches, of all processes) are drawn first. Only then
are they sorted by length and cut into micro-batches, so that sorting never changes which rows a
step learns from. Since a step's rows follow from the seed and the step's number alone, the whole
state of the sampler is one number, and any process can compute any other's share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepShape:
    """How many rows an optimizer step takes, and how they are dealt out.

    Args:
        batch_size: Rows of a micro-batch.
        accumulation: Micro-batches of a process in one optimizer step.
        rank: This process.
        world_size: Processes.
    """

    batch_size: int
    accumulation: int = 1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("batch_size", "accumulation", "world_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected `{name}` of at least 1, got {getattr(self, name)}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"expected `rank` below {self.world_size}, got {self.rank}")

    @property
    def rows(self) -> int:
        """Return the rows of one optimizer step over all processes."""
        return self.batch_size * self.accumulation * self.world_size


class StepSampler:
    """Deals out the rows of every micro-batch of one process.

    Uniform (`weights` None): all rows in a new random order each time round, without replacement.
    The stream runs on across the ends of rounds, so that every step is full, whatever the number of
    rows; each row comes exactly once in every R.
    Weighted: every row of every step is drawn by itself with probability in proportion to its
    weight, with replacement, so that a row may come twice in a step; rows of weight 0 never come.

    Args:
        lengths: ``[R]`` int64, tokens of each row, for sorting within a step.
        shape: Size of a step, and this process's place.
        seed: Decides the stream.
        weights: ``[R]``, at least 0 and finite, not all 0; None is uniform.
        num_batches: Micro-batches of this process in one round (a trainer's "epoch"); None is the
            fewest whole steps that reach every row.

    Attributes:
        position: Micro-batches of this process handed out so far.
    """

    def __init__(
        self,
        lengths: Tensor,
        shape: StepShape,
        *,
        seed: int,
        weights: Tensor | None = None,
        num_batches: int | None = None,
    ) -> None:
        if lengths.dim() != 1 or not len(lengths):
            raise ValueError(f"expected `lengths` of shape (R,), R ≥ 1, got {tuple(lengths.shape)}")
        if num_batches is not None and num_batches < 1:
            raise ValueError(f"expected `num_batches` of at least 1, got {num_batches}")
        self.lengths = lengths
        self.shape = shape
        self.seed = seed
        self.position = 0
        self._cumulated = None if weights is None else _cumulate(weights, len(lengths))
        self._num_batches = num_batches
        self._order = lru_cache(maxsize=2)(self._order_of_round)
        self._step = lru_cache(maxsize=2)(self._rows_of_step)

    def __len__(self) -> int:
        """Return the micro-batches of one round."""
        if self._num_batches is not None:
            return self._num_batches
        return math.ceil(len(self.lengths) / self.shape.rows) * self.shape.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        """Yield one round of micro-batches from `position` on, moving it as they are handed out."""
        for _ in range(len(self)):
            batch = self.batch(self.position)
            self.position += 1
            yield batch

    def reweigh(self, weights: Tensor) -> None:
        """Draw by other weights from the next step on.

        Args:
            weights: ``[R]``, at least 0 and finite, not all 0.

        Raises:
            ValueError: The rows were drawn evenly until now.
        """
        if self._cumulated is None:
            raise ValueError("expected a sampler with weights: this one shuffles its rows")
        self._cumulated = _cumulate(weights, len(self.lengths))
        self._step.cache_clear()

    def batch(self, position: int) -> list[int]:
        """Return the rows of this process's micro-batch number `position`, longest first."""
        step, turn = divmod(position, self.shape.accumulation)
        start = (turn * self.shape.world_size + self.shape.rank) * self.shape.batch_size
        return self._step(step)[start : start + self.shape.batch_size].tolist()

    def state_dict(self) -> dict[str, int]:
        """Return what a resumed run needs."""
        return {"position": self.position, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where the saved run stood, in its stream."""
        self.position, self.seed = state["position"], state["seed"]
        self._order.cache_clear()
        self._step.cache_clear()

    def _rows_of_step(self, step: int) -> Tensor:
        """Return the rows of one step over all processes, longest first."""
        if self._cumulated is None:
            rows = self._shuffled(step * self.shape.rows, self.shape.rows)
        else:
            generator = _generator(self.seed, 1, step)
            draws = torch.rand(self.shape.rows, generator=generator, dtype=torch.float64)
            rows = draw(self._cumulated, draws)
        return rows[torch.argsort(self.lengths[rows], descending=True, stable=True)]

    def _shuffled(self, start: int, count: int) -> Tensor:
        """Return rows `start` to `start + count` of the endless shuffled stream."""
        parts = []
        while count:
            number, offset = divmod(start, len(self.lengths))
            part = self._order(number)[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return torch.cat(parts)

    def _order_of_round(self, number: int) -> Tensor:
        """Return the order of all rows in one round."""
        return torch.randperm(len(self.lengths), generator=_generator(self.seed, 0, number))


def draw(cumulated: Tensor, draws: Tensor) -> Tensor:
    """Return the rows on which uniform numbers fall.

        row = the first whose cumulated weight exceeds u · total

    Args:
        cumulated: ``[R]`` float64, running sums of weights.
        draws: ``[N]`` float64 in [0, 1).

    Returns:
        ``[N]`` int64; a row of weight 0 is never among them.

    Example:
        >>> draw(torch.tensor([0.0, 0.25, 1.0]), torch.tensor([0.0, 0.2, 0.25, 0.9])).tolist()
        [1, 1, 2, 2]
    """
    total = cumulated[-1]
    last = int(torch.searchsorted(cumulated, total))  # the last row of positive weight
    return torch.searchsorted(cumulated, draws * total, right=True).clamp(max=last)


def padding_share(lengths: Tensor, batches: list[list[int]]) -> float:
    """Return the share of padding when each batch is padded to its longest row.

    Args:
        lengths: ``[R]`` int64 tokens of each row.
        batches: Rows of each batch.
    """
    padded = sum(len(rows) * int(lengths[rows].max()) for rows in batches)
    return 1 - sum(int(lengths[rows].sum()) for rows in batches) / padded if padded else 0.0


def _cumulate(weights: Tensor, count: int) -> Tensor:
    """Return the running sums of checked weights in float64."""
    if weights.shape != (count,):
        raise ValueError(f"expected `weights` of shape ({count},), got {tuple(weights.shape)}")
    if not torch.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("expected finite `weights` of at least 0")
    cumulated = weights.detach().cpu().double().cumsum(0)
    if cumulated[-1] <= 0:
        raise ValueError("expected a positive weight, got zeros only")
    return cumulated


def _generator(seed: int, kind: int, number: int) -> torch.Generator:
    """Return a generator for one step or round, unlike that of any other."""
    mixed = 0
    for part in (seed, kind, number):  # SplitMix64's finalizer, over each part in turn
        mixed = (mixed + part + 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed % 2**63)
