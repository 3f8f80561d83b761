"""BabyAI in words: a view as sentences, goals as clauses, in English and in French.

The descriptions are GLAM's (arXiv 2302.02662), word for word. A world joins them to a text and puts
its goal into an unfinished clause, as every text world does; `descriptions_of` and `mission_of`
take both apart again, for prompts that lay them out otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from llm_agents.envs.babyai_view import AGENT, EMPTY, MIDDLE, SIZE, WALL, Code

Language = Literal["english", "french"]

TYPES: Final = (
    "unseen",
    "empty",
    "wall",
    "floor",
    "door",
    "key",
    "ball",
    "box",
    "goal",
    "lava",
    "agent",
)
COLORS: Final = ("red", "green", "blue", "purple", "yellow", "grey")
STATES: Final = ("open", "closed", "locked")
_DOOR: Final = TYPES.index("door")

FRENCH_TYPES: Final = {
    "wall": "mur",
    "floor": "sol",
    "door": "porte",
    "key": "clef",
    "ball": "balle",
    "box": "boîte",
    "goal": "but",
    "lava": "lave",
}
FRENCH_COLORS: Final = {
    "red": "rouge",
    "green": "verte",
    "blue": "bleue",
    "purple": "violette",
    "yellow": "jaune",
    "grey": "grise",
}
_FRENCH_STATES = ("ouverte", "fermée", "fermée à clef")

ACTIONS: Final[dict[Language, tuple[str, ...]]] = {
    "english": ("turn left", "turn right", "go forward", "pick up", "drop", "toggle"),
    "french": (
        "tourner à gauche",
        "tourner à droite",
        "aller tout droit",
        "attraper",
        "lâcher",
        "basculer",
    ),
}
"""The actions in the order of the engine's own."""

MORE_ACTIONS: Final[dict[Language, tuple[str, ...]]] = {
    "english": ("sleep", "do nothing", "think"),
    "french": ("dormir", "ne rien faire", "penser"),
}
"""The three of GLAM's nine that do nothing."""

_AHEAD = [MIDDLE * SIZE + row for row in range(SIZE - 2, -1, -1)]
_LEFT = [column * SIZE + SIZE - 1 for column in range(MIDDLE - 1, -1, -1)]
_RIGHT = [column * SIZE + SIZE - 1 for column in range(MIDDLE + 1, SIZE)]


@dataclass(frozen=True)
class _Clause:
    """An unfinished clause around a mission."""

    begin: str
    end: str


_CLAUSES: dict[Language, _Clause] = {
    "english": _Clause("To ", ", your next step is to"),
    "french": _Clause("Pour ", ", ta prochaine étape est de"),
}


def describe(
    codes: Sequence[Code], language: Language = "english", *, as_released: bool = False
) -> list[str]:
    """Return GLAM's descriptions of a view.

    First what is carried, then walls straight ahead, left and right unless something is in front of
    them, then objects and doors by columns from left to right, each from far to near.

    Args:
        codes: 49 cells, as `babyai_view.look` returns them.
        language: Of the descriptions.
        as_released: Leave what is carried in English within the French sentence.

    Example:
        >>> empty = [EMPTY] * 49
        >>> describe([*empty[:20], (2, 5, 0), *empty[21:41], (6, 4, 0), *empty[42:]])
        ['You see a wall 1 step left', 'You see a yellow ball 2 steps right']
    """
    found = []
    carried = codes[AGENT]
    if carried != EMPTY:
        found.append(_carrying(carried, language, as_released))
    for number, line in enumerate((_AHEAD, _LEFT, _RIGHT)):
        for distance, place in enumerate(line, start=1):
            kind = codes[place][0]
            if kind > 1:
                if kind == WALL:
                    found.append(_wall(number, distance, language))
                break
    found += [
        _thing(place, code, language)
        for place, code in enumerate(codes)
        if code[0] > WALL and place != AGENT
    ]
    return found


@cache
def _carrying(code: Code, language: Language, as_released: bool) -> str:
    """Say what is carried."""
    kind, color = TYPES[code[0]], COLORS[code[1]]
    if language == "english":
        return f"You carry a {color} {kind}"
    if as_released:
        return f"Tu portes une {kind} {color}"
    return f"Tu portes une {FRENCH_TYPES[kind]} {FRENCH_COLORS[color]}"


@cache
def _wall(number: int, distance: int, language: Language) -> str:
    """Say where a wall is: ahead (0), left (1) or right (2)."""
    if language == "english":
        return f"You see a wall {_steps(distance)} {('forward', 'left', 'right')[number]}"
    return f"Tu vois un mur à {distance} pas {('devant', 'à gauche', 'à droite')[number]}"


def _steps(number: int) -> str:
    """Return a distance in English."""
    return f"{number} {'step' if number == 1 else 'steps'}"


@cache
def _thing(place: int, code: Code, language: Language) -> str:
    """Say which object or door is where."""
    column, row = divmod(place, SIZE)
    aside, ahead = column - MIDDLE, SIZE - 1 - row
    kind, color = TYPES[code[0]], COLORS[code[1]]
    parts = []
    if language == "english":
        if aside:
            parts.append(f"{_steps(abs(aside))} {'left' if aside < 0 else 'right'}")
        if ahead:
            parts.append(f"{_steps(ahead)} forward")
        state = f"{STATES[code[2]]} " if code[0] == _DOOR else ""
        return f"You see a {state}{color} {kind} {' and '.join(parts)}"
    if aside:
        parts.append(f"{abs(aside)} pas {'à gauche' if aside < 0 else 'à droite'}")
    if ahead:
        parts.append(f"{ahead} pas devant")
    state = f" {_FRENCH_STATES[code[2]]}" if code[0] == _DOOR else ""
    name = f"{FRENCH_TYPES[kind]} {FRENCH_COLORS[color]}{state}"
    return f"Tu vois une {name} {' et '.join(parts)}"


def to_text(descriptions: Sequence[str]) -> str:
    """Return descriptions as sentences.

    Example:
        >>> to_text(["You carry a red key", "You see a wall 1 step left"])
        'You carry a red key. You see a wall 1 step left.'
    """
    return ". ".join(descriptions) + "." if descriptions else ""


def descriptions_of(text: str) -> list[str]:
    """Return the descriptions of which `to_text` has made a text; any text as its sentences."""
    return text.removesuffix(".").split(". ") if text else []


def to_clause(mission: str, language: Language = "english") -> str:
    """Return a mission as the clause that an action ends.

    Example:
        >>> to_clause("go to the red ball")
        'To go to the red ball, your next step is to'
    """
    clause = _CLAUSES[language]
    return clause.begin + mission + clause.end


def mission_of(clause: str) -> tuple[str, Language]:
    """Return the mission of a clause and its language; another world's clause is all mission.

    Example:
        >>> mission_of("To go to the red ball, your next step is to")
        ('go to the red ball', 'english')
    """
    for language, known in _CLAUSES.items():
        if clause.startswith(known.begin) and clause.endswith(known.end):
            return clause[len(known.begin) : -len(known.end)], language
    return clause, "english"
