"""Checkpoints that are whole or absent, whenever the process is killed.

One is written after an optimizer step under a temporary name, flushed to the disk, and renamed. A
validation that follows the same step replaces it: offline methods make up for a validation that a
kill prevented. Of other modules one is written after the validation only, since Lightning would
skip it when the run continues. What a checkpoint holds is up to the module: adapters and heads,
never the frozen base.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from llm_agents.methods import OfflineModule
from llm_agents.training.counting import StepCounter, passes
from llm_agents.training.metrics import MetricsFile
from llm_agents.training.stopping import StopSignals

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

log = logging.getLogger(__name__)

_LEAST_SHARE = 20
"""How many times longer than a checkpoint takes it is at least until the next one."""

_NAME = re.compile(r"step-(\d+)\.ckpt")
_UNFINISHED = re.compile(r"\.step-\d+\.ckpt\.\d+\.tmp")


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the complete checkpoint of the highest step; unfinished ones are named in one line."""
    unfinished = [path.name for path in folder.glob(".*") if _UNFINISHED.fullmatch(path.name)]
    complete = []
    for path in folder.glob("step-*.ckpt"):
        if _NAME.fullmatch(path.name) is None:
            continue
        if is_complete(path):
            complete.append(path)
        else:
            unfinished.append(path.name)
    if unfinished:
        log.warning("unfinished checkpoints are ignored: %s", ", ".join(sorted(unfinished)))
    return max(complete, key=step_of, default=None)


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's name states; -1 for a name of another form."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def is_complete(path: Path) -> bool:
    """Return whether a checkpoint was written to its end; sharded ones are folders."""
    return path.is_dir() or zipfile.is_zipfile(path)


class Checkpoints(Checkpoint):
    """Writes checkpoints, keeps the newest, and stops the run in good order.

    Args:
        folder: Where they go.
        every: Steps between them, as `counter` counts; None for time alone.
        minutes: Minutes after which one is due too; None for steps alone. Where writing one takes
            more than a twentieth of that, it is due after twenty times as long.
        keep: Newest ones kept.
        signals: Says whether someone asked the run to stop.
        metrics: The run's numbers: those of the step are kept in the checkpoint as well.
        counter: Says how far the run is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: int | None,
        minutes: float | None,
        keep: int,
        signals: StopSignals,
        metrics: MetricsFile,
        counter: StepCounter,
    ) -> None:
        super().__init__()
        self.folder, self.every, self.minutes, self.keep = folder, every, minutes, keep
        self.signals, self.metrics, self.counter = signals, metrics, counter
        self._seen_step = self._saved_step = -1
        self._waits = False
        self._saved_at = time.monotonic()
        self._saving_seconds = 0.0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on a request to stop waits for the end of the step."""
        del pl_module
        self._seen_step = self.counter.step
        self._saved_step = self.counter.step if trainer.ckpt_path else -1
        self._saved_at = time.monotonic()
        self.signals.wait_for_step(trainer)

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save if it is time to, and stop if someone asked for it."""
        del outputs, batch, batch_idx
        if self.counter.step == self._seen_step:
            return  # gradients are still being accumulated
        before, self._seen_step = self._seen_step, self.counter.step
        self.metrics.note_step(trainer)
        stop, due = self.signals.is_stopping(trainer), self._is_due(trainer, before)
        if (stop or due) and not isinstance(pl_module, OfflineModule):
            self._waits = validation_follows(trainer)
            if self._waits:
                return
        if stop or due:
            self.save(trainer)
        if stop:
            raise self.signals.stopped(self.counter.step)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the checkpoint of this step by one that knows of the validation."""
        del pl_module
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        stop = self.signals.is_stopping(trainer)
        if stop or self._waits or self._saved_step == self.counter.step:
            self.save(trainer)
        self._waits = False
        if stop:
            raise self.signals.stopped(self.counter.step)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last step: a run that is killed in the evaluation need not train again."""
        del pl_module
        if self._saved_step != self.counter.step:
            self.save(trainer)
        self.signals.stop_at_once()

    def _is_due(self, trainer: Trainer, before: int) -> bool:
        """Return whether enough steps or minutes have passed on all processes."""
        if self.every is not None and passes(before, self.counter.step, self.every):
            return True
        if self.minutes is None:
            return False
        wait = max(60 * self.minutes, _LEAST_SHARE * self._saving_seconds)
        late = time.monotonic() - self._saved_at >= wait
        return (
            late
            if trainer.world_size == 1
            else bool(trainer.strategy.reduce_boolean_decision(late, all=False))
        )

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint of the present step."""
        begin = time.monotonic()
        step = self.counter.step
        name = f"step-{step:08d}.ckpt"
        temporary = self.folder / f".{name}.{os.getpid() if trainer.world_size == 1 else 0}.tmp"
        self.metrics.save()
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            put_in_place(temporary, self.folder / name)
            self._remove_old()
        trainer.strategy.barrier("checkpoint")
        self._saved_step, self._saved_at = step, time.monotonic()
        self._saving_seconds = self._saved_at - begin

    def _remove_old(self) -> None:
        """Remove all but the newest, and what earlier processes left unfinished."""
        complete = [path for path in self.folder.glob("step-*.ckpt") if step_of(path) >= 0]
        old = sorted(complete, key=step_of)[: -self.keep]
        left = [path for path in self.folder.glob(".*") if _UNFINISHED.fullmatch(path.name)]
        for path in [*old, *left]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the numbers logged at this step: their file may not hold them yet after a kill."""
        return {"row": self.metrics.row}


def validation_follows(trainer: Trainer) -> bool:
    """Return whether the trainer will validate after the present batch."""
    loop = trainer.fit_loop
    fetcher = loop._data_fetcher
    return fetcher is not None and loop.epoch_loop._should_check_val_fx(fetcher)


def put_in_place(temporary: Path, path: Path) -> None:
    """Flush a file or folder to the disk and give it its name."""
    if temporary.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    temporary.replace(path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
