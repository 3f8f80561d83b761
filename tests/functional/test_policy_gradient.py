from __future__ import annotations

import math
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from llm_agents.functional import (
    Reduction,
    SurrogateLoss,
    clipped_surrogate_loss,
    explained_variance,
    kl_per_unit,
    reduce_units,
    value_loss,
)
from tests.functional.exact_text import exactly
from tests.functional.online_inputs import MODERATE, close, exact, settled

RAGGED = torch.tensor([[True, True, False], [True, True, True]])


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
