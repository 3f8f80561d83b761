"""Motif's reward formula against the numbers worked by hand in its description."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional import (
    QUANTILE_LEVELS,
    RewardStatistics,
    RunningStatistics,
    count_decay,
    intrinsic_rewards,
    merge_statistics,
    mixed_rewards,
    reward_statistics,
    step_rewards,
    weighted_statistics,
)
from tests.functional.exact_text import exactly

RAW = [-1.0, 0.0, 0.5, 2.0, 4.0]
COUNTS = [80, 10, 5, 4, 1]
Z = [-0.409272, 0.777024, 1.370173, 3.149617, 5.522210]
settled = settings(deadline=None)


def exact(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def worked() -> RewardStatistics:
    mean, variance = weighted_statistics(exact(RAW), counts=torch.tensor(COUNTS))
    return reward_statistics(exact(RAW), mean=mean, variance=variance)


def shaped(z: float, count: int, threshold: float, **options: float) -> float:
    """Return the reward of an observation whose normalized reward is `z`."""
    found = intrinsic_rewards(
        exact([z]),
        counts=torch.tensor([count]),
        mean=0.0,
        variance=1.0,
        threshold=threshold,
        count_exponent=options.get("count_exponent", 3.0),
    )
    return float(found.rewards)


# --- T2: statistics by frequency, quantiles by distinct message -----------------------------------


def test_mean_and_variance_count_every_occurrence() -> None:
    """−80 + 2.5 + 8 + 4 = −65.5 of 100; the variance divides by 99."""
    mean, variance = weighted_statistics(exact(RAW), counts=torch.tensor(COUNTS))
    assert mean == pytest.approx(-0.655, abs=1e-12)
    squares = sum(c * (r + 0.655) ** 2 for r, c in zip(RAW, COUNTS, strict=True))
    assert variance == pytest.approx(squares / 99, abs=1e-12)
    assert variance == pytest.approx(0.710581, abs=6e-7)
    spread = exact(np.repeat(RAW, COUNTS))
    assert (mean, variance) == pytest.approx((float(spread.mean()), float(spread.var())))


def test_quantiles_count_each_distinct_message_once() -> None:
    statistics = worked()
    assert statistics.threshold(0.5, rounded=False) == pytest.approx(Z[2], abs=6e-7)
    by_occurrence = np.quantile(np.repeat(Z, COUNTS), 0.5)
    assert by_occurrence == pytest.approx(-0.409272, abs=6e-7)  # the wrong one


@settled
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=60))
def test_quantiles_are_numpys(raw: list[float]) -> None:
    found = reward_statistics(exact(raw), mean=1.0, variance=4.0).quantiles
    expected = np.quantile((np.array(raw) - 1) / 2, QUANTILE_LEVELS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_the_levels_are_nineteen() -> None:
    assert len(QUANTILE_LEVELS) == 19
    assert (QUANTILE_LEVELS[0], QUANTILE_LEVELS[-1]) == (0.05, 0.95)
    assert QUANTILE_LEVELS[2] == 0.15  # 3 / 20, which 0.05 · 3 is not


def test_the_release_updates_its_statistics_batch_by_batch() -> None:
    """Neither the population's variance (21.222222) nor the unbiased one (25.466667)."""
    first = merge_statistics(RunningStatistics(), exact([0, 1, 2, 3]))
    assert first == pytest.approx((1.499963, 1.666706, 4.0001), abs=6e-7)
    second = merge_statistics(first, exact([10, 12]))
    assert second == pytest.approx((4.666589, 21.833349, 6.0001), abs=6e-7)
    # d = 11 − m, t = c + 2, by the recurrence's own letters
    m, v, c = first
    d, t = 11 - m, c + 2
    assert second[1] == pytest.approx((v * c + 2 * 2 + d * d * c * 2 / t) / t, abs=1e-12)


# --- T3: rounding and the strict comparison -------------------------------------------------------


