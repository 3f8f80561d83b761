"""Base of the annotators that ask a language model: how they are called, and parts of answers."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from llm_agents.rewards.annotation_backends import AnnotationBackend
from llm_agents.rewards.annotation_prompts import JudgeTemplate
from llm_agents.rewards.annotator import (
    TIE,
    UNKNOWN,
    Annotated,
    AnnotatedPart,
    CaptionAnnotator,
    Pairs,
    Question,
)


class AskingAnnotator(CaptionAnnotator):
    """An annotator of captions with a language model.

    Args:
        backend: The language model.
        goal: What the player is after.
        version: Wording.

    Attributes:
        mode: What the model is asked for.
    """

    mode: ClassVar[str]

    def __init__(self, backend: AnnotationBackend, goal: str, version: str) -> None:
        self.backend, self.goal, self.version = backend, goal, version

    @abstractmethod
    def compare_each(self, questions: Sequence[Question]) -> Iterator[AnnotatedPart]:
        """Yield the preferences of pairs whose captions differ, as the model's answers come."""

    def compare(self, questions: Sequence[Question]) -> Annotated:
        """Return the preferences of pairs whose captions differ."""
        preferences = np.full(len(questions), UNKNOWN, dtype=np.int8)
        counts: Counter[str] = Counter()
        conversations: dict[int, str] = {}
        for places, found, _ in self.compare_each(questions):
            preferences[places] = found.preferences
            counts += found.counts
            conversations |= found.conversations
        return Annotated(preferences, counts, conversations)

    def annotate_each(self, pairs: Pairs) -> Iterator[AnnotatedPart]:
        """Yield the preferences of `pairs`: first the ties of equal captions, which ask nobody."""
        places, questions = pairs.questions()
        equal = np.setdiff1d(np.arange(len(pairs)), places)
        ties = np.full(len(equal), TIE, dtype=np.int8)
        yield AnnotatedPart(equal, Annotated(ties, Counter(equal_captions=len(equal))), 0)
        for part, found, answers in self.compare_each(questions) if questions else ():
            yield AnnotatedPart(places[part], found, answers)

    def name_parts(self) -> dict[str, str]:
        """Return what file names may be made of."""
        return {
            "model": self.backend.name,
            "goal": self.goal,
            "version": self.version,
            "mode": self.mode,
        }

    def _identity(
        self, template: JudgeTemplate, prompt: object, **settings: object
    ) -> dict[str, object]:
        """Return what the preferences depend on."""
        return {
            **self.name_parts(),
            "backend": self.backend.identity(),
            "template": template,
            "prompt": prompt,
            **settings,
        }
