"""What trainers iterate over: training batches with a saved position, evaluation batches in order.

They are plain iterables rather than ``DataLoader`` objects: ids are in memory and no worker reads
ahead, so that the saved position is that of the batch in training; and the trainer deals them out
to processes in no way of its own, since each stream knows its process's share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

from llm_agents.data.encoding import ResponseTable
from llm_agents.data.sampling import StepSampler
from llm_agents.types import PromptBatch, RankedBatch, ScoredBatch

_Batch_co = TypeVar("_Batch_co", covariant=True)

EvaluationBatch = PromptBatch | ScoredBatch | RankedBatch


class BatchStream(Generic[_Batch_co]):
    """Training batches: a sampler's rows, made into batches one at a time.

    Args:
        sampler: Which rows, in which order.
        collate: From rows to a batch.
    """

    def __init__(self, sampler: StepSampler, collate: Callable[[list[int]], _Batch_co]) -> None:
        self.sampler = sampler
        self._collate = collate
        self._tokens = self._padded = 0

    def __len__(self) -> int:
        """Return the batches of one round."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[_Batch_co]:
        """Yield one round of batches from where the sampler stands."""
        for rows in self.sampler:
            lengths = self.sampler.lengths[rows]
            self._tokens += int(lengths.sum())
            self._padded += len(rows) * int(lengths.max())
            yield self._collate(rows)

    @property
    def padding_share(self) -> float:
        """Return the share of padding in the batches yielded so far."""
        return 1 - self._tokens / self._padded if self._padded else 0.0

    def state_dict(self) -> dict[str, int]:
        """Return what a resumed run needs."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where the saved run stood."""
        self.sampler.load_state_dict(state)


class EvaluationStream(Generic[_Batch_co]):
    """Rows 0 to `count` in order; each process takes every `world_size`-th.

    Where the processes' shares differ in size, the last rows are taken from the beginning again, so
    that all processes see equally many batches: `PromptBatch.rows` tells a repeated prompt.

    Args:
        count: Rows over all processes.
        collate: From rows to a batch.
        batch_size: Rows of a batch.
        rank: This process.
        world_size: Processes.
    """

    def __init__(
        self,
        count: int,
        collate: Callable[[list[int]], _Batch_co],
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        share = math.ceil(count / world_size)
        self.rows = [(rank + i * world_size) % count for i in range(share)]
        self.batch_size = batch_size
        self._collate = collate

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(len(self.rows) / self.batch_size)

    def __iter__(self) -> Iterator[_Batch_co]:
        """Yield the batches."""
        for start in range(0, len(self.rows), self.batch_size):
            yield self._collate(self.rows[start : start + self.batch_size])


def scored_batch(table: ResponseTable, eligible: Tensor, rows: list[int]) -> ScoredBatch:
    """Make a batch of single responses.

    Args:
        table: The responses.
        eligible: ``[R]`` int64 rows of `table` that may be asked for.
        rows: ``B`` indices into `eligible`.
    """
    chosen = eligible[rows]
    return ScoredBatch(table.batch(chosen.tolist()), table.rewards[chosen])


def ranked_batch(table: ResponseTable, raw_rewards: Tensor, rows: list[int]) -> RankedBatch:
    """Make a batch of all responses of some prompts.

    Args:
        table: The responses, K to each prompt.
        raw_rewards: ``[P, K]`` rewards as stored.
        rows: ``B`` prompts.
    """
    num_responses = raw_rewards.shape[1]
    responses = [p * num_responses + k for p in rows for k in range(num_responses)]
    return RankedBatch(table.batch(responses), raw_rewards[torch.tensor(rows)])
