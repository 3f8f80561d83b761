"""What a NetHack observation holds, and its text for models and people; needs no engine.

Shapes and meanings are those of nle 1.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MESSAGE_SIZE = 256
"""Bytes of a message, NUL-padded."""
HALLUCINATION = 512
"""Bit of the condition word."""

OBSERVATION_FIELDS: Mapping[str, tuple[tuple[int, ...], DTypeLike]] = {
    "glyphs": ((21, 79), np.int16),
    "chars": ((21, 79), np.uint8),
    "colors": ((21, 79), np.uint8),
    "specials": ((21, 79), np.uint8),
    "blstats": ((27,), np.int64),
    "message": ((MESSAGE_SIZE,), np.uint8),
    "inv_glyphs": ((55,), np.int16),
    "inv_strs": ((55, 80), np.uint8),
    "inv_letters": ((55,), np.uint8),
    "inv_oclasses": ((55,), np.uint8),
    "tty_chars": ((24, 80), np.uint8),
    "tty_colors": ((24, 80), np.int8),
    "tty_cursor": ((2,), np.uint8),
}
"""Shape and dtype of every key that the engine offers; its dear ``screen_descriptions`` are not."""


class Stat(IntEnum):
    """Positions in ``blstats``."""

    X = 0
    Y = 1
    STRENGTH_25 = 2
    STRENGTH_125 = 3
    DEXTERITY = 4
    CONSTITUTION = 5
    INTELLIGENCE = 6
    WISDOM = 7
    CHARISMA = 8
    SCORE = 9
    HP = 10
    MAX_HP = 11
    DEPTH = 12
    GOLD = 13
    ENERGY = 14
    MAX_ENERGY = 15
    ARMOR_CLASS = 16
    MONSTER_LEVEL = 17
    EXPERIENCE_LEVEL = 18
    EXPERIENCE_POINTS = 19
    TURN = 20
    HUNGER = 21
    CAPACITY = 22
    DUNGEON = 23
    LEVEL = 24
    CONDITION = 25
    ALIGNMENT = 26


HUNGER_WORDS = ("Satiated", "", "Hungry", "Weak", "Fainting", "Fainted", "Starved")
"""Word of the status line for each hunger code."""

PALETTE = (
    "#000000", "#800000", "#008000", "#808000", "#000080", "#800080", "#008080", "#808080",
    "#C0C0C0", "#FF0000", "#00FF00", "#FFFF00", "#0000FF", "#FF00FF", "#00FFFF", "#FFFFFF",
)  # fmt: skip
"""The sixteen terminal colors of Motif's pictures."""


def message_text(message: NDArray[np.uint8] | bytes) -> str:
    """Return a message's text: zero bytes left out, every other byte the character of its code.

    Args:
        message: ``[256]``.

    Example:
        >>> message_text(b"You see here a dagger." + bytes(234))
        'You see here a dagger.'
    """
    raw = message if isinstance(message, bytes) else message.tobytes()
    return raw.replace(b"\0", b"").decode("latin-1")


def status_text(blstats: NDArray[np.integer[Any]]) -> str:
    """Return the chosen statistics as NetHack's status line spells them.

    Depth, gold, hit points with their maximum, experience level, and hunger where there is a word.

    Args:
        blstats: ``[27]``.
    """
    depth, gold, hp, most, level, hunger = (
        int(blstats[place])
        for place in (
            Stat.DEPTH,
            Stat.GOLD,
            Stat.HP,
            Stat.MAX_HP,
            Stat.EXPERIENCE_LEVEL,
            Stat.HUNGER,
        )
    )
    words = [f"Dlvl:{depth}", f"$:{gold}", f"HP:{hp}", f"({most})", f"Xp:{level}"]
    return " ".join([*words, HUNGER_WORDS[hunger]]).rstrip()


def copy_windows(
    pairs: Sequence[tuple[NDArray[Any], NDArray[np.uint8]]], row: int, column: int
) -> None:
    """Write the parts of terminal arrays around a place; what lies outside of them is 0.

    Args:
        pairs: ``[24, 80]`` characters (uint8) or colors (int8, of which the lowest four bits are
            kept), each with the array ``[H, W]`` to write into, all of one shape.
        row: Comes to the middle row, ``H // 2``.
        column: Comes to the middle column, ``W // 2``.
    """
    (height, width), (rows, columns) = pairs[0][1].shape, pairs[0][0].shape
    top, left = row - height // 2, column - width // 2
    low, high = max(0, top), min(rows, top + height)
    first, last = max(0, left), min(columns, left + width)
    is_inside = high - low == height and last - first == width
    for terminal, out in pairs:
        if not is_inside:
            out[...] = 0
        if high > low and last > first:
            out[low - top : high - top, first - left : last - left] = terminal[low:high, first:last]
        if terminal.dtype == np.int8:
            out &= 15


def screen_lines(tty_chars: NDArray[np.uint8]) -> list[str]:
    """Return the terminal's lines without blanks at their ends.

    Args:
        tty_chars: ``[24, 80]``.
    """
    return [row.tobytes().decode("latin-1").replace("\0", " ").rstrip() for row in tty_chars]
