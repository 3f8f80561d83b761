"""Fresh processes in a hundredth of a second: a start that imports nothing again.

Importing torch, transformers and lightning costs a process five to ten seconds of a core, and many
tests want another process: to kill it, to wait for it, to see that nothing was left in memory. One
process is therefore forked from each test worker before its first test: everything that the tests
import is in it and nothing has been computed. The processes of the tests are forked from that one.
They are real: with an id, pipes, an exit status, killed by any signal. What is *not* fresh is the
set of imported modules: a test of what is imported, of how long that takes, or of a variable that
a library reads when it is imported starts `sys.executable` instead.

`run` and `Process` take the words after `python`: ``-m MODULE …`` or ``-c CODE …``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import logging
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

_STREAMS = 4  # standard input, output and error, and the pipe of process id and exit status
_IMPORTED = (
    "llm_agents.training.session",
    "llm_agents.training.evaluating",
    "llm_agents.zoo.loader",
    "llm_agents.policies.language_policy",
    "llm_agents.methods.a_lol",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "peft.mapping_func",
    "peft.peft_model",
    "matplotlib.pyplot",
)
_zygote: socket.socket | None = None
_process = 0


def start() -> None:
    """Fork the process that the others are forked from, before anything was computed."""
    global _zygote, _process
    for name in _IMPORTED:
        importlib.import_module(name)
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        ours.close()
        _guard(lambda: _serve(theirs))
    theirs.close()
    _zygote, _process = ours, process


def stop() -> None:
    """End the process that the others were forked from, whose time then counts as the worker's."""
    global _zygote
    if _zygote is not None:
        _zygote.close()
        os.waitpid(_process, 0)
    _zygote = None


class Process:
    """A process as `subprocess.Popen` has it, as far as tests need one.

    Args:
        words: What stands after ``python``.
        cwd: Its working folder.
        env: Its environment.
        stdin: An open file descriptor; None for an empty input.
        stdout: An open file descriptor, or ``subprocess.PIPE``; None for none.
        stderr: The same.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        assert _zygote is not None, "started by conftest.py"
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        ends = []
        for name, given in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            ends.append(self._end(name, given))
        self._status, theirs = os.pipe()
        request = {
            "words": list(words),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.flush()
            socket.send_fds(_zygote, [b"1"], [*ends, theirs, file.fileno()])
        for end in (*ends, theirs):
            os.close(end)
        self.pid = int(self._read_line())
        self.returncode: int | None = None

    def _end(self, name: str, given: int | None) -> int:
        """Return the child's end of a stream."""
        if given is None:
            return os.open(os.devnull, os.O_RDWR)
        if given != subprocess.PIPE:
            return os.dup(given)
        read, write = os.pipe()
        child, parent, mode = (read, write, "w") if name == "stdin" else (write, read, "r")
        setattr(self, name, os.fdopen(parent, mode, buffering=1, encoding="utf8"))
        return child

    def _read_line(self) -> bytes:
        """Read one line of the status pipe."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._status, 1)
            if not byte:
                raise RuntimeError("a fresh process ended without a status")
            line += byte
        return line

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status, negative where a signal ended it."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._read_line())
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to it, unless its end is known."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        """Read its output and errors to their ends, and wait for it."""
        texts = {"stdout": "", "stderr": ""}

        def read(name: str, stream: IO[str]) -> None:
            texts[name] = stream.read()
            stream.close()

        if self.stdin is not None:
            self.stdin.close()
        streams = [(name, getattr(self, name)) for name in texts if getattr(self, name)]
        readers = [threading.Thread(target=read, args=pair) for pair in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self.wait()
        return texts["stdout"], texts["stderr"]


def run(
    *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a fresh process to its end, with its output and errors kept."""
    process = Process(words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = process.communicate()
    return subprocess.CompletedProcess(list(words), process.wait(), out, errors)


def _guard(work: Any) -> None:
    """Do the work of a forked process and end it here, whatever happens."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _serve(requests: socket.socket) -> None:
    """Fork a process for each request until the worker is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.root.handlers.clear()  # pytest's
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1, _STREAMS + 1)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _guard(lambda: _keep(files))  # noqa: B023 (called at once)
        for file in files:
            os.close(file)


def _keep(files: list[int]) -> None:
    """Fork the process itself and tell its id and its end: only a parent is told those."""
    *streams, status, request = files
    process = os.fork()
    if process == 0:
        os.close(status)
        _guard(lambda: _work(streams, request))
    for file in (*streams, request):
        os.close(file)
    os.write(status, b"%d\n" % process)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, b"%d\n" % code)
    os._exit(0)


def _work(streams: list[int], request: int) -> None:
    """Run what was asked for as Python would, and end with its exit status."""
    with os.fdopen(request, "rb") as file:
        file.seek(0)
        asked = json.loads(file.read())
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    _forget_the_tests(asked["env"])
    os.chdir(asked["cwd"])
    code = 0
    try:
        _run_python(asked["words"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)  # noqa: T201
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _forget_the_tests(environment: dict[str, str]) -> None:
    """Put everything back that pytest has changed in the process, and seed as a start does."""
    atexit._clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", buffering=1, encoding="utf8", errors="backslashreplace", closefd=False
    )
    importlib.reload(warnings)
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    random.seed()
    np.random.seed()


def _run_python(words: list[str]) -> None:
    """Run ``-m MODULE …`` or ``-c CODE …``."""
    how, what, *more = words
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    sys.path.insert(0, os.getcwd() if how == "-m" else "")
    if how == "-m":
        sys.argv = [what, *more]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *more]
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    else:
        raise ValueError(f"expected -m or -c, got {how}")
