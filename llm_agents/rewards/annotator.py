"""Preferences between the two sides of pairs: Motif's first stage, as interfaces.

An `Annotator` says of every pair which side is better. Those that read captions are language
models (`GeneratedAnnotator`, `ChoiceAnnotator`, `PointwiseAnnotator`) or chance; the others compare
numbers that the data hold. Equal captions are a tie, and nobody is asked about them.
Paper: arXiv 2310.00166, section 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_agents.rewards.annotation_memory import AnswerMemory

FIRST, SECOND, TIE, UNKNOWN = 0, 1, 2, 3
"""Values of a preference: the better side, neither, or not annotated."""

Preferences = NDArray[np.int8]


class Question(NamedTuple):
    """Two captions that differ, to be compared.

    Args:
        pair: Number of the pair in the data set.
        first: Caption of its first side.
        second: Caption of its second side.
    """

    pair: int
    first: str
    second: str


@dataclass(frozen=True)
class Pairs:
    """Pairs to annotate.

    Args:
        index: ``[n]`` int64, each pair's number in the data set.
        texts: K distinct captions; empty for annotators that read none.
        sides: ``[n, 2]`` int64, the caption of each side.
        columns: ``[n, 2, …]`` arrays of the data set by key.
    """

    index: NDArray[np.int64]
    texts: tuple[str, ...] = ()
    sides: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of_captions(cls, captions: Sequence[tuple[str, str]], start: int = 0) -> Pairs:
        """Return pairs of captions, numbered from `start`."""
        texts: dict[str, int] = {}
        sides = [[texts.setdefault(text, len(texts)) for text in pair] for pair in captions]
        return cls(
            np.arange(start, start + len(captions)),
            tuple(texts),
            np.array(sides, dtype=np.int64).reshape(-1, 2),
        )

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.index)

    def questions(self) -> tuple[NDArray[np.int64], list[Question]]:
        """Return the places of the pairs whose captions differ, and what there is to ask."""
        places = np.flatnonzero(self.sides[:, 0] != self.sides[:, 1])
        asked = zip(self.index[places], self.sides[places], strict=True)
        return places, [
            Question(int(pair), self.texts[first], self.texts[second])
            for pair, (first, second) in asked
        ]


@dataclass(frozen=True)
class Annotated:
    """Preferences of n pairs.

    Args:
        preferences: ``[n]`` int8: `FIRST`, `SECOND`, `TIE` or `UNKNOWN`.
        counts: What was counted on the way; see each annotator's `report`.
        conversations: What was said about a pair, by its number; not all annotators talk.
    """

    preferences: Preferences
    counts: Counter[str] = field(default_factory=Counter)
    conversations: Mapping[int, str] = field(default_factory=dict)


class AnnotatedPart(NamedTuple):
    """Preferences of some of n pairs, as soon as they are known.

    Args:
        places: ``[m]`` int64, which of the n pairs; each comes once, and there may be none.
        annotated: Their m preferences.
        answers: What `Annotator.num_questions` counts, answered since the part before.
    """

    places: NDArray[np.int64]
    annotated: Annotated
    answers: int


class Annotator(ABC):
    """Says which side of a pair is better.

    Attributes:
        keys: Arrays of the data set that it reads, captions apart.
        reads_captions: Whether it reads captions.
        memory: Answers that are of use for more than one pair; None if there are none.
        pairs_together: How many pairs are best annotated in one call.
    """

    keys: tuple[str, ...] = ()
    reads_captions = False
    memory: AnswerMemory | None = None
    pairs_together = 256

    @abstractmethod
    def name_parts(self) -> dict[str, str]:
        """Return what file names may be made of: ``model``, ``goal``, ``version``, ``mode``."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Return everything that the preferences depend on, the data apart: plain JSON values."""

    @abstractmethod
    def annotate(self, pairs: Pairs) -> Annotated:
        """Return the preferences of `pairs`; those of a pair don't depend on the others."""

    def annotate_each(self, pairs: Pairs) -> Iterator[AnnotatedPart]:
        """Yield the preferences of `pairs` as they become known: at once, unless overridden."""
        yield AnnotatedPart(np.arange(len(pairs)), self.annotate(pairs), len(pairs))

    def num_questions(self, pairs: Pairs) -> int:
        """Return how many answers `annotate_each` needs: the work, for a bar."""
        return len(pairs)

    def report(self, counts: Counter[str]) -> dict[str, object]:
        """Return what the summed `counts` of all batches say, for ``results.json``."""
        return dict(counts)

    def keep_answers(self, path: Path) -> None:
        """Keep a language model's answers in `path`, and use those that are there."""
        if self.memory is not None:
            self.memory.open(path)


