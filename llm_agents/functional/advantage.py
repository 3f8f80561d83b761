"""What a response earns beyond its prompt's value, and which responses are drawn for it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_mask, check_per_row, check_rank

SamplingStrategy = Literal["uniform", "good_priority", "good_random", "all_priority"]
SamplingCriterion = Literal["advantage", "reward"]

SAMPLING_STRATEGIES: tuple[SamplingStrategy, ...] = get_args(SamplingStrategy)


class AdvantageStatistics(NamedTuple):
    """Summary of a training set's advantages.

    Args:
        num_advantages: How many there are.
        share_kept: Share that is positive: what is left to train on.
        mean: Mean.
        median: Median, halfway between the two middle ones if their number is even.
        std: Standard deviation, divided by the count.
        low: Minimum.
        high: Maximum.
        deciles: 11 numbers: the minimum, the 10 % … 90 % quantiles, the maximum.
    """

    num_advantages: int
    share_kept: float
    mean: float
    median: float
    std: float
    low: float
    high: float
    deciles: tuple[float, ...]


def advantages(rewards: Tensor, values: Tensor) -> Tensor:
    """Compute the advantage of each response over what the reference gets for its prompt.

        advantages = rewards − values

    Args:
        rewards: ``[B]``, of the stored responses.
        values: ``[B]``, of their prompts under the reference policy.

    Returns:
        ``[B]``, without gradient.

    Raises:
        ValueError: The shapes differ.

    Example:
        >>> advantages(torch.tensor([1.0, 0.25]), torch.tensor([0.5, 0.5]))
        tensor([ 0.5000, -0.2500])

    References:
        A-LoL (arXiv 2305.14718), R − V.
    """
    check_rank("rewards", rewards, "[B]")
    check_per_row("values", values, len(rewards), "rewards")
    return (rewards - values).detach()


def leftover_advantages(rewards: Tensor, values: Tensor) -> Tensor:
    """Compute the advantages with the negative ones at 0: their responses teach nothing.

        A⁺ = max(rewards − values, 0)

    Args:
        rewards: ``[B]``, of the stored responses.
        values: ``[B]``, of their prompts under the reference policy.

    Returns:
        ``[B]``, ≥ 0, without gradient; NaN stays NaN.

    Raises:
        ValueError: The shapes differ.

    Example:
        >>> leftover_advantages(torch.tensor([1.0, 0.25]), torch.tensor([0.5, 0.5]))
        tensor([0.5000, 0.0000])

    References:
        A-LoL (arXiv 2305.14718). Differs from the release, which leaves them negative in
        `a_lol_ref_free` on HHA when rows are drawn uniformly.
    """
    return advantages(rewards, values).clamp(min=0)


def positive_share(advantages: Tensor) -> float:
    """Compute the share of the advantages that is positive.

        |{advantages > 0}| / N

    Args:
        advantages: ``[N]`` with N ≥ 1, no NaN.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: There are none, or NaN is among them.

    Example:
        >>> positive_share(torch.tensor([0.3, 0.3, 0.05, -0.25]))
        0.75
    """
    _check_known("advantages", advantages)
    return int((advantages > 0).sum()) / len(advantages)


def advantage_statistics(advantages: Tensor) -> AdvantageStatistics:
    """Summarize the advantages of a training set.

    Args:
        advantages: ``[N]`` with N ≥ 1, no NaN.

    Returns:
        Share kept, mean, median, spread, and deciles by linear interpolation.

    Raises:
        ValueError: There are none, or NaN is among them.

    Example:
        >>> advantage_statistics(torch.tensor([-1.0, 0.0, 1.0])).deciles[::5]
        (-1.0, 0.0, 1.0)
    """
    share = positive_share(advantages)
    ordered = advantages.detach().double().cpu().sort().values
    # `torch.quantile` refuses more than 16 million values
    place = torch.linspace(0, 1, 11, dtype=torch.float64) * (len(ordered) - 1)
    below = place.long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    deciles = ordered[below].lerp(ordered[above], place - below).tolist()
    return AdvantageStatistics(
        num_advantages=len(ordered),
        share_kept=share,
        mean=float(ordered.mean()),
        median=deciles[5],
        std=float(ordered.std(correction=0)),
        low=deciles[0],
        high=deciles[-1],
        deciles=tuple(deciles),
    )


def sampling_weights(
    strategy: SamplingStrategy,
    *,
    advantages: Tensor | None,
    rewards: Tensor,
    preferred: Tensor,
    by: SamplingCriterion,
) -> Tensor:
    """Compute how often each training response is to be drawn, in proportion.

        uniform        1 for preferred responses
        good_priority  max(advantages, 0) or rewards, for preferred responses
        good_random    1 for preferred responses with a positive advantage
        all_priority   max(advantages, 0) for all responses, each with its *own* advantage

    Drawing *and* weighting by advantage is an objective weighted by its square, as released.

    Args:
        strategy: As above.
        advantages: ``[N]``, of all responses; may be None where only rewards are used.
        rewards: ``[N]``, of all responses.
        preferred: ``[N]`` bool, True = the data call it good.
        by: ``"advantage"`` for the A-LoL family, ``"reward"`` for `wbc`, `r_gold` and `r_lol`,
            which know `uniform` and `good_priority` only.

    Returns:
        ``[N]`` float64, ≥ 0, not normalized; 0 for everything that is never drawn.

    Raises:
        TypeError: `preferred` is not boolean.
        ValueError: Shapes differ, the strategy doesn't exist for this criterion, a needed weight is
            NaN or negative, or nothing is left to draw.

    Example:
        >>> sampling_weights(
        ...     "good_priority", advantages=torch.tensor([0.5, -1.0, 2.0]), rewards=torch.ones(3),
        ...     preferred=torch.tensor([True, True, False]), by="advantage"
        ... )
        tensor([0.5000, 0.0000, 0.0000], dtype=torch.float64)

    References:
        A-LoL as released. Differs: it gives the rejected responses of `all_priority` the reward of
        the good ones.
    """
    _check_strategy(strategy, by)
    check_rank("rewards", rewards, "[N]")
    check_mask("preferred", preferred, rewards, "rewards")
    allowed = torch.ones_like(preferred) if strategy == "all_priority" else preferred
    if strategy == "uniform":
        weights = torch.ones_like(rewards, dtype=torch.float64)
    elif by == "reward":
        weights = _reward_weights(rewards, allowed)
    else:
        weights = _advantage_weights(advantages, rewards, allowed)
        if strategy == "good_random":
            weights = (weights > 0).double()
    weights = weights.masked_fill(~allowed, 0)
    if not bool((weights > 0).any()):
        raise ValueError(_nothing_left(strategy, by, int(allowed.sum()), len(rewards)))
    return weights


def _check_strategy(strategy: str, by: str) -> None:
    """Raise unless the release has this strategy for this criterion."""
    if strategy not in SAMPLING_STRATEGIES:
        raise ValueError(
            f"expected `strategy` to be one of {', '.join(SAMPLING_STRATEGIES)}, got {strategy!r}"
        )
    if by not in get_args(SamplingCriterion):
        raise ValueError(f"expected `by` to be advantage or reward, got {by!r}")
    if by == "reward" and strategy in ("good_random", "all_priority"):
        raise ValueError(
            f"expected `strategy` uniform or good_priority where responses are drawn by reward, "
            f"got {strategy!r}: it needs advantages, so choose an a_lol algorithm"
        )


def _advantage_weights(advantages: Tensor | None, rewards: Tensor, allowed: Tensor) -> Tensor:
    """Return max(A, 0), after checking the allowed rows."""
    if advantages is None:
        raise ValueError("expected `advantages` to draw by them, got None: compute them first")
    check_per_row("advantages", advantages, len(rewards), "rewards")
    _check_not_nan("advantages", advantages[allowed])
    return advantages.detach().double().clamp(min=0)


def _reward_weights(rewards: Tensor, allowed: Tensor) -> Tensor:
    """Return the rewards, after checking the allowed rows."""
    _check_not_nan("rewards", rewards[allowed])
    negative = int((rewards[allowed] < 0).sum())
    if negative:
        raise ValueError(
            f"expected `rewards` of at least 0 to draw by them, got {negative} negative: "
            "apply the sigmoid to raw scores"
        )
    return rewards.detach().double()


def _nothing_left(strategy: str, by: str, allowed: int, total: int) -> str:
    """Say why no response can be drawn."""
    if not allowed:
        return (
            f"expected at least one preferred response for {strategy}, got none among {total}: "
            "mark them, or choose all_priority"
        )
    return (
        f"expected at least one response with a positive {by}, got none among {allowed}: the "
        "reference already does better than the data, or rewards and values are on two scales"
    )


def _check_known(name: str, values: Tensor) -> None:
    """Raise unless `values` is ``[N]`` with N ≥ 1 and without NaN."""
    check_rank(name, values, "[N]")
    if not len(values):
        raise ValueError(f"expected at least one of `{name}`, got none")
    _check_not_nan(name, values)


def _check_not_nan(name: str, values: Tensor) -> None:
    """Raise if NaN is among `values`."""
    missing = int(values.isnan().sum())
    if missing:
        raise ValueError(
            f"expected numbers in `{name}`, got NaN for {missing} of {len(values)}: "
            "score these responses or drop them"
        )
