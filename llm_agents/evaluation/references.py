"""What texts say beside the reward: fragments of the knowledge, likeness to the reference, gold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean
from llm_agents.evaluation.meteor import meteor_score
from llm_agents.evaluation.results import Answer, GoldResult
from llm_agents.evaluation.text_metrics import coverage, density, distinct_n, num_words
from llm_agents.rewards.dialogue import take_apart
from llm_agents.types import Prompt


def answer_metrics(answers: Sequence[Answer], bootstrap: BootstrapConfig) -> dict[str, Interval]:
    """Return the means of what can be said of answers without a judge.

    Args:
        answers: Of one test set.
        bootstrap: How intervals are computed.

    Returns:
        ``coverage`` and ``density`` over the prompts that have knowledge, ``meteor`` over those
        that have a reference; whatever no prompt has is left out.
    """
    pairs = [(answer.prompt, answer.response) for answer in answers]
    found = _knowledge_metrics(pairs)
    found["meteor"] = [
        meteor_score(answer.response, answer.reference)
        for answer in answers
        if answer.reference is not None
    ]
    return _means(found, bootstrap)


def gold_result(
    answers: Sequence[Answer],
    scores: tuple[Tensor, Mapping[str, Tensor]] | None,
    bootstrap: BootstrapConfig,
) -> GoldResult | None:
    """Return the numbers of the references to which answers belong; None if there are none.

    Args:
        answers: Of one test set.
        scores: ``[N]`` rewards of the N references that there are, and those of its parts.
        bootstrap: How intervals are computed.
    """
    pairs = [
        (answer.prompt, answer.reference) for answer in answers if answer.reference is not None
    ]
    if not pairs:
        return None
    texts = [text for _, text in pairs]
    words = torch.tensor([float(num_words(text)) for text in texts])
    rewards, parts = scores if scores is not None else (None, {})
    return GoldResult(
        reward=None if rewards is None else bootstrap_mean(rewards, bootstrap),
        words=bootstrap_mean(words, bootstrap),
        distinct={n: distinct_n(texts, n) for n in (1, 2, 3)},
        parts={name: bootstrap_mean(values, bootstrap) for name, values in parts.items()},
        metrics=_means(_knowledge_metrics(pairs), bootstrap),
    )


def _knowledge_metrics(pairs: Sequence[tuple[Prompt, str]]) -> dict[str, list[float]]:
    """Return coverage and density of each text whose prompt has knowledge."""
    found: dict[str, list[float]] = {"coverage": [], "density": []}
    for prompt, text in pairs:
        knowledge = take_apart(prompt).knowledge
        if knowledge is not None:
            found["coverage"].append(coverage(knowledge, text))
            found["density"].append(density(knowledge, text))
    return found


def _means(values: Mapping[str, list[float]], bootstrap: BootstrapConfig) -> dict[str, Interval]:
    """Return the mean of each metric that has values."""
    return {
        name: bootstrap_mean(torch.tensor(found, dtype=torch.float64), bootstrap)
        for name, found in values.items()
        if found
    }
