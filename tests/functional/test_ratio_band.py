"""The policy loss with the band from 1 / 1.1 to 1.1, and what goes with it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from llm_agents.functional.policy_gradient import value_loss
from llm_agents.functional.ratio_band import (
    BandLoss,
    band_surrogate_loss,
    uniform_divergence,
)


def loss_of(ratio: Tensor, advantages: Tensor) -> BandLoss:
    return band_surrogate_loss(
        importance_ratio=ratio, advantages=advantages, clip_epsilon=0.1, bounds=(0.05, 20.0)
    )


def test_the_released_numbers() -> None:
    """The lower bound is 1 / 1.1 = 0.909091, and a ratio of 100 counts as 20."""
    ratios = torch.tensor([1.3, 1.3, 0.8, 0.8, 0.92, 100.0], dtype=torch.float64)
    gains = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    found = loss_of(ratios, gains)
    wanted = torch.tensor([-1.1, 1.3, -0.8, 1 / 1.1, 0.92, 20.0], dtype=torch.float64)
    torch.testing.assert_close(found.per_action, wanted)
    assert float(found.loss) == pytest.approx(float(wanted.mean()))
    assert float(found.clip_fraction) == pytest.approx(5 / 6)


def test_gradients_stop_outside_of_the_band_and_beyond_the_bounds() -> None:
    ratios = torch.tensor([1.3, 1.3, 0.8, 0.8, 100.0, 1.0], requires_grad=True)
    gains = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 2.0], requires_grad=True)
    loss_of(ratios, gains).per_action.sum().backward()
    assert ratios.grad is not None
    assert ratios.grad.tolist() == [0.0, 1.0, -1.0, 0.0, 0.0, -2.0]
    assert gains.grad is None


def test_the_divergence_is_that_of_the_ratios() -> None:
    found = loss_of(torch.tensor([1.0, 2.0]), torch.ones(2))
    assert float(found.approx_kl) == pytest.approx((1 - math.log(2)) / 2)


@pytest.mark.parametrize(("new", "old", "target", "wanted"), [
    (3.0, 1.0, 3.0, 0.5), (1.5, 1.0, 3.0, 1.125), (3.0, 1.0, 0.0, 4.5),
])  # fmt: skip
def test_the_released_value_losses(new: float, old: float, target: float, wanted: float) -> None:
    """Half of the larger square, with the new value kept within 1 of the old one in the second."""
    found = value_loss(
        values=torch.tensor([[new]]), old_values=torch.tensor([[old]]),
        returns=torch.tensor([[target]]), mask=torch.tensor([[True]]), clip_epsilon=1.0,
        reduction="units",
    )  # fmt: skip
    assert float(found.loss) == pytest.approx(wanted)


def test_uniform_divergence_is_the_mean_of_both_directions() -> None:
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    both = sum(float(x) * math.log(float(x) * 3) - math.log(float(x) * 3) / 3 for x in p) / 2
    assert float(uniform_divergence(p.log().unsqueeze(0))) == pytest.approx(both)
    assert float(uniform_divergence(torch.full((1, 4), 0.25).log())) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize(("epsilon", "bounds", "text"), [
    (0.0, (0.05, 20.0), "`clip_epsilon` above 0"), (0.1, (1.5, 20.0), "0 < lower < 1 < upper"),
])  # fmt: skip
def test_numbers_out_of_range(epsilon: float, bounds: tuple[float, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        band_surrogate_loss(
            importance_ratio=torch.ones(1), advantages=torch.ones(1), clip_epsilon=epsilon,
            bounds=bounds,
        )  # fmt: skip


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="`advantages`"):
        loss_of(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="`log_probs`"):
        uniform_divergence(torch.zeros(3))
