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


def test_a_log_hears_that_a_job_goes_on_before_the_first_is_done() -> None:
    text = io.StringIO()
    clock = ticks(0.0, 16.0, 20.0, 40.0)
    notes = ticks(7, 9)
    with job_progress(
        "episodes played",
        10,
        console=Console(file=text, width=80),
        clock=lambda: next(clock),
        note=lambda: f"{next(notes):.0f} requests",
    ) as advance:
        advance(0)
        advance(0)  # too soon for a line
        advance(2)
    assert text.getvalue().splitlines() == [
        "episodes played: 0 of 10 · 7 requests",
        "episodes played: 2 of 10 · 2.7 min left · 9 requests",  # 40 s for 2: 160 s for 8
    ]


def test_a_bar_tells_more_where_there_is_more() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True)
    with job_progress("episodes", 4, console=console, note=lambda: "7 requests") as advance:
        advance(0)
        advance(1)
    assert "episodes · 7 requests" in text.getvalue()


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
