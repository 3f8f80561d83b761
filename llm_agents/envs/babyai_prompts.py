"""GLAM's prompts: possible actions, goal, numbered observations and actions (arXiv 2302.02662).

Where it differs from the other papers': all actions are listed first, observations are numbered
from the oldest that is remembered, and the prompt ends in the label of the next action. It takes
any world's observations; BabyAI's are taken apart so that it is the release's text, character for
character, but for the space at the end, which the action brings along.

For generalisation tests a prompt can be changed word by word: `modification` names the test.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from llm_agents.envs.babyai_text import Language, mission_of
from llm_agents.envs.base import Observation
from llm_agents.envs.prompts import Moment, PromptBuilder
from llm_agents.errors import UserError
from llm_agents.types import Choice

Modification = Literal[
    "none",
    "other_nouns",
    "other_adjectives",
    "other_words",
    "invented_nouns",
    "invented_adjectives",
    "invented_words",
    "speaker_first_person",
    "agent_first_person",
]

RELEASE_NAMES: Final = MappingProxyType(
    {
        "none": "no_modification_test",
        "other_nouns": "other_name_same_categories",
        "other_adjectives": "adj_synonym",
        "invented_nouns": "no_meaning_nouns",
        "invented_adjectives": "no_meaning_adj",
        "invented_words": "no_meaning_words",
        "speaker_first_person": "change_intro_first_personne_speaker",
        "agent_first_person": "change_intro_first_personne_agent",
    }
)
"""What the release calls its tests; ``other_words``, nouns and adjectives, is none of them."""

SYNONYM_ACTIONS: Final = ("rotate left", "rotate right", "move ahead", "take", "release", "switch")
"""The actions of the paper's test of synonyms: the option `actions` of a world."""

OTHER_SYNONYM_ACTIONS: Final = ("shift left", "shift right", "go ahead", "take", "release", "turn")
"""The release's other set."""

_HEAD: dict[Language, str] = {
    "english": "Possible action of the agent:",
    "french": "Actions possibles pour l'agent:",
}
_GOAL: dict[Language, dict[str, str]] = {
    "english": {
        "none": "Goal of the agent",
        "speaker_first_person": "I would like the agent to",
        "agent_first_person": "You have to",
    },
    "french": {
        "none": "But de l'agent",
        "speaker_first_person": "Je veux que l'agent fasse",
        "agent_first_person": "Tu dois faire",
    },
}

_INVENTED_NOUNS = ("dax", "xolo", "afze")
_INVENTED_ADJECTIVES = ("faze", "jatu", "croh", "vurst", "gakul", "sil")
_NOUNS: dict[Language, tuple[str, ...]] = {
    "english": ("key", "ball", "box"),
    "french": ("clef", "balle", "boîte"),
}
_ADJECTIVES: dict[Language, tuple[str, ...]] = {
    "english": ("red", "green", "blue", "purple", "yellow", "grey"),
    "french": ("rouge", "verte", "bleue", "violette", "jaune", "grise"),
}
_OTHER_NOUNS: dict[Language, tuple[str, ...]] = {
    "english": ("chair", "table", "car"),
    "french": ("chaise", "table", "voiture"),
}
_OTHER_ADJECTIVES: dict[Language, tuple[str, ...]] = {
    "english": ("vermilion", "jade", "cyan", "violet", "golden", "silver"),
    "french": ("vermilion", "jade", "cyan", "mauve", "dorée", "argent"),
}


@cache
def replacements(
    modification: Modification, language: Language, *, as_released: bool = False
) -> dict[str, str]:
    """Return the words that a test replaces, with what replaces them.

    Args:
        modification: The test.
        language: Of the prompt.
        as_released: Take the release's spelling of a word, "gris", which no French prompt has
            as a word of its own.
    """
    nouns, adjectives = _NOUNS[language], _ADJECTIVES[language]
    if as_released and language == "french" and modification in ("other_adjectives", "other_words"):
        adjectives = (*adjectives[:-1], "gris")
    pairs: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "other_nouns": (nouns, _OTHER_NOUNS[language]),
        "other_adjectives": (adjectives, _OTHER_ADJECTIVES[language]),
        "other_words": (
            nouns + adjectives,
            _OTHER_NOUNS[language] + _OTHER_ADJECTIVES[language],
        ),
        "invented_nouns": (nouns, _INVENTED_NOUNS),
        "invented_adjectives": (adjectives, _INVENTED_ADJECTIVES),
        "invented_words": (nouns + adjectives, _INVENTED_NOUNS + _INVENTED_ADJECTIVES),
    }
    old, new = pairs.get(modification, ((), ()))
    return dict(zip(old, new, strict=True))


