"""Replays as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import html
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_agents.errors import UserError
from llm_agents.evaluation.replay_frames import EpisodeRecord, Frame, Line, ReplayWriter, joined
from llm_agents.evaluation.replay_records import facts_line
from llm_agents.whole_files import write_text

TEMPLATE = Path(__file__).with_name("replay_page.html")


class PageWriter(ReplayWriter):
    """Writes the page, in which a line that is seen in many frames stands once.

    Args:
        path: File to write.
        seconds: Between frames when it plays.
        title: Of the page.
    """

    def __init__(self, path: Path, seconds: float, title: str) -> None:
        self.path, self.seconds, self.title = path, seconds, title
        self._styles: dict[tuple[str | None, str | None, bool], int] = {}
        self._lines: dict[Line, int] = {}
        self._frames: list[dict[str, Any]] = []
        self._episodes: list[dict[str, Any]] = []

    def add(self, frame: Frame) -> None:
        """Take the next frame."""
        self._frames.append(
            {
                "episode": frame.episode,
                "heading": frame.heading,
                "screen": [self._number(line) for line in frame.screen],
                "side": [self._number(line) for line in frame.side],
                **({"repeat": True} if frame.is_repeat else {}),
            }
        )

    def end_episode(self, record: EpisodeRecord) -> None:
        """Take an episode's table."""
        self._episodes.append({**asdict(record), "line": facts_line(record)})

    def _number(self, line: Line) -> int:
        """Return the place of a line in the page's list of lines."""
        return self._lines.setdefault(joined(line), len(self._lines))

    def content(self) -> dict[str, Any]:
        """Return what the page shows, as plain data."""
        styled = [
            [[self._styles.setdefault(span[1:], len(self._styles)), span.text] for span in line]
            for line in self._lines
        ]
        return {
            "title": self.title,
            "seconds": self.seconds,
            "styles": [list(style) for style in self._styles],
            "lines": styled,
            "frames": self._frames,
            "episodes": self._episodes,
        }

    def close(self) -> None:
        """Write the page."""
        if not self._frames:
            raise UserError(f"no frame was recorded: {self.path} is not written")
        content = json.dumps(self.content(), ensure_ascii=False, separators=(",", ":"))
        safe = content.replace("<", "\\u003c")  # nothing in it may end the script it stands in
        before, after = _parts()
        text = before.replace("@TITLE@", html.escape(self.title)) + safe + after
        write_text(self.path, text)

    def discard(self) -> None:
        """Leave nothing behind: there is no file before the end."""
        self._frames.clear()


def _parts() -> tuple[str, str]:
    """Return the template before and after the place of the replay."""
    before, _, after = TEMPLATE.read_text(encoding="utf8").partition("@REPLAY@")
    return before, after
