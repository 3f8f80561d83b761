"""The data module of Motif's reward model: annotated pairs, split, each observation once.

Paper: arXiv 2310.00166, section 3.2. The split, the order of the batches and the distinct messages
are computed from the data, the annotator and the seed whenever a run starts: nothing that could go
stale is kept between runs.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor

from llm_agents.data.motif_layout import MotifPairs
from llm_agents.data.motif_pairs import PairTable
from llm_agents.data.motif_sample import SAMPLE, sample_folder
from llm_agents.data.streams import EvaluationStream
from llm_agents.errors import UserError
from llm_agents.policies.message_scorer import MessageScorer
from llm_agents.rewards.annotator import TIE
from llm_agents.types import MessageObservations, MessagePairs

_logger = logging.getLogger(__name__)


class PairStream:
    """Training batches in a new order each epoch; the last batch of an epoch may be short.

    Epoch and order follow from the position alone, so that a saved position is the whole state.
    With several processes each takes its share of every epoch; where the shares differ in size, the
    first pairs of the epoch's order come again.

    Args:
        count: Training pairs, at least one.
        collate: From places among them to a batch.
        batch_size: Pairs of a batch of this process.
        seed: Decides the order.
        rank: This process.
        world_size: Processes.

    Attributes:
        position: Batches handed out so far.
    """

    def __init__(
        self,
        count: int,
        collate: Callable[[Tensor], MessagePairs],
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.position = 0
        self._collate = collate
        self._order = lru_cache(maxsize=1)(self._order_of)

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return math.ceil(math.ceil(self.count / self.world_size) / self.batch_size)

    def __iter__(self) -> Iterator[MessagePairs]:
        """Yield an epoch's number of batches, from where the stream stands."""
        for _ in range(len(self)):
            places = self.places(self.position)
            self.position += 1
            yield self._collate(places)

    def places(self, position: int) -> Tensor:
        """Return which pairs are in batch number `position` of this process."""
        epoch, turn = divmod(position, len(self))
        start = turn * self.batch_size
        return self._order(epoch, self.seed)[start : start + self.batch_size]

    def state_dict(self) -> dict[str, int]:
        """Return what a resumed run needs."""
        return {"position": self.position, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where the saved run stood, in its order."""
        self.position, self.seed = state["position"], state["seed"]

    def _order_of(self, epoch: int, seed: int) -> Tensor:
        """Return this process's share of an epoch's order."""
        order = np.random.default_rng((seed, epoch)).permutation(self.count)
        share = math.ceil(self.count / self.world_size)
        return torch.from_numpy(
            np.resize(order, share * self.world_size)[self.rank :: self.world_size]
        )


def split_pairs(
    count: int, held_out: float, seed: int, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Split pairs at random; the remainder of the fractions goes to training.

    Args:
        count: Pairs.
        held_out: Share held out, in [0, 1).
        seed: Decides the split.
        limit: Split this many of the pairs, drawn by the seed; None splits all.

    Returns:
        Places of the training pairs and of the held-out pairs, int64.

    Example:
        >>> [len(part) for part in split_pairs(11, 0.2, seed=0)]
        [9, 2]
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:limit]
    num_train = len(order) - math.floor(len(order) * held_out)
    return order[:num_train], order[num_train:]


class MotifData(LightningDataModule):
    """Pairs of NetHack observations with one annotator's preferences, in Motif's layout.

    Pairs that are not annotated yet (3) are left out before the split; ties (2) stay.

    Args:
        folder: Root of the data set, with ``data/``, ``info/`` and ``preference/``; ``sample`` for
            the bundled pairs, of the annotator ``llm_msg_defaultgoal_both``.
        annotator: Name of the preferences: a file of ``preference/`` without its ending.
        held_out: Share of the pairs held out for validation and evaluation.
        batch_size: Pairs of a batch.
        eval_batch_size: Pairs of a validation batch.
        max_pairs: Take this many of the annotated pairs, drawn by the seed; null takes all.
        seed: Decides split and order; null takes the run's `seed_everything`, else 0.
    """

    def __init__(
        self,
        folder: str,
        annotator: str,
        *,
        held_out: float = 0.2,
        batch_size: int = 1024,
        eval_batch_size: int = 8192,
        max_pairs: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= held_out < 1:
            raise UserError(f"expected `data.held_out` from 0 to below 1, got {held_out}")
        for name, value in (
            ("batch_size", batch_size),
            ("eval_batch_size", eval_batch_size),
            ("max_pairs", max_pairs),
        ):
            if value is not None and value < 1:
                raise UserError(f"expected `data.{name}` of at least 1, got {value}")
        self.folder, self.annotator = Path(folder), annotator
        self.is_sample = folder == SAMPLE and not self.folder.exists()
        self.held_out, self.max_pairs = held_out, max_pairs
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self._keys: tuple[str, ...] = ("message",)
        self._table: PairTable | None = None
        self._parts = (torch.zeros(0, dtype=torch.int64),) * 2
        self._stream: PairStream | None = None

    # --- preparation

    def connect(self, keys: tuple[str, ...]) -> None:
        """Say what observations are to hold; only needed without a trainer."""
        if keys != self._keys:
            self._keys, self._table = keys, None

    def setup(self, stage: str | None = None) -> None:
        """Read the pairs and split them; every stage needs the same.

        Raises:
            UserError: The data set can't be read, or too few pairs are annotated.
        """
        del stage
        module = None if self.trainer is None else self.trainer.lightning_module
        scorer = getattr(module, "scorer", None)
        if isinstance(scorer, MessageScorer):
            self.connect(scorer.keys)
        if self._table is not None:
            return
        if self.is_sample:
            self.folder = sample_folder()
        wanted = ["message", *(key for key in self._keys if key != "message")]
        if any((self.folder / "info").glob("score.*npy")):
            wanted.append("score")
        pairs = MotifPairs.open(self.folder, wanted, (self.annotator,))
        self._table = PairTable.read(pairs, self.annotator, self._keys)
        train, held_out = split_pairs(len(self._table), self.held_out, self.seed, self.max_pairs)
        if not len(train) or (self.held_out > 0 and not len(held_out)):
            raise UserError(
                f"expected annotated pairs to train on and to hold out, got {len(train)} and "
                f"{len(held_out)} of {pairs.num_pairs} pairs in `{self.folder}`: annotate more of "
                f"them as `{self.annotator}`, or set `data.held_out: 0`"
            )
        if bool((self._table.preferences[train] == TIE).all()):
            raise UserError(
                f"all {len(train)} training pairs of `{self.annotator}` are ties: there is nothing "
                "to learn; look at the annotation's report"
            )
        self._parts = (train, held_out)
        if self.trainer is None or self.trainer.is_global_zero:
            _logger.info("pairs: %s", self.report())

    def report(self) -> dict[str, int | float | str]:
        """Return what there is: pairs, ties, distinct messages."""
        table = self.table
        train, held_out = self._parts
        ties = table.preferences == TIE
        return {
            "annotator": self.annotator,
            "pairs": table.pairs.num_pairs,
            "unknown": table.pairs.num_pairs - len(table),
            "train": len(train),
            "held_out": len(held_out),
            "train_ties": int(ties[train].sum()),
            "held_out_ties": int(ties[held_out].sum()),
            "distinct_messages": len(table.messages),
            "train_distinct_messages": int((table.counts(train) > 0).sum()),
        }

    @property
    def table(self) -> PairTable:
        """Return the annotated pairs.

        Raises:
            ValueError: `setup` was not called.
        """
        if self._table is None:
            raise ValueError("expected pairs: call setup() first")
        return self._table

    @property
    def train_places(self) -> Tensor:
        """Return ``[T]`` int64: places of the training pairs in `table`."""
        return self._parts[0]

    @property
    def held_out_places(self) -> Tensor:
        """Return ``[H]`` int64: places of the held-out pairs in `table`."""
        return self._parts[1]

    # --- what the method asks

    def fingerprint(self) -> str:
        """Return a digest of the pairs, their preferences and the split."""
        digest = hashlib.sha256(self.table.pairs.fingerprint().encode())
        for part in self._parts:
            digest.update(f"{len(part)} ".encode() + part.numpy().tobytes())
        return digest.hexdigest()

    def training_counts(self) -> Tensor:
        """Return ``[M]`` int64: how often each distinct training observation occurs, all ≥ 1."""
        counts = self.table.counts(self.train_places)
        return counts[counts > 0]

    def training_observations(self, size: int) -> Iterator[MessageObservations]:
        """Yield the M distinct training observations in the order of the counts."""
        numbers = self.table.counts(self.train_places).nonzero().flatten()
        return self.table.chunks(numbers, size)

    def training_index(self) -> Tensor:
        """Return ``[T, 2, L]`` int64 into the distinct training observations."""
        occurs = self.table.counts(self.train_places) > 0
        return (occurs.cumsum(0) - 1)[self.table.distinct.steps[self.train_places]]

    # --- loaders

    def train_dataloader(self) -> PairStream:
        """Return training batches; a stream with a state, which Lightning saves and restores."""
        rank, world_size = self._place()
        train = self.train_places
        self._stream = PairStream(
            len(train),
            lambda places: self.table.batch(train[places]),
            self.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
        )
        return self._stream

    def val_dataloader(
        self,
    ) -> EvaluationStream[MessagePairs] | list[EvaluationStream[MessagePairs]]:
        """Return this process's held-out batches; an empty list if nothing is held out."""
        held_out = self.held_out_places
        if not len(held_out):
            return []
        rank, world_size = self._place()
        return EvaluationStream(
            len(held_out),
            lambda rows: self.table.batch(held_out[torch.tensor(rows)]),
            self.eval_batch_size,
            rank,
            world_size,
        )

    def _place(self) -> tuple[int, int]:
        """Return this process's number and how many there are."""
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size
