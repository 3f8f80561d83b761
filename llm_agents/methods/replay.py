"""A memory of transitions between texts, each kept once and drawn uniformly."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Text = bytes
"""The numbers of a text's words, as a network encodes them."""


class Situation(NamedTuple):
    """A prompt and its actions as numbers of words."""

    state: Text
    actions: tuple[Text, ...]


class Transition(NamedTuple):
    """What an action led to.

    Args:
        situation: Before the action.
        taken: Position of the action in its list.
        reward: Of the action.
        after: What followed; None where the episode ended or was cut.
        bootstrap: Value of what followed where `after` is None: 0 after an end.
    """

    situation: Situation
    taken: int
    reward: float
    after: Situation | None
    bootstrap: float


class TransitionReplay:
    """The newest transitions up to a capacity.

    Consecutive transitions share a situation; it is held once, in memory and in what is saved.

    Args:
        capacity: Transitions kept.
        seed: Of the draws.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        if capacity < 1:
            raise ValueError(f"expected `capacity` of at least 1, got {capacity}")
        self.capacity = capacity
        self._transitions: list[Transition] = []
        self._next = 0
        self._random = random.Random(seed)

    def __len__(self) -> int:
        """Return how many transitions there are."""
        return len(self._transitions)

    def add(self, transitions: Iterable[Transition]) -> None:
        """Keep transitions, in place of the oldest where there is no room."""
        for transition in transitions:
            if len(self._transitions) < self.capacity:
                self._transitions.append(transition)
            else:
                self._transitions[self._next] = transition
                self._next = (self._next + 1) % self.capacity

    def sample(self, count: int) -> list[Transition]:
        """Return `count` different transitions, each as probable as any other.

        Raises:
            ValueError: There are fewer.
        """
        return self._random.sample(self._transitions, count)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain numbers, from which `load_state_dict` builds the same memory."""
        table = _Table()
        rows = []
        for one in self._transitions:
            after = -1 if one.after is None else table.number(one.after)
            rows.append((table.number(one.situation), one.taken, after))
        numbers = [(one.reward, one.bootstrap) for one in self._transitions]
        version, internal, gauss = self._random.getstate()
        return {
            "rows": torch.tensor(rows, dtype=torch.int64).reshape(-1, 3),
            "numbers": torch.tensor(numbers, dtype=torch.float64).reshape(-1, 2),
            "situations": table.packed(),
            "next": self._next,
            "random": [version, list(internal), gauss],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved memory.

        Raises:
            ValueError: It holds more than there is room for.
        """
        if len(state["rows"]) > self.capacity:
            raise ValueError(
                f"expected at most {self.capacity} transitions, got {len(state['rows'])}"
            )
        situations = _unpacked(state["situations"])
        self._transitions = [
            Transition(
                situations[before],
                taken,
                reward,
                None if after < 0 else situations[after],
                bootstrap,
            )
            for (before, taken, after), (reward, bootstrap) in zip(
                state["rows"].tolist(), state["numbers"].tolist(), strict=True
            )
        ]
        self._next = int(state["next"])
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))


class _Table:
    """Distinct situations, and the distinct texts of which they consist, by number."""

    def __init__(self) -> None:
        self._texts: dict[Text, int] = {}
        self._situations: dict[Situation, int] = {}

    def number(self, situation: Situation) -> int:
        """Return the number of a situation."""
        return self._situations.setdefault(situation, len(self._situations))

    def packed(self) -> dict[str, Tensor]:
        """Return the table as four tensors."""
        lists = [
            [self._texts.setdefault(text, len(self._texts)) for text in (one.state, *one.actions)]
            for one in self._situations
        ]
        return {
            "texts": torch.from_numpy(np.frombuffer(b"".join(self._texts), np.uint8).copy()),
            "text_lengths": torch.tensor([len(text) for text in self._texts], dtype=torch.int32),
            "lists": torch.tensor([number for one in lists for number in one], dtype=torch.int32),
            "list_lengths": torch.tensor([len(one) for one in lists], dtype=torch.int32),
        }


def _unpacked(table: dict[str, Tensor]) -> list[Situation]:
    """Return the situations of a packed table."""
    joined = table["texts"].numpy().tobytes()
    texts = [joined[part] for part in _spans(table["text_lengths"])]
    numbers = table["lists"].tolist()
    found = []
    for part in _spans(table["list_lengths"]):
        first, *actions = numbers[part]
        found.append(Situation(texts[first], tuple(texts[number] for number in actions)))
    return found


def _spans(lengths: Tensor) -> Iterator[slice]:
    """Yield where parts of these lengths lie, one after another."""
    start = 0
    for length in lengths.tolist():
        yield slice(start, start + length)
        start += length
