"""How well a reward agrees with people and with another reward, on pairs nothing was trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_agents.data.base import Example
from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_statistic
from llm_agents.evaluation.results import (
    RewardDescription,
    describe_reward,
    package_versions,
    read_object,
    write_object,
)
from llm_agents.types import Reward, as_scores


@dataclass(frozen=True)
class RewardAgreement:
    """Agreement on one test set; None where the data have nothing to agree with.

    Args:
        name: Name of the test set; ``all`` for all together.
        pair_accuracy: Share of pairs where the response that people preferred scores higher; a tie
            counts half.
        pair_agreement: Share of pairs that the stored scores order in the same way; pairs with
            equal stored scores are left out.
        correlation: Pearson's correlation with the stored scores, over all responses.
        num_prompts: Prompts.
        num_responses: Responses.
        seconds: Time spent on scoring.
    """

    name: str
    pair_accuracy: Interval | None
    pair_agreement: Interval | None
    correlation: Interval | None
    num_prompts: int
    num_responses: int
    seconds: float


@dataclass(frozen=True)
class RewardResults:
    """What the evaluation of a reward found.

    Args:
        name: What was evaluated.
        reward: Which reward it is.
        bootstrap: How the intervals were computed.
        tests: One entry a test set, then ``all`` if there are several.
        date: When, in UTC.
        versions: Versions of the packages that matter.
        details: Anything the caller adds.
    """

    name: str
    reward: RewardDescription
    bootstrap: BootstrapConfig
    tests: tuple[RewardAgreement, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=package_versions)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overall(self) -> RewardAgreement:
        """Return the entry over all prompts."""
        return self.tests[-1]


def evaluate_reward(
    reward: Reward,
    test_sets: Mapping[str, Sequence[Example]],
    *,
    name: str | None = None,
    bootstrap: BootstrapConfig | None = None,
    details: Mapping[str, Any] | None = None,
) -> RewardResults:
    """Score every response of every test prompt and compare with the data.

    Intervals resample prompts, whose responses stay together.

    Args:
        reward: The reward to be judged.
        test_sets: Examples with at least two responses, by the test set's name.
        name: What is evaluated, for tables; the reward's name by default.
        bootstrap: How intervals are computed.
        details: Kept in the results as they are.

    Returns:
        Numbers for each test set and for all together.

    Raises:
        UserError: There is no test set, or one is empty.
    """
    if not test_sets:
        raise UserError("expected at least one test set, got none: name files in `data.test`")
    bootstrap = bootstrap or BootstrapConfig()
    found, everything = [], []
    for test, examples in test_sets.items():
        start = time.perf_counter()
        if not examples:
            raise UserError(f"the test set `{test}` has no example: look at what its file dropped")
        prompts = [example.prompt for example in examples for _ in example.responses]
        responses = [response for example in examples for response in example.responses]
        scores = as_scores(reward(prompts, responses), count=len(responses), name=reward.name)
        counts = [len(example.responses) for example in examples]
        by_prompt = torch.split(scores.double(), counts)
        scored = list(zip(examples, by_prompt, strict=True))
        everything += scored
        found.append(_agreement(test, scored, time.perf_counter() - start, bootstrap))
    if len(found) > 1:
        seconds = sum(entry.seconds for entry in found)
        found.append(_agreement("all", everything, seconds, bootstrap))
    return RewardResults(
        name=name or reward.name,
        reward=describe_reward(reward),
        bootstrap=bootstrap,
        tests=tuple(found),
        details=dict(details or {}),
    )


def write_reward_results(folder: str | Path, results: RewardResults) -> Path:
    """Write ``results.json`` to a folder, at once, and return its path."""
    return write_object(folder, asdict(results), kind="reward")


def read_reward_results(folder: str | Path) -> RewardResults:
    """Read what `write_reward_results` wrote."""
    values = read_object(folder, kind="reward")
    tests = []
    for entry in values["tests"]:
        kept: dict[str, Any] = {
            key: Interval(**value) if isinstance(value, dict) else value
            for key, value in entry.items()
        }
        tests.append(RewardAgreement(**kept))
    return RewardResults(
        **{
            **values,
            "reward": RewardDescription(**values["reward"]),
            "bootstrap": BootstrapConfig(**values["bootstrap"]),
            "tests": tuple(tests),
        }
    )


def _agreement(
    name: str,
    scored: Sequence[tuple[Example, Tensor]],
    seconds: float,
    bootstrap: BootstrapConfig,
) -> RewardAgreement:
    """Return the numbers of one test set."""
    by_people = [_preferred_pairs(example, scores) for example, scores in scored]
    by_stored = [_stored_pairs(example, scores) for example, scores in scored]
    moments = [_moments(example, scores) for example, scores in scored]
    return RewardAgreement(
        name=name,
        pair_accuracy=_interval(by_people, _ratio, bootstrap),
        pair_agreement=_interval(by_stored, _ratio, bootstrap),
        correlation=_interval(moments, _correlation, bootstrap),
        num_prompts=len(scored),
        num_responses=sum(len(scores) for _, scores in scored),
        seconds=round(seconds, 3),
    )


def _interval(
    rows: Sequence[list[float]], statistic: Callable[[Tensor], Tensor], bootstrap: BootstrapConfig
) -> Interval | None:
    """Return a statistic of the rows' sums with its interval; None if it is not defined."""
    table = torch.tensor(rows, dtype=torch.float64)
    table = table[table.abs().sum(1) > 0]
    if not len(table) or not statistic(table.sum(0, keepdim=True)).isfinite().all():
        return None
    return bootstrap_statistic(table, statistic, bootstrap)


def _preferred_pairs(example: Example, scores: Tensor) -> list[float]:
    """Return (pairs won by the preferred response, pairs); a tie is half a pair."""
    if len(scores) < 2 or example.preferred < 0:
        return [0.0, 0.0]
    best = scores[example.preferred]
    others = torch.cat([scores[: example.preferred], scores[example.preferred + 1 :]])
    return [float((best > others).sum() + 0.5 * (best == others).sum()), float(len(others))]


def _stored_pairs(example: Example, scores: Tensor) -> list[float]:
    """Return (pairs ordered as the stored scores order them, pairs that these order)."""
    if example.rewards is None:
        return [0.0, 0.0]
    stored = torch.tensor(example.rewards, dtype=torch.float64)
    ours = (scores[:, None] - scores[None, :]).sign()
    theirs = (stored[:, None] - stored[None, :]).sign()
    ordered = (theirs > 0).double()
    agreed = ordered * (ours > 0) + 0.5 * ordered * (ours == 0)
    return [float(agreed.sum()), float(ordered.sum())]


def _moments(example: Example, scores: Tensor) -> list[float]:
    """Return the sums from which Pearson's correlation is made."""
    if example.rewards is None:
        return [0.0] * 6
    y = torch.tensor(example.rewards, dtype=torch.float64)
    sums = (scores.sum(), y.sum(), (scores * scores).sum(), (y * y).sum(), (scores * y).sum())
    return [float(len(scores)), *(float(value) for value in sums)]


def _ratio(sums: Tensor) -> Tensor:
    """Return the first sum over the second, row by row."""
    return sums[:, 0] / sums[:, 1]


def _correlation(sums: Tensor) -> Tensor:
    """Return Pearson's correlation from the sums of `_moments`, row by row."""
    n, x, y, xx, yy, xy = sums.unbind(1)
    return (n * xy - x * y) / ((n * xx - x * x) * (n * yy - y * y)).sqrt()
