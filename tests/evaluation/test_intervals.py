"""Bootstrap intervals."""

from __future__ import annotations

import math

import pytest
import torch

from llm_agents.evaluation import BootstrapConfig, bootstrap_mean
from llm_agents.evaluation.intervals import bootstrap_statistic


def test_the_interval_is_about_as_wide_as_theory_says() -> None:
    values = torch.randn(400, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    interval = bootstrap_mean(values, BootstrapConfig(samples=4000))
    assert interval.mean == pytest.approx(float(values.mean()))
    assert interval.std == pytest.approx(float(values.std()))
    half = 1.959964 * float(values.std()) / math.sqrt(400)
    assert interval.low == pytest.approx(interval.mean - half, abs=0.1 * half)
    assert interval.high == pytest.approx(interval.mean + half, abs=0.1 * half)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(5)
    covered = 0
    for seed in range(200):
        values = torch.randn(50, generator=generator) + 1.0
        interval = bootstrap_mean(values, BootstrapConfig(samples=300, confidence=0.9, seed=seed))
        covered += not interval.excludes(1.0)
    assert 0.83 <= covered / 200 <= 0.96


def test_the_same_seed_gives_the_same_interval() -> None:
    values = torch.arange(20.0)
    assert bootstrap_mean(values, BootstrapConfig(seed=1)) == bootstrap_mean(
        values, BootstrapConfig(seed=1)
    )
    assert bootstrap_mean(values, BootstrapConfig(seed=1)) != bootstrap_mean(
        values, BootstrapConfig(seed=2)
    )


def test_constant_values_have_no_width() -> None:
    interval = bootstrap_mean(torch.full((7,), 2.5), BootstrapConfig())
    assert (interval.low, interval.mean, interval.high, interval.std) == (2.5, 2.5, 2.5, 0.0)
    assert interval.excludes(2.4)


def test_a_single_value_has_a_mean_only() -> None:
    interval = bootstrap_mean(torch.tensor([0.5]), BootstrapConfig())
    assert (interval.mean, interval.low, interval.high, interval.std) == (0.5, None, None, None)
    assert not interval.excludes(9.0)


def test_seeds_that_disagree_widen_the_interval() -> None:
    """Two seeds, one always 0 and one always 1: every mean from 0 to 1 is possible."""
    values = torch.stack([torch.zeros(100), torch.ones(100)])
    interval = bootstrap_mean(values, BootstrapConfig())
    assert (interval.low, interval.mean, interval.high) == (0.0, 0.5, 1.0)
    pooled = bootstrap_mean(values.flatten(), BootstrapConfig())
    assert pooled.low is not None
    assert pooled.low > 0.4


def test_a_crossed_mean_equals_the_slow_loop() -> None:
    """With one prompt only seeds vary, with one seed only prompts do: two-point distributions."""
    config = BootstrapConfig(samples=4000, confidence=0.4)
    over_seeds = bootstrap_mean(torch.tensor([[0.0], [1.0]]), config)
    over_prompts = bootstrap_mean(torch.tensor([[0.0, 1.0]]), config)
    # Means 0, 0.5, 1 with shares 1/4, 1/2, 1/4: the middle 40% is 0.5 alone.
    assert (over_seeds.low, over_seeds.high) == (0.5, 0.5)
    assert (over_prompts.low, over_prompts.high) == (0.5, 0.5)


@pytest.mark.parametrize("values", [torch.zeros(0), torch.zeros(2, 2, 2), torch.tensor(1.0)])
def test_other_shapes_are_refused(values: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected values of shape"):
        bootstrap_mean(values, BootstrapConfig())


def test_values_must_be_finite() -> None:
    with pytest.raises(ValueError, match="expected finite values"):
        bootstrap_mean(torch.tensor([1.0, float("nan")]), BootstrapConfig())


@pytest.mark.parametrize(("samples", "confidence"), [(0, 0.95), (10, 1.0), (10, 0.0)])
def test_settings_are_checked(samples: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="expected at least 1 bootstrap sample"):
        BootstrapConfig(samples=samples, confidence=confidence)


def test_a_statistic_that_is_a_mean_agrees_with_the_mean() -> None:
    values = torch.rand(60, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.stack([values, torch.ones(60, dtype=torch.float64)], 1)
    config = BootstrapConfig(samples=4000)
    ratio = bootstrap_statistic(rows, lambda sums: sums[:, 0] / sums[:, 1], config)
    mean = bootstrap_mean(values, config)
    assert ratio.mean == pytest.approx(mean.mean)
    assert ratio.low == pytest.approx(mean.low, abs=0.005)
    assert ratio.high == pytest.approx(mean.high, abs=0.005)
