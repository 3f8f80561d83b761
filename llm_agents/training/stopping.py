"""Ctrl-C and SIGTERM: a run stops between two optimizer steps, with a checkpoint."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from llm_agents.errors import UserError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunStoppedError(UserError):
    """Someone asked the run to stop.

    Args:
        number: The signal.
        step: Optimizer step of the checkpoint that was written for it; None if none was.
    """

    def __init__(self, number: int, step: int | None) -> None:
        where = "" if step is None else f" after step {step}, with a checkpoint"
        super().__init__(f"stopped by {signal.Signals(number).name}{where}")
        self.number = number
        self.step = step


class StopSignals:
    """Catches SIGINT and SIGTERM while it is entered; does nothing outside the main thread.

    At first a signal stops at once. Between `wait_for_step` and `stop_at_once` the first one only
    asks for it, and a second one doesn't wait.
    """

    def __init__(self) -> None:
        self._waits = False
        self._asked: int | None = None
        self._trainer: Trainer | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
            self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what getsignal returned
        self._trainer = None

    def _install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def wait_for_step(self, trainer: Trainer) -> None:
        """Let a signal wait until a step is complete; Lightning's own handler would not."""
        self._waits, self._trainer = True, trainer
        if self._previous:
            self._install()

    def stop_at_once(self) -> None:
        """Let a signal stop the run at once."""
        self._waits, self._trainer = False, None

    def is_stopping(self, trainer: Trainer) -> bool:
        """Return whether any process was asked to stop."""
        asked = self._asked is not None
        if trainer.world_size == 1:
            return asked
        return bool(trainer.strategy.reduce_boolean_decision(asked, all=False))

    def stopped(self, step: int) -> RunStoppedError:
        """Return the error that ends the run after a checkpoint."""
        return RunStoppedError(self._asked or signal.SIGTERM, step)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal, or end the run."""
        del frame
        if not self._waits or self._asked is not None:
            raise RunStoppedError(number, None)
        self._asked = number
        launcher = getattr(getattr(self._trainer, "strategy", None), "launcher", None)
        if launcher is not None and number == signal.SIGTERM:
            launcher.kill(number)  # processes that the first one started
        log.warning("stopping after this step with a checkpoint; once more to stop at once")
