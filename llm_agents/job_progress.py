"""How far a job is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 15.0

Advance = Callable[[int], None]


@contextmanager
def job_progress(
    label: str,
    total: int,
    *,
    is_shown: bool = True,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:
    """Show how much of a job is done.

    Args:
        label: What is counted, such as ``pairs annotated``.
        total: How many there are.
        is_shown: Show nothing if False.
        console: Where to; standard error by default.
        clock: Tells seconds.

    Yields:
        A function that is called with how many more are done.

    Example:
        >>> with job_progress("rows scored", 3, is_shown=False) as advance:
        ...     advance(3)
    """
    shown = console or Console(stderr=True, highlight=False)
    if not is_shown:
        yield lambda count: None
    elif shown.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, *times, console=shown, transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda count: bar.advance(task, count)
    else:
        yield _lines(label, total, shown, clock)


def _lines(label: str, total: int, console: Console, clock: Callable[[], float]) -> Advance:
    """Return what writes a line whenever some time has passed, with an estimate of what is left."""
    begin = last = clock()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        now = clock()
        if now - last < SECONDS_BETWEEN_LINES or done >= total:
            return
        last = now
        minutes = (now - begin) / done * (total - done) / 60
        console.print(f"{label}: {done:,} of {total:,} · {minutes:.1f} min left", soft_wrap=True)

    return advance
