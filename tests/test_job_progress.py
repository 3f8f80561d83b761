"""A job says how far it is, on a terminal and in a log."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console

from llm_agents.job_progress import job_progress


def ticks(*seconds: float) -> Iterator[float]:
    yield from seconds


def test_a_log_gets_a_line_every_fifteen_seconds_with_what_is_left() -> None:
    text = io.StringIO()
    clock = ticks(0.0, 10.0, 20.0, 30.0, 36.0, 40.0)
    shown = Console(file=text, width=80)
    with job_progress("pairs annotated", 5000, console=shown, clock=lambda: next(clock)) as advance:
        for _ in range(5):
            advance(1000)
    assert text.getvalue().splitlines() == [
        "pairs annotated: 2,000 of 5,000 · 0.5 min left",  # 20 s for 2,000: 30 s for 3,000
        "pairs annotated: 4,000 of 5,000 · 0.1 min left",  # 36 s for 4,000: 9 s for 1,000
    ]


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True)
    with job_progress("pairs annotated", 4, console=console) as advance:
        advance(4)
    assert "4/4" in text.getvalue()


def test_nothing_is_shown_where_that_is_not_wanted() -> None:
    text = io.StringIO()
    clock = ticks(0.0, 100.0)
    console = Console(file=text)
    with job_progress("rows", 4, is_shown=False, console=console, clock=lambda: next(clock)) as go:
        go(2)
    assert text.getvalue() == ""
