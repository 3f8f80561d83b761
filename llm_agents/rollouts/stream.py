"""A run's rollouts as a trainer goes through them, and going on with an interrupted run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from lightning import Trainer

from llm_agents.errors import UserError


class Stream(ABC):
    """The run's rollouts from where their collector stands; their number is known beforehand.

    A trainer fetches a batch ahead from data of unknown length: an update too early.

    Args:
        num_rollouts: Of the whole run, those before an interruption included.
        trainer: Told to stop after the last one, however many epochs it was to train for.
        data: Class of the data module, for the message.
    """

    def __init__(self, num_rollouts: int, trainer: Trainer | None, *, data: str) -> None:
        self._num_rollouts, self._trainer, self._data = num_rollouts, trainer, data

    @property
    @abstractmethod
    def number(self) -> int:
        """Return the rollouts given out, those before an interruption included."""

    def __len__(self) -> int:
        """Return the rollouts of the whole run, those before an interruption included."""
        return self._num_rollouts

    def stop_after_last(self) -> None:
        """Tell the trainer if there is nothing left."""
        if self._trainer is not None and self.number >= len(self):
            self._trainer.should_stop = True

    def state_dict(self) -> dict[str, int]:
        """Return the position; the rest is the data module's to save."""
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Check that the data module has gone back to the position.

        Raises:
            ValueError: It has not.
        """
        if state["number"] != self.number:
            raise ValueError(
                f"expected rollout {state['number']} to come next, got {self.number}: restore the "
                f"state of `{self._data}` first, as a trainer does"
            )


def expect_same(expected: Mapping[str, Any], found: Mapping[str, Any], *, what: str) -> None:
    """Refuse to go on with an interrupted run that had other settings.

    Args:
        expected: Settings of the interrupted run.
        found: Those of this one.
        what: ``worlds`` or ``games``.

    Raises:
        UserError: One of them differs.
    """
    other = [key for key in found if found[key] != expected.get(key)]
    if other:
        raise UserError(
            f"expected the {what} of the interrupted run, with "
            + "; ".join(f"`{key}`: {expected.get(key)}" for key in other)
            + f", got {'; '.join(f'{found[key]}' for key in other)}: restore them, or start a "
            "new run"
        )


def expect_frames(total_frames: int, frames_per_rollout: int, *, places: str) -> None:
    """Refuse a run of less than one rollout.

    Args:
        total_frames: Steps of the run.
        frames_per_rollout: Steps of a rollout.
        places: Setting that says how many step together.

    Raises:
        UserError: It is.
    """
    if total_frames < frames_per_rollout:
        raise UserError(
            f"expected `total_frames` of at least one rollout, {places} · num_steps = "
            f"{frames_per_rollout}, got {total_frames}"
        )
