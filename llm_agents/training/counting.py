"""How far a run is: optimizer steps, or decisions in the worlds where a method collects rollouts.

An online method takes several optimizer steps a rollout, and not always equally many, so its
budget, its numbers and its checkpoints count what it has seen of the worlds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from llm_agents.methods import OfflineModule

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


def is_online(module: LightningModule) -> bool:
    """Return whether a module learns from worlds: it counts what it has seen of them.

    PPO on responses takes its optimizer steps itself as well, and counts these.
    """
    return not module.automatic_optimization and not isinstance(module, OfflineModule)


@runtime_checkable
class Collected(Protocol):
    """What a method that collects rollouts trains on.

    Attributes:
        number: Number of the rollout, from 0.
        num_rollouts: How many rollouts the whole run has.
        num_steps: Decisions in it.
    """

    number: int
    num_rollouts: int
    num_steps: int


def passes(before: int, after: int, every: int) -> bool:
    """Return whether a count went over a multiple of `every`.

    Example:
        >>> [passes(before, before + 128, 300) for before in (0, 128, 256)]
        [False, False, True]
    """
    return after // every > before // every


class StepCounter(Callback):
    """Says how far the run is, to loggers, checkpoints and progress.

    Attributes:
        step: Optimizer steps taken, or decisions collected, those of the present rollout included.
        total: As many as the run will have; None where that is not known yet.
        unit: What is counted, in a word.
    """

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._is_online = False
        self._collected = 0
        self._budget: int | None = None

    @property
    def step(self) -> int:
        """Return how far the run is."""
        if self._is_online or self._trainer is None:
            return self._collected
        return self._trainer.global_step

    @property
    def total(self) -> int | None:
        """Return how far the run will go."""
        if self._is_online or self._trainer is None:
            return self._budget
        expected = self._trainer.estimated_stepping_batches  # of epochs, where these are the limit
        return int(expected) if 0 < expected < math.inf else None

    @property
    def unit(self) -> str:
        """Return what is counted."""
        return "decisions" if self._is_online else "optimizer steps"

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn what is counted."""
        del stage
        self._trainer, self._is_online = trainer, is_online(pl_module)

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count a rollout as soon as it is there."""
        del trainer, pl_module, batch_idx
        if isinstance(batch, Collected):
            self._collected = (batch.number + 1) * batch.num_steps
            self._budget = batch.num_rollouts * batch.num_steps

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the decisions collected so far."""
        return {"collected": self._collected}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._collected = int(state_dict["collected"])
