"""PPO's losses over units, which are whole actions or the tokens inside them."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from llm_agents.functional.masked import masked_mean, masked_var
from llm_agents.functional.shapes import check_mask, check_rank, check_shape, full_precision
from llm_agents.functional.weighted_nll import MAX_LOG_RATIO

Reduction = Literal["units", "actions"]
"""Mean over all units, where long actions weigh more; or mean over actions of their own means."""

KlEstimator = Literal["k1", "k3"]


class SurrogateLoss(NamedTuple):
    """PPO's clipped surrogate; only the first three carry gradients.

    Args:
        loss: Scalar, reduced as asked.
        per_unit: ``[B, L]``, 0 where the mask is False.
        importance_ratio: ``[B, L]``, 1 where the mask is False.
        approx_kl: Scalar ≥ 0, k3 estimate of KL(old ‖ new), mean over units.
        clip_fraction: Scalar, share of the units whose ratio lies outside the band.
    """

    loss: Tensor
    per_unit: Tensor
    importance_ratio: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class ValueLoss(NamedTuple):
    """Half a squared error of values; only the first two carry gradients.

    Args:
        loss: Scalar, reduced as asked.
        per_unit: ``[B, L]``, 0 where the mask is False.
        clip_fraction: Scalar, share of the units whose value left the band; 0 without a clip.
    """

    loss: Tensor
    per_unit: Tensor
    clip_fraction: Tensor


def clipped_surrogate_loss(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_epsilon: float,
    reduction: Reduction,
) -> SurrogateLoss:
    """Compute PPO's policy loss, each unit with its own ratio and advantage.

        ρ = exp(log_probs − old_log_probs)
        per_unit = max(−A · ρ, −A · clip(ρ, 1 − ε, 1 + ε))

    Log ratios are capped at ± 20, so that the loss is finite however far the policy has moved.

    Args:
        log_probs: ``[B, L]``, of the actions taken; L = 1 where the unit is the whole action.
        old_log_probs: ``[B, L]``, under the collecting policy; without gradient.
        advantages: ``[B, L]``; without gradient.
        mask: ``[B, L]`` bool, True = unit; at least one, and one a row for ``"actions"``.
        clip_epsilon: ε ≥ 0, half-width of the band.
        reduction: What to average over.

    Returns:
        `SurrogateLoss`.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, nothing is under the mask, or ε is negative.

    Example:
        >>> import torch
        >>> found = clipped_surrogate_loss(
        ...     log_probs=torch.tensor([[1.5], [0.5]]).log(), old_log_probs=torch.zeros(2, 1),
        ...     advantages=torch.ones(2, 1), mask=torch.ones(2, 1, dtype=torch.bool),
        ...     clip_epsilon=0.25, reduction="units")
        >>> found.loss
        tensor(-0.8750)

    References:
        PPO (arXiv 1707.06347), equation 7; POAD (arXiv 2405.15821) for one unit a token.
    """
    _check_not_negative("clip_epsilon", clip_epsilon)
    _check_units(log_probs, mask, old_log_probs=old_log_probs, advantages=advantages)
    new = full_precision(log_probs).masked_fill(~mask, 0)
    old = old_log_probs.detach().to(new.dtype).masked_fill(~mask, 0)
    gain = advantages.detach().to(new.dtype).masked_fill(~mask, 0)
    log_ratio = (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon)
    per_unit = torch.maximum(-gain * ratio, -gain * clipped)
    outside = (ratio.detach() - 1).abs() > clip_epsilon
    return SurrogateLoss(
        loss=reduce_units(per_unit, mask, reduction=reduction),
        per_unit=per_unit,
        importance_ratio=ratio,
        approx_kl=masked_mean(_k3(log_ratio.detach()), mask),
        clip_fraction=masked_mean(outside.to(new.dtype), mask),
    )


def value_loss(
    *,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip_epsilon: float | None,
    reduction: Reduction,
) -> ValueLoss:
    """Compute half the squared error of values, at least as large as that of the clipped values.

        per_unit = ½ · max((V − R)², (V_old + clip(V − V_old, ± ε) − R)²)

    A value that went further than ε towards its target learns no more from it until the next
    rollout.

    Args:
        values: ``[B, L]``, with gradient.
        old_values: ``[B, L]``, at the rollout; without gradient.
        returns: ``[B, L]`` targets; without gradient.
        mask: ``[B, L]`` bool, True = unit; at least one, and one a row for ``"actions"``.
        clip_epsilon: ε ≥ 0 in the values' own unit; None leaves the first square alone.
        reduction: What to average over.

    Returns:
        `ValueLoss`, without any coefficient.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, nothing is under the mask, or ε is negative.

    Example:
        >>> import torch
        >>> value_loss(
        ...     values=torch.tensor([[1.0]]), old_values=torch.tensor([[0.5]]),
        ...     returns=torch.tensor([[1.0]]), mask=torch.tensor([[True]]), clip_epsilon=0.25,
        ...     reduction="units").per_unit
        tensor([[0.0312]])

    References:
        TWOSOME (arXiv 2401.14151) and POAD (arXiv 2405.15821), as released.
    """
    _check_units(values, mask, old_values=old_values, returns=returns)
    new = full_precision(values).masked_fill(~mask, 0)
    old = old_values.detach().to(new.dtype).masked_fill(~mask, 0)
    target = returns.detach().to(new.dtype).masked_fill(~mask, 0)
    squares = (new - target).square()
    outside = torch.zeros_like(mask)
    if clip_epsilon is not None:
        _check_not_negative("clip_epsilon", clip_epsilon)
        step = (new - old).clamp(-clip_epsilon, clip_epsilon)
        squares = torch.maximum(squares, (old + step - target).square())
        outside = (new.detach() - old).abs() > clip_epsilon
    per_unit = 0.5 * squares
    return ValueLoss(
        loss=reduce_units(per_unit, mask, reduction=reduction),
        per_unit=per_unit,
        clip_fraction=masked_mean(outside.to(new.dtype), mask),
    )


def reduce_units(per_unit: Tensor, mask: Tensor, *, reduction: Reduction) -> Tensor:
    """Average what each unit contributes: losses, entropies, divergences.

        "units":    Σ per_unit[mask] / |mask|
        "actions":  mean over rows of each row's own mean

    Args:
        per_unit: ``[B, L]``; may hold anything where the mask is False.
        mask: ``[B, L]`` bool, True = unit; at least one, and one a row for ``"actions"``.
        reduction: What to average over; they agree where all actions have as many units.

    Returns:
        Scalar.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, nothing is under the mask, or `reduction` is unknown.

    Example:
        >>> import torch
        >>> losses = torch.tensor([[1.0, 3.0, 0.0], [2.0, 2.0, 5.0]])
        >>> mask = torch.tensor([[True, True, False], [True, True, True]])
        >>> reduce_units(losses, mask, reduction="units"), reduce_units(
        ...     losses, mask, reduction="actions")
        (tensor(2.6000), tensor(2.5000))

    References:
        POAD (arXiv 2405.15821), as released, averages over units.
    """
    check_rank("per_unit", per_unit, "[B, L]")
    if reduction not in get_args(Reduction):
        raise ValueError(f"expected `reduction` 'units' or 'actions', got {reduction!r}")
    if reduction == "units":
        return masked_mean(per_unit, mask)
    return masked_mean(per_unit, mask, dim=-1).mean()


def kl_per_unit(
    *, log_probs: Tensor, other_log_probs: Tensor, mask: Tensor, estimator: KlEstimator
) -> Tensor:
    """Estimate KL(p ‖ q) from samples of p, unit by unit.

        x = ln q − ln p;   k1 = −x,   k3 = eˣ − 1 − x ≥ 0

    Both have the right mean under p; k3 varies less and is never negative. After PPO's steps p is
    the collecting policy and q the new one; for a penalty p is the policy and q its reference.

    Args:
        log_probs: ``[B, L]``, ln p of what was sampled from p.
        other_log_probs: ``[B, L]``, ln q of the same.
        mask: ``[B, L]`` bool, True = unit.
        estimator: ``"k1"`` or ``"k3"``.

    Returns:
        ``[B, L]``, with the gradients of both; 0 where the mask is False.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or the estimator is unknown.

    Example:
        >>> import torch
        >>> kl_per_unit(log_probs=torch.zeros(1, 1), other_log_probs=torch.tensor([[2.0]]).log(),
        ...     mask=torch.tensor([[True]]), estimator="k3")
        tensor([[0.3069]])

    References:
        Schulman, "Approximating KL Divergence" (2020), for the names k1 and k3.
    """
    _check_units(log_probs, mask, other_log_probs=other_log_probs)
    if estimator not in get_args(KlEstimator):
        raise ValueError(f"expected `estimator` 'k1' or 'k3', got {estimator!r}")
    log_ratio = full_precision(other_log_probs) - full_precision(log_probs)
    log_ratio = log_ratio.masked_fill(~mask, 0)
    if estimator == "k1":
        return -log_ratio
    return _k3(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def normalize_advantages(
    advantages: Tensor, mask: Tensor, *, unbiased: bool, epsilon: float, floor: float = 0.0
) -> Tensor:
    """Shift and scale a group's advantages to mean 0 and deviation 1.

        (A − mean) / (max(std, floor) + epsilon)

    The group is what is passed: a micro-batch, a minibatch or a rollout. Zero is an advantage like
    any other; what is missing is what the mask leaves out. Equal advantages become exactly 0.

    Args:
        advantages: Any shape; without gradient.
        mask: Same shape, bool, True = counts; at least two.
        unbiased: Divide the variance by the count less one.
        epsilon: Added to the deviation.
        floor: Least deviation that advantages are divided by. Where a group has met no reward,
            its deviation is the values' noise, which nothing should blow up to 1.

    Returns:
        Same shape; 0 where the mask is False.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or the group has fewer than two members.

    Example:
        >>> import torch
        >>> group, mask = torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False])
        >>> normalize_advantages(group, mask, unbiased=False, epsilon=0.0)
        tensor([-1.,  1.,  0.])

    References:
        TWOSOME (arXiv 2401.14151), as released: each micro-batch of actions, unbiased. POAD (arXiv
        2405.15821), as released: each minibatch's tokens, not unbiased. Differs: POAD's release
        takes an advantage of exactly 0 for a missing one. Motif (arXiv 2310.00166), as released:
        unbiased, floor 0.001.
    """
    check_mask("mask", mask, advantages, "advantages")
    if int(mask.sum()) < 2:
        raise ValueError(
            f"expected a group of at least 2 advantages to normalize, got {int(mask.sum())}: its "
            "deviation says nothing; use larger minibatches, or normalize over the rollout"
        )
    found = full_precision(advantages.detach())
    # Rounding in the mean would be scaled up to noise where all are equal: count from one of them.
    found = (found - found[mask][0]).masked_fill(~mask, 0)
    deviation = masked_var(found, mask, unbiased=unbiased).sqrt()
    scaled = (found - masked_mean(found, mask)) / (deviation.clamp_min(floor) + epsilon)
    return scaled.masked_fill(~mask, 0)


def explained_variance(*, values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Compute the share of the returns' variance that the values explain.

        1 − Var(R − V) / Var(R)

    Args:
        values: Any shape; without gradient.
        returns: Same shape; without gradient.
        mask: Same shape, bool, True = counts; at least one.

    Returns:
        Scalar ≤ 1, NaN where all returns are equal; 0 is as good as a constant.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or nothing is under the mask.

    Example:
        >>> import torch
        >>> explained_variance(values=torch.tensor([0.0, 1.0]), returns=torch.tensor([0.0, 2.0]),
        ...     mask=torch.tensor([True, True]))
        tensor(0.7500)
    """
    cure = "give one value for each return"
    check_shape("returns", returns, values.shape, "`values`", cure)
    target = full_precision(returns.detach())
    total = masked_var(target, mask, unbiased=False)
    left = masked_var(target - values.detach().to(target.dtype), mask, unbiased=False)
    return torch.where(total > 0, 1 - left / total, torch.nan)


