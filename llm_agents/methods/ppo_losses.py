"""What a PPO update minimizes over samples that are scored together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.policy_gradient import (
    clipped_surrogate_loss,
    kl_per_unit,
    reduce_units,
)
from llm_agents.methods.minibatches import Samples
from llm_agents.methods.ppo_settings import PPOConfig


class Units(NamedTuple):
    """What all actions of B choices are to PPO.

    Args:
        action_log_probs: ``[B, A]``, the distribution that actions are drawn from; −∞ where there
            is none.
        log_probs: ``[B, A, L]``, of each unit of each action.
        entropies: ``[B, A, L]``, of the distribution that each unit is drawn from; None where the
            scores came without.
    """

    action_log_probs: Tensor
    log_probs: Tensor
    entropies: Tensor | None


class PolicyLosses(NamedTuple):
    """The policy's loss on some samples; only the first carries a gradient.

    Args:
        loss: Scalar to minimize.
        policy_loss: Clipped surrogate.
        entropy: Mean entropy of a unit.
        approx_kl: k3 estimate of the divergence from the collecting policy, mean over units.
        clip_fraction: Share of the units whose ratio left the band.
        reference_kl: k3 estimate of the divergence from the reference; 0 if there is no penalty.
        ratio_error: Largest distance of a ratio from 1.
    """

    loss: Tensor
    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    reference_kl: Tensor
    ratio_error: Tensor


def policy_losses(units: Units, samples: Samples, config: PPOConfig) -> PolicyLosses:
    """Compute the policy's loss on samples.

        clipped surrogate − entropy_coef · entropy + kl_coef · KL(policy ‖ reference)

    Args:
        units: Of all actions of the samples' choices, with gradient.
        samples: B of them, with the advantages that the loss is to use.
        config: Coefficients.

    Raises:
        ValueError: The units came without entropies.
    """
    if units.entropies is None:
        raise ValueError("expected units with entropies: score with `entropies=True`")
    mask, reduction = samples.mask, config.reduction
    log_probs = of_taken(units.log_probs, samples.index, mask.shape[1])
    surrogate = clipped_surrogate_loss(
        log_probs=log_probs,
        old_log_probs=samples.log_probs,
        advantages=samples.advantages,
        mask=mask,
        clip_epsilon=config.clip_epsilon,
        reduction=reduction,
    )
    entropies = of_taken(units.entropies, samples.index, mask.shape[1])
    entropy = reduce_units(entropies, mask, reduction=reduction)
    loss = surrogate.loss - config.entropy_coef * entropy
    reference_kl = torch.zeros_like(entropy)
    if samples.ref_log_probs is not None:
        divergence = kl_per_unit(
            log_probs=log_probs,
            other_log_probs=samples.ref_log_probs,
            mask=mask,
            estimator="k3",
        )
        reference_kl = reduce_units(divergence, mask, reduction=reduction)
        loss = loss + config.kl_coef * reference_kl
    return PolicyLosses(
        loss=loss,
        policy_loss=surrogate.loss.detach(),
        entropy=entropy.detach(),
        approx_kl=surrogate.approx_kl.detach(),
        clip_fraction=surrogate.clip_fraction,
        reference_kl=reference_kl.detach(),
        ratio_error=(surrogate.importance_ratio.detach() - 1).abs().max(),
    )


def step_metrics(passes: Sequence[tuple[PolicyLosses, float]]) -> dict[str, Tensor]:
    """Return the parts of a whole step's loss by name: weighted means, and the largest ratio error.

    Args:
        passes: The losses of the step's passes and their weights, which sum to 1.
    """
    names = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "reference_kl")
    weights = torch.tensor([weight for _, weight in passes])
    means = {}
    for name in names:
        parts = torch.stack([getattr(losses, name) for losses, _ in passes])
        means[name] = (parts * weights.to(parts)).sum()
    errors = torch.stack([losses.ratio_error for losses, _ in passes])
    return {**means, "ratio_error": errors.max()}


def of_taken(per_action: Tensor, index: Tensor, length: int) -> Tensor:
    """Return ``[B, length]``: the rows of ``[B, A, L]`` of the actions `index` (``[B]``)."""
    rows = torch.arange(len(index), device=index.device)
    return fitted(per_action[rows, index], length)


def fitted(per_unit: Tensor, length: int) -> Tensor:
    """Cut or fill ``[B, L]`` with zeros on the right; units beyond `length` are masked anyway."""
    return torch.nn.functional.pad(per_unit, (0, length - per_unit.shape[1]))
