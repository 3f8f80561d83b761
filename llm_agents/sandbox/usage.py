"""What a tree of processes uses, read from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Memory, processor time and disk space.

    Args:
        memory_bytes: Resident memory.
        cpu_seconds: Processor time, with that of children that were waited for.
        disk_bytes: Size of files.
        address_space: Address space of the largest process.
    """

    memory_bytes: int
    cpu_seconds: float
    disk_bytes: int
    address_space: int

    def with_cpu(self, cpu_seconds: float) -> Usage:
        """Return the same with another processor time."""
        return replace(self, cpu_seconds=cpu_seconds)


def usage_below(process: int, *, shared: int = 0) -> Usage:
    """Return what a process and all below it use.

    Args:
        process: The process.
        shared: Resident memory that each shares with the process it was forked from; it is taken
            off each one's.
    """
    memory, ticks, space = 0, 0, 0
    for one in _tree(process):
        try:
            with open(f"/proc/{one}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        ticks += sum(map(int, fields[11:15]))
        space = max(space, int(fields[20]))
        memory += max(0, int(fields[21]) * _PAGE - shared)
    return Usage(memory, ticks / _TICKS, 0, space)


def _tree(process: int) -> Iterator[int]:
    """Yield a process and all below it."""
    waiting = [process]
    while waiting:
        one = waiting.pop()
        yield one
        try:
            threads = os.listdir(f"/proc/{one}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{one}/task/{thread}/children", encoding="ascii") as file:
                    waiting += map(int, file.read().split())
            except OSError:
                continue


def folder_bytes(folder: str) -> int:
    """Return the disk space that a folder's files take."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
    return total
