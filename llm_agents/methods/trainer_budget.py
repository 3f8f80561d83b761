"""The trainer's budget in optimizer steps, scaled by the share of the data that is left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_agents.errors import UserError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from llm_agents.types import OfflineSource


def epoch_steps(source: OfflineSource | None, trainer: Trainer, steps_per_batch: int) -> float:
    """Return the optimizer steps of one round of the preferred training responses.

    Args:
        source: The data.
        trainer: Says how many batches and processes a step takes.
        steps_per_batch: Optimizer steps that a method takes by itself on each batch.

    Raises:
        UserError: There is no data module to count the rows of.
    """
    if source is None:
        raise UserError("`options.epochs` needs a data module such as HHAData, not a bare loader")
    rows = int(source.table_preferred().sum())
    step = int(getattr(source, "batch_size", 1)) * trainer.accumulate_grad_batches
    return rows / (step * trainer.world_size) * steps_per_batch


def check_precision(precision: object) -> None:
    """Refuse precisions that cast everything: adapters, critics and sums stay in float32.

    Args:
        precision: The trainer's.

    Raises:
        UserError: Names what serves instead.
    """
    if str(precision) not in ("32-true", "32", "None", "bf16-mixed", "16-mixed", "bf16", "16"):
        raise UserError(
            f"expected `trainer.precision` 32-true, bf16-mixed or 16-mixed, got {precision}: what "
            "trains stays in float32. For a smaller base set `model.policy.dtype: bfloat16` "
            "(`dtype=` of `LanguagePolicy.from_pretrained`)"
        )


def check_collecting_trainer(trainer: Trainer, method: str) -> None:
    """Refuse a trainer that counts steps where a method collects rollouts and steps itself.

    Lightning counts the steps of each of its optimizers, and there are as many a rollout as the
    rollout has minibatches: budgets and checkpoints in such steps end and fall anywhere.

    Args:
        trainer: Is about to train it.
        method: Its name, for the message.

    Raises:
        UserError: Names what serves instead.
    """
    check_precision(trainer.precision)
    if trainer.max_steps not in (-1, None):
        raise UserError(
            f"expected no `max_steps` of the trainer, got {trainer.max_steps}: {method} collects "
            "rollouts and steps its optimizers itself, so say how long it trains by the data's "
            "`total_frames` (or the length of your own loader), and `max_epochs=1`"
        )
    check_checkpoints(trainer, method, steps=None)


def check_checkpoints(trainer: Trainer, method: str, *, steps: int | None) -> None:
    """Refuse checkpoints that Lightning would skip without a word, as the method steps itself.

    Args:
        trainer: Is about to train it.
        method: Its name, for the message.
        steps: Optimizer steps that it takes on each batch, or None where these are not always as
            many.

    Raises:
        UserError: Names what serves instead.
    """
    from lightning.pytorch.callbacks import ModelCheckpoint

    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        every, interval = callback._every_n_train_steps, callback._train_time_interval
        is_met = every == 1 or (steps is not None and every % steps == 0)
        if (every > 0 and not is_met) or interval is not None:
            given = f"every_n_train_steps={every}" if interval is None else "train_time_interval"
            also = "" if steps is None else f", a multiple of {steps}"
            raise UserError(
                f"expected no `{given}` of a `ModelCheckpoint`: {method} takes several optimizer "
                "steps a batch by itself, so that Lightning would skip most checkpoints or all. "
                f"Take `every_n_train_steps=1`, which is after each batch (rollout){also}, or "
                "`every_n_epochs`; or call `trainer.save_checkpoint` in a callback"
            )


@dataclass(frozen=True)
class TrainerBudget:
    """What the trainer was asked for, to be put back when the run ends.

    Args:
        max_steps: Optimizer steps.
        val_check_interval: Optimizer steps between validations; a fraction is one of `max_steps`.
        check_val_every_n_epoch: Lightning's own count, which is not used.
        given_steps: What the trainer's own `max_steps` was.
    """

    max_steps: int
    val_check_interval: int | float | None
    check_val_every_n_epoch: int | None
    given_steps: int

    @classmethod
    def of(cls, trainer: Trainer, epoch_steps: float | None = None) -> TrainerBudget:
        """Read the trainer's settings.

        Args:
            trainer: Has `max_steps`, unless there are `epoch_steps`.
            epoch_steps: Optimizer steps of all rounds of the data that were asked for.

        Raises:
            UserError: The budget is given not at all, or twice.
        """
        given = trainer.fit_loop.epoch_loop.max_steps
        has_steps = given is not None and given >= 1
        if has_steps == (epoch_steps is not None):
            raise UserError(
                f"expected one of `trainer.max_steps`, the number of optimizer steps, and "
                f"`options.epochs`, got {'both' if has_steps else f'max_steps: {given}'}: methods "
                "that answer prompts don't count `trainer.max_epochs`"
            )
        max_steps = given if epoch_steps is None else max(1, math.ceil(epoch_steps))
        interval, every = trainer.val_check_interval, trainer.check_val_every_n_epoch
        return cls(max_steps, interval, every, given)

    def num_steps(self, share: float) -> int:
        """Return how many optimizer steps `share` of the budget is."""
        return max(1, int(self.max_steps * share))

    def apply(self, trainer: Trainer, share: float, steps_per_batch: int = 1) -> int:
        """Give the trainer `share` of the budget, counted in batches where it counts these.

        Args:
            trainer: Its settings are changed.
            share: In (0, 1].
            steps_per_batch: Optimizer steps that a method takes by itself on each batch.

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
            batches = max(1, steps // steps_per_batch)
            trainer.val_check_interval = batches * trainer.accumulate_grad_batches
            trainer.check_val_every_n_epoch = None
        return total

    def restore(self, trainer: Trainer) -> None:
        """Put the trainer's settings back."""
        trainer.fit_loop.epoch_loop.max_steps = self.given_steps
        trainer.val_check_interval = self.val_check_interval  # type: ignore[assignment]  # None too
        trainer.check_val_every_n_epoch = self.check_val_every_n_epoch
