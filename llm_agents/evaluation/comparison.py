"""Two sets of responses to the same prompts, and several training seeds of one recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean
from llm_agents.evaluation.results import Answer, Results


@dataclass(frozen=True)
class PairedDifference:
    """How the first set of responses differs from the second, prompt by prompt.

    Args:
        name: Name of the test set; ``all`` for all together.
        reward: Mean of (first − second) rewards.
        words: Mean of (first − second) words.
        wins: Prompts where the first has the higher reward.
        ties: Prompts where the rewards are equal.
        losses: Prompts where the second has the higher reward.
    """

    name: str
    reward: Interval
    words: Interval
    wins: int
    ties: int
    losses: int


def compare(
    first: Results, second: Results, bootstrap: BootstrapConfig | None = None
) -> list[PairedDifference]:
    """Compare two sets of responses on the prompts that both answered.

    A paired interval is narrower than the difference of two intervals, since a hard prompt is hard
    for both.

    Args:
        first: Results of one policy.
        second: Results of another, scored by the same reward.
        bootstrap: How intervals are computed; `first`'s way by default.

    Returns:
        One entry a test set that both have, then ``all`` if there are several.

    Raises:
        UserError: The rewards differ, or no prompt is common.
    """
    _check_same_reward([first, second])
    bootstrap = bootstrap or first.bootstrap
    theirs = {(answer.test, answer.row): answer for answer in second.answers}
    pairs: dict[str, list[tuple[Answer, Answer]]] = {}
    for answer in first.answers:
        other = theirs.get((answer.test, answer.row))
        if other is not None:
            if answer.prompt and other.prompt and answer.prompt != other.prompt:
                raise UserError(
                    f"row {answer.row} of `{answer.test}` is another prompt in `{second.name}`: "
                    "the test files differ"
                )
            pairs.setdefault(answer.test, []).append((answer, other))
    if not pairs:
        raise UserError(
            f"`{first.name}` and `{second.name}` have no prompt in common: "
            f"{first.test_names()} against {second.test_names()}"
        )
    found = [_difference(test, members, bootstrap) for test, members in pairs.items()]
    if len(found) > 1:
        found.append(_difference("all", [p for m in pairs.values() for p in m], bootstrap))
    return found


def _difference(
    name: str, pairs: Sequence[tuple[Answer, Answer]], bootstrap: BootstrapConfig
) -> PairedDifference:
    """Return the paired numbers of one test set."""
    rewards = torch.tensor([a.reward - b.reward for a, b in pairs], dtype=torch.float64)
    words = torch.tensor([float(a.num_words - b.num_words) for a, b in pairs])
    return PairedDifference(
        name=name,
        reward=bootstrap_mean(rewards, bootstrap),
        words=bootstrap_mean(words, bootstrap),
        wins=int((rewards > 0).sum()),
        ties=int((rewards == 0).sum()),
        losses=int((rewards < 0).sum()),
    )


def combine_seeds(
    results: Sequence[Results],
    minus: Sequence[Results] | None = None,
    bootstrap: BootstrapConfig | None = None,
) -> dict[str, Interval]:
    """Return the mean reward over seeds and prompts, or a paired difference of two recipes.

    Args:
        results: One entry a training seed, all on the same prompts with the same reward.
        minus: Results of another recipe with the same seeds in the same order; their rewards are
            subtracted seed by seed and prompt by prompt.
        bootstrap: How intervals are computed.

    Returns:
        An interval for each test set and for ``all``; seeds and prompts are both resampled.
    """
    everything = [*results, *(minus or [])]
    if not results or (minus is not None and len(minus) != len(results)):
        raise UserError(
            f"expected one result a seed on both sides, got {len(results)} and {len(minus or [])}"
        )
    _check_same_reward(everything)
    keys = [(answer.test, answer.row) for answer in results[0].answers]
    tables = []
    for entry in everything:
        rewards = {(answer.test, answer.row): answer.reward for answer in entry.answers}
        if set(rewards) != set(keys):
            raise UserError(f"`{entry.name}` answered other prompts than `{results[0].name}`")
        tables.append([rewards[key] for key in keys])
    values = torch.tensor(tables[: len(results)], dtype=torch.float64)
    if minus is not None:
        values = values - torch.tensor(tables[len(results) :], dtype=torch.float64)
    bootstrap = bootstrap or results[0].bootstrap
    tests = results[0].test_names()
    found = {
        test: bootstrap_mean(values[:, [key[0] == test for key in keys]], bootstrap)
        for test in tests
    }
    return found if len(tests) == 1 else {**found, "all": bootstrap_mean(values, bootstrap)}


def _check_same_reward(results: Sequence[Results]) -> None:
    """Raise unless one version of one reward gave all the scores."""
    kinds = {(entry.reward.name, entry.reward.version) for entry in results}
    if len(kinds) > 1:
        named = " and ".join(f"{name} ({version})" for name, version in sorted(kinds))
        raise UserError(f"scores of different rewards can't be compared: {named}")
