"""What the A-LoL family shares: a negative log-likelihood with detached weights, and its ratios."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

from torch import Tensor

from llm_agents.functional.masked import masked_mean
from llm_agents.functional.shapes import (
    check_mask,
    check_per_row,
    check_rank,
    check_shape,
    full_precision,
)

MAX_LOG_RATIO = 20.0
"""Unclipped log ratios are capped at ± this: exp(20) ≈ 5e8 is still far from overflow."""


class LolLoss(NamedTuple):
    """A loss of the A-LoL family and what it was made of; only the first two carry gradients.

    Args:
        loss: Scalar, mean over the sequences.
        per_sequence: ``[B]``.
        weights: ``[B]``, mean of `token_weights` over a sequence's scored tokens.
        token_weights: ``[B, T]``, −∂per_sequence/∂log_probs: how hard each token is pushed up. With
            a KL term this is the weight less `kl_coef`. 0 where the mask is False.
        log_ratio: ``[B]``, S(lp) − S(lq) before any clip; None without reference log-probs.
        clip_fraction: Scalar, share of the ratios that were clipped or capped: of sequences, for
            `a_lol_seq` of scored tokens; 0 where the loss has no ratio.
    """

    loss: Tensor
    per_sequence: Tensor
    weights: Tensor
    token_weights: Tensor
    log_ratio: Tensor | None
    clip_fraction: Tensor

    @property
    def mean_log_ratio(self) -> Tensor | None:
        """Return the mean of `log_ratio` over the batch, or None."""
        return None if self.log_ratio is None else self.log_ratio.mean()


class ScoredTokens(NamedTuple):
    """Checked log-probs in float32 or float64, filled with 0 where the mask is False.

    Args:
        log_probs: ``[B, T]``, with gradient.
        mask: ``[B, T]`` bool, at least one True a row.
        ref_log_probs: ``[B, T]``, without gradient; None without a reference.
    """

    log_probs: Tensor
    mask: Tensor
    ref_log_probs: Tensor | None

    @property
    def log_ratio(self) -> Tensor:
        """Return ``[B, T]`` lp − lq, without gradient; raises without a reference."""
        return self.log_probs.detach() - self.reference

    @property
    def reference(self) -> Tensor:
        """Return the reference's log-probs; raises if there are none."""
        if self.ref_log_probs is None:
            raise ValueError(
                "expected `ref_log_probs` of shape [B, T], got None: compute them once with the "
                "frozen reference"
            )
        return self.ref_log_probs


def scored_tokens(
    log_probs: Tensor, response_mask: Tensor, ref_log_probs: Tensor | None = None
) -> ScoredTokens:
    """Check the inputs that every option has, and fill what the mask leaves out."""
    check_rank("log_probs", log_probs, "[B, T]")
    check_mask("response_mask", response_mask, log_probs, "log_probs")
    empty = (~response_mask.any(-1)).nonzero().flatten().tolist()
    if empty or not len(log_probs):
        found = f"none in row(s) {', '.join(map(str, empty))}" if empty else "no row at all"
        raise ValueError(
            f"expected at least one scored token in every row of `response_mask`, got {found}: "
            "drop empty responses"
        )
    filled = full_precision(log_probs).masked_fill(~response_mask, 0)
    if ref_log_probs is None:
        return ScoredTokens(filled, response_mask, None)
    cure = "score the same responses with the reference"
    check_shape("ref_log_probs", ref_log_probs, log_probs.shape, "`log_probs`", cure)
    reference = ref_log_probs.detach().to(filled.dtype).masked_fill(~response_mask, 0)
    return ScoredTokens(filled, response_mask, reference)


def row_weights(name: str, values: Tensor, tokens: ScoredTokens) -> Tensor:
    """Return the ``[B]`` rewards or advantages, detached, in the log-probs' dtype."""
    check_per_row(name, values, len(tokens.log_probs), "log_probs")
    return values.detach().to(tokens.log_probs.dtype)


def log_ratio_bounds(clip_epsilon: float | None) -> tuple[float, float]:
    """Return ln(1 − ε) and ln(1 + ε), or ± the cap where `clip_epsilon` is None."""
    if clip_epsilon is None:
        return -MAX_LOG_RATIO, MAX_LOG_RATIO
    if not 0 <= clip_epsilon < 1:
        raise ValueError(
            f"expected `clip_epsilon` in [0, 1) or None, got {clip_epsilon}: 0 is a ratio of "
            "exactly 1, None no clip, and from 1 on the band would reach 0"
        )
    return math.log1p(-clip_epsilon), math.log1p(clip_epsilon)


