from __future__ import annotations

import math
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from llm_agents.functional import (
    Reduction,
    SurrogateLoss,
    annealing_factor,
    clipped_surrogate_loss,
    explained_variance,
    kl_per_unit,
    normalize_advantages,
    reduce_units,
    token_level_gae,
    value_loss,
)
from tests.functional.exact_text import exactly
from tests.functional.online_inputs import exact, worked

settled = settings(deadline=None, max_examples=60)
MODERATE = st.floats(-3, 3)
RAGGED = torch.tensor([[True, True, False], [True, True, True]])


def close(found: Tensor, expected: object, atol: float = 6e-7) -> None:
    torch.testing.assert_close(found, exact(expected), rtol=0, atol=atol)


def units(numbers: list[float]) -> Tensor:
    """One unit a row: whole actions."""
    return exact(numbers)[:, None]


# --- the clipped surrogate ------------------------------------------------------------------------

RATIOS, GAINS = [1.3, 0.7, 0.9, 1.5], [1.0, -1.0, 2.0, -0.5]


def worked_surrogate(**changes: Any) -> SurrogateLoss:
    inputs: dict[str, Any] = {
        "log_probs": units(RATIOS).log() - 2,
        "old_log_probs": units([0.0] * 4) - 2,
        "advantages": units(GAINS),
        "mask": torch.ones(4, 1, dtype=torch.bool),
        "clip_epsilon": 0.2,
        "reduction": "units",
    }
    return clipped_surrogate_loss(**inputs | changes)


def test_surrogate_worked_example() -> None:
    """−min(1.3, 1.2) · 1; −(−1) · max(.7, .8); −.9 · 2; −(−.5) · max(1.5, 1.2): all sides live."""
    found = worked_surrogate()
    close(found.per_unit, [[-1.2], [0.8], [-1.8], [0.75]], 1e-12)
    close(found.loss, -0.3625, 1e-12)
    close(found.importance_ratio, [[r] for r in RATIOS], 1e-12)
    close(found.clip_fraction, 0.75, 0)
    by_hand = sum(r - 1 - math.log(r) for r in RATIOS) / 4
    close(found.approx_kl, by_hand, 1e-12)
    close(found.approx_kl, 0.048552)


def test_kl_worked_example() -> None:
    """k1 = −Σ ln ρ / 4 is negative here though a divergence never is; k3 = Σ (ρ − 1 − ln ρ) / 4."""
    inputs: dict[str, Any] = {
        "log_probs": units([0.0] * 4),
        "other_log_probs": units(RATIOS).log(),
        "mask": torch.ones(4, 1, dtype=torch.bool),
    }
    k1 = kl_per_unit(**inputs, estimator="k1")
    close(k1.mean(), -0.051448)
    close(k1, [[-math.log(r)] for r in RATIOS], 1e-12)
    close(kl_per_unit(**inputs, estimator="k3").mean(), 0.048552)


def test_surrogate_gradients_stop_at_the_clip() -> None:
    """d loss / d ln π = −A · ρ / 4 where the unclipped side counts, else 0."""
    log_probs = units(RATIOS).log().requires_grad_()
    others = [units([0.0] * 4).requires_grad_(), units(GAINS).requires_grad_()]
    found = worked_surrogate(log_probs=log_probs, old_log_probs=others[0], advantages=others[1])
    found.loss.backward()
    assert log_probs.grad is not None
    close(log_probs.grad, [[0.0], [0.0], [-2 * 0.9 / 4], [0.5 * 1.5 / 4]], 1e-12)
    assert all(other.grad is None for other in others)
    assert not found.approx_kl.requires_grad
    assert not found.clip_fraction.requires_grad


@pytest.mark.parametrize("reduction", ["units", "actions"])
def test_surrogate_gradcheck(reduction: Reduction) -> None:
    log_probs = exact([[-1.0, -2.1, -3.0], [-0.3, -0.5, -0.2]]).requires_grad_()
    old = exact([[-1.1, -2.0, -3.0], [-0.9, -0.1, -0.25]])
    gains = exact([[1.0, -1.0, 3.0], [0.5, -0.7, -2.0]])

    def loss(log_probs: Tensor) -> Tensor:
        return clipped_surrogate_loss(
            log_probs=log_probs,
            old_log_probs=old,
            advantages=gains,
            mask=RAGGED,
            clip_epsilon=0.2,
            reduction=reduction,
        ).loss

    assert gradcheck(loss, (log_probs,))


