"""GLAM's historical rules of scoring, and its worked numbers of advantages and losses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional import (
    gae,
    list_log_probs,
    logit_scores,
    probability_policy,
    value_loss,
)


def mask_of(*lengths: int) -> Tensor:
    """Return ``[1, A, L]``: actions of these numbers of tokens."""
    return torch.arange(max(lengths))[None, None] < torch.tensor(lengths)[None, :, None]


# --- probabilities (before May 2023)


def test_probabilities_are_softmaxed_after_division_by_the_largest() -> None:
    log_probs = torch.tensor([[0.2, 0.1, 0.05]], dtype=torch.float64).log()
    found = probability_policy(log_probs, torch.ones(1, 3, dtype=torch.bool)).exp()
    shares = [math.exp(p / 0.2) for p in (0.2, 0.1, 0.05)]
    expected = torch.tensor([[share / sum(shares) for share in shares]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


@given(st.lists(st.floats(-60, 0), min_size=6, max_size=6))
def test_no_action_of_six_is_ever_decisive(log_probs: list[float]) -> None:
    found = probability_policy(torch.tensor([log_probs]), torch.ones(1, 6, dtype=torch.bool))
    assert float(found.exp().max()) <= math.e / (math.e + 5) + 1e-6
    assert math.e / (math.e + 5) == pytest.approx(0.352187, abs=1e-6)


@pytest.mark.parametrize("log_prob", [-104.0, -1e4, math.nan, -math.inf])
def test_lost_probabilities_give_a_uniform_policy(log_prob: float) -> None:
    mask = torch.tensor([[True, True, False]])
    found = probability_policy(torch.tensor([[log_prob, log_prob, 5.0]]), mask)
    torch.testing.assert_close(found.exp(), torch.tensor([[0.5, 0.5, 0.0]]))


def test_just_above_the_least_probability_the_order_counts() -> None:
    found = probability_policy(torch.tensor([[-103.0, -110.0]]), torch.ones(1, 2).bool())
    expected = torch.tensor([[1.0, math.exp(-7)]]).log_softmax(-1)
    torch.testing.assert_close(found, expected)


# --- raw logits (since May 2023)


def test_padding_that_counts_favours_the_shorter_action() -> None:
    logits = torch.tensor([[[-1.0, -1.0], [-1.5, 7.0]]])
    right = logit_scores(logits, mask_of(2, 1), pad_value=0.0, group=None).softmax(-1)
    wrong = logit_scores(logits, mask_of(2, 1), pad_value=1.0, group=None).softmax(-1)
    torch.testing.assert_close(right, torch.tensor([[0.3775, 0.6225]]), atol=1e-4, rtol=0)
    torch.testing.assert_close(wrong, torch.tensor([[0.1824, 0.8176]]), atol=1e-4, rtol=0)


def test_padding_depends_on_what_is_scored_together() -> None:
    logits, mask = torch.zeros(1, 4, 3), mask_of(1, 2, 3, 1)
    pairs = logit_scores(logits, mask, pad_value=1.0, group=2)
    assert pairs.tolist() == [[1.0, 0.0, 0.0, 2.0]]
    alone = logit_scores(logits, mask, pad_value=1.0, group=1)
    assert alone.tolist() == [[0.0, 0.0, 0.0, 0.0]]
    whole = logit_scores(logits, mask, pad_value=1.0, group=None)
    assert whole.tolist() == [[2.0, 1.0, 0.0, 2.0]]
    released = logit_scores(logits, mask, pad_value=0.0, group=2)
    assert torch.equal(released, alone), "without the fault nothing depends on it"


def test_a_constant_at_a_position_shifts_logits_and_not_log_probs() -> None:
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.randn(1, 2, 2, 9, generator=generator)
    ids, mask = torch.tensor([[[1, 2], [3, 0]]]), mask_of(2, 1)

    def scores(logits: Tensor) -> tuple[Tensor, Tensor]:
        taken = logits.gather(-1, ids[..., None])[..., 0]
        log_probs = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        sums = (log_probs * mask).sum(-1)
        return logit_scores(taken, mask, pad_value=0.0, group=None), sums

    raw, proper = scores(vocabulary)
    shifted_raw, shifted_proper = scores(vocabulary + 3.0)
    torch.testing.assert_close(shifted_proper, proper)
    torch.testing.assert_close(shifted_raw, raw + torch.tensor([[6.0, 3.0]]))


def test_missing_actions_have_no_score_and_get_no_gradient() -> None:
    logits = torch.zeros(1, 2, 2, requires_grad=True)
    mask = torch.tensor([[[True, True], [False, False]]])
    found = logit_scores(logits, mask, pad_value=1.0, group=None)
    assert found[0, 1] == -torch.inf
    list_log_probs(found, mask.any(-1))[0, 0].backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: logit_scores(torch.zeros(1, 2), mask_of(1), pad_value=0.0, group=None), "A, L"),
        (lambda: logit_scores(torch.zeros(1, 1, 1), mask_of(1), pad_value=0.0, group=0), "group"),
        (lambda: probability_policy(torch.zeros(2), torch.ones(2).bool()), "B, A"),
    ],
)
def test_wrong_shapes_are_refused(call: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()  # type: ignore[operator]


# --- the spec's worked numbers


def test_the_advantages_of_the_worked_example() -> None:
    def column(*numbers: float) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64)[:, None]

    ended = torch.tensor([[False], [False], [True], [False]])
    found = gae(
        rewards=column(0, 0, 19.15625, 0),
        values=column(1, 2, 3, 4),
        next_values=column(2, 3, 0, 5),
        terminated=ended,
        truncated=torch.zeros_like(ended),
        discounts=torch.full((4, 1), 0.99, dtype=torch.float64),
        gae_lambda=0.99,
    )
    expected = column(17.450326, 16.804741, 16.15625, 0.95)
    torch.testing.assert_close(found.advantages, expected, atol=5e-7, rtol=0)
    returns = column(18.450326, 18.804741, 19.15625, 4.95)
    torch.testing.assert_close(found.returns, returns, atol=5e-7, rtol=0)


@pytest.mark.parametrize(
    ("values", "expected", "broadcast"),
    [((1.0, 3.0), 0.0, 2.0), ((0.5, 2.0), 0.625, 2.125)],
)
def test_values_are_paired_with_their_own_returns(
    values: tuple[float, float], expected: float, broadcast: float
) -> None:
    old = torch.tensor([[1.0], [3.0]])
    new = torch.tensor(values)[:, None]
    found = value_loss(
        values=new,
        old_values=old,
        returns=old,
        mask=torch.ones(2, 1, dtype=torch.bool),
        clip_epsilon=None,
        reduction="units",
    )
    assert float(found.loss) == pytest.approx(expected / 2, abs=1e-6)
    assert float((new - old[:, 0]).square().mean()) == pytest.approx(broadcast), "the release's"
    with pytest.raises(ValueError, match="shape"):
        value_loss(
            values=new,
            old_values=old[:, 0],
            returns=old[:, 0],
            mask=torch.ones(2, 1, dtype=torch.bool),
            clip_epsilon=None,
            reduction="units",
        )


def test_clipped_values_move_by_at_most_epsilon() -> None:
    values = torch.tensor([[4.0]], requires_grad=True)
    found = value_loss(
        values=values,
        old_values=torch.tensor([[1.0]]),
        returns=torch.tensor([[19.0]]),
        mask=torch.ones(1, 1, dtype=torch.bool),
        clip_epsilon=0.2,
        reduction="units",
    )
    assert float(found.loss.detach()) == pytest.approx(0.5 * (1.2 - 19) ** 2), (
        "on the scale of 0 to 20"
    )
    found.loss.backward()
    assert values.grad is not None
    assert float(values.grad) == 0
