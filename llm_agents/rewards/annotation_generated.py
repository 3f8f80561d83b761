"""Preferences read from what a language model writes: Motif's own way of annotating.

A pair is one question; the reply reasons and ends with a verdict. A reply without one is asked
about once more; a pair that is still without one stays unknown and is asked anew by the next run.
Paper: arXiv 2310.00166, section 3. Differs: seeds belong to pairs, so that chunks, batches and
resumed runs give the same replies; both orders can be asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np

from llm_agents.errors import UserError
from llm_agents.rewards.annotation_asking import AskingAnnotator
from llm_agents.rewards.annotation_backends import AnnotationBackend
from llm_agents.rewards.annotation_parsing import Match, read_verdict
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
    seed_of,
)
from llm_agents.types import GenerationConfig, Prompt

RELEASED_SAMPLING = GenerationConfig(max_new_tokens=4096, temperature=0.1, top_p=0.95, top_k=50)
"""How Motif's release draws replies."""

_EXCHANGED_SIDES = "\n\n=== sides exchanged ===\n\n"
_EXCHANGED = {FIRST: SECOND, SECOND: FIRST, TIE: TIE, UNKNOWN: UNKNOWN}


class _Read(NamedTuple):
    """What was read of the replies to one question.

    Args:
        verdict: `FIRST`, `SECOND`, `TIE`, or `UNKNOWN` where none was given.
        talk: The conversation.
        asked_again: 1 if it took a second question.
    """

    verdict: int
    talk: str
    asked_again: int


