"""The choice of a back end, by a self-test: it has to withstand the quick attacks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from llm_agents.errors import UserError
from llm_agents.sandbox.attacks import ATTACKS, LIMITS, QUICK, scene, verdict
from llm_agents.sandbox.backends import BACKENDS, Backend, why_not
from llm_agents.sandbox.limits import SandboxLimits, SandboxOutcome


class Runner(Protocol):
    """What runs a program in confinement."""

    def run(self, code: str) -> SandboxOutcome:
        """Run a program."""
        ...

    def close(self) -> None:
        """End what was started for it."""
        ...


MakeRunner = Callable[[Backend, SandboxLimits], Runner]

_lock = threading.Lock()
_tested: dict[Backend, str] = {}


def weakness(backend: Backend, make: MakeRunner) -> str:
    """Return why a back end can't be trusted on this machine; nothing if it can.

    A process tests each once.

    Args:
        backend: Which.
        make: Returns a sandbox of this back end with these limits.
    """
    with _lock:
        if backend not in _tested:
            _tested[backend] = why_not(backend) or _self_test(backend, make)
        return _tested[backend]


def _self_test(backend: Backend, make: MakeRunner) -> str:
    """Let the quick attacks try."""
    runner = make(backend, LIMITS)
    try:
        with scene() as place:
            for attack in QUICK:
                way_out = verdict(attack, runner.run(place.fill(attack.code)), place)
                if way_out:
                    return f"it did not contain: {way_out}"
            answer = runner.run("print(6 * 7)")
            return "" if answer.stdout == "42\n" else f"a plain program failed: {answer.error}"
    except UserError as error:
        return str(error)
    finally:
        runner.close()


def choose_backend(make: MakeRunner) -> tuple[Backend | None, tuple[str, ...]]:
    """Return the first back end that passes, and why those before it did not."""
    reasons: list[str] = []
    for backend in BACKENDS:
        reason = weakness(backend, make)
        if not reason:
            return backend, tuple(reasons)
        reasons.append(f"{backend}: {reason}")
    return None, tuple(reasons)


def report(make: MakeRunner) -> bool:
    """Let all attacks try each back end, and print how each ended.

    Args:
        make: As for `weakness`.

    Returns:
        Whether a back end could be tried, and each that could contained them all.
    """
    passed: list[bool] = []
    for backend in BACKENDS:
        reason = why_not(backend)
        if reason:
            sys.stdout.write(f"{backend}: not tried: {reason}\n")
            continue
        runner = make(backend, LIMITS)
        with scene() as place:
            for attack in ATTACKS:
                begun = time.monotonic()
                outcome = runner.run(place.fill(attack.code))
                way_out = verdict(attack, outcome, place)
                passed.append(not way_out)
                how = way_out or f"contained ({outcome.stopped or outcome.status})"
                seconds = time.monotonic() - begun
                sys.stdout.write(f"{backend}  {seconds:5.2f} s  {attack.name}: {how}\n")
        runner.close()
    return bool(passed) and all(passed)


if __name__ == "__main__":
    from llm_agents.sandbox.box import Sandbox

    sys.exit(not report(lambda backend, limits: Sandbox(limits, backend=backend)))
