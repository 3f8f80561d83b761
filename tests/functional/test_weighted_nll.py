from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.functional import clipped_ratio, nll_loss
from llm_agents.functional.weighted_nll import MAX_LOG_RATIO
from tests.functional.exact_text import exactly
from tests.reference import example_f1 as f1
from tests.reference import lol as reference


def exact(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def sequence_log_ratio() -> torch.Tensor:
    mask = torch.tensor(f1.MASK).bool()
    log_ratio = exact(f1.PROBS).log() - exact(f1.REF_PROBS).log()
    return log_ratio.masked_fill(~mask, 0).sum(1)


@pytest.mark.parametrize(
    ("clip_epsilon", "expected"),
    [
        (None, [0.625, 6.0, 0.01, 1.2]),  # the inverse would be 1.6, .1667, 100, .8333
        (0.9, [0.625, 1.9, 0.1, 1.2]),
        (0.2, [0.8, 1.2, 0.8, 1.2]),
        (0.0, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_ratio_is_policy_over_reference(
    clip_epsilon: float | None, expected: list[float]
) -> None:
    ratio = clipped_ratio(sequence_log_ratio(), clip_epsilon=clip_epsilon)
    torch.testing.assert_close(ratio, exact(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("clip_epsilon", "expected"),
    [
        (0.9, [[1.25, 0.5, 1.0], [1.9, 1.9, 1.9], [0.1, 0.1, 1.9], [1.2, 1 / 3, 1 / 3]]),
        (0.2, [[1.2, 0.8, 1.0], [1.2, 1.2, 1.2], [0.8, 0.8, 1.2], [1.2, 0.8, 0.8]]),
        (None, f1.TOKEN_RATIOS),
    ],
)
def test_token_ratios(clip_epsilon: float | None, expected: list[list[float]]) -> None:
    ratio = clipped_ratio(
        exact(f1.PROBS).log() - exact(f1.REF_PROBS).log(), clip_epsilon=clip_epsilon
    )
    torch.testing.assert_close(ratio, exact(expected), rtol=0, atol=1e-12)


def test_a_clip_of_zero_is_exactly_one_and_not_the_same_as_none() -> None:
    log_ratio = torch.tensor([-30.0, -0.5, 0.0, 0.5, 30.0])
    assert clipped_ratio(log_ratio, clip_epsilon=0).tolist() == [1.0] * 5
    inside = log_ratio[1:4]
    assert torch.equal(clipped_ratio(inside, clip_epsilon=None), inside.exp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [1000.0, 1e30, -1000.0, -1e30, math.inf, -math.inf])
def test_the_clamp_comes_before_the_exponential(dtype: torch.dtype, log_ratio: float) -> None:
    """exp(1000) is infinite, and infinity times an advantage of 0 is NaN."""
    ratio = clipped_ratio(torch.tensor([log_ratio], dtype=dtype), clip_epsilon=0.9)
    assert ratio.item() == pytest.approx(1.9 if log_ratio > 0 else 0.1, rel=1e-6)


def test_unclipped_ratios_are_capped_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="unclipped importance ratios were capped") as caught:
        ratio = clipped_ratio(exact([1000.0, -1000.0, 20.0]), clip_epsilon=None)
    assert len(caught) == 1
    expected = exact([MAX_LOG_RATIO, -MAX_LOG_RATIO, MAX_LOG_RATIO]).exp()
    torch.testing.assert_close(ratio, expected)


def test_no_warning_within_the_cap_or_with_a_clip() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped_ratio(exact([20.0, -20.0]), clip_epsilon=None)
        clipped_ratio(exact([1000.0]), clip_epsilon=0.9)


@pytest.mark.parametrize("clip_epsilon", [1.0, 1.5, -0.1, math.nan, math.inf])
def test_a_band_that_reaches_zero_is_refused(clip_epsilon: float) -> None:
    text = exactly(
        f"expected `clip_epsilon` in [0, 1) or None, got {clip_epsilon}: 0 is a ratio of exactly "
        "1, None no clip, and from 1 on the band would reach 0"
    )
    with pytest.raises(ValueError, match=text):
        clipped_ratio(torch.zeros(1), clip_epsilon=clip_epsilon)


@settings(deadline=None)
@given(log_ratio=st.floats(-19, 19), epsilon=st.none() | st.floats(0, 0.999))
def test_equals_the_plain_clamp(log_ratio: float, epsilon: float | None) -> None:
    found = clipped_ratio(exact([log_ratio]), clip_epsilon=epsilon)
    expected = reference.clamp(math.exp(log_ratio), epsilon)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_no_gradient_flows_through_a_ratio() -> None:
    assert not clipped_ratio(torch.zeros(1, requires_grad=True), clip_epsilon=None).requires_grad


def test_log_probs_must_be_a_table_with_a_mask_like_it() -> None:
    text = exactly("expected `log_probs` of shape [B, T], got (2,): give it 2 axes")
    with pytest.raises(ValueError, match=text):
        nll_loss(log_probs=torch.zeros(2), response_mask=torch.ones(2).bool())
    text = exactly("expected `response_mask` of dtype torch.bool, got torch.int64: call .bool()")
    with pytest.raises(TypeError, match=text):
        nll_loss(log_probs=torch.zeros(2, 1), response_mask=torch.ones(2, 1).long())
    text = exactly(
        "expected `response_mask` of shape (2, 3) like `log_probs`, got (2, 1): give one mask "
        "entry for each value"
    )
    with pytest.raises(ValueError, match=text):
        nll_loss(log_probs=torch.zeros(2, 3), response_mask=torch.ones(2, 1).bool())


def test_a_row_without_a_scored_token_is_refused() -> None:
    mask = torch.tensor([[True, True], [False, False], [True, False], [False, False]])
    text = exactly(
        "expected at least one scored token in every row of `response_mask`, got none in row(s) "
        "1, 3: drop empty responses"
    )
    with pytest.raises(ValueError, match=text):
        nll_loss(log_probs=torch.zeros(4, 2), response_mask=mask)
    text = exactly(
        "expected at least one scored token in every row of `response_mask`, got no row at all: "
        "drop empty responses"
    )
    with pytest.raises(ValueError, match=text):
        nll_loss(log_probs=torch.zeros(0, 2), response_mask=torch.zeros(0, 2).bool())


def test_half_precision_log_probs_are_summed_in_float32() -> None:
    log_probs = torch.full((1, 600), -0.01, dtype=torch.bfloat16)
    found = nll_loss(log_probs=log_probs, response_mask=torch.ones(1, 600).bool()).loss
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(600 * -float(log_probs[0, 0]), rel=1e-5)
