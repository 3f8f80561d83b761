"""The trainer's budget in optimizer steps, scaled by the share of the data that is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_agents.errors import UserError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(frozen=True)
class TrainerBudget:
    """What the trainer was asked for, to be put back when the run ends.

    Args:
        max_steps: Optimizer steps.
        val_check_interval: Optimizer steps between validations; a fraction is one of `max_steps`.
        check_val_every_n_epoch: Lightning's own count, which is not used.
    """

    max_steps: int
    val_check_interval: int | float | None
    check_val_every_n_epoch: int | None

    @classmethod
    def of(cls, trainer: Trainer) -> TrainerBudget:
        """Read the trainer's settings.

        Raises:
            UserError: The budget is not given in steps.
        """
        max_steps = trainer.fit_loop.epoch_loop.max_steps
        if max_steps is None or max_steps < 1:
            raise UserError(
                f"expected `trainer.max_steps`, the number of optimizer steps, got {max_steps}: "
                "offline methods count their budget in steps, not in epochs"
            )
        return cls(max_steps, trainer.val_check_interval, trainer.check_val_every_n_epoch)

    def num_steps(self, share: float) -> int:
        """Return how many optimizer steps `share` of the budget is."""
        return max(1, int(self.max_steps * share))

    def apply(self, trainer: Trainer, share: float) -> int:
        """Give the trainer `share` of the budget, counted in batches where it counts these.

        Returns:
            The optimizer steps that will be taken.
        """
        total = self.num_steps(share)
        trainer.fit_loop.epoch_loop.max_steps = total
        interval = self.val_check_interval
        if isinstance(interval, float):
            interval = max(1, int(self.max_steps * interval))
        if interval is not None:
            steps = min(max(1, int(interval * share)), total)
            trainer.val_check_interval = steps * trainer.accumulate_grad_batches
            trainer.check_val_every_n_epoch = None
        return total

    def restore(self, trainer: Trainer) -> None:
        """Put the trainer's settings back."""
        trainer.fit_loop.epoch_loop.max_steps = self.max_steps
        trainer.val_check_interval = self.val_check_interval  # type: ignore[assignment]  # None too
        trainer.check_val_every_n_epoch = self.check_val_every_n_epoch
