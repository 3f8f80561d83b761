from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional import masked_mean, masked_sum, masked_var, masked_whiten
from tests.functional.exact_text import exactly
from tests.reference import masked as reference

NAN, INF = float("nan"), float("inf")
VALUES = torch.tensor([[1.0, 3.0, 9.0], [-2.0, 4.0, 7.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [False, True, True]])


def numbers_and_mask() -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    floats = st.floats(-100, 100, width=32)
    shape = hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=5)
    return shape.flatmap(
        lambda s: st.tuples(hnp.arrays(np.float64, s, elements=floats), hnp.arrays(np.bool_, s))
    ).filter(lambda pair: pair[1].sum() >= 2)


def test_reductions_by_hand() -> None:
    """Kept: 1, 3 | 4, 7."""
    assert masked_sum(VALUES, MASK) == 15
    assert masked_sum(VALUES, MASK, dim=1).tolist() == [4, 11]
    assert masked_sum(VALUES, MASK, dim=0).tolist() == [1, 7, 7]
    assert masked_mean(VALUES, MASK) == 15 / 4
    assert masked_mean(VALUES, MASK, dim=1).tolist() == [2, 5.5]
    assert masked_var(VALUES, MASK, dim=1, unbiased=False).tolist() == [1, 1.5**2]
    assert masked_var(VALUES, MASK, dim=1, unbiased=True).tolist() == [2, 2 * 1.5**2]
    squares = 2.75**2 + 0.75**2 + 0.25**2 + 3.25**2  # about the mean 3.75
    assert masked_var(VALUES, MASK, unbiased=True) == pytest.approx(squares / 3, rel=1e-12)


def test_whitening_of_the_ppo_example() -> None:
    """Advantages of the specification's PPO example, whitened over its three tokens."""
    advantages = torch.tensor([[0.305037, 0.257933, 0.187298, NAN]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]])
    white = masked_whiten(advantages, mask, shift_mean=True, unbiased=True, epsilon=0.0)
    expected = torch.tensor([[0.927224, 0.132365, -1.059589, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(white, expected, rtol=0, atol=1e-5)


def test_whitening_without_shift_keeps_the_mean() -> None:
    kept = masked_whiten(VALUES, MASK, shift_mean=False, unbiased=False, epsilon=0.0)
    assert float(masked_mean(kept, MASK)) == pytest.approx(3.75, rel=1e-12)
    assert float(masked_var(kept, MASK, unbiased=False)) == pytest.approx(1.0, rel=1e-12)


def test_whitening_equal_values_stays_finite() -> None:
    equal = torch.full((2, 3), 5.0)
    assert masked_whiten(equal, MASK, shift_mean=True, unbiased=True, epsilon=1e-8).eq(0).all()


def test_the_masked_infinity_does_not_spread() -> None:
    """m · (−∞) would be NaN: log-probs [−1, −∞] under the mask [1, 0] sum to −1."""
    log_probs = torch.tensor([-1.0, -INF], requires_grad=True)
    total = masked_sum(log_probs, torch.tensor([True, False]))
    total.backward()
    assert total.item() == -1
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [1, 0]


@settings(deadline=None)
@given(pair=numbers_and_mask(), junk=st.sampled_from([NAN, INF, -INF, 1e300]))
def test_equals_the_loop_whatever_is_masked(
    pair: tuple[np.ndarray, np.ndarray], junk: float
) -> None:
    values, mask = pair
    tensor = torch.from_numpy(values.copy()).masked_fill(torch.from_numpy(~mask), junk)
    keep = torch.from_numpy(mask)

    def same(found: Tensor, expected: float) -> None:
        assert math.isclose(float(found), expected, rel_tol=1e-9, abs_tol=1e-9)

    same(masked_sum(tensor, keep), sum(reference.kept(values, mask)))
    same(masked_mean(tensor, keep), reference.mean(values, mask))
    for unbiased in (False, True):
        expected = reference.var(values, mask, unbiased=unbiased)
        same(masked_var(tensor, keep, unbiased=unbiased), expected)
    assert (
        masked_whiten(tensor, keep, shift_mean=True, unbiased=True, epsilon=1e-8).isfinite().all()
    )


@settings(deadline=None, max_examples=20)
@given(pair=numbers_and_mask(), seed=st.integers(0, 1000))
def test_permuting_rows_permutes_the_result(pair: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    values, mask = torch.from_numpy(pair[0]), torch.from_numpy(pair[1])
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    expected = masked_sum(values, mask, dim=1)[order]
    assert torch.equal(masked_sum(values[order], mask[order], dim=1), expected)


def test_gradients() -> None:
    values = VALUES.clone().requires_grad_()
    for function in (
        lambda v: masked_sum(v, MASK, dim=1),
        lambda v: masked_mean(v, MASK, dim=1),
        lambda v: masked_var(v, MASK, unbiased=True),
        lambda v: masked_whiten(v, MASK, shift_mean=True, unbiased=True, epsilon=1e-8),
    ):
        assert torch.autograd.gradcheck(function, (values,))


def test_a_sum_over_nothing_is_zero() -> None:
    assert masked_sum(VALUES, torch.zeros_like(MASK)) == 0


@pytest.mark.parametrize("unbiased", [False, True])
def test_dividing_by_nothing_is_refused(unbiased: bool) -> None:
    mask = torch.tensor([[True, True, True], [False, False, False]])
    text = exactly(
        "expected at least 1 True in every reduced part of `mask`, got 0: drop rows without a "
        "scored token"
    )
    with pytest.raises(ValueError, match=text):
        masked_mean(VALUES, mask, dim=1)
    with pytest.raises(ValueError, match=text):
        masked_var(VALUES, mask, dim=1, unbiased=unbiased)


def test_an_unbiased_variance_of_one_value_is_refused() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    text = exactly(
        "expected at least 2 True in every reduced part of `mask`, got 1: drop rows without a "
        "scored token"
    )
    with pytest.raises(ValueError, match=text):
        masked_var(VALUES, mask, dim=1, unbiased=True)


@pytest.mark.parametrize(
    "function",
    [
        masked_sum,
        masked_mean,
        partial(masked_var, unbiased=True),
        partial(masked_whiten, shift_mean=True, unbiased=True, epsilon=0.0),
    ],
)
def test_a_mask_of_numbers_or_another_shape_is_refused(function: Callable[..., Tensor]) -> None:
    text = exactly("expected `mask` of dtype torch.bool, got torch.int64: call .bool()")
    with pytest.raises(TypeError, match=text):
        function(VALUES, MASK.long())
    text = exactly(
        "expected `mask` of shape (2, 3) like `values`, got (2, 1): give one mask entry for each "
        "value"
    )
    with pytest.raises(ValueError, match=text):
        function(VALUES, MASK[:, :1])
