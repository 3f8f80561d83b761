"""Ridge regression in closed form, its penalty chosen by leave-one-out error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_per_row, check_rank


class RidgeFit(NamedTuple):
    """A linear function and how it was chosen.

    Args:
        weight: ``[D]`` float64, of the features as they came.
        bias: Scalar float64.
        penalty: The chosen one.
        leave_one_out_mse: Mean squared error of each target, predicted from all the others.
        target_variance: Error of the best constant.
    """

    weight: Tensor
    bias: Tensor
    penalty: float
    leave_one_out_mse: float
    target_variance: float


def ridge_regression(features: Tensor, targets: Tensor, *, penalties: Sequence[float]) -> RidgeFit:
    """Fit targets by a linear function of standardized features.

        z = (x − mean) / std,   w = argmin Σ (y − ȳ − z·w)² + penalty · |w|²

    With the hat matrix H = Z (ZᵀZ + penalty)⁻¹ Zᵀ + 1/N, a row's error when it is left out is its
    error divided by 1 − H_ii, so that one decomposition serves all penalties.

    Args:
        features: ``[N, D]``, N ≥ 2, any scale; constant columns get no weight.
        targets: ``[N]``.
        penalties: Candidates, each above 0.

    Returns:
        The fit of the penalty with the lowest leave-one-out error.

    Raises:
        ValueError: Shapes differ, there are fewer than two rows, or a penalty isn't above 0.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> fit = ridge_regression(x, 2 * x[:, 0] + 1, penalties=[1e-6])
        >>> round(float(fit.weight[0]), 3), round(float(fit.bias), 3)
        (2.0, 1.0)

    References:
        Hoerl and Kennard (1970); leave-one-out by the hat matrix: Allen (1974), PRESS.
    """
    check_rank("features", features, "[N, D]")
    check_per_row("targets", targets, len(features), "features")
    if len(features) < 2:
        raise ValueError(f"expected at least two rows of `features`, got {len(features)}")
    if not penalties or min(penalties) <= 0:
        raise ValueError(f"expected `penalties` above 0, got {list(penalties)}")
    inputs, outputs = features.detach().double(), targets.detach().double()
    mean, std = inputs.mean(0), inputs.std(0, correction=0)
    scale = torch.where(std > 1e-9 * (mean.abs() + 1), 1 / std, 0.0)
    centred = outputs - outputs.mean()
    left, singular, right = torch.linalg.svd((inputs - mean) * scale, full_matrices=False)
    projected = left.T @ centred
    best: tuple[float, float, Tensor] | None = None
    for penalty in penalties:
        shrink = singular.square() / (singular.square() + penalty)
        errors = centred - left @ (shrink * projected)
        influence = (left.square() * shrink).sum(1) + 1 / len(inputs)
        error = float((errors / (1 - influence).clamp(min=1e-9)).square().mean())
        if best is None or error < best[0]:
            best = (
                error,
                penalty,
                right.T @ (singular / (singular.square() + penalty) * projected),
            )
    assert best is not None  # there is at least one penalty
    weight = best[2] * scale
    return RidgeFit(
        weight=weight,
        bias=outputs.mean() - mean @ weight,
        penalty=best[1],
        leave_one_out_mse=best[0],
        target_variance=float(outputs.var(correction=0)),
    )
