"""PPO on responses: the worked example of the release's numbers, plain loops, refusals."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_agents.functional.masked import masked_whiten
from llm_agents.functional.policy_gradient import clipped_surrogate_loss, value_loss
from llm_agents.functional.response_rewards import (
    Moments,
    adapted_kl_coef,
    add_to_moments,
    response_advantages,
    response_token_rewards,
    standardize_scores,
)

SCORES = torch.tensor([0.7, 0.5, 0.9, 0.3], dtype=torch.float64)
LOG_PROBS = torch.tensor([[-1.0, -0.5, -2.0]], dtype=torch.float64)
REFERENCE = torch.tensor([[-1.2, -0.6, -1.5]], dtype=torch.float64)
VALUES = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64)
MASK = torch.ones(1, 3, dtype=torch.bool)


def close(found: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_the_worked_example_to_its_digits() -> None:
    """Four scores of a first batch; the first response has three tokens; k = 0.2, λ = 0.95."""
    scores = standardize_scores(SCORES, add_to_moments(Moments(), SCORES))
    close(scores, [0.387298, -0.387298, 1.161895, -1.161895])
    rewards = response_token_rewards(
        log_probs=LOG_PROBS, ref_log_probs=REFERENCE, scores=scores[:1], mask=MASK, kl_coef=0.2
    )
    close(rewards, [[-0.04, -0.02, 0.487298]])
    found = response_advantages(
        rewards=rewards, values=VALUES, mask=MASK, gamma=1.0, gae_lambda=0.95
    )
    close(found.advantages, [[0.305037, 0.257933, 0.187298]])
    close(found.returns, [[0.405037, 0.457933, 0.487298]])
    advantages = masked_whiten(found.advantages, MASK, shift_mean=True, unbiased=True, epsilon=1e-8)
    torch.testing.assert_close(
        advantages,
        torch.tensor([[0.927224, 0.132365, -1.059589]], dtype=torch.float64),
        atol=2e-6,  # the release adds 1e-8 to the variance, as here; the printed digits don't
        rtol=0,
    )
    surrogate = clipped_surrogate_loss(
        log_probs=torch.tensor([[-0.7, -0.6, -1.9]], dtype=torch.float64),
        old_log_probs=LOG_PROBS,
        advantages=advantages,
        mask=MASK,
        clip_epsilon=0.2,
        reduction="units",
    )
    close(surrogate.importance_ratio, [[1.349859, 0.904837, 1.105171]])
    close(surrogate.loss, -0.020470)
    values = value_loss(
        values=torch.tensor([[0.4, 0.25, 0.2]], dtype=torch.float64),
        old_values=VALUES,
        returns=found.returns,
        mask=MASK,
        clip_epsilon=0.2,
        reduction="units",
    )
    close(values.loss, 0.022802)
    close(surrogate.loss + 0.1 * values.loss, -0.018190)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=5))
def test_moments_do_not_depend_on_the_groups(groups: list[list[float]]) -> None:
    moments = Moments()
    for group in groups:
        moments = add_to_moments(moments, torch.tensor(group, dtype=torch.float64))
    every = [value for group in groups for value in group]
    assert moments.size == len(every)
    assert moments.mean == pytest.approx(statistics.fmean(every), abs=1e-9)
    expected = statistics.stdev(every) if len(every) > 1 else 0.0
    assert moments.deviation == pytest.approx(expected, abs=1e-6)


def test_equal_scores_say_nothing() -> None:
    scores = torch.full((3,), 0.4)
    assert standardize_scores(scores, add_to_moments(Moments(), scores)).tolist() == [0, 0, 0]
    one = torch.tensor([0.4])
    assert standardize_scores(one, add_to_moments(Moments(), one)).tolist() == [0]


def test_the_score_comes_at_each_responses_own_end() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    equal = torch.full((2, 3), math.nan).masked_fill(mask, -1.0)  # padding may hold anything
    rewards = response_token_rewards(
        log_probs=equal, ref_log_probs=equal, scores=torch.tensor([2.0, 3.0]), mask=mask, kl_coef=1
    )
    assert rewards.tolist() == [[0, 0, 2], [3, 0, 0]]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (1.0, 0.0), (0.8, 1.0)])
def test_advantages_are_those_of_a_plain_loop(gamma: float, gae_lambda: float) -> None:
    generator = torch.Generator().manual_seed(3)
    rewards = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    values = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    lengths = [5, 1, 3, 4]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    found = response_advantages(
        rewards=rewards.masked_fill(~mask, math.nan),
        values=values.masked_fill(~mask, math.nan),
        mask=mask,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    for row, length in enumerate(lengths):
        following, advantage = 0.0, 0.0
        for place in reversed(range(length)):
            delta = float(rewards[row, place]) + gamma * following - float(values[row, place])
            advantage = delta + gamma * gae_lambda * advantage
            assert float(found.advantages[row, place]) == pytest.approx(advantage)
            expected = advantage + float(values[row, place])
            assert float(found.returns[row, place]) == pytest.approx(expected)
            following = float(values[row, place])
    assert not bool(found.advantages[~mask].any())


@pytest.mark.parametrize(
    ("divergence", "factor"),
    [(6.0, 1.0), (60.0, 1.0032), (6.6, 1.0016), (0.0, 0.9968), (-3, 0.9968)],
)
def test_the_penalty_moves_towards_its_target(divergence: float, factor: float) -> None:
    """A sixteen-thousandth of the horizon: at most 0.2 · 16 / 1,000 of itself."""
    found = adapted_kl_coef(0.2, divergence=divergence, target=6, horizon=1000, count=16)
    assert found == pytest.approx(0.2 * factor)


def test_faults_are_named() -> None:
    with pytest.raises(ValueError, match="at least one number, all finite"):
        add_to_moments(Moments(), torch.tensor([math.nan]))
    with pytest.raises(ValueError, match="right-padded responses"):
        response_advantages(
            rewards=torch.zeros(1, 2), values=torch.zeros(1, 2), gamma=1, gae_lambda=1,
            mask=torch.tensor([[False, True]]),
        )  # fmt: skip
    with pytest.raises(ValueError, match="`kl_coef` of at least 0"):
        response_token_rewards(
            log_probs=LOG_PROBS, ref_log_probs=REFERENCE, scores=SCORES[:1], mask=MASK, kl_coef=-1
        )
    with pytest.raises(ValueError, match=r"expected `scores` of shape \(1,\)"):
        response_token_rewards(
            log_probs=LOG_PROBS, ref_log_probs=REFERENCE, scores=SCORES, mask=MASK, kl_coef=1
        )
    with pytest.raises(ValueError, match="`target` and `horizon` above 0"):
        adapted_kl_coef(0.2, divergence=1, target=0, horizon=1, count=1)
