"""Preferences from the log-probs of two answers, asked in both orders.

A model that is asked which of two texts is better favors one place. Asked in both orders, that
favor adds up to nothing; what is left is

    d = ½ [log π(1 | a, b) − log π(2 | a, b) + log π(2 | b, a) − log π(1 | b, a)]

which is above 0 where a is better. No text is generated, and every distinct pair is asked once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from llm_agents.errors import UserError
from llm_agents.rewards.annotation_asking import AskingAnnotator
from llm_agents.rewards.annotation_backends import AnnotationBackend
from llm_agents.rewards.annotation_memory import AnswerMemory
from llm_agents.rewards.annotation_prompts import Goal, JudgeTemplate, PairPrompts, Version
from llm_agents.rewards.annotation_report import order_report
from llm_agents.rewards.annotator import (
    FIRST,
    SECOND,
    TIE,
    UNKNOWN,
    Annotated,
    AnnotatedPart,
    Pairs,
    Question,
)

_ANSWERS = ("1", "2")
_NONE = np.zeros(0, dtype=np.int8)


class ChoiceAnnotator(AskingAnnotator):
    """Asks a language model for the number of the better caption, in both orders.

    Args:
        backend: The language model.
        goal: What the player is after: ``defaultgoal``, ``zeroknowledge``, ``combat``, ``gold`` or
            ``stairs``.
        version: Wording: ``default`` or ``reworded``.
        template: ``chat`` for a chat model, ``plain`` for a base model.
        margin: Differences of log-probs up to this are a tie.
    """

    mode = "choice"
    memory: AnswerMemory

    def __init__(
        self,
        backend: AnnotationBackend,
        *,
        goal: Goal = "defaultgoal",
        version: Version = "default",
        template: JudgeTemplate = "chat",
        margin: float = 0.0,
    ) -> None:
        check_margin(margin)
        super().__init__(backend, goal, version)
        self.margin = margin
        self.prompts = PairPrompts(goal, version, template)
        self.memory = AnswerMemory()

    def identity(self) -> dict[str, object]:
        """Return what the preferences depend on."""
        return self._identity(self.prompts.template, self.prompts.wording(), margin=self.margin)

    def compare_each(self, questions: Sequence[Question]) -> Iterator[AnnotatedPart]:
        """Ask about pairs whose captions differ; all are judged once every answer is kept."""
        keys = [_key(question) for question in questions]
        new = self._new(keys)
        for answers in self._ask(new):
            yield AnnotatedPart(np.zeros(0, dtype=np.int64), Annotated(_NONE), answers)
        preferences = np.full(len(questions), UNKNOWN, dtype=np.int8)
        counts = Counter(asked=2 * len(new))
        for row, (question, key) in enumerate(zip(questions, keys, strict=True)):
            known = self.memory.get(key)
            if known is None:  # the model said neither number, and the pair stays unknown
                counts["unreadable"] += 1
                continue
            one, two = known if key[0] == question.first else (-known[1], -known[0])
            preferences[row] = preference_of(0.5 * (one + two), self.margin)
            counts += Counter(
                first_place_won=int(one > 0) + int(two < 0),
                places_decided=int(one != 0) + int(two != 0),
                orders_agree=int((one > 0) == (two > 0)),
                orders_compared=1,
            )
        yield AnnotatedPart(np.arange(len(questions)), Annotated(preferences, counts), 0)

    def num_questions(self, pairs: Pairs) -> int:
        """Return how many questions are not answered yet: two for each distinct pair."""
        return 2 * len(self._new([_key(question) for question in pairs.questions()[1]]))

    def report(self, counts: Counter[str]) -> dict[str, object]:
        """Return how much was asked, and the position bias."""
        return {key: counts[key] for key in ("asked", "unreadable")} | order_report(counts)

    def _new(self, keys: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Return the distinct pairs that nobody was asked about."""
        return [key for key in dict.fromkeys(keys) if self.memory.get(key) is None]

    def _ask(self, pairs: Sequence[tuple[str, ...]]) -> Iterator[int]:
        """Ask about pairs, each in its order and exchanged; yield how many answers came.

        Kept is by how much a pair's first text wins, in either order, once both are known.
        """
        prompts = [self.prompts.choice(*texts) for a, b in pairs for texts in ((a, b), (b, a))]
        leads: dict[int, float] = {}
        for rows in self.backend.log_prob_rows(prompts, self.prompts.template, _ANSWERS):
            leads |= {place: first - second for place, (first, second) in rows.items()}
            whole = sorted({place // 2 for place in rows})
            both = {
                pairs[pair]: (leads[2 * pair], -leads[2 * pair + 1])
                for pair in whole
                if 2 * pair in leads and 2 * pair + 1 in leads
            }
            self.memory.put({key: found for key, found in both.items() if not is_nan(found)})
            yield len(rows)


def _key(question: Question) -> tuple[str, ...]:
    """Return what a pair's answer is kept under: its texts, whatever their order."""
    return tuple(sorted((question.first, question.second)))


def is_nan(values: tuple[float, ...]) -> bool:
    """Tell whether one of the values is no number."""
    return math.isnan(sum(values))


def preference_of(difference: float, margin: float) -> int:
    """Return the preference for a first side that leads by `difference`."""
    if math.isnan(difference):
        return UNKNOWN
    if abs(difference) <= margin:
        return TIE
    return FIRST if difference > 0 else SECOND


def check_margin(margin: float) -> None:
    """Raise a `UserError` for a margin that is no number of at least 0."""
    if not 0 <= margin < math.inf:
        raise UserError(f"expected `margin` of at least 0, got {margin}")
