"""What an agent of a grid world sees, as colored text: 7 × 7 cells ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from llm_agents.evaluation.replay_frames import Line, Span, joined

_COLORS = ("#ff5555", "#50fa7b", "#6272ff", "#bd93f9", "#f1fa8c", "#a0a0a8")
"""Red, green, blue, purple, yellow, grey, as minigrid numbers them."""
_UNSEEN, _EMPTY, _WALL, _DOOR = 0, 1, 2, 4
_THINGS = {3: "··", 5: "k ", 6: "● ", 7: "■ ", 8: "G ", 9: "~~", 10: "▲ "}
_DOORS = ("▯ ", "▮ ", "▮x")  # open, closed, locked
_DIM, _AGENT, _WORDS = "#404048", "#ffffff", "#808080"
_LEGEND = (
    "▲ agent  ● ball  ■ box  k key  G goal  ██ wall",
    "▯ ▮ ▮x door: open, closed, locked  ░░ not seen",
)


def grid_lines(image: NDArray[Any]) -> tuple[Line, ...]:
    """Return a view as lines, two characters a cell, the agent below in the middle; then a legend.

    Args:
        image: ``[7, 7, 3]``: by column and row the type, color and state of a cell, numbered as in
            minigrid; the agent stands in the middle of the last row and looks up.
    """
    columns, rows, _ = image.shape
    cells = tuple(
        joined(
            Span("▲ ", _AGENT, bold=True)
            if (column, row) == (columns // 2, rows - 1)
            else cell(image[column, row].tolist())
            for column in range(columns)
        )
        for row in range(rows)
    )
    return (*cells, *((Span(words, _WORDS),) for words in _LEGEND))


def cell(code: Sequence[int]) -> Span:
    """Return two characters for a cell.

    Example:
        >>> cell((6, 0, 0)).text, cell((4, 2, 2)).text, cell((0, 0, 0)).text
        ('● ', '▮x', '░░')
    """
    kind, color, state = code
    if kind == _UNSEEN:
        return Span("░░", _DIM)
    if kind == _EMPTY:
        return Span("· ", _DIM)
    if kind == _WALL:
        return Span("██", "#70707a")
    ink = _COLORS[color] if color < len(_COLORS) else None
    if kind == _DOOR:
        return Span(_DOORS[state] if state < len(_DOORS) else "▮?", ink, bold=True)
    return Span(_THINGS.get(kind, "? "), ink, bold=True)
