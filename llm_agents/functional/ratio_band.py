"""PPO's policy loss with a band that is symmetric in the logarithm, and what goes with it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_rank, check_shape, full_precision


class BandLoss(NamedTuple):
    """The policy's loss; only the first two carry gradients.

    Args:
        loss: Scalar, mean over the actions.
        per_action: ``[N]``.
        approx_kl: Scalar ≥ 0, k3 estimate of KL(old ‖ new).
        clip_fraction: Scalar, share of the actions whose ratio lies outside the band.
    """

    loss: Tensor
    per_action: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def band_surrogate_loss(
    *,
    importance_ratio: Tensor,
    advantages: Tensor,
    clip_epsilon: float,
    bounds: tuple[float, float],
) -> BandLoss:
    """Compute PPO's policy loss with the band from 1 / (1 + ε) to 1 + ε.

        ρ = clamp(ratio, bounds)
        per_action = −min(A · ρ, A · clamp(ρ, 1 / (1 + ε), 1 + ε))

    Args:
        importance_ratio: ``[N]``, of the policy to the collecting one; with gradient.
        advantages: ``[N]``; without gradient.
        clip_epsilon: ε > 0.
        bounds: Lowest and highest ratio that counts at all; beyond them there is no gradient.

    Returns:
        `BandLoss`.

    Raises:
        ValueError: The shapes differ, ε is not positive, or the bounds don't enclose 1.

    Example:
        >>> import torch
        >>> band_surrogate_loss(
        ...     importance_ratio=torch.tensor([1.3, 0.5]), advantages=torch.tensor([1.0, -1.0]),
        ...     clip_epsilon=0.25, bounds=(0.05, 20.0)).per_action
        tensor([-1.2500,  0.8000])

    References:
        Motif (arXiv 2310.00166), as released: ε 0.1, bounds 0.05 and 20.
    """
    check_rank("importance_ratio", importance_ratio, "[N]")
    cure = "give one advantage for each action"
    check_shape("advantages", advantages, importance_ratio.shape, "`importance_ratio`", cure)
    if not clip_epsilon > 0:
        raise ValueError(f"expected `clip_epsilon` above 0, got {clip_epsilon}")
    if not 0 < bounds[0] < 1 < bounds[1]:
        raise ValueError(f"expected `bounds` with 0 < lower < 1 < upper, got {bounds}")
    ratio = full_precision(importance_ratio).clamp(*bounds)
    gain = advantages.detach().to(ratio.dtype)
    low, high = 1 / (1 + clip_epsilon), 1 + clip_epsilon
    per_action = -torch.minimum(gain * ratio, gain * ratio.clamp(low, high))
    now = ratio.detach()
    return BandLoss(
        loss=per_action.mean(),
        per_action=per_action,
        approx_kl=(now - 1 - now.log()).clamp(min=0).mean(),
        clip_fraction=((now < low) | (now > high)).to(now.dtype).mean(),
    )


def uniform_divergence(log_probs: Tensor) -> Tensor:
    """Compute how far distributions are from the uniform one, symmetrically.

        ½ · (KL(p ‖ u) + KL(u ‖ p)) = ½ · Σ_a (p_a − 1/A) · ln p_a

    Args:
        log_probs: ``[N, A]``, finite.

    Returns:
        ``[N]`` ≥ 0, with gradient.

    Raises:
        ValueError: Wrong rank.

    Example:
        >>> import torch
        >>> uniform_divergence(torch.tensor([[0.75, 0.25]]).log())
        tensor([0.1373])
    """
    check_rank("log_probs", log_probs, "[N, A]")
    shares = log_probs.exp() - 1 / log_probs.shape[1]
    return 0.5 * (shares * log_probs).sum(-1)
