"""Intervals: bootstrap for means over prompts, episodes and seeds, Wilson's for shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # results are read, and intervals written, where nothing is computed
    from torch import Tensor


@dataclass(frozen=True)
class BootstrapConfig:
    """How intervals are computed.

    Args:
        samples: Resamples.
        confidence: Share of the resampled means inside the interval, in (0, 1).
        seed: Seed of the resampling.
    """

    samples: int = 2000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 < self.confidence < 1:
            raise ValueError(
                "expected at least 1 bootstrap sample and a confidence between 0 and 1, got "
                f"{self.samples} and {self.confidence}"
            )


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval.

    Args:
        mean: Mean of the values.
        std: Standard deviation of the values (n − 1); None for a single value.
        low: Lower end; None for a single value, whose spread is unknown.
        high: Upper end.
        n: Number of values.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    n: int

    def excludes(self, value: float) -> bool:
        """Return whether `value` lies outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def bootstrap_mean(values: Tensor, config: BootstrapConfig) -> Interval:
    """Return the mean of `values` with its percentile bootstrap interval.

    With several seeds, seeds and prompts are resampled independently and crossed: every seed
    answered the same prompts, so that a prompt's difficulty is shared by all seeds.

    Args:
        values: ``[N]`` one value a prompt, or ``[S, N]`` for S seeds on the same prompts; finite.
        config: Resamples, confidence and seed.

    Returns:
        The interval; `std` and `n` are over all values.

    Example:
        >>> import torch
        >>> bootstrap_mean(torch.tensor([1.0, 1.0, 1.0]), BootstrapConfig())
        Interval(mean=1.0, std=0.0, low=1.0, high=1.0, n=3)
    """
    import torch

    if values.dim() not in (1, 2) or not values.numel():
        raise ValueError(f"expected values of shape (N,) or (S, N), got {tuple(values.shape)}")
    table = values.to("cpu", torch.float64).reshape(-1, values.shape[-1])
    num_seeds, num_prompts = table.shape
    mean, count = float(table.mean()), table.numel()
    if not table.isfinite().all():
        raise ValueError("expected finite values, got NaN or infinity among them")
    if count == 1:
        return Interval(mean=mean, std=None, low=None, high=None, n=1)
    generator = torch.Generator().manual_seed(config.seed)
    means = []
    for start in range(0, config.samples, 100):  # bounds the memory of a large test set
        size = min(100, config.samples - start)
        prompts = torch.randint(num_prompts, (size, num_prompts), generator=generator)
        seeds = torch.randint(num_seeds, (size, num_seeds), generator=generator)
        shares = torch.zeros(size, num_seeds, dtype=torch.float64)
        shares.scatter_add_(1, seeds, torch.ones_like(seeds, dtype=torch.float64) / num_seeds)
        means.append(((shares @ table).gather(1, prompts)).mean(1))
    tail = (1 - config.confidence) / 2
    ends = torch.cat(means).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return Interval(
        mean=mean, std=float(table.std()), low=float(ends[0]), high=float(ends[1]), n=count
    )


def share(successes: Sequence[bool], confidence: float) -> Interval:
    """Return the share of successes with Wilson's score interval.

    A bootstrap of n equal outcomes has no width, however small n is; this one does.

    Args:
        successes: One entry a trial, at least one.
        confidence: In (0, 1).

    Returns:
        The interval; `std` is that of the outcomes (n − 1).

    Example:
        >>> share([True] * 10, 0.95).low > 0.7
        True
    """
    n = len(successes)
    if n < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"expected trials and a confidence between 0 and 1, got {n} and {confidence}"
        )
    mean = sum(map(bool, successes)) / n
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    center = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * ((mean * (1 - mean) + z * z / (4 * n)) / n) ** 0.5
    std = (mean * (1 - mean) * n / (n - 1)) ** 0.5 if n > 1 else None
    low, high = max(0.0, center - half), min(1.0, center + half)
    return Interval(mean=mean, std=std, low=min(low, mean), high=max(high, mean), n=n)


def bootstrap_statistic(
    rows: Tensor, statistic: Callable[[Tensor], Tensor], config: BootstrapConfig
) -> Interval:
    """Return a function of sums over prompts, with its percentile bootstrap interval.

    Args:
        rows: ``[N, K]`` what each prompt adds to the K sums.
        statistic: From ``[R, K]`` sums to ``[R]`` values; a resample where it is not defined (NaN)
            is left out.
        config: Resamples, confidence and seed.

    Returns:
        The interval; `mean` is the statistic of all prompts, `std` that of the resampled values.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
        >>> bootstrap_statistic(rows, lambda sums: sums[:, 0] / sums[:, 1], BootstrapConfig()).low
        1.0
    """
    import torch

    table = rows.to("cpu", torch.float64)
    if table.dim() != 2 or not len(table):
        raise ValueError(f"expected rows of shape (N, K) with N of at least 1, got {rows.shape}")
    value = float(statistic(table.sum(0, keepdim=True))[0])
    if len(table) == 1:
        return Interval(mean=value, std=None, low=None, high=None, n=1)
    generator = torch.Generator().manual_seed(config.seed)
    values = []
    for start in range(0, config.samples, 100):
        size = min(100, config.samples - start)
        drawn = torch.randint(len(table), (size, len(table)), generator=generator)
        counts = torch.zeros(size, len(table), dtype=torch.float64)
        counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
        values.append(statistic(counts @ table))
    found = torch.cat(values)
    found = found[found.isfinite()]
    if len(found) < 2:
        return Interval(mean=value, std=None, low=None, high=None, n=len(table))
    tail = (1 - config.confidence) / 2
    ends = found.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return Interval(
        mean=value,
        std=float(found.std()),
        low=float(ends[0]),
        high=float(ends[1]),
        n=len(table),
    )


def format_interval(interval: Interval, digits: int, *, signed: bool = False) -> str:
    """Write a mean with its interval."""
    sign = "+" if signed else ""
    mean = f"{interval.mean:{sign}.{digits}f}"
    if interval.low is None or interval.high is None:
        return f"{mean} [one value]"
    return f"{mean} [{interval.low:{sign}.{digits}f}, {interval.high:{sign}.{digits}f}]"
