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
from collections.abc import Sequence
from statistics import fmean as mean
from typing import Literal, get_args

import numpy as np

from llm_agents.rewards.annotation_asking import AskingAnnotator
from llm_agents.rewards.annotation_backends import AnnotationBackend
from llm_agents.rewards.annotation_choice import check_margin, preference_of
from llm_agents.rewards.annotation_examples import PointwisePrompts
from llm_agents.rewards.annotation_memory import AnswerMemory, parts
from llm_agents.rewards.annotation_prompts import Goal, JudgeTemplate, Version
from llm_agents.rewards.annotation_report import extremes
from llm_agents.rewards.annotator import Annotated, Question


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

    def compare(self, questions: Sequence[Question]) -> Annotated:
        """Compare pairs whose captions differ."""
        texts = dict.fromkeys(text for question in questions for text in question[1:])
        scores, num_asked = self._scores(list(texts))
        preferences = np.array(
            [preference_of(scores[q.first] - scores[q.second], self.margin) for q in questions],
            dtype=np.int8,
        )
        unknown = sum(math.isnan(score) for score in scores.values())
        return Annotated(preferences, Counter(asked=num_asked, unreadable=unknown))

    def score(self, texts: Sequence[str]) -> list[float]:
        """Return the log-odds of captions; what was asked before is not asked again."""
        scores, _ = self._scores(list(dict.fromkeys(texts)))
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

    def _scores(self, texts: list[str]) -> tuple[dict[str, float], int]:
        """Return the log-odds of distinct captions, and how many questions were asked."""
        new = [text for text in texts if self.memory.get((text,)) is None]
        for part in parts(new):
            columns = [self._ask(prompts, part) for prompts in self.prompts]
            answers = {(text,): row for text, *row in zip(part, *columns, strict=True)}
            self.memory.put(
                {asked: tuple(row) for asked, row in answers.items() if not math.isnan(sum(row))}
            )
        known = {text: self.memory.get((text,)) for text in texts}
        scores = {text: math.nan if row is None else mean(row) for text, row in known.items()}
        return scores, len(new) * len(self.prompts)

    def _ask(self, prompts: PointwisePrompts, texts: Sequence[str]) -> list[float]:
        """Return the log-odds of captions in one wording; NaN where neither verdict is given."""
        questions = [prompts.question(text) for text in texts]
        log_probs = self.backend.answer_log_probs(questions, prompts.template, prompts.answers)
        leads: list[float] = (log_probs[:, 0] - log_probs[:, 1]).tolist()
        return leads
