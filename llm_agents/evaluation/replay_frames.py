"""What a replay shows: frames of styled text, and the table of each episode's messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SCREEN_COLUMNS, SIDE_COLUMNS, ROWS = 80, 48, 30
"""Characters of a frame's two halves, and its rows, in all writers but the page."""
COLUMNS = SCREEN_COLUMNS + 3 + SIDE_COLUMNS
_RULE = " │ "
_DIM = "#808080"


class Span(NamedTuple):
    """A piece of a line in one style.

    Args:
        text: Without line breaks.
        color: As ``#rrggbb``; None is the default.
        background: As ``#rrggbb``; None is the default.
        bold: Whether it stands out.
    """

    text: str
    color: str | None = None
    background: str | None = None
    bold: bool = False


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Frame:
    """What is seen at one moment of an episode.

    Args:
        episode: Number of the episode, from 1.
        step: Actions taken so far.
        status: Names and values in one line above.
        screen: The world.
        side: What the agent or its reward model makes of it.
        is_repeat: Whether nothing new was said: the page may pass over it.
    """

    episode: int
    step: int
    status: tuple[tuple[str, str], ...]
    screen: tuple[Line, ...]
    side: tuple[Line, ...]
    is_repeat: bool = False

    @property
    def heading(self) -> str:
        """Return the status as text."""
        named = (f"{name} {value}".strip() for name, value in self.status)
        return " · ".join([f"episode {self.episode}", f"step {self.step}", *named])


@dataclass(frozen=True)
class MessageRow:
    """A message of an episode.

    Args:
        message: Its text.
        times: How often it was shown.
        first: Its reward when first seen: normalized and thresholded; None without a reward.
        total: Sum of its rewards over the episode.
        raw: What the reward model says of it.
        normalized: The same, normalized.
    """

    message: str
    times: int
    first: float | None = None
    total: float | None = None
    raw: float | None = None
    normalized: float | None = None


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode that has been watched.

    Args:
        number: From 1.
        facts: What came of it, in the order of the table.
        messages: Its messages, sorted; empty where the world has none.
        is_complete: Whether it ended, rather than being left.
    """

    number: int
    facts: Mapping[str, float | int | str | bool]
    messages: tuple[MessageRow, ...] = ()
    is_complete: bool = True


class ReplayWriter(ABC):
    """Takes the frames of a replay one by one."""

    @abstractmethod
    def add(self, frame: Frame) -> None:
        """Take the next frame."""

    def end_episode(self, record: EpisodeRecord) -> None:
        """Take what came of the episode whose frames are through."""
        del record

    @abstractmethod
    def close(self) -> None:
        """Finish: a file is complete, under its own name, from now on."""

    @abstractmethod
    def discard(self) -> None:
        """Leave no file behind: what was watched went wrong."""


@dataclass
class Writers(ReplayWriter):
    """Hands everything to several writers.

    Args:
        writers: In order.
    """

    writers: list[ReplayWriter] = field(default_factory=list)

    def add(self, frame: Frame) -> None:
        """Take the next frame."""
        for writer in self.writers:
            writer.add(frame)

    def end_episode(self, record: EpisodeRecord) -> None:
        """Take what came of the episode."""
        for writer in self.writers:
            writer.end_episode(record)

    def close(self) -> None:
        """Finish all of them."""
        for writer in self.writers:
            writer.close()

    def discard(self) -> None:
        """Leave no file of any of them behind."""
        for writer in self.writers:
            writer.discard()


def width(line: Line) -> int:
    """Return the number of characters of a line."""
    return sum(len(span.text) for span in line)


def fitted(line: Line, columns: int) -> Line:
    """Return a line of exactly so many characters: cut, or filled with blanks.

    Example:
        >>> fitted((Span("abc"),), 2), fitted((Span("a"),), 2)
        ((Span(text='ab', color=None, background=None, bold=False),), (Span(text='a', color=None, \
background=None, bold=False), Span(text=' ', color=None, background=None, bold=False)))
    """
    left = columns
    spans: list[Span] = []
    for span in line:
        if left <= 0:
            break
        spans.append(span._replace(text=span.text[:left]))
        left -= len(span.text)
    if left > 0:
        spans.append(Span(" " * left))
    return tuple(spans)


def laid_out(frame: Frame) -> list[Line]:
    """Return a frame as `ROWS` lines of `COLUMNS` characters: heading, then both halves.

    What does not fit is cut, and the last row of that half says how much.
    """
    rows = [fitted((Span(frame.heading, bold=True),), COLUMNS)]
    left, right = (_cut(part, ROWS - 1) for part in (frame.screen, frame.side))
    for row in range(ROWS - 1):
        line = fitted(left[row] if row < len(left) else (), SCREEN_COLUMNS)
        beside = fitted(right[row] if row < len(right) else (), SIDE_COLUMNS)
        rows.append((*line, Span(_RULE, _DIM), *beside))
    return rows


def _cut(lines: tuple[Line, ...], count: int) -> tuple[Line, ...]:
    """Return at most `count` lines."""
    if len(lines) <= count:
        return lines
    left = len(lines) - count + 1
    return (*lines[: count - 1], (Span(f"… {left} more lines", _DIM),))


def joined(spans: Iterable[Span]) -> Line:
    """Return a line with neighbours of one style made one, and nothing empty."""
    found: list[Span] = []
    for span in spans:
        if not span.text:
            continue
        if found and found[-1][1:] == span[1:]:
            found[-1] = found[-1]._replace(text=found[-1].text + span.text)
        else:
            found.append(span)
    return tuple(found)
