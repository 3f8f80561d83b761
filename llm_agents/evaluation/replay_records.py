"""What came of the episodes that were watched: tables in the terminal, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from llm_agents.evaluation.replay_frames import EpisodeRecord, Frame, MessageRow, ReplayWriter
from llm_agents.evaluation.results import only_finite
from llm_agents.whole_files import write_text

_MOST = 25


class RecordWriter(ReplayWriter):
    """Writes what came of each episode, its messages included, as one JSON file.

    Args:
        path: File to write.
        title: What was watched.
    """

    def __init__(self, path: Path, title: str) -> None:
        self.path, self.title = path, title
        self.records: list[EpisodeRecord] = []

    def add(self, frame: Frame) -> None:
        """Leave the frame alone."""

    def end_episode(self, record: EpisodeRecord) -> None:
        """Keep what came of an episode."""
        self.records.append(record)

    def close(self) -> None:
        """Write the file."""
        values = {"title": self.title, "episodes": [asdict(record) for record in self.records]}
        text = json.dumps(only_finite(values), indent=1, ensure_ascii=False, allow_nan=False)
        write_text(self.path, text + "\n")

    def discard(self) -> None:
        """Leave nothing behind: there is no file before the end."""
        self.records.clear()


def facts_line(record: EpisodeRecord) -> str:
    """Return what came of an episode in one line."""
    named = (f"{name} {_shown(value)}" for name, value in record.facts.items())
    return " · ".join([f"episode {record.number}", *named])


def message_table(rows: Sequence[MessageRow]) -> Table:
    """Return an episode's messages, at most 25 of them, with what they paid.

    Args:
        rows: Sorted.
    """
    has_reward = any(row.first is not None for row in rows)
    left_out = len(rows) - _MOST
    caption = f"and {left_out} more messages" if left_out > 0 else None
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    if has_reward:
        table.add_column("first seen", justify="right")
    table.add_column("times", justify="right")
    if has_reward:
        table.add_column("total", justify="right")
    table.add_column("message")
    for row in rows[:_MOST]:
        cells = [f"{row.times}", escape(row.message) or "[dim](no message)[/dim]"]
        if has_reward:
            cells = [_reward(row.first), cells[0], _reward(row.total), cells[1]]
        table.add_row(*cells)
    return table


def _reward(value: float | None) -> str:
    """Return a reward in three decimals."""
    return "–" if value is None else f"{value:.3f}"


def _shown(value: float | int | str | bool) -> str:
    """Return a fact as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
