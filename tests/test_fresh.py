"""The fresh processes of the tests: like those of `subprocess`, but for the imports."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh


@pytest.mark.parametrize(
    "code",
    [
        "print('ü'); import sys; print(sys.argv, file=sys.stderr)",
        "import sys; sys.exit('no')",
        "import sys; sys.exit(3)",
        "raise SystemExit",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(lambda: print('bye')); print(__name__)",
        "import warnings; warnings.warn('once', UserWarning)",
        "import os; print(os.getcwd(), os.environ['A'], 'B' in os.environ)",
        "import sys; print(sys.stdin.read())",
    ],
)
def test_a_fresh_process_does_what_a_started_one_does(code: str, tmp_path: Path) -> None:
    env = {"A": "1", "PYTHONWARNINGS": "default"}
    started = subprocess.run(
        [sys.executable, "-c", code, "x"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**env, "PYTHONIOENCODING": "utf8"},
        stdin=subprocess.DEVNULL,
    )
    again = fresh.run("-c", code, "x", cwd=tmp_path, env=env)
    assert (again.returncode, again.stdout) == (started.returncode, started.stdout)
    assert again.stderr == started.stderr


def test_an_error_ends_it_with_a_traceback() -> None:
    done = fresh.run("-c", "1 / 0")
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_nothing_of_the_tests_is_in_it() -> None:
    done = fresh.run("-c", "import tests.fresh as f, torch; print(f.__dict__.get('mark'))")
    fresh.mark = 1  # type: ignore[attr-defined]
    assert done.stdout == "None\n"
    done = fresh.run("-c", "import tests.fresh as f, torch; print(f.__dict__.get('mark'))")
    assert done.stdout == "None\n"
    del fresh.mark  # type: ignore[attr-defined]


def test_it_is_killed_and_talked_to() -> None:
    code = "print('ready', flush=True); print(input(), flush=True); import time; time.sleep(60)"
    pipe = subprocess.PIPE
    process = fresh.Process(["-c", code], stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    assert process.stdout.readline() == "go\n"
    assert process.pid > 1
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.kill()  # as often as one likes
    assert process.communicate() == ("", "")
