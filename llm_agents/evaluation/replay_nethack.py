"""A game of NetHack as frames: the terminal in color, and the messages that pay beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_agents.envs.nethack_screen import message_text
from llm_agents.evaluation.replay_frames import SIDE_COLUMNS, Line, MessageRow, Span, joined

Order = Literal["reward", "total", "times"]

# The sixteen terminal colors, light enough for a black screen; black itself is shown as gray.
INKS = (
    "#6c6c6c", "#cc4444", "#33b033", "#b08030", "#5c7cff", "#c050c0", "#30b0b0", "#c8c8c8",
    "#8a8a8a", "#ff7a50", "#60ee60", "#ffff66", "#8aa8ff", "#ff80ff", "#70ffff", "#ffffff",
)  # fmt: skip
_CURSOR = "#505050"
_BAR = 8  # characters of the longest bar
_PAYS, _DIM, _NOW = "#60d060", "#808080", "#ffff66"


def screen_of(
    tty_chars: NDArray[np.uint8],
    tty_colors: NDArray[np.int8],
    tty_cursor: NDArray[np.uint8] | None = None,
) -> tuple[Line, ...]:
    """Return the terminal as styled lines.

    Args:
        tty_chars: ``[24, 80]``.
        tty_colors: ``[24, 80]``; bits above the lowest four are no part of the color.
        tty_cursor: ``[2]``, row and column; that cell is marked.
    """
    marked = None if tty_cursor is None else (int(tty_cursor[0]), int(tty_cursor[1]))
    lines = []
    for y, (codes, colors) in enumerate(zip(tty_chars.tolist(), tty_colors.tolist(), strict=True)):
        spans = []
        for x, (code, color) in enumerate(zip(codes, colors, strict=True)):
            is_blank = code in (0, 32)
            ink = None if is_blank else INKS[color & 15]
            spans.append(Span(chr(code or 32), ink, _CURSOR if (y, x) == marked else None))
        while spans and spans[-1] == Span(" "):
            spans.pop()
        lines.append(joined(spans))
    return tuple(lines)


class MessageWorth(NamedTuple):
    """What a reward model says of a message.

    Args:
        raw: The network's number.
        normalized: Minus the mean, over the standard deviation.
        first: The normalized one if it is above the threshold, else 0.
    """

    raw: float
    normalized: float
    first: float


class MessageTally:
    """Counts the messages of an episode, and what each occurrence of them pays.

    Messages are told apart by their bytes, the empty one included.

    Args:
        worth: Says what a message is worth; None where there is no reward model.
        count_exponent: The n-th occurrence pays ``first / n ** count_exponent``.
    """

    def __init__(
        self, worth: Callable[[bytes], MessageWorth] | None = None, *, count_exponent: float = 3.0
    ) -> None:
        self.worth, self.count_exponent = worth, count_exponent
        self._times: Counter[bytes] = Counter()
        self._worths: dict[bytes, MessageWorth] = {}
        self._totals: dict[bytes, float] = {}
        self.total = 0.0
        self.last: bytes | None = None

    def see(self, message: bytes) -> float:
        """Count an occurrence; return what it pays, 0 without a reward model."""
        self._times[message] += 1
        self.last = message
        if self.worth is None:
            return 0.0
        if message not in self._worths:
            self._worths[message] = self.worth(message)
        decay = float(self._times[message] ** -self.count_exponent)
        paid = self._worths[message].first * decay
        self._totals[message] = self._totals.get(message, 0.0) + paid
        self.total += paid
        return paid

    @property
    def last_times(self) -> int:
        """Return how often the present message has come; 0 where nothing is said."""
        if self.last is None or not message_text(self.last):
            return 0
        return self._times[self.last]

    def most_repeated(self) -> MessageRow | None:
        """Return the message that came most often, if any came twice."""
        said = [row for row in self.rows("times") if row.message and row.times > 1]
        return said[0] if said else None

    def rows(self, order: Order) -> list[MessageRow]:
        """Return the messages seen so far, the largest first.

        Args:
            order: By reward when first seen (then by the normalized one, which tells those below
                the threshold apart), by their total, or by how often they came.
        """
        rows = [self._row(message, times) for message, times in self._times.items()]
        return sorted(rows, key=lambda row: _place(row, order))

    def _row(self, message: bytes, times: int) -> MessageRow:
        """Return the row of a message."""
        text = message_text(message)
        if self.worth is None:
            return MessageRow(text, times)
        raw, normalized, first = self._worths[message]
        return MessageRow(text, times, first, self._totals[message], raw, normalized)


def _place(row: MessageRow, order: Order) -> tuple[float, ...]:
    """Return what rows are sorted by."""
    if order == "times" or row.first is None or row.total is None or row.normalized is None:
        return (-row.times,)
    return (-row.first, -row.normalized) if order == "reward" else (-row.total, -row.normalized)


def side_of(tally: MessageTally, order: Order, lines: int) -> tuple[Line, ...]:
    """Return the messages of the episode so far, with what they pay.

    Args:
        tally: Of the episode.
        order: See `MessageTally.rows`.
        lines: How many fit.
    """
    rows = tally.rows(order)
    last = None if tally.last is None else message_text(tally.last)
    if tally.worth is None:
        head = (Span("times  message", _DIM),)
        return (head, *(_plain(row, last) for row in rows[: lines - 1]))
    most = max([abs(row.first or 0.0) for row in rows] + [1e-9])
    head = (Span("  first ×times  total  message", _DIM),)
    return (head, *(_paid(row, last, most) for row in rows[: lines - 1]))


def _plain(row: MessageRow, last: str | None) -> Line:
    """Return a message's line where nothing is known but its count."""
    return (Span(f"{row.times:5}  "), _text(row, last, SIDE_COLUMNS - 7))


def _paid(row: MessageRow, last: str | None, most: float) -> Line:
    """Return a message's line, with a background as wide as its reward is large."""
    first, total = row.first or 0.0, row.total or 0.0
    ink = _PAYS if first > 0 else _DIM
    head = f"{first:7.2f} ×{min(row.times, 9999):<4} {total:6.2f}  "
    shade = round(_BAR * abs(first) / most)
    return joined(
        (
            Span(head[:shade], ink, "#1f3f1f"),
            Span(head[shade:], ink),
            _text(row, last, SIDE_COLUMNS - len(head)),
        )
    )


def _text(row: MessageRow, last: str | None, columns: int) -> Span:
    """Return a message's text, marked if it is the present one."""
    text = row.message or "(no message)"
    cut = text if len(text) <= columns else f"{text[: columns - 1]}…"
    is_now = row.message == last
    return Span(cut, _NOW if is_now else None, bold=is_now)