def test_rounding_lets_the_median_message_pass() -> None:
    statistics = worked()
    rounded = statistics.threshold(0.5, rounded=True)
    assert rounded == 1.37
    median = (0.5 + 0.655) / math.sqrt(statistics.variance)
    assert shaped(median, 1, rounded) == pytest.approx(1.370173, abs=6e-7)
    assert shaped(median, 1, statistics.threshold(0.5, rounded=False)) == 0.0


@pytest.mark.parametrize(
    ("quantile", "stored", "kept"), [(0.4567, 0.46, 0.0), (0.4512, 0.45, 0.4512)]
)
def test_rounding_decides_about_the_message_at_the_quantile(
    quantile: float, stored: float, kept: float
) -> None:
    statistics = RewardStatistics(0.0, 1.0, (quantile,) * 19)
    assert statistics.threshold(0.5, rounded=True) == stored
    assert shaped(quantile, 1, stored) == pytest.approx(kept)


# --- T4: which levels there are -------------------------------------------------------------------


@pytest.mark.parametrize("level", [-0.5, 0.52, 1.0, 0.025, float("nan")])
def test_other_levels_are_refused(level: float) -> None:
    with pytest.raises(ValueError, match=r"expected a quantile level of 0\.05, 0\.1, … 0\.95"):
        worked().threshold(level, rounded=False)


@pytest.mark.parametrize("level", [None, 0, 0.0])
def test_no_level_is_no_threshold(level: float | None) -> None:
    assert worked().threshold(level, rounded=True) == -math.inf
    assert shaped(-1000.0, 1, -math.inf) == -1000.0


@pytest.mark.parametrize("level", QUANTILE_LEVELS)
def test_each_level_is_known(level: float) -> None:
    statistics = RewardStatistics(0.0, 1.0, tuple(range(19)))
    place = QUANTILE_LEVELS.index(level)
    assert statistics.threshold(level, rounded=False) == place
    assert statistics.threshold(0.05 * (place + 1), rounded=False) == place  # 0.15000000000000002


# --- T5, T6: counts, and the order of the parts ---------------------------------------------------


def test_the_present_occurrence_counts() -> None:
    found = count_decay(torch.tensor([1, 1, 2, 3, 2, 1, 10]), exponent=3.0)
    expected = torch.tensor([1, 1, 0.125, 0.037037, 0.125, 1, 0.001])
    torch.testing.assert_close(found, expected, rtol=0, atol=6e-7)
    assert count_decay(torch.tensor([7]), exponent=0.0).tolist() == [1.0]


def test_the_threshold_comes_before_the_count() -> None:
    statistics = worked()
    epsilon = statistics.threshold(0.5, rounded=False)
    found = intrinsic_rewards(
        exact(RAW),
        counts=torch.tensor([1, 1, 1, 2, 3]),
        mean=statistics.mean,
        variance=statistics.variance,
        threshold=epsilon,
        count_exponent=3.0,
    )
    torch.testing.assert_close(found.normalized, exact(Z), rtol=0, atol=6e-7)
    expected = exact([0, 0, 0, 0.393702, 0.204526])
    torch.testing.assert_close(found.rewards, expected, rtol=0, atol=6e-7)
    assert found.is_above.tolist() == [False, False, False, True, True]
    paid = mixed_rewards(
        extrinsic=torch.zeros(5, dtype=torch.float64),
        intrinsic=found.rewards,
        extrinsic_coef=0.1,
        intrinsic_coef=0.1,
        scale=0.1,
        clip=10.0,
    )
    torch.testing.assert_close(paid[3:], exact([0.039370, 0.020453]), rtol=0, atol=6e-7)
    assert float(found.rewards[3]) < epsilon  # cut after the count, it would be 0


def test_a_negative_threshold_lets_negative_rewards_through() -> None:
    assert shaped(-0.4, 1, -0.5) == -0.4
    assert shaped(-0.5, 1, -0.5) == 0.0  # strict