class GeneratedAnnotator(AskingAnnotator):
    """Asks a language model for its reasons and a verdict, and reads the verdict.

    Args:
        backend: The language model.
        goal: What the player is after: ``defaultgoal``, ``zeroknowledge``, ``combat``, ``gold`` or
            ``stairs``.
        version: Wording: ``default`` or ``reworded``.
        template: ``chat`` for a chat model, ``plain`` for a base model.
        sampling: How replies are drawn; Motif's by default.
        match: The verdict that counts: the ``first`` one in a reply, as in Motif's release, or the
            ``last``, whose number must stand alone.
        both_orders: Ask about every pair twice, with the sides exchanged; a side is preferred if
            both verdicts say so, and verdicts that differ are a tie.
        seed: Another seed gives other replies.
    """

    mode = "generated"

    def __init__(
        self,
        backend: AnnotationBackend,
        *,
        goal: Goal = "defaultgoal",
        version: Version = "default",
        template: JudgeTemplate = "chat",
        sampling: GenerationConfig = RELEASED_SAMPLING,
        match: Match = "first",
        both_orders: bool = False,
        seed: int = 0,
    ) -> None:
        if match not in ("first", "last"):
            raise UserError(f"expected `match` first or last, got {match!r}")
        super().__init__(backend, goal, version)
        self.match, self.both_orders, self.seed = match, both_orders, seed
        self.prompts = PairPrompts(goal, version, template)
        stops = (*sampling.stop_strings, *self.prompts.stop_strings)
        self.sampling = replace(sampling, stop_strings=stops)

    def identity(self) -> dict[str, object]:
        """Return what the preferences depend on."""
        sampling = {
            key: value for key, value in asdict(self.sampling).items() if key != "batch_size"
        }
        return self._identity(
            self.prompts.template,
            self.prompts.wording(),
            sampling=sampling | {"stop_strings": list(self.sampling.stop_strings)},
            match=self.match,
            both_orders=self.both_orders,
            seed=self.seed,
        )

    def compare_each(self, questions: Sequence[Question]) -> Iterator[AnnotatedPart]:
        """Ask about pairs whose captions differ; a pair is judged when all its replies are read."""
        orders = 2 if self.both_orders else 1
        asked: list[tuple[str, str]] = []
        seeds: list[int] = []
        for question in questions:
            for order in range(orders):
                sides = question.first, question.second
                asked.append(sides if order == 0 else sides[::-1])
                seeds.append(seed_of(self.seed, question.pair, order))
        read: dict[int, _Read] = {}
        for found, answers in self._ask(asked, seeds):
            read |= found
            whole = sorted({place // orders for place in found})
            whole = [row for row in whole if all(row * orders + k in read for k in range(orders))]
            preferences = np.zeros(len(whole), dtype=np.int8)
            counts: Counter[str] = Counter()
            talks: dict[int, str] = {}
            for place, row in enumerate(whole):
                replies = [read[row * orders + order] for order in range(orders)]
                preferences[place] = _judge(replies, counts)
                talks[questions[row].pair] = _EXCHANGED_SIDES.join(one.talk for one in replies)
            part = Annotated(preferences, counts, talks)
            yield AnnotatedPart(np.array(whole, dtype=np.int64), part, answers)

    def num_questions(self, pairs: Pairs) -> int:
        """Return the number of questions: one a pair and order."""
        return len(pairs.questions()[0]) * (2 if self.both_orders else 1)

    def report(self, counts: Counter[str]) -> dict[str, object]:
        """Return the counts of questions, with the position bias if both orders were asked."""
        keys = ("asked", "asked_again", "unreadable")
        return {key: counts[key] for key in keys} | order_report(counts)

    def _ask(
        self, pairs: Sequence[tuple[str, str]], seeds: Sequence[int]
    ) -> Iterator[tuple[dict[int, _Read], int]]:
        """Yield what was read about pairs of captions by place, and how many it settles.

        Replies without a verdict are asked for once more, after the others.
        """
        prompts = [self.prompts.question(first, second) for first, second in pairs]
        template, sampling = self.prompts.template, self.sampling
        missing: dict[int, str] = {}
        for replies in self.backend.replies(prompts, template, sampling, seeds):
            found = {}
            for place, reply in replies.items():
                verdict = read_verdict(reply, self.prompts.noun, self.match)
                if verdict is None:
                    missing[place] = reply
                else:
                    found[place] = _Read(verdict, _written(prompts[place], reply), 0)
            yield found, len(found)
        places = sorted(missing)
        again = [self.prompts.retry(prompts[place], missing[place]) for place in places]
        new_seeds = [seed_of(seeds[place]) for place in places]
        for replies in self.backend.replies(again, template, sampling, new_seeds):
            found = {}
            for row, reply in replies.items():
                verdict = read_verdict(reply, self.prompts.noun, self.match)
                talk = _written(again[row], reply)
                found[places[row]] = _Read(UNKNOWN if verdict is None else verdict, talk, 1)
            yield found, len(found)


def _judge(replies: Sequence[_Read], counts: Counter[str]) -> int:
    """Return the preference from a pair's replies, in one order or both, and count them."""
    counts["asked"] += len(replies)
    counts["asked_again"] += sum(reply.asked_again for reply in replies)
    counts["unreadable"] += sum(reply.verdict == UNKNOWN for reply in replies)
    if len(replies) == 1:
        return replies[0].verdict
    one, two = (reply.verdict for reply in replies)
    counts.update(_count_orders(one, two))
    return _merge(one, _EXCHANGED[two])


def _merge(one: int, two: int) -> int:
    """Return the preference from the verdicts of both orders, the second one turned back."""
    if UNKNOWN in (one, two):
        return UNKNOWN
    return one if one == two else TIE


def _count_orders(one: int, two: int) -> Counter[str]:
    """Return how often the text in first place won, and whether both orders agree.

    Args:
        one: Verdict on the pair as it is.
        two: Verdict with the sides exchanged, by place.
    """
    verdicts = (one, two)
    decided = [verdict for verdict in verdicts if verdict in (FIRST, SECOND)]
    both = UNKNOWN not in verdicts
    return Counter(
        first_place_won=sum(verdict == FIRST for verdict in decided),
        places_decided=len(decided),
        orders_agree=int(both and one == _EXCHANGED[two]),
        orders_compared=int(both),
    )


def _written(prompt: Prompt, reply: str) -> str:
    """Return a conversation as text."""
    turns = [f"[{turn.role}]\n{turn.text}" for turn in prompt]
    return "\n\n".join([*turns, f"[assistant]\n{reply}"]) + "\n"
