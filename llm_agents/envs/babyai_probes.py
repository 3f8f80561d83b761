"""Fixed prompts that show how a policy develops: eleven situations of BabyAI, GLAM's appendix C.

A method logs the probabilities of their actions once per update. The situations are laid out here
as cells of the view, so that they are told in the worlds' own words, in both languages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from llm_agents.envs.babyai_french import translate_mission
from llm_agents.envs.babyai_prompts import BabyAIPrompt
from llm_agents.envs.babyai_text import (
    ACTIONS,
    COLORS,
    STATES,
    TYPES,
    Language,
    describe,
    to_clause,
    to_text,
)
from llm_agents.envs.babyai_view import AGENT, EMPTY, MIDDLE, SIZE, Code
from llm_agents.envs.base import Observation
from llm_agents.envs.prompts import Moment, PromptBuilder
from llm_agents.types import Choice

_LEFT, _RIGHT, _FORWARD, _PICK_UP, _DROP, _TOGGLE = range(6)

Cells = Mapping[tuple[int, int], str]
"""What is seen, by steps to the right (left is negative) and steps ahead."""


@dataclass(frozen=True)
class Probe:
    """A situation with one sensible action.

    Args:
        mission: The goal.
        seen: What was seen, oldest first; (0, 0) is what is carried.
        taken: Indices of the actions between.
        sensible: Index of the action that is called for.
    """

    mission: str
    seen: tuple[Cells, ...]
    taken: tuple[int, ...]
    sensible: int


_BALL = "go to the red ball"
_DOOR = "open the purple door"
_BOX = "pick up the green box"
_BOTH: Cells = {(-2, 0): "blue ball", (2, 0): "red box", (0, 3): "wall"}

PROBES: Final[tuple[Probe, ...]] = (
    Probe(_BALL, ({(0, 3): "red ball", (-2, 4): "grey box", (3, 0): "wall"},), (), _FORWARD),
    Probe(
        _BALL,
        (
            {(-1, 2): "red ball", (0, 4): "wall", (2, 0): "wall"},
            {(-1, 1): "red ball", (0, 3): "wall", (2, 0): "wall"},
            {(-1, 0): "red ball", (0, 2): "wall", (2, 0): "wall"},
        ),
        (_FORWARD, _FORWARD),
        _LEFT,
    ),
    Probe(
        _DOOR,
        ({(-2, 0): "purple key", (1, 3): "locked purple door", (0, 3): "wall"},),
        (),
        _LEFT,
    ),
    Probe(
        _DOOR,
        (
            {(-2, 0): "purple key", (1, 3): "locked purple door", (0, 3): "wall"},
            {(0, 2): "purple key", (3, 0): "wall"},
            {(0, 1): "purple key", (3, 0): "wall"},
        ),
        (_LEFT, _FORWARD),
        _PICK_UP,
    ),
    Probe(
        _DOOR,
        (
            {(0, 0): "purple key", (0, 3): "locked purple door", (-1, 0): "wall"},
            {(0, 0): "purple key", (0, 2): "locked purple door", (-1, 0): "wall"},
            {(0, 0): "purple key", (0, 1): "locked purple door", (-1, 0): "wall"},
        ),
        (_FORWARD, _FORWARD),
        _TOGGLE,
    ),
    Probe(_BOX, ({(2, 0): "green box", (0, 4): "wall", (-3, 3): "grey key"},), (), _RIGHT),
    Probe(
        _BOX,
        (
            {(2, 0): "green box", (0, 4): "wall", (-3, 3): "grey key"},
            {(0, 2): "green box"},
            {(0, 1): "green box"},
        ),
        (_RIGHT, _FORWARD),
        _PICK_UP,
    ),
    Probe(
        "put the blue ball next to the red box",
        (
            {(0, 0): "blue ball", (0, 3): "red box", (2, 0): "wall"},
            {(0, 0): "blue ball", (0, 2): "red box", (2, 0): "wall"},
        ),
        (_FORWARD,),
        _DROP,
    ),
    Probe("pick up the blue ball, then go to the red box", (_BOTH,), (), _LEFT),
    Probe("go to the red box after you pick up the blue ball", (_BOTH,), (), _LEFT),
    Probe(
        "pick up the green key, then pick up the red box",
        ({(0, 0): "green key", (-1, 0): "red box", (0, 4): "wall"},),
        (),
        _DROP,
    ),
)
"""GLAM's eleven situations, in our words."""

TEMPLATES: Final[dict[int, tuple[Probe, ...]]] = {1: PROBES, 2: PROBES[:2]}
"""For the mixed tasks (1), and for those that ask to go somewhere (2)."""


def probe_choices(
    template: Literal[1, 2] = 1,
    *,
    actions: Sequence[str] | None = None,
    language: Language = "english",
    prompt: PromptBuilder | None = None,
) -> list[Choice]:
    """Return the choices of a template.

    Args:
        template: Which probes.
        actions: What the agent may do, in the engine's order; None is the language's own six.
        language: Of the situations.
        prompt: How they become prompts; None is GLAM's.
    """
    texts = tuple(actions or ACTIONS[language])
    builder = prompt or BabyAIPrompt()
    choices = []
    for probe in TEMPLATES[template]:
        mission = probe.mission if language == "english" else translate_mission(probe.mission)
        clause = to_clause(mission, language)
        told = [to_text(describe(_view(cells), language)) for cells in probe.seen]
        past = [
            Moment(text, clause, texts[index])
            for text, index in zip(told, probe.taken, strict=False)
        ]
        last = Observation(told[-1], clause, texts, tuple(range(len(texts))), ())
        choices.append(builder.choice(last, past))
    return choices


def _view(cells: Cells) -> list[Code]:
    """Return a view with some cells that are not empty."""
    codes = [EMPTY] * (SIZE * SIZE)
    for (aside, ahead), thing in cells.items():
        place = AGENT if aside == ahead == 0 else (aside + MIDDLE) * SIZE + SIZE - 1 - ahead
        *state, color, kind = ("grey " if thing == "wall" else "").split() + thing.split()
        number = STATES.index(state[0]) if state else 0
        codes[place] = (TYPES.index(kind), COLORS.index(color), number)
    return codes
