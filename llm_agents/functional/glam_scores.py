"""How GLAM's releases scored actions: two historical rules beside the sum of log-probs.

From February to May 2023 the policy was a softmax over the actions' probabilities; afterwards it
was one over sums of raw logits, in which each position of padding counted 1. The sum of log-probs,
which the paper's successors use and this package by default, is `normalize_scores`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llm_agents.functional.action_scores import list_log_probs
from llm_agents.functional.shapes import check_mask, check_rank, full_precision

_LEAST_PROBABILITY = 1e-45
"""Below it float32 has no number: the release then drew uniformly."""


def probability_policy(action_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Compute the policy of GLAM's first release: a softmax over probabilities.

        π(a) = softmax_a(P(a) / max_b P(b)),   P(a) = exp(log_probs[a])

    Of A actions none is ever more probable than e / (e + A − 1), 0.352 of six, so that the policy
    can't become decisive. Where even the most probable action is below 1e-45, or is no number, it
    is uniform.

    Args:
        action_log_probs: ``[B, A]``, log-probs that the model would say each action.
        mask: ``[B, A]`` bool, True = offered; at least one a row.

    Returns:
        ``[B, A]`` log-probs; −∞ where nothing is offered.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: The shapes differ, or a row offers nothing.

    Example:
        >>> import torch
        >>> sure = torch.tensor([[0.0, -99.0, -99.0, -99.0, -99.0, -99.0]])
        >>> probability_policy(sure, torch.ones(1, 6, dtype=torch.bool)).exp()[0, 0]
        tensor(0.3522)

    References:
        GLAM (arXiv 2302.02662), as first released.
    """
    check_rank("action_log_probs", action_log_probs, "[B, A]")
    check_mask("mask", mask, action_log_probs, "action_log_probs")
    log_probs = full_precision(action_log_probs).masked_fill(~mask, -torch.inf)
    peak = log_probs.amax(-1, keepdim=True)
    is_lost = ~(peak >= math.log(_LEAST_PROBABILITY))  # no number counts as lost too
    shares = (log_probs - peak.masked_fill(is_lost, 0)).exp().masked_fill(is_lost, 1)
    return list_log_probs(shares, mask)


def logit_scores(
    token_logits: Tensor, token_mask: Tensor, *, pad_value: float, group: int | None
) -> Tensor:
    """Compute the scores of GLAM's second release: sums of raw logits.

        score[a] = Σ_j logits[a, j] + pad_value · pads[a]

    The release cut its pairs of prompt and action into minibatches, and a shorter action was padded
    to the longest of its minibatch: `pads` counts that, over groups of actions as they are listed.
    With 3 actions a group and lists of 3, 6 or 9, this is what the release computed.

    Args:
        token_logits: ``[B, A, L]``.
        token_mask: ``[B, A, L]`` bool, True = token; right-padded.
        pad_value: What a padded position counts: 1 as released, 0 without the fault.
        group: Actions that were padded together; None is the whole list.

    Returns:
        ``[B, A]`` scores; −∞ where there is no action.

    Raises:
        TypeError: `token_mask` is not boolean.
        ValueError: The shapes differ, or `group` is below 1.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[-1.0, -1.0], [-1.5, 0.0]]])
        >>> mask = torch.tensor([[[True, True], [True, False]]])
        >>> logit_scores(logits, mask, pad_value=1.0, group=None).softmax(-1)
        tensor([[0.1824, 0.8176]])

    References:
        GLAM (arXiv 2302.02662), as released since May 2023, with its published checkpoints.
    """
    check_rank("token_logits", token_logits, "[B, A, L]")
    check_mask("token_mask", token_mask, token_logits, "token_logits")
    if group is not None and group < 1:
        raise ValueError(f"expected `group` of at least 1, or None, got {group}")
    sums = full_precision(token_logits).masked_fill(~token_mask, 0).sum(-1)
    lengths = token_mask.sum(-1)
    count = lengths.shape[1]
    parts = torch.split(lengths, group or count, dim=1)
    longest = [part.amax(1, keepdim=True).expand_as(part) for part in parts]
    pads = torch.cat(longest, 1) - lengths
    return (sums + pad_value * pads).masked_fill(lengths == 0, -torch.inf)
