"""In which groups choices were computed whose results are kept.

Matrix products of other sizes round differently, so that a kept result depends, in its last digit,
on what was computed along with it. A run that goes on after an interruption has lost what it kept:
when it computes the same groups again, in the same order, it is bit by bit where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_agents.policies.action_types import EncodedChoice

_MOST_CHOICES = 2_000

Group = tuple[str, tuple[EncodedChoice, ...]]
"""What was computed, and of which choices."""


class ComputedGroups:
    """The groups of a run in order, given up where there are too many to be computed again.

    Args:
        most_choices: Distinct choices up to which groups are kept.
    """

    def __init__(self, most_choices: int = _MOST_CHOICES) -> None:
        self.most_choices = most_choices
        self._numbers: dict[EncodedChoice, int] = {}
        self._groups: list[tuple[str, list[int]]] = []
        self._is_whole = True

    def add(self, kind: str, choices: Sequence[EncodedChoice]) -> None:
        """Note a group, after those that it used results of."""
        if not self._is_whole:
            return
        numbers = [self._numbers.setdefault(choice, len(self._numbers)) for choice in choices]
        self._groups.append((kind, numbers))
        if len(self._numbers) > self.most_choices:
            self._is_whole = False
            self._groups, self._numbers = [], {}

    def drop(self, kind: str) -> None:
        """Forget the groups of a kind, whose results are not kept any longer."""
        self._groups = [group for group in self._groups if group[0] != kind]

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings; without groups if they were too many."""
        choices = [
            [list(c.prompt_ids), [*map(list, c.action_ids)], list(c.num_words)]
            for c in self._numbers
        ]
        return {"choices": choices, "groups": [list(group) for group in self._groups]}


def groups_of(state: Mapping[str, Any]) -> list[Group]:
    """Return the groups of a `ComputedGroups.state_dict`."""
    choices = [
        EncodedChoice(tuple(prompt), tuple(map(tuple, actions)), tuple(words))
        for prompt, actions, words in state["choices"]
    ]
    return [(kind, tuple(choices[n] for n in numbers)) for kind, numbers in state["groups"]]
