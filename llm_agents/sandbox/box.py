r"""The sandbox: code that a model wrote, run where it can do no harm.

    with Sandbox() as sandbox:
        outcome = sandbox.run("print(6 * 7)")
        outcome.stdout  # "42\n"

A server process, closed in by one of two back ends, holds the preloaded modules and forks for each
job. A job sees the interpreter and its own folder; no network, no other process, no environment,
nothing of the jobs before it. Its score is to be computed outside, from the files it hands back.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from types import TracebackType

from llm_agents.errors import UserError
from llm_agents.sandbox.backends import Backend, launch
from llm_agents.sandbox.confinement import LENGTH, PIECE
from llm_agents.sandbox.limits import SandboxLimits, SandboxOutcome, Stopped
from llm_agents.sandbox.selection import choose_backend
from llm_agents.sandbox.usage import Usage, folder_bytes, usage_below

_START_SECONDS = 120.0  # for a server to import its modules, on a busy machine
_LOOK_SECONDS = 0.05  # between two looks at what a job uses
_PAGE_SPACE = 256 << 20  # address space beyond the memory that a job may use


class SandboxUnavailableError(UserError):
    """No way of closing code in works on this machine."""


class Sandbox:
    """Runs Python code in confinement, one job at a time, each in a fresh process.

    Args:
        limits: What each job may use.
        preload: Modules that are imported once, before the first job: a job's own import of them
            costs nothing.
        backend: `bubblewrap` or `landlock`; by default the first that passes its self-test here,
            the attacks of `llm_agents.sandbox.attacks`.
        readable: Files and folders that jobs may read beside the interpreter and its packages.
        warm: Keep the server between jobs; otherwise each job gets a new one.

    Raises:
        SandboxUnavailableError: No back end passes; the reasons are named.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        preload: Sequence[str] = (),
        backend: Backend | None = None,
        readable: Sequence[str | os.PathLike[str]] = (),
        warm: bool = True,
    ) -> None:
        chosen, reasons = (backend, ()) if backend else choose_backend(_trial)
        if chosen is None:
            raise SandboxUnavailableError(
                "code can't be run safely on this machine: " + "; ".join(reasons)
            )
        self.backend: Backend = chosen
        self.limits = limits or SandboxLimits()
        self._preload = tuple(preload)
        self._readable = tuple(os.path.abspath(path) for path in readable)
        self._warm = warm
        self._server: _Server | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Sandbox:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the server."""
        self.close()

    def close(self) -> None:
        """End the server; the next job starts another."""
        with self._lock:
            self._end_server()

    def _end_server(self) -> None:
        """End the server, if there is one."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def run(
        self,
        code: str,
        *,
        files: Mapping[str, bytes] | None = None,
        outputs: Sequence[str] = (),
        limits: SandboxLimits | None = None,
    ) -> SandboxOutcome:
        """Run a program.

        Args:
            code: Python source; it runs as `__main__`, in a folder of its own.
            files: Content of files that it finds there, by relative name.
            outputs: Names of files that it may leave there to be handed back.
            limits: Instead of the sandbox's.

        Returns:
            What came of it; nothing that the code does raises here.

        Raises:
            ValueError: A file's name leads out of the folder.
            SandboxUnavailableError: The server doesn't start.
        """
        for name in (*(files or ()), *outputs):
            _check_name(name)
        with self._lock:
            if self._server is not None and self._server.ended():
                self._end_server()  # with the thread that started it, perhaps
            if self._server is None:
                self._server = _Server(self.backend, self._preload, self._readable, self.limits)
            job = _Job(code, dict(files or {}), tuple(outputs), limits or self.limits)
            outcome = self._server.run(job)
            if self._server.is_spent or not self._warm:
                self._end_server()
            return outcome


def _trial(backend: Backend, limits: SandboxLimits) -> Sandbox:
    """Return a sandbox that is to show whether it holds."""
    return Sandbox(limits, backend=backend)


def _check_name(name: str) -> None:
    """Refuse a name that is not below the job's folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.name in ("", ".") or "\0" in name:
        raise ValueError(f"expected the relative name of a file in the job's folder, got {name!r}")


@dataclass(frozen=True)
class _Job:
    """A program with its files and limits."""

    code: str
    files: dict[str, bytes]
    outputs: tuple[str, ...]
    limits: SandboxLimits

    def payload(self) -> bytes:
        """Return what the job's process reads."""
        sizes = [(name, len(content)) for name, content in self.files.items()]
        head = json.dumps({"code": self.code, "files": sizes}).encode()
        return b"".join((LENGTH.pack(len(head)), head, *self.files.values()))