def clipped_ratio(log_ratio: Tensor, *, clip_epsilon: float | None) -> Tensor:
    """Compute importance ratios from their logarithms, clamped before the exponential.

        exp(clamp(log_ratio, ln(1 − clip_epsilon), ln(1 + clip_epsilon)))

    Args:
        log_ratio: Any shape.
        clip_epsilon: In [0, 1); 0 gives exactly 1, None caps the logarithm at ± 20 instead, and
            warns when the cap is reached.

    Returns:
        Same shape, > 0, without gradient.

    Raises:
        ValueError: `clip_epsilon` is out of range.

    Example:
        >>> import torch
        >>> clipped_ratio(torch.tensor([0.0, 1000.0]), clip_epsilon=0.9)
        tensor([1.0000, 1.9000])

    References:
        A-LoL (arXiv 2305.14718): the importance weight is clipped to 1 ± ε.
    """
    low, high = log_ratio_bounds(clip_epsilon)
    if clip_epsilon is None and bool((log_ratio.abs() > MAX_LOG_RATIO).any()):
        warnings.warn(
            f"unclipped importance ratios were capped at exp(± {MAX_LOG_RATIO:g}): the policy is "
            "far from its reference; set `clip_epsilon` or lower the learning rate",
            RuntimeWarning,
            stacklevel=2,
        )
    return log_ratio.detach().clamp(low, high).exp()


def _is_clipped(log_ratio: Tensor, clip_epsilon: float | None) -> Tensor:
    """Return which ratios lie outside the band (without a clip: beyond the cap), as bool."""
    low, high = log_ratio_bounds(clip_epsilon)
    return (log_ratio < low) | (log_ratio > high)


def weighted_nll(
    tokens: ScoredTokens,
    weights: Tensor,
    *,
    kl_coef: float = 0.0,
    clip_fraction: Tensor | None = None,
) -> LolLoss:
    """Compute −S(weights · lp) + kl_coef · S(lp − lq) of each sequence, and its mean.

    Args:
        tokens: Log-probs and mask.
        weights: ``[B]`` or ``[B, T]``; detached here.
        kl_coef: β ≥ 0; above 0 needs the reference.
        clip_fraction: For the report.

    Returns:
        `LolLoss`: summed over tokens, averaged over sequences.
    """
    log_probs, mask, ref_log_probs = tokens
    per_token = weights.detach() if weights.dim() == 2 else weights.detach().unsqueeze(-1)
    token_weights = per_token.expand_as(log_probs).masked_fill(~mask, 0)
    per_sequence = -(token_weights * log_probs).sum(-1)
    if kl_coef > 0:
        per_sequence = per_sequence + kl_coef * (log_probs - tokens.reference).sum(-1)
        token_weights = (token_weights - kl_coef).masked_fill(~mask, 0)
    return LolLoss(
        loss=per_sequence.mean(),
        per_sequence=per_sequence,
        weights=token_weights.sum(-1) / mask.sum(-1),
        token_weights=token_weights,
        log_ratio=None if ref_log_probs is None else tokens.log_ratio.sum(-1),
        clip_fraction=log_probs.new_zeros(()) if clip_fraction is None else clip_fraction,
    )


def probability_weighted_nll(tokens: ScoredTokens, weights: Tensor, gold_floor: float) -> LolLoss:
    """Weight each token by its sequence's weight times its own detached probability."""
    if not 0 <= gold_floor <= 1:
        raise ValueError(f"expected `gold_floor` in [0, 1], got {gold_floor}: the release has 0.1")
    probs = tokens.log_probs.detach().exp().clamp(min=gold_floor)
    return weighted_nll(tokens, weights.unsqueeze(-1) * probs)


def token_ratio_weighted_nll(
    tokens: ScoredTokens, weights: Tensor, clip_epsilon: float | None
) -> LolLoss:
    """Weight each token by its sequence's weight times its own clipped importance ratio."""
    log_ratio = tokens.log_ratio
    clipped = _is_clipped(log_ratio, clip_epsilon).to(weights.dtype)
    ratio = clipped_ratio(log_ratio, clip_epsilon=clip_epsilon)
    return weighted_nll(
        tokens,
        weights.unsqueeze(-1) * ratio,
        clip_fraction=masked_mean(clipped, tokens.mask),
    )


def ratio_weighted_nll(
    tokens: ScoredTokens, weights: Tensor, clip_epsilon: float | None
) -> LolLoss:
    """Weight each sequence by `weights` times its clipped importance ratio."""
    log_ratio = tokens.log_ratio.sum(-1)
    clipped = _is_clipped(log_ratio, clip_epsilon).to(weights.dtype)
    ratio = clipped_ratio(log_ratio, clip_epsilon=clip_epsilon)
    return weighted_nll(tokens, weights * ratio, clip_fraction=clipped.mean())
