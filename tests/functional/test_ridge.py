"""Ridge regression: against the normal equations and a loop that leaves rows out."""

from __future__ import annotations

import pytest
import torch

from llm_agents.functional.ridge import ridge_regression


def data(rows: int = 20, columns: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, columns, generator=generator, dtype=torch.float64) * 3 + 1
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return features, features @ torch.arange(1.0, columns + 1, dtype=torch.float64) + noise


def by_hand(
    features: torch.Tensor, targets: torch.Tensor, penalty: float, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve the normal equations with an intercept that isn't penalized."""
    mean = features.mean(0)
    inputs = (features - mean) / scale
    eye = torch.eye(inputs.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(
        inputs.T @ inputs + penalty * eye, inputs.T @ (targets - targets.mean())
    )
    weight = weight / scale
    return weight, targets.mean() - mean @ weight


def test_it_solves_the_normal_equations() -> None:
    features, targets = data()
    fit = ridge_regression(features, targets, penalties=[2.5])
    weight, bias = by_hand(features, targets, 2.5, features.std(0, correction=0))
    torch.testing.assert_close(fit.weight, weight)
    torch.testing.assert_close(fit.bias, bias)


@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_the_leave_one_out_error_is_that_of_leaving_out(penalty: float) -> None:
    features, targets = data()
    scale = features.std(0, correction=0)  # of all rows, as in the closed form
    errors = []
    for row in range(len(features)):
        kept = torch.arange(len(features)) != row
        # leaving a row out keeps centre and scale of all: solve with the intercept as a column
        inputs = (features - features.mean(0)) / scale
        design = torch.cat((torch.ones(len(inputs), 1, dtype=torch.float64), inputs), 1)
        ridge = torch.diag(torch.tensor([0.0] + [penalty] * inputs.shape[1], dtype=torch.float64))
        solved = torch.linalg.solve(
            design[kept].T @ design[kept] + ridge, design[kept].T @ targets[kept]
        )
        errors.append(targets[row] - design[row] @ solved)
    expected = float(torch.stack(errors).square().mean())
    fit = ridge_regression(features, targets, penalties=[penalty])
    assert fit.leave_one_out_mse == pytest.approx(expected, rel=1e-9)


def test_the_penalty_with_the_lowest_left_out_error_is_taken() -> None:
    features, targets = data(rows=12, columns=40)  # more columns than rows
    penalties = [0.01, 1.0, 100.0, 1e6]
    single = [ridge_regression(features, targets, penalties=[p]) for p in penalties]
    best = min(single, key=lambda fit: fit.leave_one_out_mse)
    assert ridge_regression(features, targets, penalties=penalties).penalty == best.penalty


def test_a_constant_column_gets_no_weight() -> None:
    features, targets = data()
    features[:, 2] = 7.0
    fit = ridge_regression(features, targets, penalties=[1.0])
    assert fit.weight[2] == 0
    assert bool(fit.weight.isfinite().all())


@pytest.mark.parametrize(
    ("rows", "penalties", "message"),
    [(1, [1.0], "at least two rows"), (5, [], "above 0"), (5, [0.0], "above 0")],
)
def test_wrong_input_is_named(rows: int, penalties: list[float], message: str) -> None:
    features, targets = data(rows=max(rows, 2))
    with pytest.raises(ValueError, match=message):
        ridge_regression(features[:rows], targets[:rows], penalties=penalties)


def test_shapes_must_agree() -> None:
    features, targets = data()
    with pytest.raises(ValueError, match="targets"):
        ridge_regression(features, targets[:-1], penalties=[1.0])
