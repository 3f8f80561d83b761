"""Losses on preferred and rejected responses: Bradley–Terry with ties, DPO, PRO; regression."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from llm_agents.functional.shapes import check_per_row, check_rank, check_shape

_PRO_FLOOR = 1e-10  # PRO's code adds it inside the logarithm


class DpoLoss(NamedTuple):
    """DPO's loss and its implicit rewards; only the first two carry gradients.

    Args:
        loss: Scalar, mean over the pairs.
        per_pair: ``[B]``.
        chosen_rewards: ``[B]``, beta · (chosen − ref_chosen).
        rejected_rewards: ``[B]``, likewise.
        accuracy: Scalar, share of the pairs whose chosen response has the larger implicit reward.
    """

    loss: Tensor
    per_pair: Tensor
    chosen_rewards: Tensor
    rejected_rewards: Tensor
    accuracy: Tensor

    @property
    def margin(self) -> Tensor:
        """Return the mean of chosen less rejected implicit rewards."""
        return (self.chosen_rewards - self.rejected_rewards).mean()


class ProLoss(NamedTuple):
    """PRO's loss and its parts; the last carries no gradient.

    Args:
        loss: Scalar, rank_loss + sft_loss.
        rank_loss: Scalar, sum of `rank_terms`.
        sft_loss: Scalar, weighted negative log-likelihood of the one response to imitate.
        rank_terms: ``[K − 1]``, each a mean over the batch.
        accuracy: Scalar, share of the prompts whose first response has the largest mean log-prob.
    """

    loss: Tensor
    rank_loss: Tensor
    sft_loss: Tensor
    rank_terms: Tensor
    accuracy: Tensor


class PreferenceLoss(NamedTuple):
    """A Bradley–Terry loss; the last carries no gradient.

    Args:
        loss: Scalar, mean over the pairs.
        per_pair: ``[B]``.
        accuracy: Scalar: a pair counts 1 where scores and label agree on the better one, 0 where
            they don't, and ½ where scores or labels tie.
    """

    loss: Tensor
    per_pair: Tensor
    accuracy: Tensor


class RegressionLoss(NamedTuple):
    """A squared error.

    Args:
        loss: Scalar, mean over the rows.
        per_row: ``[B]``.
    """

    loss: Tensor
    per_row: Tensor


class TiedPreferenceLoss(NamedTuple):
    """A Bradley–Terry loss over pairs of which some tie; the counts carry no gradient.

    Args:
        loss: Scalar, mean over all pairs, ties among them.
        per_pair: ``[B]``.
        num_right: Scalar int64, pairs without a tie that the rewards order as the label does.
        num_decided: Scalar int64, pairs without a tie.
    """

    loss: Tensor
    per_pair: Tensor
    num_right: Tensor
    num_decided: Tensor

    @property
    def accuracy(self) -> float | None:
        """Return the share of the pairs without a tie that are right; None if all are ties."""
        decided = int(self.num_decided)
        return int(self.num_right) / decided if decided else None


def dpo_loss(
    *,
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor | None,
    ref_rejected: Tensor | None,
    beta: float,
    reference_free: bool,
) -> DpoLoss:
    """Compute direct preference optimization from the log-probs of whole responses.

        −ln σ(beta · [(chosen − rejected) − (ref_chosen − ref_rejected)])

    Args:
        chosen: ``[B]``, summed log-probs of the preferred responses.
        rejected: ``[B]``, of the others.
        ref_chosen: ``[B]``, under the frozen reference; not read when `reference_free`.
        ref_rejected: ``[B]``, likewise.
        beta: Temperature, > 0.
        reference_free: Take the reference's log-probs to be 0, in the implicit rewards as well.

    Returns:
        `DpoLoss`: averaged over pairs; log 2 where policy and reference agree.

    Raises:
        ValueError: Shapes differ, `beta` is not positive, or the reference is missing.

    Example:
        >>> dpo_loss(
        ...     chosen=torch.tensor([-10.0]), rejected=torch.tensor([-11.0]), ref_chosen=None,
        ...     ref_rejected=None, beta=0.1, reference_free=True
        ... ).loss
        tensor(0.6444)

    References:
        DPO (arXiv 2305.18290), equation 7.
    """
    check_rank("chosen", chosen, "[B]")
    check_per_row("rejected", rejected, len(chosen), "chosen")
    if not beta > 0:
        raise ValueError(f"expected `beta` above 0, got {beta}: A-LoL's comparison has 0.1")
    if reference_free:
        ref_chosen = ref_rejected = torch.zeros_like(chosen)
    if ref_chosen is None or ref_rejected is None:
        raise ValueError(
            "expected `ref_chosen` and `ref_rejected`, got None: score both responses with the "
            "frozen reference, or set reference_free"
        )
    check_per_row("ref_chosen", ref_chosen, len(chosen), "chosen")
    check_per_row("ref_rejected", ref_rejected, len(chosen), "chosen")
    per_pair = -logsigmoid(beta * ((chosen - rejected) - (ref_chosen - ref_rejected).detach()))
    chosen_rewards = beta * (chosen - ref_chosen).detach()
    rejected_rewards = beta * (rejected - ref_rejected).detach()
    return DpoLoss(
        loss=per_pair.mean(),
        per_pair=per_pair,
        chosen_rewards=chosen_rewards,
        rejected_rewards=rejected_rewards,
        accuracy=(chosen_rewards > rejected_rewards).to(per_pair.dtype).mean(),
    )


def pro_loss(
    *,
    sequence_log_probs: Tensor,
    lengths: Tensor,
    rewards: Tensor,
    sft_index: int,
    sft_weight: float,
) -> ProLoss:
    """Compute preference ranking optimization over K responses a prompt, best first.

        s_k  = sequence_log_probs_k / lengths_k
        T_kj = rewards_k − rewards_j,   T_k = max_{j>k} T_kj
        rank = Σ_{k<K−1} mean_b [ln(1e-10 + exp(s_k T_k) + Σ_{j>k} exp(s_j T_kj)) − s_k T_k]
        sft  = sft_weight · (K − 1)² · mean_b(−sequence_log_probs of response sft_index)
        loss = rank + sft

    The order is the file's. Where the rewards disagree with it, T_k is negative; it is not bounded.

    Args:
        sequence_log_probs: ``[B, K]`` with K ≥ 2, summed over the scored tokens.
        lengths: ``[B, K]``, number of scored tokens, ≥ 1.
        rewards: ``[B, K]``, raw scores, without a sigmoid.
        sft_index: The response to imitate, in [0, K).
        sft_weight: PRO's code has 0.05.

    Returns:
        `ProLoss`: averaged over prompts, summed over ranks.

    Raises:
        ValueError: Shapes differ, K is 1, a length is 0, or `sft_index` is out of range.

    Example:
        >>> pro_loss(
        ...     sequence_log_probs=torch.tensor([[-4.0, -4.0]]), lengths=torch.tensor([[2, 2]]),
        ...     rewards=torch.tensor([[1.0, 0.0]]), sft_index=0, sft_weight=0.0
        ... ).loss
        tensor(0.6931)

    References:
        PRO (arXiv 2306.17492), as released and as in A-LoL's comparison.
    """
    _check_ranked(sequence_log_probs, lengths, rewards, sft_index)
    num_responses = sequence_log_probs.shape[1]
    scores = sequence_log_probs / lengths
    fixed = rewards.detach().to(scores.dtype)
    rank_terms = torch.stack(
        [_rank_term(scores[:, k:], fixed[:, k:]) for k in range(num_responses - 1)]
    )
    imitated = -sequence_log_probs[:, sft_index].mean()
    sft_loss = sft_weight * (num_responses - 1) ** 2 * imitated
    first_is_best = (scores[:, :1] > scores[:, 1:]).all(1)
    return ProLoss(
        loss=rank_terms.sum() + sft_loss,
        rank_loss=rank_terms.sum(),
        sft_loss=sft_loss,
        rank_terms=rank_terms,
        accuracy=first_is_best.to(scores.dtype).mean(),
    )


def bradley_terry_loss(
    *, first_scores: Tensor, second_scores: Tensor, labels: Tensor
) -> PreferenceLoss:
    """Compute the cross-entropy of a Bradley–Terry model with soft labels.

        −labels · ln σ(d) − (1 − labels) · ln σ(−d),   d = first_scores − second_scores

    Args:
        first_scores: ``[B]``, reward of the first of each pair.
        second_scores: ``[B]``, of the second.
        labels: ``[B]`` in [0, 1], probability that the first is better: ½ is a tie.

    Returns:
        `PreferenceLoss`: averaged over pairs.

    Raises:
        ValueError: Shapes differ, or a label is outside [0, 1].

    Example:
        >>> bradley_terry_loss(
        ...     first_scores=torch.tensor([2.0]), second_scores=torch.tensor([2.0]),
        ...     labels=torch.tensor([0.5])
        ... ).loss
        tensor(0.6931)

    References:
        Bradley and Terry 1952; ties as in Motif (arXiv 2310.00166), equation 1.
    """
    check_rank("first_scores", first_scores, "[B]")
    check_per_row("second_scores", second_scores, len(first_scores), "first_scores")
    check_per_row("labels", labels, len(first_scores), "first_scores")
    if not bool(((labels >= 0) & (labels <= 1)).all()):
        raise ValueError(
            f"expected `labels` in [0, 1], got {float(labels.min())} to {float(labels.max())}: "
            "give the probability that the first response is better"
        )
    target = labels.detach().to(first_scores.dtype)
    logits = first_scores - second_scores
    per_pair = -target * logsigmoid(logits) - (1 - target) * logsigmoid(-logits)
    agreement = (logits.detach().sign() * (2 * target - 1).sign() + 1) / 2
    return PreferenceLoss(loss=per_pair.mean(), per_pair=per_pair, accuracy=agreement.mean())


def tied_preference_loss(*, rewards: Tensor, preferences: Tensor) -> TiedPreferenceLoss:
    """Compute Motif's loss: cross-entropy of pairs, where a tie is half a win for each side.

        −(1 − l) · ln softmax(rewards)₀ − l · ln softmax(rewards)₁,   l = 0, 1, ½

    A pair counts as right where the better side's reward is the larger one; equal rewards predict
    the first.

    Args:
        rewards: ``[B, 2]``, raw rewards of both sides.
        preferences: ``[B]`` integer: 0 the first is better, 1 the second, 2 a tie. Unknown (3) is
            not a tie: leave such pairs out.

    Returns:
        `TiedPreferenceLoss`: averaged over pairs.

    Raises:
        ValueError: Shapes differ, or a preference is none of 0, 1, 2.

    Example:
        >>> tied_preference_loss(
        ...     rewards=torch.tensor([[1.0, 3.0], [2.0, 2.0]]), preferences=torch.tensor([1, 2])
        ... ).loss
        tensor(0.4100)

    References:
        Motif (arXiv 2310.00166), equation 1, and its release for ties.
    """
    check_rank("rewards", rewards, "[B, 2]")
    check_shape("rewards", rewards, torch.Size([len(rewards), 2]), "pairs", "give both sides")
    check_per_row("preferences", preferences, len(rewards), "rewards")
    if bool(((preferences < 0) | (preferences > 2)).any()):
        raise ValueError(
            f"expected `preferences` of 0 (first), 1 (second) or 2 (tie), got "
            f"{int(preferences.min())} to {int(preferences.max())}: leave unknown pairs (3) out"
        )
    first_wins = torch.where(preferences == 2, 0.5, (preferences == 0).to(rewards.dtype))
    found = bradley_terry_loss(
        first_scores=rewards[:, 0], second_scores=rewards[:, 1], labels=first_wins
    )
    decided = preferences != 2
    right = decided & ((rewards[:, 1] > rewards[:, 0]).long() == preferences)
    return TiedPreferenceLoss(found.loss, found.per_pair, right.sum(), decided.sum())


def regression_loss(*, predictions: Tensor, targets: Tensor) -> RegressionLoss:
    """Compute the squared error of predicted rewards or values.

        (predictions − targets)²

    Args:
        predictions: ``[B]``.
        targets: ``[B]``; detached.

    Returns:
        `RegressionLoss`: averaged over rows.

    Raises:
        ValueError: The shapes differ.

    Example:
        >>> regression_loss(predictions=torch.tensor([1.0]), targets=torch.tensor([3.0])).loss
        tensor(4.)
    """
    check_rank("predictions", predictions, "[B]")
    check_per_row("targets", targets, len(predictions), "predictions")
    per_row = (predictions - targets.detach()).square()
    return RegressionLoss(loss=per_row.mean(), per_row=per_row)


def _rank_term(scores: Tensor, rewards: Tensor) -> Tensor:
    """Return how far the first of the remaining responses is from standing out; a mean over B."""
    temperatures = rewards[:, :1] - rewards[:, 1:]
    own = scores[:, :1] * temperatures.amax(1, keepdim=True)
    others = scores[:, 1:] * temperatures
    floor = torch.full_like(own, math.log(_PRO_FLOOR))
    pool = torch.cat((floor, own, others), dim=1).logsumexp(1)
    return (pool - own.squeeze(1)).mean()


def _check_ranked(
    sequence_log_probs: Tensor, lengths: Tensor, rewards: Tensor, sft_index: int
) -> None:
    """Check what PRO is given."""
    check_rank("sequence_log_probs", sequence_log_probs, "[B, K]")
    shape, like = sequence_log_probs.shape, "`sequence_log_probs`"
    check_shape("lengths", lengths, shape, like, "count the scored tokens of each response")
    check_shape("rewards", rewards, shape, like, "give one reward for each response")
    if shape[1] < 2:
        raise ValueError(f"expected at least 2 responses a prompt, got {shape[1]}: PRO ranks them")
    if bool((lengths < 1).any()):
        raise ValueError("expected `lengths` of at least 1, got 0: drop empty responses")
    if not 0 <= sft_index < shape[1]:
        raise ValueError(f"expected `sft_index` in [0, {shape[1]}), got {sft_index}")
