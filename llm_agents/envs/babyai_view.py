"""What the agent of a grid world sees: 7 × 7 cells ahead of it, as minigrid encodes them.

Minigrid itself builds and rotates sub-grids to find this out, which takes several times as long as
the step that it follows. Here a grid's codes are kept between steps, and a row of the view is two
bit masks: which of its cells are seen, and which let sight through. How sight spreads within a row
and on to the next one is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, product
from operator import itemgetter
from typing import Any, Final, Protocol

SIZE: Final = 7
MIDDLE: Final = SIZE // 2
AGENT: Final = MIDDLE * SIZE + SIZE - 1

Code = tuple[int, int, int]
"""Type, colour and state of a cell, numbered as in minigrid."""

UNSEEN: Final[Code] = (0, 0, 0)
EMPTY: Final[Code] = (1, 0, 0)
WALL: Final = 2
_OUTSIDE: Final[Code] = (WALL, 5, 0)
_FORWARD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_ALL = (1 << SIZE) - 1
_MEMBERS = tuple(tuple(i for i in range(SIZE) if mask >> i & 1) for mask in range(_ALL + 1))
_MASK = {
    flags: sum(flag << i for i, flag in enumerate(flags))
    for flags in product((False, True), repeat=SIZE)
}

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


class Thing(Protocol):
    """What minigrid's objects offer."""

    type: str
    color: str

    def encode(self) -> Code:
        """Return the object's code."""

    def see_behind(self) -> bool:
        """Return whether it lets sight through."""


@cache
def _lines(width: int, height: int, x: int, y: int, direction: int) -> tuple[Pick, ...]:
    """Return what picks the rows of the view, nearest first, from a flat grid.

    The grid has one more cell at its end, which stands for all that is outside.
    """
    forward_x, forward_y = _FORWARD[direction]
    right_x, right_y = -forward_y, forward_x
    lines = []
    for ahead in range(SIZE):
        line = []
        for aside in range(-MIDDLE, MIDDLE + 1):
            column = x + ahead * forward_x + aside * right_x
            row = y + ahead * forward_y + aside * right_y
            inside = 0 <= column < width and 0 <= row < height
            line.append(row * width + column if inside else width * height)
        lines.append(itemgetter(*line))
    return tuple(lines)


@cache
def _spread(seen: int, clear: int) -> tuple[int, int]:
    """Return the seen cells of a row and of the next one, as bit masks.

    Sight spreads from a seen cell that is clear to its neighbour, to the cell ahead of it and to
    the one ahead of its neighbour: first from left to right, then back.

    Args:
        seen: Cells that the row before has shown.
        clear: Cells that let sight through.
    """
    ahead = 0
    for i in range(SIZE - 1):
        if seen >> i & clear >> i & 1:
            seen |= 1 << i + 1
            ahead |= 0b11 << i
    for i in range(SIZE - 1, 0, -1):
        if seen >> i & clear >> i & 1:
            seen |= 1 << i - 1
            ahead |= 0b11 << i - 1
    return seen, ahead


class Viewer:
    """Sees grids. It remembers the last one: objects other than doors must not change their looks.

    Example:
        >>> Viewer().look([None] * 9, 3, (1, 1), direction=3)[AGENT - 2 : AGENT + 1]
        [(2, 5, 0), (1, 0, 0), (1, 0, 0)]
    """

    def __init__(self) -> None:
        self._cells: list[Thing | None] = []
        self._codes: list[Code] = [_OUTSIDE]
        self._clear: list[bool] = [False]
        self._doors: set[int] = set()

    def look(
        self,
        cells: list[Thing | None],
        width: int,
        position: Sequence[int],
        direction: int,
        carried: Thing | None = None,
    ) -> list[Code]:
        """Return the 49 cells of the view: columns from left to right, each from far to near.

        Equal to the flattened ``gen_obs()["image"]`` of minigrid 3.2.

        Args:
            cells: The grid row by row: minigrid's objects, None where a cell is empty.
            width: Cells in a row.
            position: Column and row of the agent.
            direction: Of the agent: 0 right, 1 down, 2 left, 3 up.
            carried: What the agent carries; it is shown in the agent's own cell.
        """
        if cells != self._cells:
            self._note(cells)
        for place in self._doors:
            self._note_thing(place, cells[place])
        x, y = int(position[0]), int(position[1])
        rows: list[Sequence[Code]] = []
        seen = 1 << MIDDLE
        for pick in _lines(width, len(cells) // width, x, y, int(direction)):
            seen, ahead = _spread(seen, _MASK[pick(self._clear)])
            codes = pick(self._codes)
            if seen != _ALL:
                shown = [UNSEEN] * SIZE
                for i in _MEMBERS[seen]:
                    shown[i] = codes[i]
                codes = tuple(shown)
            rows.append(codes)
            seen = ahead
        rows.reverse()
        view = list(chain.from_iterable(zip(*rows, strict=True)))
        view[AGENT] = EMPTY if carried is None else carried.encode()
        return view

    def _note(self, cells: list[Thing | None]) -> None:
        """Remember a grid where it differs from the last one."""
        if len(cells) != len(self._cells):
            self._cells = [None] * len(cells)
            self._codes = [*[EMPTY] * len(cells), _OUTSIDE]
            self._clear = [*[True] * len(cells), False]
            self._doors = set()
        for place, (old, new) in enumerate(zip(self._cells, cells, strict=True)):
            if old is not new:
                self._note_thing(place, new)
        self._cells = cells.copy()

    def _note_thing(self, place: int, thing: Thing | None) -> None:
        """Remember what is in a cell."""
        self._codes[place] = EMPTY if thing is None else thing.encode()
        self._clear[place] = thing is None or thing.see_behind()
        if thing is not None and thing.type == "door":
            self._doors.add(place)
        else:
            self._doors.discard(place)
