"""Motif's intrinsic reward: normalize, cut below a threshold, divide by a count; and its mixing.

The order is part of the algorithm: the threshold is applied to the normalized reward, before the
count divides it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_rank, check_shape

QUANTILE_LEVELS = tuple(step / 20 for step in range(1, 20))
"""0.05, 0.10, …, 0.95: the levels at which thresholds are known."""

Observed = Literal["acting", "reached"]


class IntrinsicRewards(NamedTuple):
    """Motif's intrinsic reward and what it is made of.

    Args:
        rewards: Same shape as the raw rewards.
        normalized: z, before the threshold.
        is_above: Bool, True = z passed the threshold.
        decay: The factor that the count gives, in (0, 1].
    """

    rewards: Tensor
    normalized: Tensor
    is_above: Tensor
    decay: Tensor


class RunningStatistics(NamedTuple):
    """Mean, variance and number of what was seen so far.

    Args:
        mean: 0 before anything was seen.
        variance: 1 before anything was seen.
        weight: Number of values, 1e-4 before anything was seen.
    """

    mean: float = 0.0
    variance: float = 1.0
    weight: float = 1e-4


@dataclass(frozen=True)
class RewardStatistics:
    """What turns raw rewards of messages into normalized ones, and where thresholds lie.

    Args:
        mean: Mean of the raw rewards, each message as often as it occurs.
        variance: Their variance, above 0.
        quantiles: Of the *normalized* rewards at `QUANTILE_LEVELS`, each distinct message once.
    """

    mean: float
    variance: float
    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = (self.mean, self.variance, *self.quantiles)
        if len(self.quantiles) != len(QUANTILE_LEVELS) or not all(map(math.isfinite, numbers)):
            raise ValueError(
                f"expected {len(QUANTILE_LEVELS)} finite quantiles, a finite mean and variance, "
                f"got {self}"
            )
        if not self.variance > 0:
            raise ValueError(
                f"expected a variance above 0, got {self.variance}: the reward says the same of "
                "every message"
            )

    def threshold(self, level: float | None, *, rounded: bool) -> float:
        """Return the normalized reward that a message must exceed.

        Args:
            level: One of `QUANTILE_LEVELS`; None or 0 is no threshold.
            rounded: Round to two decimals, as Motif's release stores them.

        Returns:
            The quantile, or minus infinity for no threshold.

        Raises:
            ValueError: The level is none of these.
        """
        if level is None or level == 0:
            return -math.inf
        for known, quantile in zip(QUANTILE_LEVELS, self.quantiles, strict=True):
            if math.isclose(known, level, abs_tol=1e-9):
                return round(quantile, 2) if rounded else quantile
        raise ValueError(
            f"expected a quantile level of 0.05, 0.1, … 0.95, or None (or 0) for no threshold, "
            f"got {level}"
        )


def intrinsic_rewards(
    raw: Tensor,
    *,
    counts: Tensor,
    mean: float,
    variance: float,
    threshold: float,
    count_exponent: float,
) -> IntrinsicRewards:
    """Compute Motif's intrinsic reward of observations.

        z = (raw − mean) / √variance
        r = z · 1[z > threshold] / counts ^ count_exponent

    The comparison is strict, and the count includes the present occurrence. A negative threshold
    lets negative rewards through.

    Args:
        raw: Any shape, what the reward model says.
        counts: Same shape, integer, ≥ 1: how often the message has occurred in its episode so far.
        mean: Mean of the raw rewards over the training messages.
        variance: Their variance, above 0.
        threshold: In units of z; minus infinity cuts nothing.
        count_exponent: 3 in Motif; 0 counts nothing.

    Returns:
        `IntrinsicRewards`.

    Raises:
        ValueError: Shapes differ, a count is below 1, or the variance is not positive.

    Example:
        >>> intrinsic_rewards(
        ...     torch.tensor([4.0, 4.0, 1.0]), counts=torch.tensor([1, 2, 1]), mean=0.0,
        ...     variance=4.0, threshold=0.5, count_exponent=3.0
        ... ).rewards
        tensor([2.0000, 0.2500, 0.0000])

    References:
        Motif (arXiv 2310.00166), equation 2. Differs: the paper writes "at or above" the
        threshold, its release, which this follows, "above".
    """
    check_shape("counts", counts, raw.shape, "`raw`", "give one count for each reward")
    if not variance > 0:
        raise ValueError(f"expected `variance` above 0, got {variance}")
    normalized = (raw - mean) / math.sqrt(variance)
    is_above = normalized > threshold
    decay = count_decay(counts, exponent=count_exponent).to(normalized.dtype)
    kept = torch.where(is_above, normalized, 0.0)
    return IntrinsicRewards(kept * decay, normalized, is_above, decay)


def count_decay(counts: Tensor, *, exponent: float) -> Tensor:
    """Compute by what a message is worth less when it occurs again.

        counts ^ −exponent

    Args:
        counts: Any shape, ≥ 1; the present occurrence counts.
        exponent: ≥ 0.

    Returns:
        Same shape, float, in (0, 1].

    Raises:
        ValueError: A count is below 1, or the exponent is negative.

    Example:
        >>> count_decay(torch.tensor([1, 2, 10]), exponent=3.0)
        tensor([1.0000, 0.1250, 0.0010])
    """
    if counts.numel() and int(counts.min()) < 1:
        raise ValueError(
            f"expected `counts` of at least 1, got {int(counts.min())}: the present occurrence "
            "counts too"
        )
    if not exponent >= 0:
        raise ValueError(f"expected `exponent` of at least 0, got {exponent}")
    return counts.to(torch.get_default_dtype()).pow(-exponent)


def step_rewards(*, acting: Tensor, reached: Tensor, observed: Observed) -> Tensor:
    """Choose the observation that a step's intrinsic reward is of.

    ``reached`` is the observation that the action led to, the last of an episode included;
    ``acting`` the one that the action was chosen from, as in Motif's release: there the message at
    an episode's reset earns a reward, and the one at its end never does.

    Args:
        acting: ``[T, …]``, rewards of the observations that the actions were chosen from.
        reached: ``[T, …]``, rewards of the observations that followed, before any reset.
        observed: Which one.

    Returns:
        ``[T, …]``.

    Raises:
        ValueError: The shapes differ.

    Example:
        >>> rewards = torch.tensor([0.0, 0.0, 0.2, 0.5])
        >>> step_rewards(acting=rewards[:-1], reached=rewards[1:], observed="reached")
        tensor([0.0000, 0.2000, 0.5000])
    """
    check_shape("reached", reached, acting.shape, "`acting`", "give both for each step")
    return acting if observed == "acting" else reached


def mixed_rewards(
    *,
    extrinsic: Tensor,
    intrinsic: Tensor,
    extrinsic_coef: float,
    intrinsic_coef: float,
    scale: float,
    clip: float,
) -> Tensor:
    """Add the world's reward and the intrinsic one, as the agent learns from them.

        extrinsic_coef · clamp(scale · extrinsic, ±clip) + intrinsic_coef · intrinsic

    Scale and clip never touch the intrinsic part.

    Args:
        extrinsic: Any shape, the world's own reward.
        intrinsic: Same shape.
        extrinsic_coef: Motif: 0.1 for the score, 10 for other tasks, 0 for intrinsic only.
        intrinsic_coef: Motif: 0.1.
        scale: Motif: 0.1.
        clip: Motif: 10; above 0.

    Returns:
        Same shape.

    Raises:
        ValueError: The shapes differ, or `clip` is not positive.

    Example:
        >>> mixed_rewards(
        ...     extrinsic=torch.tensor([50.0]), intrinsic=torch.tensor([1.0]), extrinsic_coef=10.0,
        ...     intrinsic_coef=0.5, scale=0.1, clip=10.0
        ... )
        tensor([50.5000])
    """
    check_shape("intrinsic", intrinsic, extrinsic.shape, "`extrinsic`", "give both for each step")
    if not clip > 0:
        raise ValueError(f"expected `clip` above 0, got {clip}")
    return extrinsic_coef * (scale * extrinsic).clamp(-clip, clip) + intrinsic_coef * intrinsic


def weighted_statistics(values: Tensor, *, counts: Tensor) -> tuple[float, float]:
    """Compute mean and unbiased variance of values that occur several times.

        mean = Σ counts · values / Σ counts
        variance = Σ counts · (values − mean)² / (Σ counts − 1)

    Args:
        values: ``[M]`` distinct values.
        counts: ``[M]`` integer, ≥ 0: how often each occurs; at least 2 together.

    Returns:
        Mean and variance, computed in float64.

    Raises:
        ValueError: Shapes differ, or there are fewer than two occurrences.

    Example:
        >>> weighted_statistics(torch.tensor([0.0, 4.0]), counts=torch.tensor([3, 1]))
        (1.0, 4.0)
    """
    check_rank("values", values, "[M]")
    check_shape("counts", counts, values.shape, "`values`", "give one count for each value")
    weights = counts.double()
    total = float(weights.sum())
    if total < 2 or float(weights.min()) < 0:
        raise ValueError(f"expected counts from 0 with a sum of at least 2, got {total}")
    wide = values.detach().double()
    mean = float((weights * wide).sum() / total)
    return mean, float((weights * (wide - mean).square()).sum() / (total - 1))


def merge_statistics(seen: RunningStatistics, values: Tensor) -> RunningStatistics:
    """Add a batch to running statistics, as Motif's release does.

        d = b − m,  t = c + n
        m' = m + d·n/t,   v' = (v·c + u·n + d²·c·n/t) / t,   c' = t

    with b and u the batch's mean and *unbiased* variance: v is neither the population's variance
    nor the unbiased one, though near both for many values.

    Args:
        seen: ``RunningStatistics()`` before the first batch.
        values: ``[N]``, N ≥ 2.

    Returns:
        The statistics with the batch in them.

    Raises:
        ValueError: `values` is not ``[N]`` with N ≥ 2.

    Example:
        >>> merge_statistics(RunningStatistics(), torch.tensor([1.0, 3.0])).mean > 1.9999
        True
    """
    check_rank("values", values, "[N]")
    if len(values) < 2:
        raise ValueError(f"expected at least 2 values in a batch, got {len(values)}")
    wide = values.detach().double()
    mean, variance, n = float(wide.mean()), float(wide.var()), len(wide)
    total = seen.weight + n
    difference = mean - seen.mean
    merged = (
        seen.variance * seen.weight + variance * n + difference**2 * seen.weight * n / total
    ) / total
    return RunningStatistics(seen.mean + difference * n / total, merged, total)


def reward_statistics(raw: Tensor, *, mean: float, variance: float) -> RewardStatistics:
    """Return the statistics of a reward with the quantiles of what it says.

    Args:
        raw: ``[M]`` raw rewards of the *distinct* messages: each has weight one in the quantiles.
        mean: Of the raw rewards by frequency, see `weighted_statistics`.
        variance: Likewise.

    Returns:
        `RewardStatistics`; quantiles are interpolated linearly, in full precision.

    Raises:
        ValueError: `raw` is not ``[M]`` with M ≥ 1, or a number is out of range.

    Example:
        >>> reward_statistics(torch.arange(21.0), mean=0.0, variance=1.0).quantiles[9]
        10.0
    """
    check_rank("raw", raw, "[M]")
    if not len(raw) or not variance > 0:
        raise ValueError(f"expected rewards and a variance above 0, got {len(raw)} and {variance}")
    normalized = ((raw.detach().double() - mean) / math.sqrt(variance)).sort().values
    places = torch.tensor(QUANTILE_LEVELS, dtype=torch.float64) * (len(normalized) - 1)
    below = places.floor().long().clamp(max=max(len(normalized) - 2, 0))
    above = (below + 1).clamp(max=len(normalized) - 1)
    found = torch.lerp(normalized[below], normalized[above], places - below)
    return RewardStatistics(mean, variance, tuple(found.tolist()))
