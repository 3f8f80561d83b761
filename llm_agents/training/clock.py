"""How long a run has trained, over all its attempts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from typing_extensions import override

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class TrainingClock(Callback):
    """Counts the seconds of training, preparation and validation included.

    A run that was killed goes on from its checkpoint, and so does its clock: what was done after
    the checkpoint, and is done again, counts once.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._start: float | None = None

    @property
    def seconds(self) -> float:
        """Return the seconds up to now."""
        return self._before + (0.0 if self._start is None else time.monotonic() - self._start)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start before the first passes over the data."""
        del trainer, pl_module
        if stage == "fit":
            self._start = time.monotonic()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop."""
        del trainer, pl_module
        self._before, self._start = self.seconds, None

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the seconds for a checkpoint."""
        return {"seconds": self.seconds}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's seconds."""
        self._before = float(state_dict["seconds"])
