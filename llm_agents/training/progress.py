"""What a run shows while it works: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typing_extensions import override

from llm_agents.errors import UserError
from llm_agents.training.counting import StepCounter, is_online, passes

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

log = logging.getLogger(__name__)

_SHOWN = (
    "rollout/return_mean",
    "rollout/success_rate",
    "rollout/score_mean",
    "rollout/intrinsic_return_mean",
    "loss",
    "val/reward",
    "val/nll",
    "val/loss",
    "val/accuracy",
)
_WINDOW = 20  # steps over which the speed is averaged


class RunProgress(ProgressBar):
    """Shows how far the run is, loss or return, the last validation and the speed.

    In place of Lightning's bar, which counts epochs: what counts here are optimizer steps, or the
    decisions that were taken in worlds.

    Args:
        every: Steps between lines where there is no terminal.
        counter: Says how far the run is; None counts by itself.
        console: Where the bar is drawn; standard error by default.

    Example:
        >>> from lightning import Trainer
        >>> trainer = Trainer(max_steps=40, callbacks=[RunProgress()])  # doctest: +SKIP
    """

    def __init__(
        self, every: int = 10, counter: StepCounter | None = None, console: Console | None = None
    ) -> None:
        super().__init__()
        if every < 1:
            raise UserError(f"expected `every` of at least 1 step, got {every}")
        self.every, self._counts_itself = every, counter is None
        self.counter = counter or StepCounter()
        self.console = console or Console(file=sys.stderr)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._validation: TaskID | None = None
        self._is_enabled = True
        self._step = 0
        self._tokens = 0
        self._speeds: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW + 1)

    @override
    def disable(self) -> None:
        """Show nothing, on all processes but the first."""
        self._is_enabled = False

    @override
    def enable(self) -> None:
        """Show progress again."""
        self._is_enabled = True

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn what is counted."""
        super().setup(trainer, pl_module, stage)
        if self._counts_itself:
            self.counter.setup(trainer, pl_module, stage)

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count a rollout as soon as it is there."""
        if self._counts_itself:
            self.counter.on_train_batch_start(trainer, pl_module, batch, batch_idx)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the bar."""
        super().on_train_start(trainer, pl_module)
        self._step = self.counter.step
        self._speeds.append((time.monotonic(), self._step, 0))
        if self._is_enabled and self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self.counter.unit),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
                console=self.console,
            )
            total = self.counter.total
            self._task = self._bar.add_task("train", total=total, completed=self._step, text="")
            self._bar.start()

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count tokens; after an optimizer step move the bar, or write a line if it is time to."""
        del outputs, batch_idx
        tokens = getattr(batch, "tokens", None)
        self._tokens += int(getattr(tokens, "num_tokens", 0))
        if self.counter.step == self._step:
            return
        before, self._step = self._step, self.counter.step
        total = self.counter.total
        self._speeds.append((time.monotonic(), self._step, self._tokens))
        if self._bar is not None and self._task is not None:
            text = self._text(trainer, pl_module)
            self._bar.update(self._task, completed=self._step, total=total, text=text)
        elif self._is_enabled and self._is_line_due(before):
            left = self._left()
            text = self._text(trainer, pl_module)
            log.info("%s · %s%s", self._place(total), text, f" · {left} left" if left else "")

    def _place(self, total: int | None = None) -> str:
        """Return how far the run is, in words."""
        place = f"{self.counter.step}" if total is None else f"{self.counter.step}/{total}"
        return f"{place} decisions" if self.counter.unit == "decisions" else f"step {place}"

    def _is_line_due(self, before: int) -> bool:
        """Return whether a line is due: at first, every so many steps, and at last."""
        first = len(self._speeds) == 2
        return first or passes(before, self._step, self.every) or self._step == self.counter.total

    def _text(self, trainer: Trainer, pl_module: LightningModule) -> str:
        """Return the numbers to be shown."""
        known: dict[str, Any] = {
            **trainer.callback_metrics,
            **self.get_metrics(trainer, pl_module),
        }
        found = ((name.replace("/", " "), float(known[name])) for name in _SHOWN if name in known)
        parts = [f"{name} {value:.4g}" for name, value in found]
        (start, first, before), (end, last, after) = self._speeds[0], self._speeds[-1]
        if after > before and end > start:
            parts.append(f"{(after - before) / (end - start):,.0f} tokens/s")
        elif is_online(pl_module) and end > start:
            parts.append(f"{(last - first) / (end - start):,.1f} decisions/s")
        return " · ".join(parts)

    def _left(self) -> str:
        """Return the time left at the present speed."""
        (start, first, _), (end, last, _) = self._speeds[0], self._speeds[-1]
        total = self.counter.total
        if total is None or total <= last or last == first:
            return ""
        seconds = (end - start) / (last - first) * (total - last)
        return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a bar for the validation."""
        super().on_validation_start(trainer, pl_module)
        if self._bar is not None:
            total = sum(trainer.num_val_batches)
            self._validation = self._bar.add_task("validate", total=total, text="")

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Move the validation's bar."""
        del trainer, pl_module, outputs, batch, batch_idx, dataloader_idx
        if self._bar is not None and self._validation is not None:
            self._bar.advance(self._validation)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the validation's bar away and say what it found."""
        del pl_module
        if self._bar is not None and self._validation is not None:
            self._bar.remove_task(self._validation)
            self._validation = None
        found = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
        if found and self._is_enabled and not trainer.sanity_checking:
            text = " · ".join(f"{name} {value:.4g}" for name, value in found.items())
            log.info("%s · %s", self._place(), text)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the finished bar behind."""
        del trainer, pl_module
        self._stop()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back."""
        del trainer, pl_module, exception
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
