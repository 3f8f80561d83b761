"""Preferences from how good each caption is by itself: cost grows with captions, not with pairs.

A model is shown examples and asked whether a caption is good; what counts is

    s(c) = log π(good | c) − log π(bad | c)

averaged over two wordings, since they rarely fail together. A side is preferred if its s is larger
by more than a margin; no order and no place is involved. Captions repeat, so that a hundred
thousand pairs need a few thousand questions, and the examples, which come first in every question,
are computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean as mean
from typing import Literal, get_args

import numpy as np

from llm_agents.rewards.annotation_asking import AskingAnnotator
from llm_agents.rewards.annotation_backends import AnnotationBackend
from llm_agents.rewards.annotation_choice import check_margin, is_nan, preference_of
from llm_agents.rewards.annotation_examples import PointwisePrompts
from llm_agents.rewards.annotation_memory import AnswerMemory
from llm_agents.rewards.annotation_prompts import Goal, JudgeTemplate, Version
from llm_agents.rewards.annotation_report import extremes
from llm_agents.rewards.annotator import Annotated, AnnotatedPart, Pairs, Question

_TEXTS_TOGETHER = 64
_NONE = np.zeros(0, dtype=np.int8)


class PointwiseAnnotator(AskingAnnotator):
    """Asks a language model of every distinct caption whether it is good.

    Args:
        backend: The language model.
        goal: What the player is after: ``defaultgoal``, ``zeroknowledge``, ``combat``, ``gold`` or
            ``stairs``.
        version: Wording: ``default``, ``reworded``, or ``both``, whose log-odds are averaged.
        template: ``plain`` asks for the end of a text, which suits small chat models too; ``chat``
            asks in turns.
        margin: Differences of log-odds up to this are a tie.
        num_examples: Show the last so many of the goal's examples; null shows all.
    """

    mode = "pointwise"
    memory: AnswerMemory
    pairs_together = 4096

    def __init__(
        self,
        backend: AnnotationBackend,
        *,
        goal: Goal = "defaultgoal",
        version: Version | Literal["both"] = "both",
        template: JudgeTemplate = "plain",
        margin: float = 0.1,
        num_examples: int | None = None,
    ) -> None:
        check_margin(margin)
        super().__init__(backend, goal, version)
        self.margin = margin
        versions = get_args(Version) if version == "both" else (version,)
        self.prompts = [PointwisePrompts(goal, one, template, num_examples) for one in versions]
        self.memory = AnswerMemory()

    def identity(self) -> dict[str, object]:
        """Return what the preferences depend on."""
        wordings = [text for prompts in self.prompts for text in prompts.wording()]
        return self._identity(self.prompts[0].template, wordings, margin=self.margin)

    def compare_each(self, questions: Sequence[Question]) -> Iterator[AnnotatedPart]:
        """Compare pairs whose captions differ, once the answers about each caption are kept."""
        texts = _captions(questions)
        new = self._new(texts)
        for answers in self._ask(new):
            yield AnnotatedPart(np.zeros(0, dtype=np.int64), Annotated(_NONE), answers)
        scores = self._known(texts)
        preferences = np.array(
            [preference_of(scores[q.first] - scores[q.second], self.margin) for q in questions],
            dtype=np.int8,
        )
        unknown = sum(math.isnan(score) for score in scores.values())
        counts = Counter(asked=len(new) * len(self.prompts), unreadable=unknown)
        yield AnnotatedPart(np.arange(len(questions)), Annotated(preferences, counts), 0)

    def num_questions(self, pairs: Pairs) -> int:
        """Return how many questions are not answered yet: one a caption and wording."""
        return len(self._new(_captions(pairs.questions()[1]))) * len(self.prompts)

    def score(self, texts: Sequence[str]) -> list[float]:
        """Return the log-odds of captions; what was asked before is not asked again."""
        for _ in self._ask(self._new(list(dict.fromkeys(texts)))):
            pass
        scores = self._known(texts)
        return [scores[text] for text in texts]

    def report(self, counts: Counter[str]) -> dict[str, object]:
        """Return how much was asked, and the captions with the most extreme log-odds."""
        scores = {asked[0]: mean(values) for asked, values in self.memory.items()}
        return {
            "asked": counts["asked"],
            "unreadable": counts["unreadable"],
            "captions_known": len(scores),
            **extremes(scores),
        }

    def _new(self, texts: Sequence[str]) -> list[str]:
        """Return those of distinct captions that nobody was asked about."""
        return [text for text in texts if self.memory.get((text,)) is None]

    def _known(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the log-odds of captions, NaN where the model gave no verdict."""
        known = {text: self.memory.get((text,)) for text in texts}
        return {text: math.nan if row is None else mean(row) for text, row in known.items()}

    def _ask(self, texts: Sequence[str]) -> Iterator[int]:
        """Ask about captions in every wording; yield how many answers came.

        Kept are the log-odds of a caption in all wordings, once they are known.
        """
        for start in range(0, len(texts), _TEXTS_TOGETHER):
            part = texts[start : start + _TEXTS_TOGETHER]
            leads: list[dict[int, float]] = [{} for _ in self.prompts]
            for prompts, found in zip(self.prompts, leads, strict=True):
                asked = [prompts.question(text) for text in part]
                rows = self.backend.log_prob_rows(asked, prompts.template, prompts.answers)
                for row in rows:
                    found |= {place: good - bad for place, (good, bad) in row.items()}
                    self._keep({part[place]: [one.get(place) for one in leads] for place in row})
                    yield len(row)

    def _keep(self, answers: Mapping[str, Sequence[float | None]]) -> None:
        """Keep the log-odds of captions whose every wording was answered, and by a verdict."""
        whole = {
            (text,): tuple(value for value in values if value is not None)
            for text, values in answers.items()
        }
        width = len(self.prompts)
        self.memory.put(
            {key: row for key, row in whole.items() if len(row) == width and not is_nan(row)}
        )


def _captions(questions: Sequence[Question]) -> list[str]:
    """Return the distinct captions of questions, in their order."""
    return list(dict.fromkeys(text for question in questions for text in question[1:]))