@pytest.mark.parametrize("gain", [2.0, -2.0])
def test_a_small_step_follows_the_advantage(gain: float) -> None:
    log_prob = exact([[-1.0]]).requires_grad_()
    clipped_surrogate_loss(
        log_probs=log_prob,
        old_log_probs=log_prob,
        advantages=exact([[gain]]),
        mask=torch.tensor([[True]]),
        clip_epsilon=0.2,
        reduction="units",
    ).loss.backward()
    assert log_prob.grad is not None
    assert -log_prob.grad.item() * gain > 0


@settled
@given(
    numbers=hnp.arrays(np.float64, (3, 4, 3), elements=MODERATE),
    lengths=hnp.arrays(np.int64, 4, elements=st.integers(1, 3)),
    epsilon=st.sampled_from([0.0, 0.2, 1.5]),
)
def test_surrogate_equals_the_loop(
    numbers: np.ndarray, lengths: np.ndarray, epsilon: float
) -> None:
    """Whatever stands under a False mask, NaN as well."""
    mask = torch.arange(3) < torch.from_numpy(lengths)[:, None]
    tensors = [torch.from_numpy(n).masked_fill(~mask, torch.nan) for n in numbers]
    names = ("log_probs", "old_log_probs", "advantages")
    inputs: dict[str, Any] = dict(zip(names, tensors, strict=True))
    inputs |= {"mask": mask, "clip_epsilon": epsilon}
    losses, kls, clipped = [], [], []
    for b, length in enumerate(lengths):
        row = []
        for new, old, gain in numbers[:, b, :length].T:
            ratio = math.exp(new - old)
            kls.append(ratio - 1 - (new - old))
            clipped.append(not 1 - epsilon <= ratio <= 1 + epsilon)
            row.append(-min(ratio * gain, min(max(ratio, 1 - epsilon), 1 + epsilon) * gain))
        losses.append(row)
    found = clipped_surrogate_loss(**inputs, reduction="units")
    flat = [loss for row in losses for loss in row]
    close(found.per_unit[mask], flat, 1e-9)
    assert not found.per_unit[~mask].any()
    assert found.loss.item() == pytest.approx(np.mean(flat), abs=1e-9)
    assert found.approx_kl.item() == pytest.approx(np.mean(kls), abs=1e-9)
    if epsilon > 0:  # at 0 rounding decides whether a ratio is exactly 1
        assert found.clip_fraction.item() == pytest.approx(np.mean(clipped), abs=1e-12)
    actions = clipped_surrogate_loss(**inputs, reduction="actions").loss
    assert actions.item() == pytest.approx(np.mean([np.mean(row) for row in losses]), abs=1e-9)


@pytest.mark.parametrize("scale", [50.0, 1e4, 1e8])
@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_far_policies_stay_finite(scale: float, gain: float) -> None:
    log_probs = torch.tensor([[0.0], [-scale]], requires_grad=True)
    found = clipped_surrogate_loss(
        log_probs=log_probs,
        old_log_probs=torch.tensor([[-scale], [0.0]]),
        advantages=torch.full((2, 1), gain),
        mask=torch.ones(2, 1, dtype=torch.bool),
        clip_epsilon=0.2,
        reduction="units",
    )
    found.loss.backward()
    assert found.loss.isfinite()
    assert found.approx_kl.isfinite()
    assert log_probs.grad is not None
    assert bool(log_probs.grad.isfinite().all())


@settled
@given(
    log_ratio=hnp.arrays(np.float32, (5, 2), elements=st.floats(-(2**-10), 2**-10, width=32)),
    base=st.floats(-40, 0, width=32),
)
def test_the_divergence_is_never_negative(log_ratio: np.ndarray, base: float) -> None:
    """In single precision eˣ − 1 − x as it is written falls below 0 by rounding."""
    old = torch.full((5, 2), base)
    found = kl_per_unit(
        log_probs=old,
        other_log_probs=old + torch.from_numpy(log_ratio),
        mask=torch.ones(5, 2, dtype=torch.bool),
        estimator="k3",
    )
    assert bool((found >= 0).all())


