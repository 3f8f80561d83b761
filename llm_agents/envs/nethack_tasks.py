"""Motif's nine NetHack tasks as rules: actions, rewards, quirks; needs no engine.

Paper: arXiv 2310.00166; numbers and quirks as in its release, the engine's as in nle 1.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_agents.envs.nethack_screen import HALLUCINATION, OBSERVATION_FIELDS, Stat

ACTIONS: Mapping[str, int] = {
    "continue": 13,
    **{
        f"{verb} {name}": ord(key.upper() if verb == "run" else key)
        for verb in ("go", "run")
        for name, key in {
            "north": "k",
            "east": "l",
            "south": "j",
            "west": "h",
            "northeast": "u",
            "southeast": "n",
            "southwest": "b",
            "northwest": "y",
        }.items()
    },
    "go up the stairs": ord("<"),
    "go down the stairs": ord(">"),
    "wait": ord("."),
    "kick": 4,
    "eat": ord("e"),
    "search": ord("s"),
}
"""The 23 actions in their order, with the key that each presses."""
ACTION_NAMES = tuple(ACTIONS)
NORTHWEST = ACTION_NAMES.index("go northwest")
"""Says yes to a question; `NetHackRules.eat_fix` makes it choose the food as well."""

EATING = b"What do you want to eat"
ANSWERED = (b"eat", b"attack", b"direction?", b"pray")
"""A question of one key is the agent's to answer if it contains one of these."""
DESCENT = b"You descend the stairs."
ORACLE = 270
"""The Oracle's glyph."""
BLANK = 2359
"""Glyph of a cell of which nothing is known."""
SUCCESS_REWARD = 50.0

WINDOW_KEYS = ("window_chars", "window_colors")
"""Observation keys of ours: the terminal around the hero, ``[12, 12]`` uint8."""


class TaskRule(NamedTuple):
    """What a task rewards.

    Args:
        kind: The score, going down the stairs to a level, or standing beside the Oracle.
        level: Level of its branch of the dungeon that the stairs must lead to.
        ends: Success ends the episode; else it is rewarded once and the episode goes on.
        is_sober: A hallucinated Oracle doesn't count.
    """

    kind: Literal["score", "stairs", "oracle"]
    level: int = 0
    ends: bool = True
    is_sober: bool = False


TASKS: Mapping[str, TaskRule] = {
    "NetHackScore-v1": TaskRule("score"),
    "NetHackStaircase-v1": TaskRule("stairs", level=2),
    "NetHackStaircaseLvl3-v1": TaskRule("stairs", level=3),
    "NetHackStaircaseLvl4-v1": TaskRule("stairs", level=4),
    "NetHackStaircaseContinual-v1": TaskRule("stairs", level=2, ends=False),
    "NetHackStaircaseLvl3Continual-v1": TaskRule("stairs", level=3, ends=False),
    "NetHackStaircaseLvl4Continual-v1": TaskRule("stairs", level=4, ends=False),
    "NetHackOracle-v1": TaskRule("oracle"),
    "NetHackOracleSober-v1": TaskRule("oracle", is_sober=True),
}

PenaltyMode = Literal["constant", "exp", "square", "linear", "always"]


@dataclass(frozen=True)
class NetHackRules:
    """The release's quirks, each as a switch; and the limits.

    Args:
        max_steps: Steps after which an episode is cut.
        limit_terminates: Report the limit as an end of the world, as the release does, not as a
            truncation.
        penalty_mode: How the score task punishes steps that don't advance the game's turns.
        carry_over: Keep the message of a descent until the new level is shown. The engine alone
            never shows both together.
        eat_fix: After the question what to eat, going northwest chooses the first item offered and
            all other actions cancel. The engine alone offers no action that could choose one.
        sober_test: Look at the bit of hallucination, or, as the release does, compare the whole
            condition word with it.
        window_row: Row of the terminal minus row of the map for the middle of the window; the
            release takes 0 though the map begins in row 1.
        character: Role, race, gender and alignment.
    """

    max_steps: int = 5000
    limit_terminates: bool = False
    penalty_mode: PenaltyMode = "constant"
    carry_over: bool = True
    eat_fix: bool = True
    sober_test: Literal["bit", "word"] = "bit"
    window_row: int = 0
    character: str = "mon-hum-neu-mal"

    def __post_init__(self) -> None:
        """Check the limit."""
        if self.max_steps < 1:
            raise ValueError(f"expected `max_steps` ≥ 1, got {self.max_steps}")


def food_letter(prompt: bytes) -> int | None:
    """Return the key of the first item that the question what to eat offers, if there is one.

    Example:
        >>> chr(food_letter(b"What do you want to eat? [fghi or ?*]") or 0)
        'f'
    """
    offered = re.search(rb"\[(.*?)(?: or .*?)?\]", prompt)
    letter = re.search(rb"[A-Za-z]", offered[1]) if offered else None
    return letter[0][0] if letter else None


def time_penalty(mode: PenaltyMode, frozen_steps: int) -> float:
    """Return the score task's reward for steps without a turn of the game.

    Args:
        mode: See `NetHackRules`.
        frozen_steps: Such steps in a row, this one included.
    """
    if mode == "constant":
        return -0.01 if frozen_steps else 0.0
    weights = {
        "exp": 2.0**frozen_steps,
        "square": float(frozen_steps**2),
        "linear": float(frozen_steps),
        "always": 1.0,
    }
    return -0.01 * weights[mode]


def has_descended(message: bytes, stats: Sequence[int], level: int) -> bool:
    """Return whether an observation shows a descent by the stairs to a level of its branch.

    Falling through a hole is none, and the levels of the Mines are counted anew.

    Args:
        message: As it is shown.
        stats: ``blstats``.
        level: Inside the branch of the dungeon.
    """
    return stats[Stat.LEVEL] == level and DESCENT[:-1] in message


def is_beside_oracle(glyphs: NDArray[np.int16], x: int, y: int) -> bool:
    """Return whether an Oracle is in the 3 × 3 cells around a place of the map ``[21, 79]``."""
    near = glyphs[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
    return bool((near == ORACLE).any())


def is_sober(condition: int, test: Literal["bit", "word"]) -> bool:
    """Return whether a condition word says that the hero doesn't hallucinate."""
    return condition & HALLUCINATION == 0 if test == "bit" else condition != HALLUCINATION


def field_of(key: str) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of an observation key."""
    return ((12, 12), np.uint8) if key in WINDOW_KEYS else OBSERVATION_FIELDS[key]


def check_keys(keys: Sequence[str]) -> None:
    """Raise `ValueError` if one of the observation keys is unknown, or comes twice."""
    known = (*OBSERVATION_FIELDS, *WINDOW_KEYS)
    if not set(keys) <= set(known) or len(set(keys)) < len(keys):
        raise ValueError(
            f"expected different observation keys out of {', '.join(known)}, got "
            f"{', '.join(keys) or 'none'}"
        )
