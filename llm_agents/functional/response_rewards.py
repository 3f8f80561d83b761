"""PPO on generated responses: scores on one scale, rewards of tokens, advantages, the penalty.

The score of a response is given at its last token; every token pays for its distance from the
reference. What is generated ends there, so nothing is bootstrapped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.gae import Advantages, gae
from llm_agents.functional.shapes import check_mask, check_per_row, check_rank, full_precision


class Moments(NamedTuple):
    """Count, mean and spread of numbers that come in groups.

    Args:
        size: How many numbers so far.
        mean: Their mean.
        squares: Sum of their squared distances from the mean.
    """

    size: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        """Return the standard deviation (n − 1); 0 below two numbers."""
        return math.sqrt(self.squares / (self.size - 1)) if self.size > 1 else 0.0


def add_to_moments(moments: Moments, values: Tensor) -> Moments:
    """Take a group of numbers into account.

        n = n₁ + n₂,   mean = mean₁ + δ n₂ / n,   squares = squares₁ + squares₂ + δ² n₁ n₂ / n

    Args:
        moments: Of the numbers before.
        values: ``[N]``, N ≥ 1, finite.

    Returns:
        The moments of all of them, however they were grouped.

    Raises:
        ValueError: There is no number, or one is not finite.

    Example:
        >>> import torch
        >>> add_to_moments(Moments(), torch.tensor([1.0, 3.0])).deviation ** 2
        2.0000000000000004

    References:
        Chan, Golub and LeVeque (1979), the pairwise update.
    """
    check_rank("values", values, "[N]")
    found = values.detach().double()
    if not len(found) or not bool(found.isfinite().all()):
        raise ValueError(f"expected at least one number, all finite, got {values.tolist()}")
    count = moments.size + len(found)
    mean = float(found.mean())
    delta = mean - moments.mean
    squares = moments.squares + float((found - mean).square().sum())
    squares += delta * delta * moments.size * len(found) / count
    return Moments(count, moments.mean + delta * len(found) / count, squares)


def standardize_scores(scores: Tensor, moments: Moments) -> Tensor:
    """Shift and scale scores by the mean and deviation of all so far.

        (score − mean) / (deviation + 1e-8)

    Args:
        scores: ``[B]``.
        moments: Of all scores, these included.

    Returns:
        ``[B]`` in the dtype of `scores`; zeros where all scores so far are equal.

    Raises:
        ValueError: The scores have another shape.

    Example:
        >>> import torch
        >>> scores = torch.tensor([0.7, 0.5, 0.9, 0.3])
        >>> standardize_scores(scores, add_to_moments(Moments(), scores))
        tensor([ 0.3873, -0.3873,  1.1619, -1.1619])

    References:
        TRL 0.7.1 with `use_score_scaling` and `use_score_norm`, as A-LoL's release sets them.
    """
    check_rank("scores", scores, "[B]")
    return ((scores.double() - moments.mean) / (moments.deviation + 1e-8)).to(scores.dtype)


def response_token_rewards(
    *, log_probs: Tensor, ref_log_probs: Tensor, scores: Tensor, mask: Tensor, kl_coef: float
) -> Tensor:
    """Reward each token: what it costs to leave the reference, and at the last one the score.

        r_t = −k (ln π(y_t) − ln π_ref(y_t)),   r_T += score

    Args:
        log_probs: ``[B, T]`` of the collecting policy; without gradient.
        ref_log_probs: ``[B, T]`` of the reference; without gradient.
        scores: ``[B]``.
        mask: ``[B, T]`` bool, True = token; right-padded, at least one a row.
        kl_coef: k ≥ 0.

    Returns:
        ``[B, T]``, 0 where the mask is False.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: Shapes differ, a row has no token or a hole, or k is negative.

    Example:
        >>> import torch
        >>> response_token_rewards(
        ...     log_probs=torch.tensor([[-1.0, -1.0]]), ref_log_probs=torch.tensor([[-2.0, -1.0]]),
        ...     scores=torch.tensor([0.5]), mask=torch.tensor([[True, True]]), kl_coef=0.25)
        tensor([[-0.2500,  0.5000]])

    References:
        Ziegler et al. (arXiv 1909.08593), section 2; TRL 0.7.1.
    """
    if not kl_coef >= 0:
        raise ValueError(f"expected `kl_coef` of at least 0, got {kl_coef}")
    last = _last_token(mask, log_probs)
    check_mask("mask", mask, ref_log_probs, "ref_log_probs")
    check_per_row("scores", scores, len(mask), "mask")
    policy = full_precision(log_probs.detach()).masked_fill(~mask, 0)
    reference = ref_log_probs.detach().to(policy.dtype).masked_fill(~mask, 0)
    given = scores.detach().to(policy.dtype)[:, None] * last
    return given - kl_coef * (policy - reference)


def response_advantages(
    *, rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float
) -> Advantages:
    """Estimate the advantages of a response's tokens; nothing follows its last one.

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1},   V_{T+1} = A_{T+1} = 0

    Args:
        rewards: ``[B, T]``, of each token.
        values: ``[B, T]``, each read just before its token.
        mask: ``[B, T]`` bool, True = token; right-padded, at least one a row.
        gamma: Discount from a token to the next, in [0, 1].
        gae_lambda: λ in [0, 1].

    Returns:
        `Advantages`, ``[B, T]`` each, 0 where the mask is False.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: Shapes differ, a coefficient is out of range, or a row has no token or a hole.

    Example:
        >>> import torch
        >>> response_advantages(
        ...     rewards=torch.tensor([[0.0, 1.0]]), values=torch.tensor([[0.5, 0.5]]),
        ...     mask=torch.tensor([[True, True]]), gamma=1.0, gae_lambda=0.5).advantages
        tensor([[0.2500, 0.5000]])

    References:
        Schulman et al. (arXiv 1506.02438), equations 11 to 16; TRL 0.7.1.
    """
    last = _last_token(mask, values)
    check_mask("mask", mask, rewards, "rewards")
    values = full_precision(values.detach()).masked_fill(~mask, 0)
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    found = gae(  # a token is a step, a response a world
        rewards=rewards.to(values.dtype).masked_fill(~mask, 0).T,
        values=values.T,
        next_values=following.T,
        terminated=(last | ~mask).T,
        truncated=torch.zeros_like(mask).T,
        discounts=torch.full_like(values, gamma).T,
        gae_lambda=gae_lambda,
    )
    return Advantages(
        found.advantages.T.masked_fill(~mask, 0), found.returns.T.masked_fill(~mask, 0)
    )


def adapted_kl_coef(
    kl_coef: float, *, divergence: float, target: float, horizon: float, count: int
) -> float:
    """Move the penalty's weight towards where the divergence meets its target.

        k · (1 + clip(KL / target − 1, ±0.2) · count / horizon)

    Args:
        kl_coef: k of the last rollout.
        divergence: Mean over its responses of Σ_t (ln π − ln π_ref).
        target: Divergence wanted, above 0.
        horizon: Responses in which k can change by a fifth of itself, above 0.
        count: Responses of the rollout.

    Returns:
        The weight of the next rollout's penalty.

    Raises:
        ValueError: The target or the horizon is not above 0.

    Example:
        >>> round(adapted_kl_coef(0.2, divergence=12.0, target=6.0, horizon=10_000, count=16), 6)
        0.200064

    References:
        Ziegler et al. (arXiv 1909.08593), section 2.2; TRL 0.7.1.
    """
    if not target > 0 or not horizon > 0:
        raise ValueError(f"expected `target` and `horizon` above 0, got {target} and {horizon}")
    error = min(max(divergence / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * count / horizon)


def _last_token(mask: Tensor, values: Tensor) -> Tensor:
    """Check a right-padded mask and return ``[B, T]`` bool, True = last token of its row."""
    check_rank("mask", mask, "[B, T]")
    check_mask("mask", mask, values, "the tokens' numbers")
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()) or not bool(mask[:, :1].any(1).all()):
        raise ValueError(
            "expected right-padded responses of at least one token in `mask`: mask by the "
            "responses' lengths, not by what the ids are"
        )
    following = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
    return mask & ~following
