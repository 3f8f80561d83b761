"""Preferences read from what a language model writes: Motif's own way of annotating.

A pair is one question; the reply reasons and ends with a verdict. A reply without one is asked
about once more; a pair that is still without one stays unknown and is asked anew by the next run.
Paper: arXiv 2310.00166, section 3. Differs: seeds belong to pairs, so that chunks, batches and
resumed runs give the same replies; both orders can be asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

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
    Question,
    seed_of,
)
from llm_agents.types import GenerationConfig, Prompt

RELEASED_SAMPLING = GenerationConfig(max_new_tokens=4096, temperature=0.1, top_p=0.95, top_k=50)
"""How Motif's release draws replies."""

_EXCHANGED = {FIRST: SECOND, SECOND: FIRST, TIE: TIE, UNKNOWN: UNKNOWN}


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

    def compare(self, questions: Sequence[Question]) -> Annotated:
        """Ask about pairs whose captions differ."""
        asked = [(q.first, q.second) for q in questions]
        seeds = [seed_of(self.seed, q.pair, 0) for q in questions]
        if self.both_orders:
            asked += [(q.second, q.first) for q in questions]
            seeds += [seed_of(self.seed, q.pair, 1) for q in questions]
        verdicts, talks, counts = self._ask(asked, seeds)
        conversations = dict(zip((q.pair for q in questions), talks, strict=False))
        if not self.both_orders:
            return Annotated(np.array(verdicts, dtype=np.int8), counts, conversations)
        size = len(questions)
        merged = []
        for question, one, two, exchanged in zip(
            questions, verdicts[:size], verdicts[size:], talks[size:], strict=True
        ):
            merged.append(_merge(one, _EXCHANGED[two]))
            conversations[question.pair] += f"\n\n=== sides exchanged ===\n\n{exchanged}"
            counts += _count_orders(one, two)
        return Annotated(np.array(merged, dtype=np.int8), counts, conversations)

    def report(self, counts: Counter[str]) -> dict[str, object]:
        """Return the counts of questions, with the position bias if both orders were asked."""
        keys = ("asked", "asked_again", "unreadable")
        return {key: counts[key] for key in keys} | order_report(counts)

    def _ask(
        self, pairs: Sequence[tuple[str, str]], seeds: Sequence[int]
    ) -> tuple[list[int], list[str], Counter[str]]:
        """Return a verdict on each pair of captions, the conversation, and how much was asked."""
        prompts = [self.prompts.question(first, second) for first, second in pairs]
        replies = self.backend.generate(prompts, self.prompts.template, self.sampling, seeds)
        talks = [_written(prompt, reply) for prompt, reply in zip(prompts, replies, strict=True)]
        found = [read_verdict(reply, self.prompts.noun, self.match) for reply in replies]
        missing = [row for row, verdict in enumerate(found) if verdict is None]
        again = [self.prompts.retry(prompts[row], replies[row]) for row in missing]
        new_seeds = [seed_of(seeds[row]) for row in missing]
        if again:
            new = self.backend.generate(again, self.prompts.template, self.sampling, new_seeds)
            for row, prompt, reply in zip(missing, again, new, strict=True):
                found[row] = read_verdict(reply, self.prompts.noun, self.match)
                talks[row] = _written(prompt, reply)
        counts = Counter(
            asked=len(pairs), asked_again=len(missing), unreadable=sum(v is None for v in found)
        )
        return [UNKNOWN if verdict is None else verdict for verdict in found], talks, counts


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
