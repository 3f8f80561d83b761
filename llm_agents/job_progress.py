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
    note: Callable[[], str] | None = None,
) -> Iterator[Advance]:
    """Show how much of a job is done.

    Args:
        label: What is counted, such as ``pairs annotated``.
        total: How many there are.
        is_shown: Show nothing if False.
        console: Where to; standard error by default.
        clock: Tells seconds.
        note: Tells more, in a few words that change while nothing is done yet.

    Yields:
        A function that is called with how many more are done; 0 shows that the job goes on.

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

            def advance(count: int) -> None:
                told = label if note is None else f"{label} · {note()}"
                bar.update(task, advance=count, description=told)

            yield advance
    else:
        yield _lines(label, total, shown, clock, note)


def _lines(
    label: str,
    total: int,
    console: Console,
    clock: Callable[[], float],
    note: Callable[[], str] | None,
) -> Advance:
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
        parts = [f"{label}: {done:,} of {total:,}"]
        if done:
            parts.append(f"{(now - begin) / done * (total - done) / 60:.1f} min left")
        if note is not None:
            parts.append(note())
        console.print(" · ".join(parts), soft_wrap=True)

    return advance