class CaptionAnnotator(Annotator):
    """An annotator of captions: equal ones are a tie that nobody is asked about."""

    reads_captions = True

    @abstractmethod
    def compare(self, questions: Sequence[Question]) -> Annotated:
        """Return the preferences of pairs whose captions differ; there may be none."""

    def annotate(self, pairs: Pairs) -> Annotated:
        """Return the preferences of `pairs`."""
        places, questions = pairs.questions()
        preferences = np.full(len(pairs), TIE, dtype=np.int8)
        counts = Counter({"equal_captions": len(pairs) - len(places)})
        if not questions:
            return Annotated(preferences, counts)
        found = self.compare(questions)
        preferences[places] = found.preferences
        return Annotated(preferences, counts + found.counts, found.conversations)


def larger_side(values: NDArray[Any]) -> Preferences:
    """Return ``[n]`` int8: the side of ``[n, 2]`` numbers that is larger; equal ones are a tie.

    A pair with a number that is NaN is unknown.
    """
    first, second = values[:, 0], values[:, 1]
    preferences = np.full(len(values), TIE, dtype=np.int8)
    preferences[first > second] = FIRST
    preferences[second > first] = SECOND
    preferences[np.isnan(values.astype(np.float64)).any(1)] = UNKNOWN
    return preferences


class ScoreAnnotator(Annotator):
    """Prefers the side whose episode ended with the higher game score."""

    keys = ("score",)

    def name_parts(self) -> dict[str, str]:
        """Return what file names may be made of."""
        return {"mode": "score"}

    def identity(self) -> dict[str, object]:
        """Return what the preferences depend on."""
        return {"mode": "score"}

    def annotate(self, pairs: Pairs) -> Annotated:
        """Compare ``info/score``."""
        return Annotated(larger_side(pairs.columns["score"]))


class ReturnAnnotator(Annotator):
    """Prefers the side with the larger sum of rewards over its steps."""

    keys = ("rewards",)

    def name_parts(self) -> dict[str, str]:
        """Return what file names may be made of."""
        return {"mode": "return"}

    def identity(self) -> dict[str, object]:
        """Return what the preferences depend on."""
        return {"mode": "return"}

    def annotate(self, pairs: Pairs) -> Annotated:
        """Compare sums of ``data/rewards``."""
        rewards = pairs.columns["rewards"].astype(np.float64)
        return Annotated(larger_side(rewards.reshape(len(pairs), 2, -1).sum(-1)))


class RandomAnnotator(CaptionAnnotator):
    """Prefers either side by chance: what an annotation is worth is seen against it.

    Args:
        seed: Another seed gives other preferences.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def name_parts(self) -> dict[str, str]:
        """Return what file names may be made of."""
        return {"mode": "random"}

    def identity(self) -> dict[str, object]:
        """Return what the preferences depend on."""
        return {"mode": "random", "seed": self.seed}

    def compare(self, questions: Sequence[Question]) -> Annotated:
        """Throw a coin for each pair, the same one whenever it is asked about."""
        coins = [seed_of(self.seed, question.pair) & 1 for question in questions]
        return Annotated(np.array(coins, dtype=np.int8))


def seed_of(*numbers: int) -> int:
    """Return a seed below 2³¹ that belongs to `numbers`, in their order."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 1