@settled
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 40)), min_size=1, max_size=20),
    st.floats(-2, 2),
    st.floats(0, 4),
)
def test_it_is_the_plain_loop(
    rows: list[tuple[float, int]], threshold: float, exponent: float
) -> None:
    raw, counts = (list(part) for part in zip(*rows, strict=True))
    found = intrinsic_rewards(
        exact(raw),
        counts=torch.tensor(counts),
        mean=0.5,
        variance=2.0,
        threshold=threshold,
        count_exponent=exponent,
    ).rewards
    for reward, r, n in zip(found.tolist(), raw, counts, strict=True):
        z = (r - 0.5) / math.sqrt(2.0)
        assert reward == pytest.approx(z / n**exponent if z > threshold else 0.0, rel=1e-6)


# --- T7: which observation a step is paid for -----------------------------------------------------


def test_the_release_pays_for_the_observation_that_was_acted_on() -> None:
    rewards = torch.tensor([0.0, 0.0, 0.2, 0.5])
    acting, reached = rewards[:-1], rewards[1:]
    found = step_rewards(acting=acting, reached=reached, observed="acting")
    assert found.tolist() == pytest.approx([0, 0, 0.2])
    found = step_rewards(acting=acting, reached=reached, observed="reached")
    assert found.tolist() == pytest.approx([0, 0.2, 0.5])


# --- T9: both rewards together --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extrinsic", "coef", "z", "threshold", "count", "expected"),
    [
        (50, 0.1, 1.2, 0.3, 1, 0.62),
        (50, 10, 1.2, 0.3, 1, 50.12),
        (-0.01, 0.1, 1.2, 0.3, 2, 0.0149),
        (250, 0.1, -0.4, -0.5, 1, 0.96),
        (0, 0.1, 0.2, 0.3, 1, 0),
        (0, 0.1, 0.9, 0.3, 10, 9e-5),
    ],
)
def test_scale_and_clip_touch_the_worlds_reward_alone(
    extrinsic: float, coef: float, z: float, threshold: float, count: int, expected: float
) -> None:
    found = mixed_rewards(
        extrinsic=exact([extrinsic]),
        intrinsic=exact([shaped(z, count, threshold)]),
        extrinsic_coef=coef,
        intrinsic_coef=0.1,
        scale=0.1,
        clip=10.0,
    )
    assert float(found) == pytest.approx(expected, abs=1e-9)


# --- errors ---------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    ones = torch.ones(2)
    options = {"mean": 0.0, "threshold": 0.0, "count_exponent": 3.0}
    text = "expected `counts` of shape (2,) like `raw`, got (2, 1): give one count for each reward"
    with pytest.raises(ValueError, match=exactly(text)):
        intrinsic_rewards(ones, counts=torch.ones(2, 1), variance=1.0, **options)
    with pytest.raises(ValueError, match="expected `variance` above 0, got 0"):
        intrinsic_rewards(ones, counts=ones.long(), variance=0.0, **options)
    with pytest.raises(ValueError, match="expected `counts` of at least 1, got 0"):
        count_decay(torch.tensor([0]), exponent=3.0)
    with pytest.raises(ValueError, match="expected `exponent` of at least 0"):
        count_decay(torch.tensor([1]), exponent=-1.0)
    with pytest.raises(ValueError, match="`reached` of shape"):
        step_rewards(acting=ones, reached=torch.ones(3), observed="acting")
    with pytest.raises(ValueError, match="expected `clip` above 0"):
        mixed_rewards(
            extrinsic=ones,
            intrinsic=ones,
            extrinsic_coef=1,
            intrinsic_coef=1,
            scale=1,
            clip=0,
        )
    with pytest.raises(ValueError, match="a sum of at least 2"):
        weighted_statistics(ones, counts=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="at least 2 values in a batch"):
        merge_statistics(RunningStatistics(), torch.ones(1))
    with pytest.raises(ValueError, match="says the same of every message"):
        RewardStatistics(0.0, 0.0, (0.0,) * 19)
    with pytest.raises(ValueError, match="19 finite quantiles"):
        RewardStatistics(0.0, 1.0, (0.0,) * 18)
    with pytest.raises(ValueError, match="a variance above 0, got 2 and 0"):
        reward_statistics(ones, mean=0.0, variance=0.0)
