"""Rewards without a network, for `CallableReward`, in place of the papers' classifiers.

Each is a share from 0 to 1. They see words, not meaning: enough to try a recipe out, no judge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_agents.errors import UserError
from llm_agents.rewards.dialogue import take_apart
from llm_agents.types import Prompt

_WORD = re.compile(r"\w+")
_LONG = 4


def from_knowledge(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    """Return the share of each response's words that its prompt's knowledge has.

    Raises:
        UserError: A prompt has no knowledge.

    Example:
        >>> from llm_agents.rewards.knowledge import with_knowledge
        >>> from_knowledge([with_knowledge("Tea is a drink.", [])], ["A hot drink!"])
        [0.6666666666666666]
    """
    scores = []
    for prompt, response in zip(prompts, responses, strict=True):
        knowledge = take_apart(prompt).knowledge
        if knowledge is None:
            raise UserError(
                "expected prompts with a system turn `Knowledge: …` for the reward from_knowledge, "
                f"got {prompt!r:.80}"
            )
        known = set(_words(knowledge))
        words = _words(response)
        scores.append(sum(word in known for word in words) / max(1, len(words)))
    return scores


def on_topic(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    """Return the share of each prompt's longer words that its response has, doubled, at most 1.

    Example:
        >>> from llm_agents.types import Turn
        >>> on_topic([(Turn("user", "My tomatoes stay green"),)], ["Fry green ones."])
        [0.6666666666666666]
    """
    scores = []
    for prompt, response in zip(prompts, responses, strict=True):
        last = prompt[-1].text if prompt else ""
        asked = {word for word in _words(last) if len(word) >= _LONG}
        taken = asked & set(_words(response))
        scores.append(min(1.0, 2 * len(taken) / max(1, len(asked))))
    return scores


def calm(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    """Return the share of each response's words that are not shouted.

    A word of three letters or more in capitals is shouted, and so is one with ``!!`` or ``??``.

    Example:
        >>> calm([()], ["This is NOISE !!"])
        [0.5]
    """
    del prompts
    return [1 - _shouted(text.split()) / max(1, len(text.split())) for text in responses]


def _shouted(words: Sequence[str]) -> int:
    """Return how many words are shouted."""
    return sum(
        "!!" in word or "??" in word or (word.isupper() and sum(c.isalpha() for c in word) > 2)
        for word in words
    )


def _words(text: str) -> list[str]:
    """Return the lower-cased words of a text."""
    return _WORD.findall(text.lower())
