"""Motif's cross-entropy with ties, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from llm_agents.functional import bradley_terry_loss, tied_preference_loss

REWARDS = [(0.2, 0.8), (1.0, -1.0), (0.5, 0.3), (0.0, 0.0)]
LABELS = [1, 0, 2, 1]


def exact(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_worked_example() -> None:
    """T11: ln(1 + e^−.6), ln(1 + e^−2), the mean of ln(1 + e^±.2), ln 2; a tie is no 2."""
    found = tied_preference_loss(rewards=exact(REWARDS), preferences=torch.tensor(LABELS))
    tie = (math.log1p(math.exp(-0.2)) + math.log1p(math.exp(0.2))) / 2
    expected = exact([math.log1p(math.exp(-0.6)), math.log1p(math.exp(-2)), tie, math.log(2)])
    torch.testing.assert_close(found.per_pair, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        found.per_pair, exact([0.437488, 0.126928, 0.698139, 0.693147]), rtol=0, atol=6e-7
    )
    assert float(found.loss) == pytest.approx(0.488926, abs=6e-7)
    without_ties = expected[[0, 1, 3]].mean()
    assert float(without_ties) == pytest.approx(0.419188, abs=6e-7)  # the wrong ones
    assert found.accuracy == pytest.approx(2 / 3)  # (0, 0) predicts the first: a miss


def test_zero_says_that_the_first_is_better() -> None:
    """T12: swapped columns give 1.138926."""
    swapped = exact(REWARDS).flip(1)
    found = tied_preference_loss(rewards=swapped, preferences=torch.tensor(LABELS))
    assert float(found.loss) == pytest.approx(1.138926, abs=6e-7)
    one = tied_preference_loss(rewards=exact([(3.0, 0.0)]), preferences=torch.tensor([0]))
    assert float(one.loss) == pytest.approx(math.log1p(math.exp(-3)), abs=1e-12)


def test_ties_alone_have_no_accuracy() -> None:
    found = tied_preference_loss(rewards=exact([(0.1, 0.2)] * 3), preferences=torch.tensor([2] * 3))
    assert found.accuracy is None
    assert found.loss.isfinite()
    assert (int(found.num_right), int(found.num_decided)) == (0, 0)


@pytest.mark.parametrize("label", [3, -1])
def test_unknown_is_not_a_tie(label: int) -> None:
    with pytest.raises(ValueError, match=r"leave unknown pairs \(3\) out"):
        tied_preference_loss(rewards=exact([(0.0, 1.0)]), preferences=torch.tensor([label]))


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="expected `rewards` of shape"):
        tied_preference_loss(rewards=exact([1.0, 2.0]), preferences=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="expected `rewards` of shape"):
        tied_preference_loss(rewards=torch.zeros(2, 3), preferences=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="expected `preferences` of shape"):
        tied_preference_loss(rewards=torch.zeros(2, 2), preferences=torch.zeros(2, 1).long())


PAIRS = st.lists(
    st.tuples(st.floats(-30, 30), st.floats(-30, 30), st.integers(0, 2)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(PAIRS)
def test_swapping_sides_and_labels_changes_nothing(
    rows: list[tuple[float, float, int]],
) -> None:
    rewards = exact([row[:2] for row in rows])
    labels = torch.tensor([row[2] for row in rows])
    swapped = torch.tensor([1, 0, 2])[labels]
    found = tied_preference_loss(rewards=rewards, preferences=labels)
    other = tied_preference_loss(rewards=rewards.flip(1), preferences=swapped)
    torch.testing.assert_close(found.per_pair, other.per_pair, rtol=0, atol=1e-9)
    moved = tied_preference_loss(rewards=rewards + 7.0, preferences=labels)
    torch.testing.assert_close(found.per_pair, moved.per_pair, rtol=0, atol=1e-9)
    softmax = rewards.log_softmax(1)
    weight = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)[labels]
    expected = -(1 - weight) * softmax[:, 0] - weight * softmax[:, 1]
    torch.testing.assert_close(found.per_pair, expected, rtol=0, atol=1e-9)


def test_without_ties_it_is_bradley_terry() -> None:
    rewards, labels = exact(REWARDS), torch.tensor([1, 0, 1, 0])
    found = tied_preference_loss(rewards=rewards, preferences=labels)
    other = bradley_terry_loss(
        first_scores=rewards[:, 0], second_scores=rewards[:, 1], labels=exact([0, 1, 0, 1])
    )
    assert float(found.loss) == pytest.approx(float(other.loss), abs=1e-12)


def test_gradients() -> None:
    rewards = exact(REWARDS).requires_grad_()
    assert gradcheck(
        lambda r: tied_preference_loss(rewards=r, preferences=torch.tensor(LABELS)).loss, rewards
    )
    tied_preference_loss(rewards=rewards, preferences=torch.tensor(LABELS)).loss.backward()
    assert rewards.grad is not None
    assert rewards.grad[0, 1] < 0 < rewards.grad[0, 0]  # the preferred side is to rise