def test_an_unmoved_policy_has_ratio_one_and_no_divergence() -> None:
    found = worked_surrogate(log_probs=units([0.0] * 4) - 2)
    assert found.importance_ratio.unique().tolist() == [1.0]
    assert found.approx_kl.item() == 0
    assert found.clip_fraction.item() == 0
    close(found.loss, -sum(GAINS) / 4, 1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_estimates_have_the_divergences_mean(estimator: Any) -> None:
    """Σ p · k = Σ p · ln(p / q), exactly, over a whole distribution."""
    p, q = exact([[0.7, 0.2, 0.1]]), exact([[0.3, 0.3, 0.4]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    found = kl_per_unit(log_probs=p.log(), other_log_probs=q.log(), mask=mask, estimator=estimator)
    close((p * found).sum(), float((p * (p / q).log()).sum()), 1e-12)


def test_divergence_gradcheck_and_padding() -> None:
    log_probs = exact([[-1.0, -2.0, torch.nan], [-0.5, -0.1, -3.0]]).requires_grad_()
    other = exact([[-1.5, -1.0, torch.nan], [-0.2, -0.3, -2.0]])
    found = kl_per_unit(log_probs=log_probs, other_log_probs=other, mask=RAGGED, estimator="k3")
    assert found[0, 2].item() == 0
    found.sum().backward()
    assert log_probs.grad is not None
    expected = (1 - (other - log_probs.detach()).exp()).masked_fill(~RAGGED, 0)
    torch.testing.assert_close(log_probs.grad, expected, rtol=0, atol=1e-12)


# --- what is averaged over ------------------------------------------------------------------------


def test_long_actions_weigh_more_over_units() -> None:
    """(1 + 3 + 2 + 2 + 5) / 5 = 2.6; (2 + 3) / 2 = 2.5."""
    losses = exact([[1.0, 3.0, torch.nan], [2.0, 2.0, 5.0]])
    close(reduce_units(losses, RAGGED, reduction="units"), 2.6, 1e-12)
    close(reduce_units(losses, RAGGED, reduction="actions"), 2.5, 1e-12)


@settled
@given(numbers=hnp.arrays(np.float64, (4, 3), elements=MODERATE))
def test_equal_lengths_make_the_reductions_agree_and_parts_recombine(numbers: np.ndarray) -> None:
    losses, mask = torch.from_numpy(numbers), torch.ones(4, 3, dtype=torch.bool)
    whole = reduce_units(losses, mask, reduction="units").item()
    assert reduce_units(losses, mask, reduction="actions").item() == pytest.approx(whole, abs=1e-12)
    halves = [reduce_units(losses[i : i + 2], mask[:2], reduction="units") for i in (0, 2)]
    assert sum(h.item() for h in halves) / 2 == pytest.approx(whole, abs=1e-12)


# --- values ---------------------------------------------------------------------------------------


def value_inputs(**changes: Any) -> dict[str, Any]:
    inputs = {
        "values": units([1.0, 0.2]),
        "old_values": units([0.5, 0.5]),
        "returns": units([0.9, 1.0]),
        "mask": torch.ones(2, 1, dtype=torch.bool),
        "clip_epsilon": 0.2,
        "reduction": "units",
    }
    return inputs | changes


def test_value_loss_worked_example() -> None:
    """(1 − .9)² = .01 < (.7 − .9)² = .04; (.2 − 1)² = .64 > (.3 − 1)² = .49; ½ · mean .34."""
    found = value_loss(**value_inputs())
    close(found.per_unit, [[0.02], [0.32]], 1e-12)
    close(found.loss, 0.17, 1e-12)
    close(0.5 * found.loss, 0.085, 1e-12)
    close(found.clip_fraction, 1.0, 0)


def test_value_loss_without_a_clip() -> None:
    """½ · (.01 + .64) / 2."""
    found = value_loss(**value_inputs(clip_epsilon=None))
    close(found.loss, 0.1625, 1e-12)
    assert found.clip_fraction.item() == 0


def test_a_value_that_went_far_enough_learns_no_more() -> None:
    """The first one moved .5 > ε towards its target: its larger square is the clipped one's."""
    values = units([1.0, 0.2]).requires_grad_()
    others = {name: value_inputs()[name].requires_grad_() for name in ("old_values", "returns")}
    value_loss(**value_inputs(values=values, **others)).loss.backward()
    assert values.grad is not None
    close(values.grad, [[0.0], [(0.2 - 1.0) / 2]], 1e-12)
    assert all(other.grad is None for other in others.values())


def test_value_loss_gradcheck_over_ragged_units() -> None:
    values = exact([[0.1, -0.2, 9.0], [0.4, 0.5, -0.7]]).requires_grad_()
    old = exact([[0.0, 0.4, 0.0], [0.45, -0.5, -0.6]])
    returns = exact([[0.3, 0.6, torch.nan], [-0.4, 1.0, -1.5]])

    def loss(values: Tensor) -> Tensor:
        return value_loss(
            values=values,
            old_values=old,
            returns=returns,
            mask=RAGGED,
            clip_epsilon=0.2,
            reduction="actions",
        ).loss

    assert gradcheck(loss, (values,))
    loss(values).backward()
    assert values.grad is not None
    assert values.grad[0, 2].item() == 0


@settled
@given(numbers=hnp.arrays(np.float64, (3, 5, 1), elements=MODERATE), epsilon=st.floats(0, 2))
def test_value_loss_equals_the_loop(numbers: np.ndarray, epsilon: float) -> None:
    new, old, target = torch.from_numpy(numbers)
    found = value_loss(
        values=new,
        old_values=old,
        returns=target,
        mask=torch.ones(5, 1, dtype=torch.bool),
        clip_epsilon=epsilon,
        reduction="units",
    )
    total = 0.0
    for v, v_old, r in numbers[:, :, 0].T:
        clipped = v_old + min(max(v - v_old, -epsilon), epsilon)
        total += 0.5 * max((v - r) ** 2, (clipped - r) ** 2)
    assert found.loss.item() == pytest.approx(total / 5, abs=1e-9)


def test_explained_variance() -> None:
    """Errors 0, 1, −1: variance 2/3 of 8/3."""
    mask = torch.tensor([True, True, True, False])
    returns = exact([1.0, 3.0, 5.0, torch.nan])
    found = explained_variance(values=exact([1.0, 2.0, 6.0, 0.0]), returns=returns, mask=mask)
    close(found, 1 - (2 / 3) / (8 / 3), 1e-12)
    close(explained_variance(values=returns, returns=returns, mask=mask), 1.0, 0)
    close(explained_variance(values=0 * returns, returns=returns, mask=mask), 0.0, 1e-12)
    constant = torch.ones(4, dtype=torch.float64)
    assert explained_variance(values=returns, returns=constant, mask=mask).isnan()


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


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"advantages": exact(GAINS)},
            "expected `advantages` of shape (4, 1) like the units, got (4,): give one value for "
            "each unit",
        ),
        ({"clip_epsilon": -0.1}, "expected `clip_epsilon` of at least 0, got -0.1"),
        ({"reduction": "tokens"}, "expected `reduction` 'units' or 'actions', got 'tokens'"),
        (
            {"mask": torch.zeros(4, 1, dtype=torch.bool)},
            "expected at least 1 True in every reduced part of `mask`, got 0: drop rows without a "
            "scored token",
        ),
        (
            {"mask": torch.ones(4, dtype=torch.bool)},
            "expected `mask` of shape [B, L], got (4,): give it 2 axes",
        ),
    ],
)
def test_surrogate_errors(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        worked_surrogate(**changes)


def test_other_errors() -> None:
    with pytest.raises(TypeError, match=r"`mask` of dtype torch\.bool, got torch\.float32"):
        worked_surrogate(mask=torch.ones(4, 1))
    with pytest.raises(ValueError, match=r"`returns` of shape \(2, 1\) like the units, got \(2,\)"):
        value_loss(**value_inputs(returns=torch.zeros(2)))
    with pytest.raises(ValueError, match="`clip_epsilon` of at least 0, got -1"):
        value_loss(**value_inputs(clip_epsilon=-1.0))
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="`estimator` 'k1' or 'k3', got 'k2'"):
        kl_per_unit(log_probs=one, other_log_probs=one, mask=one.bool(), estimator="k2")  # type: ignore[arg-type]  # the fault