@dataclass(frozen=True)
class BabyAIPrompt(PromptBuilder):
    """Turns observations into GLAM's prompts; a drop-in for `PromptBuilder`.

    Args:
        history_length: Earlier steps of the episode that the prompt tells; one less than GLAM's
            number of observations.
        modification: Which words of the prompt a generalisation test changes; the actions that are
            scored stay.
        replacement: Whether a test replaces whole words, or letters wherever they stand together,
            as the release did (in French it made "oujade" of "ouverte").

    Example:
        >>> seen = Observation(
        ...     "You see a wall 1 step left.", "To go to the red box, your next step is to",
        ...     ("turn left", "go forward"), (0, 2), ())
        >>> past = [Moment("You carry a red key.", seen.goal, "drop")]
        >>> BabyAIPrompt().choice(seen, past).prompt.splitlines()[2:4]
        [' Observation 0: You carry a red key, ', ' Action 0: drop ']
    """

    template: str = field(default="", init=False)
    moment: str = field(default="", init=False)
    show_goal: bool = field(default=True, init=False)
    closing: str = field(default="", init=False)
    list_actions: bool = field(default=True, init=False)
    action_list: str = field(default="", init=False)
    action_separator: str = field(default=", ", init=False)
    check_cohesion: bool = field(default=False, init=False)
    history_length: int = 2
    modification: Modification = "none"
    replacement: Literal["words", "letters"] = "words"

    def __post_init__(self) -> None:
        """Check the history."""
        if self.history_length < 0:
            raise UserError(f"expected `history_length` of 0 or more, got {self.history_length}")

    def choice(self, observation: Observation, history: Sequence[Moment] = ()) -> Choice:
        """Return the prompt of an observation with its actions.

        Args:
            observation: What the world shows.
            history: Earlier steps of the episode, oldest first; the last `history_length` count.
        """
        past = history[-self.history_length :] if self.history_length else ()
        mission, language = mission_of(observation.goal)
        label = _GOAL[language].get(self.modification, _GOAL[language]["none"])
        lines = [
            f"{_HEAD[language]} {', '.join(observation.actions)}",
            f"{label}: {mission}",
        ]
        for number, moment in enumerate(past):
            lines.append(_observed(number, moment.observation))
            lines.append(f"Action {number}: {moment.action}")
        lines.append(_observed(len(past), observation.text))
        lines.append(f"Action {len(past)}:")
        prompt = " \n ".join(lines)
        as_released = self.replacement == "letters"
        changed = change_words(prompt, self.modification, language, as_released=as_released)
        return Choice(changed, observation.actions)


LABEL_TESTS: Final = ("speaker_first_person", "agent_first_person")
"""Tests that change the label of the goal, which other builders' prompts don't have."""


@dataclass(frozen=True)
class ChangedPrompt(PromptBuilder):
    """The prompts of another builder, with the words of a generalisation test.

    Args:
        builder: Makes the prompts.
        modification: The test; none that changes the goal's label.

    Example:
        >>> seen = Observation(
        ...     "You see a red key 1 step left.", "To go to the red key, your next step is to",
        ...     ("turn left", "go forward"), (0, 2), ())
        >>> ChangedPrompt(modification="invented_words").choice(seen).prompt
        'You see a faze dax 1 step left. To go to the faze dax, your next step is to'
    """

    builder: PromptBuilder = field(default_factory=PromptBuilder)
    modification: Modification = "none"

    def __post_init__(self) -> None:
        """Refuse tests that would change nothing."""
        if self.modification in LABEL_TESTS:
            raise UserError(
                f"expected a test of words, got {self.modification}: it is for BabyAIPrompt, whose "
                "prompts label the goal"
            )

    def choice(self, observation: Observation, history: Sequence[Moment] = ()) -> Choice:
        """Return the builder's choice with other words in the prompt."""
        choice = self.builder.choice(observation, history)
        language = mission_of(observation.goal)[1]
        return Choice(change_words(choice.prompt, self.modification, language), choice.actions)

    def remember(
        self, history: Sequence[Moment], observation: Observation, index: int
    ) -> tuple[Moment, ...]:
        """Return the history as the builder keeps it."""
        return self.builder.remember(history, observation, index)


def change_words(
    prompt: str, modification: Modification, language: Language, *, as_released: bool = False
) -> str:
    """Return a prompt with the words of a test.

    Args:
        prompt: The prompt.
        modification: The test.
        language: Of the prompt.
        as_released: Replace letters wherever they stand together, rather than whole words.
    """
    words = replacements(modification, language, as_released=as_released)
    if not words:
        return prompt
    if not as_released:
        return _pattern(tuple(words)).sub(lambda match: words[match[0]], prompt)
    for old, new in words.items():
        prompt = prompt.replace(old, new)
    return prompt


def _observed(number: int, text: str) -> str:
    """Return the line of an observation; each description has its comma, the last one too."""
    described = f" {text.removesuffix('.').replace('. ', ', ')}," if text else ""
    return f"Observation {number}:{described}"


@cache
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds whole words."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b")
