"""Sum, mean, variance and whitening of the values under a mask; the others never matter."""

from __future__ import annotations

from torch import Tensor

from llm_agents.functional.shapes import check_mask


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum the values under a mask.

        Σ values[mask]

    The rest is filled with 0, not multiplied by 0, so NaN and infinity there stay harmless.

    Args:
        values: Any shape.
        mask: Same shape, bool, True = counts.
        dim: Axis to sum over; None sums over all.

    Returns:
        `values` without the axis `dim`, or a scalar. A sum over nothing is 0.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ.

    Example:
        >>> import torch
        >>> masked_sum(torch.tensor([-1.0, float("-inf")]), torch.tensor([True, False]))
        tensor(-1.)
    """
    check_mask("mask", mask, values, "values")
    filled = values.masked_fill(~mask, 0)
    return filled.sum() if dim is None else filled.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Average the values under a mask.

        Σ values[mask] / |mask|

    Args:
        values: Any shape.
        mask: Same shape, bool, True = counts; at least one True for each result.
        dim: Axis to average over; None averages over all.

    Returns:
        `values` without the axis `dim`, or a scalar.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or nothing is under the mask.

    Example:
        >>> import torch
        >>> masked_mean(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    total = masked_sum(values, mask, dim)
    return total / _counts(mask, dim, at_least=1)


def masked_var(values: Tensor, mask: Tensor, dim: int | None = None, *, unbiased: bool) -> Tensor:
    """Compute the variance of the values under a mask.

        Σ (values − mean)² [mask] / (|mask| − c),   c = 1 if unbiased, else 0

    Args:
        values: Any shape.
        mask: Same shape, bool, True = counts.
        dim: Axis to reduce; None reduces all.
        unbiased: Divide by the count less one; needs two values for each result.

    Returns:
        `values` without the axis `dim`, or a scalar.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or too little is under the mask.

    Example:
        >>> import torch
        >>> values, mask = torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False])
        >>> masked_var(values, mask, unbiased=True)
        tensor(2.)
    """
    check_mask("mask", mask, values, "values")
    correction = int(unbiased)
    filled = values.masked_fill(~mask, 0)
    mean = masked_mean(filled, mask, dim)
    centered = filled - (mean if dim is None else mean.unsqueeze(dim))
    counts = _counts(mask, dim, at_least=1 + correction)
    return masked_sum(centered.square(), mask, dim) / (counts - correction)


def masked_whiten(
    values: Tensor, mask: Tensor, *, shift_mean: bool, unbiased: bool, epsilon: float
) -> Tensor:
    """Scale the values under a mask to mean 0 and variance 1, over all axes together.

        (values − mean) / √(var + epsilon)

    Args:
        values: Any shape.
        mask: Same shape, bool, True = counts.
        shift_mean: False puts the mean back after scaling.
        unbiased: Divide the variance by the count less one.
        epsilon: Keeps equal values finite.

    Returns:
        Same shape as `values`; 0 where the mask is False.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or too little is under the mask.

    Example:
        >>> import torch
        >>> values, mask = torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False])
        >>> masked_whiten(values, mask, shift_mean=True, unbiased=False, epsilon=0.0)
        tensor([-1.,  1.,  0.])
    """
    check_mask("mask", mask, values, "values")
    filled = values.masked_fill(~mask, 0)
    mean = masked_mean(filled, mask)
    scaled = (filled - mean) * (masked_var(filled, mask, unbiased=unbiased) + epsilon).rsqrt()
    return (scaled if shift_mean else scaled + mean).masked_fill(~mask, 0)


def _counts(mask: Tensor, dim: int | None, *, at_least: int) -> Tensor:
    """Count the True entries, and raise where there are too few to divide by."""
    counts = mask.sum() if dim is None else mask.sum(dim)
    if bool((counts < at_least).any()):
        least = int(counts.min())
        raise ValueError(
            f"expected at least {at_least} True in every reduced part of `mask`, got {least}: "
            "drop rows without a scored token"
        )
    return counts