def annealing_factor(*, update: int, num_updates: int, num_warm_up: int) -> float:
    """Compute the share of the learning rate that is left, falling linearly towards 0.

        1 − (update − num_warm_up) / (num_updates − num_warm_up),   1 during the warm-up

    The first update after the critic's warm-up has the whole rate, the last 1/N of it.

    Args:
        update: Number of this update, from 0, warm-up included.
        num_updates: Updates of the whole run, warm-up included.
        num_warm_up: Updates of the critic alone that come first.

    Returns:
        In (0, 1].

    Raises:
        ValueError: The numbers are out of order.

    Example:
        >>> annealing_factor(update=3, num_updates=5, num_warm_up=1)
        0.5

    References:
        TWOSOME (arXiv 2401.14151), as released: both learning rates.
    """
    if not 0 <= update < num_updates or not 0 <= num_warm_up <= num_updates:
        raise ValueError(
            f"expected 0 ≤ `update` < `num_updates` ≥ `num_warm_up` ≥ 0, got {update}, "
            f"{num_updates} and {num_warm_up}: count updates from 0"
        )
    if update < num_warm_up:
        return 1.0
    return 1 - (update - num_warm_up) / (num_updates - num_warm_up)


def _k3(log_ratio: Tensor) -> Tensor:
    """Return eˣ − 1 − x, without the rounding that would make it negative near 0."""
    return (log_ratio.expm1() - log_ratio).clamp(min=0)


def _check_units(units: Tensor, mask: Tensor, **others: Tensor) -> None:
    """Raise unless all are ``[B, L]`` alike and something is under the mask."""
    check_rank("mask", mask, "[B, L]")
    check_mask("mask", mask, units, "the units")
    for name, tensor in others.items():
        check_shape(name, tensor, units.shape, "the units", "give one value for each unit")


def _check_not_negative(name: str, value: float) -> None:
    """Raise unless a band's half-width is at least 0."""
    if not value >= 0:
        raise ValueError(f"expected `{name}` of at least 0, got {value}")
