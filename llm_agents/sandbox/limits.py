"""Limits of a job in the sandbox, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

Stopped = Literal["wall", "cpu", "memory", "output", "disk", "lost"]

MIB = 1 << 20


@dataclass(frozen=True)
class SandboxLimits:
    """What one job may use; everything that it starts counts.

    Args:
        wall_seconds: Time from its start to its end.
        cpu_seconds: Processor time, whole seconds.
        memory_bytes: Memory beyond what the preloaded modules take.
        processes: Processes and threads that it may have at a time, itself included. Without
            namespaces (back end `landlock`) a job has threads only.
        output_bytes: Standard output and standard error, each.
        disk_bytes: Files in its folder together; files that it hands back together.
        open_files: Open file descriptors.
    """

    wall_seconds: float = 30.0
    cpu_seconds: int = 30
    memory_bytes: int = 1024 * MIB
    processes: int = 16
    output_bytes: int = 1 * MIB
    disk_bytes: int = 64 * MIB
    open_files: int = 256

    def __post_init__(self) -> None:
        """Refuse limits under which nothing runs.

        Raises:
            ValueError: A limit is not above 0.
        """
        for one in fields(self):
            value = getattr(self, one.name)
            if not value > 0:
                raise ValueError(f"expected `{one.name}` above 0, got {value}")


@dataclass(frozen=True)
class SandboxOutcome:
    """How a job ended, and what it left.

    Args:
        stdout: Standard output, as far as the limit let it come; bytes that are no UTF-8 replaced.
        stderr: Standard error, likewise; a traceback ends it where the code raised.
        status: Exit status; −N if signal N ended it; None if a limit did.
        stopped: The limit that ended it: `wall`, `cpu`, `memory`, `output`, `disk`; `lost` if it
            brought down the process that watched over it; None if it ended by itself.
        wall_seconds: Time that it took.
        cpu_seconds: Processor time that it took, as far as it is known.
        files: The files asked for that it left, by name.
    """

    stdout: str
    stderr: str
    status: int | None
    stopped: Stopped | None
    wall_seconds: float
    cpu_seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        """Return whether the code ran to its end without an error."""
        return self.stopped is None and self.status == 0

    @property
    def error(self) -> str:
        """Return in one line why the job failed; nothing if it didn't."""
        if self.is_success:
            return ""
        if self.stopped == "lost":
            return "the job ended the process that watched over it"
        if self.stopped is not None:
            return f"stopped at the limit of {_LIMITS[self.stopped]}"
        lines = self.stderr.strip().splitlines()
        return lines[-1] if lines else f"ended with status {self.status}"


_LIMITS: dict[Stopped, str] = {
    "wall": "time",
    "cpu": "processor time",
    "memory": "memory",
    "output": "output",
    "disk": "disk space",
}
