"""Fit of the value head."""

from __future__ import annotations

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.methods.value_fit import ValueFitConfig, fit_value_head, pad_states


def prompts(count: int = 24) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return states of different lengths whose first feature tells the target."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(count, generator=generator)
    states = []
    for number, target in enumerate(targets):
        rows = torch.randn(1 + number % 5, 16, generator=generator)
        rows[:, 0] = 4 * target - 2
        states.append(rows)
    return states, targets


def test_fit_beats_the_best_constant() -> None:
    states, targets = prompts()
    config = ValueFitConfig(epochs=60, lr=3e-3, num_heads=4, batch_size=8)
    fit = fit_value_head(states, targets, max_value=1.0, config=config)
    assert min(fit.epoch_mse) < 0.3 * fit.target_variance
    hidden, mask = pad_states(states)
    with torch.no_grad():
        error = (fit.head(hidden, mask) - targets).square().mean()
    assert float(error) < 0.3 * fit.target_variance


def test_the_epoch_of_the_lowest_error_is_kept() -> None:
    """A rate so high that the last epoch is not the best."""
    states, targets = prompts()
    long = fit_value_head(
        states, targets, max_value=1.0, config=ValueFitConfig(epochs=30, lr=0.3, num_heads=4)
    )
    assert 0 <= long.kept_epoch < 29
    assert long.epoch_mse[long.kept_epoch] == min(long.epoch_mse)
    short = ValueFitConfig(epochs=long.kept_epoch + 1, lr=0.3, num_heads=4)
    again = fit_value_head(states, targets, max_value=1.0, config=short)
    for name, weight in long.head.state_dict().items():
        assert torch.equal(weight, again.head.state_dict()[name])


def test_the_seed_decides_and_nothing_outside_is_touched() -> None:
    states, targets = prompts()
    config = ValueFitConfig(epochs=2, num_heads=4, seed=3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = fit_value_head(states, targets, max_value=1.0, config=config)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = fit_value_head(states, targets, max_value=1.0, config=config)
    other = fit_value_head(
        states, targets, max_value=1.0, config=ValueFitConfig(epochs=2, num_heads=4, seed=4)
    )
    assert first.epoch_mse == second.epoch_mse
    assert first.epoch_mse != other.epoch_mse


def test_dropout_is_off_in_the_fitted_head() -> None:
    """Trap 8: two calls, one value; and padding never enters."""
    states, targets = prompts()
    config = ValueFitConfig(epochs=1, num_heads=4, dropout=0.5)
    head = fit_value_head(states, targets, max_value=4.0, config=config).head
    hidden, mask = pad_states(states)
    values = head(hidden, mask)
    assert torch.equal(values, head(hidden, mask))
    for row, state in enumerate(states):
        alone = head(state[None], torch.ones(1, len(state), dtype=torch.bool))
        assert float(alone) == pytest.approx(float(values[row]), abs=1e-5)


def test_counts_must_agree() -> None:
    states, targets = prompts()
    with pytest.raises(ValueError, match="one target for each of 24 prompts, got 23"):
        fit_value_head(states, targets[:-1], max_value=1.0, config=ValueFitConfig())


@pytest.mark.parametrize("name", ["epochs", "lr", "batch_size"])
def test_numbers_must_be_positive(name: str) -> None:
    with pytest.raises(UserError, match=rf"`value\.{name}` above 0, got 0"):
        ValueFitConfig(**{name: 0})
