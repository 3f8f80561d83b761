from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm_agents.training.stopping import RunStoppedError, StopSignals


def trainer() -> Any:
    return cast(Any, SimpleNamespace(world_size=1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_once_outside_training(number: signal.Signals) -> None:
    with pytest.raises(RunStoppedError, match=f"stopped by {number.name}$"), StopSignals():
        os.kill(os.getpid(), number)


def test_the_first_signal_waits_for_the_step_and_the_second_does_not() -> None:
    with StopSignals() as signals:
        signals.wait_for_step(trainer())
        assert not signals.is_stopping(trainer())
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.is_stopping(trainer())
        assert str(signals.stopped(3)) == "stopped by SIGTERM after step 3, with a checkpoint"
        with pytest.raises(RunStoppedError):
            os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
