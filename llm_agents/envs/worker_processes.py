"""Processes that each hold an object and do what it is told; they end with the one that began them.

Messages go over pipes between our own processes. When the process that owns them is killed, a
worker finds its pipe closed, closes its object and ends.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, cast


class Held(Protocol):
    """What a worker holds: its other methods are what it can be told."""

    def close(self) -> None:
        """Give back what it has taken."""


def start_context() -> Any:  # noqa: ANN401 - multiprocessing has no public type for it
    """Return how processes start here: by a fork, which costs no import, where there is one."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if "fork" in methods else "spawn")


class WorkerProcesses:
    """W processes with an object each.

    Args:
        factory: Makes the object of a process, in that process.
        arguments: W keyword arguments for it.
        name: Of the processes, for messages.

    Attributes:
        folder: Temporary files of the workers, removed at the end even if one was killed.
    """

    def __init__(
        self, factory: Callable[..., Held], arguments: Sequence[Mapping[str, Any]], name: str
    ) -> None:
        context = start_context()
        self.folder = tempfile.mkdtemp(prefix=f"{name}-")
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._close = weakref.finalize(self, _stop, self._workers, self.folder)
        for number, own in enumerate(arguments):
            ours, theirs = context.Pipe()
            copied = [ours, *(connection for _, connection in self._workers)]
            foreign = copied if context.get_start_method() == "fork" else []
            process = context.Process(
                target=_serve,
                args=(theirs, foreign, self.folder, factory, dict(own)),
                daemon=True,
                name=f"{name}-{number}",
            )
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def __len__(self) -> int:
        """Return W."""
        return len(self._workers)

    def tell(self, worker: int, method: str, *arguments: object) -> None:
        """Let a worker call a method of its object; `answer` must follow."""
        with suppress(BrokenPipeError):  # one that has died is found by `answer`
            self._workers[worker][1].send((method, arguments))

    def answer(self, worker: int) -> Any:  # noqa: ANN401 - that of the method
        """Return what the method returned, once it has.

        Raises:
            RuntimeError: The worker has died; a fault in the method has been printed by then.
        """
        process, connection = self._workers[worker]
        try:
            return connection.recv()
        except (EOFError, ConnectionResetError) as error:
            process.join(5)
            raise RuntimeError(
                f"the worker `{process.name}` has stopped with exit code {process.exitcode}; what "
                "it printed says why (-9 is a kill, such as for want of memory)"
            ) from error

    def ready(self, workers: Sequence[int]) -> list[int]:
        """Return those of some workers whose `answer` is there, once there is one."""
        connections = {self._workers[worker][1]: worker for worker in workers}
        return sorted(connections[cast(Connection, one)] for one in wait(list(connections)))

    def processes(self) -> tuple[BaseProcess, ...]:
        """Return the processes."""
        return tuple(process for process, _ in self._workers)

    def close(self) -> None:
        """End the processes; may be called twice."""
        self._close()


def _serve(
    connection: Connection,
    foreign: Sequence[Connection],
    folder: str,
    factory: Callable[..., Held],
    arguments: Mapping[str, Any],
) -> None:
    """Do what the pipe says until it is closed.

    Args:
        connection: To the owner.
        foreign: The owner's ends of pipes that a fork has copied: while one is open here, a worker
            doesn't notice that the owner was killed.
        folder: For temporary files.
        factory: Makes the object.
        arguments: For it.
    """
    for one in foreign:
        one.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what an interrupt ends
    tempfile.tempdir = folder
    held = factory(**arguments)
    try:
        while True:
            method, given = connection.recv()
            connection.send(getattr(held, method)(*given))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    finally:
        held.close()
        with suppress(OSError):  # the last worker of a killed owner finds it empty
            os.rmdir(folder)


def _stop(workers: Sequence[tuple[BaseProcess, Connection]], folder: str) -> None:
    """End worker processes and remove what they left."""
    for _, connection in workers:
        connection.close()
    for process, _ in workers:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
    shutil.rmtree(folder, ignore_errors=True)