@dataclass
class _Channels:
    """The outer ends of a job's pipes."""

    program: int
    output: int
    errors: int
    files: int
    unsent: memoryview
    received: dict[int, bytearray] = field(default_factory=dict)

    def close(self) -> None:
        """Close what is open."""
        for pipe in (self.program, self.output, self.errors, self.files):
            with contextlib.suppress(OSError):
                os.close(pipe)


class _Server:
    """A process behind closed doors that forks jobs; restarted when a job has spoilt it."""

    def __init__(
        self,
        backend: Backend,
        preload: Sequence[str],
        readable: Sequence[str],
        limits: SandboxLimits,
    ) -> None:
        self.is_spent = False
        self._work = tempfile.mkdtemp(prefix="sandbox-") if backend == "landlock" else None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        plan = launch(
            backend,
            control=theirs.fileno(),
            work=self._work or "",
            preload=preload,
            readable=readable,
            disk_bytes=limits.disk_bytes,
        )
        self._process = subprocess.Popen(
            [*plan.command, json.dumps(plan.setting)],
            env=plan.environment,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        ours.settimeout(_START_SECONDS)
        try:
            greeting = ours.recv(PIECE)
        except OSError:
            greeting = b""
        if not greeting or json.loads(greeting)["missing"]:
            self._refuse(backend, greeting)
        self._idle = usage_below(self._process.pid)

    def _refuse(self, backend: Backend, greeting: bytes) -> None:
        """Say why a server doesn't serve."""
        self._process.kill()
        _, errors = self._process.communicate()
        self.end()
        if greeting:
            reason = "modules to preload are missing: " + "; ".join(json.loads(greeting)["missing"])
        else:
            lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
            reason = lines[-1]
        raise SandboxUnavailableError(f"the sandbox ({backend}) did not start: {reason}")

    def end(self) -> None:
        """Kill the server and all that it started, and remove its files."""
        self.is_spent = True
        self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()
        self._control.close()
        if self._work:
            shutil.rmtree(self._work, ignore_errors=True)

    def run(self, job: _Job) -> SandboxOutcome:
        """Run a job to its end, or to a limit's."""
        begun = time.monotonic()
        channels = self._start(job)
        watch = _Watch(self, job.limits, begun)
        report: dict[str, float] = {}
        stopped: Stopped | None = None
        try:
            stopped, report = watch.until_end(channels)
        finally:
            if stopped is not None and not report:
                self.end()
            channels.close()
        self.is_spent = self.is_spent or bool(report.get("spent"))
        if report and not report["is_confined"]:
            errors = bytes(channels.received[channels.errors]).decode(errors="replace")
            raise SandboxUnavailableError(
                f"a job could not be confined, and was not run: {errors.strip()[-300:]}"
            )
        return _outcome(job, channels, stopped, report, time.monotonic() - begun, watch.cpu_seconds)

    def _start(self, job: _Job) -> _Channels:
        """Make a job's pipes and hand their inner ends over."""
        pairs = [os.pipe() for _ in range(4)]
        program, *rest = pairs
        inner = [program[0], *(pair[1] for pair in rest)]
        outer = [program[1], *(pair[0] for pair in rest)]
        for pipe in outer:
            os.set_blocking(pipe, False)
        limits = asdict(job.limits) | {
            "address_space": self._idle.address_space + job.limits.memory_bytes + _PAGE_SPACE
        }
        request = json.dumps({"limits": limits, "outputs": job.outputs}).encode()
        with contextlib.suppress(OSError):  # a server that died is found by the watch
            socket.send_fds(self._control, [request], inner)
        for pipe in inner:
            os.close(pipe)
        return _Channels(outer[0], outer[1], outer[2], outer[3], memoryview(job.payload()))

    def ended(self) -> bool:
        """Return whether the server is no more."""
        return self._process.poll() is not None

    def used(self) -> Usage:
        """Return what the job uses now, the idle server's share taken off."""
        used = usage_below(self._process.pid, shared=self._idle.memory_bytes)
        disk = folder_bytes(self._work) if self._work else 0
        return Usage(
            memory_bytes=used.memory_bytes,
            cpu_seconds=max(0.0, used.cpu_seconds - self._idle.cpu_seconds),
            disk_bytes=disk,
            address_space=used.address_space,
        )

    def settle(self, cpu_seconds: float) -> None:
        """Count a job that ended as the server's own past."""
        self._idle = self._idle.with_cpu(self._idle.cpu_seconds + cpu_seconds)

    @property
    def control(self) -> socket.socket:
        """The socket on which the server reports."""
        return self._control


class _Watch:
    """Reads what a job writes, and looks at what it uses, until it ends or is to be ended."""

    def __init__(self, server: _Server, limits: SandboxLimits, begun: float) -> None:
        self._server = server
        self._limits = limits
        self._deadline = begun + limits.wall_seconds
        self.cpu_seconds = 0.0

    def until_end(self, channels: _Channels) -> tuple[Stopped | None, dict[str, float]]:
        """Return the limit that was met, if any, and the server's report."""
        report: dict[str, float] = {}
        next_look = time.monotonic() + _LOOK_SECONDS
        with selectors.DefaultSelector() as selector:
            for pipe in (channels.output, channels.errors, channels.files):
                selector.register(pipe, selectors.EVENT_READ)
                channels.received[pipe] = bytearray()
            selector.register(channels.program, selectors.EVENT_WRITE)
            selector.register(self._server.control, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(_LOOK_SECONDS):
                    if key.fileobj is self._server.control:
                        answer = self._server.control.recv(PIECE)
                        selector.unregister(self._server.control)
                        if not answer:
                            return "lost", {}
                        report = json.loads(answer)
                    elif key.fd == channels.program:
                        _send_some(selector, channels)
                    elif self._read_some(selector, channels, key.fd):
                        return "output", {}
                now = time.monotonic()
                if report and channels.program in selector.get_map():
                    selector.unregister(channels.program)  # it ended before it had read all
                    os.close(channels.program)
                if not report and now >= next_look:
                    met = self._limit_met(now)
                    if met is not None:
                        return met, {}
                    next_look = now + _LOOK_SECONDS
        self._server.settle(report.get("cpu_seconds", 0.0))
        took = report["cpu_seconds"]
        self.cpu_seconds = max(self.cpu_seconds, took)
        by_signal = -report["status"] in (signal.SIGXCPU, signal.SIGKILL)
        return ("cpu" if by_signal and took > self._limits.cpu_seconds - 1 else None), report

    def _read_some(self, selector: selectors.BaseSelector, channels: _Channels, pipe: int) -> bool:
        """Take what a pipe holds; return whether it was more than may be."""
        piece = os.read(pipe, PIECE)
        if not piece:
            selector.unregister(pipe)
            return False
        if pipe == channels.files:
            most = self._limits.disk_bytes + PIECE
        else:
            most = self._limits.output_bytes
        kept = channels.received[pipe]
        kept += piece[: most - len(kept) + 1]
        return len(kept) > most

    def _limit_met(self, now: float) -> Stopped | None:
        """Return the limit that the job has met, if any."""
        if now >= self._deadline:
            return "wall"
        if self._server.ended():
            return "lost"
        used = self._server.used()
        self.cpu_seconds = used.cpu_seconds
        if used.cpu_seconds > self._limits.cpu_seconds:
            return "cpu"
        if used.memory_bytes > self._limits.memory_bytes:
            return "memory"
        return "disk" if used.disk_bytes > self._limits.disk_bytes else None


def _send_some(selector: selectors.BaseSelector, channels: _Channels) -> None:
    """Send a piece of the job's program; close the pipe after the last, or if nobody reads it."""
    try:
        count = os.write(channels.program, channels.unsent[:PIECE])
        channels.unsent = channels.unsent[count:]
    except BrokenPipeError:
        channels.unsent = channels.unsent[:0]
    if not channels.unsent:
        selector.unregister(channels.program)
        os.close(channels.program)


def _outcome(
    job: _Job,
    channels: _Channels,
    stopped: Stopped | None,
    report: Mapping[str, float],
    wall_seconds: float,
    cpu_seconds: float,
) -> SandboxOutcome:
    """Put together what came of a job."""
    most = job.limits.output_bytes
    texts = [
        bytes(channels.received.get(pipe, b""))[:most].decode(errors="replace")
        for pipe in (channels.output, channels.errors)
    ]
    return SandboxOutcome(
        stdout=texts[0],
        stderr=texts[1],
        status=None if stopped else int(report["status"]),
        stopped=stopped,
        wall_seconds=wall_seconds,
        cpu_seconds=cpu_seconds,
        files=_files(job.outputs, bytes(channels.received.get(channels.files, b""))),
    )


def _files(names: Sequence[str], content: bytes) -> dict[str, bytes]:
    """Take the files that a job left out of what was sent."""
    found: dict[str, bytes] = {}
    place = 0
    for name in names:
        if place + 8 > len(content):
            break
        (length,) = struct.unpack_from("<q", content, place)
        place += 8
        if length >= 0:
            found[name] = content[place : place + length]
            place += length
    return found
