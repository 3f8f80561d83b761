"""Replays in a terminal, and as an asciinema recording (format 2)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO

from llm_agents.evaluation.replay_frames import (
    COLUMNS,
    ROWS,
    EpisodeRecord,
    Frame,
    Line,
    ReplayWriter,
    laid_out,
)

_HOME, _CLEAR, _CLEAR_LINE = "\033[H", "\033[2J", "\033[K"
_UNPRINTABLE = dict.fromkeys([*range(32), *range(127, 160)], "·")  # a world can't steer terminals
_HIDE_CURSOR, _SHOW_CURSOR = "\033[?25l", "\033[?25h"


def ansi(line: Line) -> str:
    r"""Return a line with escape sequences for 24-bit colors, and none where there is no style.

    Example:
        >>> from llm_agents.evaluation.replay_frames import Span
        >>> ansi((Span("a"), Span("b", "#ff0000", bold=True)))
        'a\x1b[1;38;2;255;0;0mb\x1b[0m'
    """
    parts = []
    for span in line:
        text = span.text.translate(_UNPRINTABLE)
        codes = ["1"] if span.bold else []
        codes += ["38;2;" + _rgb(span.color)] if span.color else []
        codes += ["48;2;" + _rgb(span.background)] if span.background else []
        parts.append(f"\033[{';'.join(codes)}m{text}\033[0m" if codes else text)
    return "".join(parts)


def _rgb(color: str) -> str:
    """Return ``#rrggbb`` as three numbers."""
    return ";".join(str(int(color[place : place + 2], 16)) for place in (1, 3, 5))


def drawn(frame: Frame) -> str:
    """Return what draws a frame over the one before, from the screen's first row on."""
    rows = (ansi(line).rstrip(" ") + _CLEAR_LINE for line in laid_out(frame))
    return _HOME + "\r\n".join(rows)


class TerminalWriter(ReplayWriter):
    """Draws each frame over the one before, at a steady pace.

    Args:
        stream: The terminal.
        seconds: Between frames.
    """

    def __init__(self, stream: IO[str], seconds: float) -> None:
        self.stream, self.seconds = stream, seconds
        self._next = 0.0

    def add(self, frame: Frame) -> None:
        """Draw a frame when its time has come."""
        first = self._next == 0.0
        delay = self._next - time.monotonic()
        if not first and delay > 0:
            time.sleep(delay)
        self.stream.write((_HIDE_CURSOR + _CLEAR if first else "") + drawn(frame))
        self.stream.flush()
        self._next = time.monotonic() + self.seconds

    def end_episode(self, record: EpisodeRecord) -> None:
        """Leave the last frame standing; what comes next is written below it."""
        del record
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        if self._next:
            self.stream.write(f"{_SHOW_CURSOR}\033[{ROWS + 1};1H\n")
            self.stream.flush()
        self._next = 0.0

    def discard(self) -> None:
        """Give the terminal back."""
        self.close()


class CastWriter(ReplayWriter):
    """Writes an asciinema recording, line by line, so that its length costs no memory.

    Args:
        path: File to write.
        seconds: Between frames.
        title: Shown by players.
    """

    def __init__(self, path: Path, seconds: float, title: str) -> None:
        self.path, self.seconds = path, seconds
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = path.with_name(f".{os.getpid()}.{path.name}")
        self._lines = self._temporary.open("w", encoding="utf8")
        self._time = 0.0
        header = {
            "version": 2,
            "width": COLUMNS,
            "height": ROWS,
            "title": title,
            "env": {"TERM": "xterm-256color"},
        }
        self._lines.write(json.dumps(header) + "\n")

    def add(self, frame: Frame) -> None:
        """Write a frame's event."""
        start = _CLEAR if self._time == 0.0 else ""
        event = [round(self._time, 6), "o", start + drawn(frame)]
        self._lines.write(json.dumps(event, ensure_ascii=False) + "\n")
        self._time += self.seconds

    def close(self) -> None:
        """Give the file its name."""
        self._lines.close()
        self._temporary.replace(self.path)

    def discard(self) -> None:
        """Remove the unfinished file."""
        self._lines.close()
        self._temporary.unlink(missing_ok=True)
