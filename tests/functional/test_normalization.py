"""Normalized advantages, and the annealing of learning rates."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional import (
    annealing_factor,
    normalize_advantages,
    token_level_gae,
)
from tests.functional.exact_text import exactly
from tests.functional.online_inputs import MODERATE, close, exact, settled, worked

# --- normalized advantages ------------------------------------------------------------------------


def normalized(numbers: list[float], *, unbiased: bool, epsilon: float = 1e-8) -> Tensor:
    group = exact(numbers)
    return normalize_advantages(
        group, torch.ones_like(group).bool(), unbiased=unbiased, epsilon=epsilon
    )


def test_normalized_worked_example() -> None:
    """Mean .15; squares .0025 .0025 .0625 .0625 sum to .13: std √(.13/3) or √(.13/4)."""
    group = [0.1, 0.2, -0.1, 0.4]
    close(normalized(group, unbiased=True), [-0.240192, 0.240192, -1.200961, 1.200961])
    close(normalized(group, unbiased=False), [-0.277350, 0.277350, -1.386750, 1.386750])


def test_noise_is_not_blown_up_below_the_floor() -> None:
    """The same group at a hundredth, whose std is .001803: divided by .05, and by .001 as it is."""
    group = exact([0.001, 0.002, -0.001, 0.004])
    whole = torch.ones(4, dtype=torch.bool)
    options = {"unbiased": False, "epsilon": 0.0}
    small = normalize_advantages(group, whole, floor=0.05, **options)
    close(small, [-0.01, 0.01, -0.05, 0.05])
    plain = normalize_advantages(group, whole, **options)
    close(plain, [-0.277350, 0.277350, -1.386750, 1.386750])
    close(normalize_advantages(group, whole, floor=0.001, **options), plain)


def test_zero_is_an_advantage_like_any_other() -> None:
    """0, 1, −1, .5: mean .125, std .739510; dropping the zero would give .166667 and .849837."""
    std = math.sqrt((0.125**2 + 0.875**2 + 1.125**2 + 0.375**2) / 4)
    assert std == pytest.approx(0.739510, abs=6e-7)
    found = normalized([0.0, 1.0, -1.0, 0.5], unbiased=False)
    close(found, [(a - 0.125) / std for a in (0.0, 1.0, -1.0, 0.5)])
    dropped = normalized([1.0, -1.0, 0.5], unbiased=False)
    close(dropped[0], (1 - 0.166667) / 0.849837, 2e-6)


@pytest.mark.parametrize("stale", [0.0, 0.3, math.nan])
def test_padding_does_not_enter_the_normalization(stale: float) -> None:
    """Case A of the worked example: mean .320948, std .173474 over its five tokens.

    A stale .3 in one pad would make them .317457 and .158552; zeros in a buffer of four tokens an
    action .200593 and .207245.
    """
    inputs = worked("A")
    found = token_level_gae(**inputs, intra_action_gamma=1.0, intra_action_lambda=0.9)
    tokens = found.advantages[inputs["mask"]]
    assert tokens.mean().item() == pytest.approx(0.320948, abs=6e-7)
    assert tokens.std(correction=0).item() == pytest.approx(0.173474, abs=6e-7)
    left_over = torch.cat([tokens, exact([0.3])])
    assert left_over.mean().item() == pytest.approx(0.317457, abs=6e-7)
    assert left_over.std(correction=0).item() == pytest.approx(0.158552, abs=6e-7)
    zeros = torch.cat([tokens, exact([0.0] * 3)])
    assert zeros.mean().item() == pytest.approx(0.200593, abs=6e-7)
    assert zeros.std(correction=0).item() == pytest.approx(0.207245, abs=6e-7)
    dirty = found.advantages.masked_fill(~inputs["mask"], stale)
    scaled = normalize_advantages(dirty, inputs["mask"], unbiased=False, epsilon=1e-8)
    expected = [1.303291, 1.013161, -0.287928, -0.754857, -1.273667]
    close(scaled[inputs["mask"]], expected, 2e-6)  # worked from advantages of six digits
    assert not scaled[~inputs["mask"]].any()


@pytest.mark.parametrize("unbiased", [True, False])
def test_a_group_of_one_is_refused(unbiased: bool) -> None:
    text = (
        "expected a group of at least 2 advantages to normalize, got 1: its deviation says "
        "nothing; use larger minibatches, or normalize over the rollout"
    )
    with pytest.raises(ValueError, match=exactly(text)):
        normalized([0.5], unbiased=unbiased)


@pytest.mark.parametrize("value", [0.1, 0.3, -123.456])
@pytest.mark.parametrize("unbiased", [True, False])
def test_equal_advantages_become_zero(value: float, unbiased: bool) -> None:
    """Rounding of the mean is not blown up to noise."""
    group = torch.full((37,), value)
    found = normalize_advantages(
        group, torch.ones(37, dtype=torch.bool), unbiased=unbiased, epsilon=1e-8
    )
    assert not found.any()


@settled
@given(
    numbers=hnp.arrays(np.float64, (2, 6), elements=MODERATE),
    shift=st.floats(-5, 5),
    scale=st.floats(0.1, 10),
)
def test_normalizing_is_blind_to_shift_and_scale(
    numbers: np.ndarray, shift: float, scale: float
) -> None:
    numbers = numbers + np.arange(6)  # never all equal
    group, mask = torch.from_numpy(numbers), torch.ones(2, 6, dtype=torch.bool)
    found = normalize_advantages(group, mask, unbiased=False, epsilon=0.0)
    moved = normalize_advantages(scale * group + shift, mask, unbiased=False, epsilon=0.0)
    torch.testing.assert_close(found, moved, rtol=0, atol=1e-9)
    assert found.mean().item() == pytest.approx(0, abs=1e-9)
    assert found.std(correction=0).item() == pytest.approx(1, abs=1e-9)


def test_normalizing_stops_gradients() -> None:
    group = exact([1.0, 2.0]).requires_grad_()
    mask = torch.tensor([True, True])
    assert not normalize_advantages(group, mask, unbiased=True, epsilon=0.0).requires_grad


# --- annealing ------------------------------------------------------------------------------------


def test_annealing_over_390_updates() -> None:
    """Updates counted from 1 in the paper's release: 1, .5 at 196, 1/390 at 390."""
    factors = [annealing_factor(update=u, num_updates=390, num_warm_up=0) for u in range(390)]
    assert factors[0] == 1
    assert factors[195] == 0.5
    assert factors[389] == pytest.approx(1 / 390, abs=1e-12)
    assert factors[389] == pytest.approx(0.002564, abs=6e-7)


def test_the_critics_warm_up_leaves_the_rate_whole() -> None:
    factors = [annealing_factor(update=u, num_updates=394, num_warm_up=4) for u in range(394)]
    assert factors[:5] == [1.0] * 5
    assert factors[4 + 195] == 0.5
    assert factors[-1] == pytest.approx(1 / 390, abs=1e-12)


@pytest.mark.parametrize("numbers", [(-1, 5, 0), (5, 5, 0), (0, 5, 6), (0, 5, -1)])
def test_annealing_refuses_numbers_out_of_order(numbers: tuple[int, int, int]) -> None:
    update, num_updates, num_warm_up = numbers
    text = (
        "expected 0 ≤ `update` < `num_updates` ≥ `num_warm_up` ≥ 0, got "
        f"{update}, {num_updates} and {num_warm_up}: count updates from 0"
    )
    with pytest.raises(ValueError, match=exactly(text)):
        annealing_factor(update=update, num_updates=num_updates, num_warm_up=num_warm_up)
