"""Statistics of results: diversity of a corpus, bootstrap intervals of a mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class BootstrapInterval(NamedTuple):
    """A mean and its interval.

    Args:
        mean: Mean of the values.
        low: Lower end.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


def distinct_n(texts: Iterable[str], n: int) -> float:
    """Compute the share of a corpus's n-grams that are different from each other.

        |{n-grams}| / Σ n-grams,   words lower-cased and split at blanks

    Args:
        texts: The corpus. Texts of fewer than n words contribute nothing.
        n: Words in an n-gram, at least 1.

    Returns:
        A number in (0, 1], or 0 for a corpus without any n-gram.

    Raises:
        ValueError: `n` is less than 1.

    Example:
        >>> distinct_n(["I like blue", "I like the Blue sky", "i like blue"], 3)
        0.8

    References:
        Li et al. (arXiv 1510.03055), over the corpus as in A-LoL's release.
    """
    if n < 1:
        raise ValueError(f"expected `n` of at least 1, got {n}")
    seen: set[tuple[str, ...]] = set()
    total = 0
    for text in texts:
        words = text.lower().split()
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        seen.update(grams)
        total += len(grams)
    return len(seen) / total if total else 0.0


def bootstrap_interval(
    values: Tensor, *, num_resamples: int, confidence: float, generator: torch.Generator
) -> BootstrapInterval:
    """Compute the percentile bootstrap interval of a mean.

    The values are drawn anew, as many as there are, with replacement; the interval holds the
    middle `confidence` of the means of `num_resamples` such draws. For the difference of two
    systems on the same prompts, pass the differences.

    Args:
        values: ``[N]`` with N ≥ 1, finite.
        num_resamples: At least 1.
        confidence: In (0, 1).
        generator: Source of the draws, on the CPU.

    Returns:
        Mean and both ends; with one value all three are equal.

    Raises:
        ValueError: There is no value, one is not finite, or an option is out of range.

    Example:
        >>> bootstrap_interval(
        ...     torch.tensor([2.0, 2.0]), num_resamples=100, confidence=0.95,
        ...     generator=torch.Generator().manual_seed(0)
        ... )
        BootstrapInterval(mean=2.0, low=2.0, high=2.0)

    References:
        Efron 1979.
    """
    if values.dim() != 1 or not len(values):
        raise ValueError(f"expected `values` of shape [N] with N ≥ 1, got {tuple(values.shape)}")
    if not bool(values.isfinite().all()):
        raise ValueError("expected finite `values`, got NaN or infinity: drop or repair these rows")
    if num_resamples < 1 or not 0 < confidence < 1:
        raise ValueError(
            "expected `num_resamples` of at least 1 and `confidence` in (0, 1), "
            f"got {num_resamples} and {confidence}"
        )
    exact = values.detach().double().cpu()
    size = len(exact)
    means = []
    for start in range(0, num_resamples, chunk := max(1, 1_000_000 // size)):
        draws = torch.randint(size, (min(chunk, num_resamples - start), size), generator=generator)
        means.append(exact[draws].mean(1))
    tail = (1 - confidence) / 2
    low, high = torch.cat(means).quantile(exact.new_tensor([tail, 1 - tail])).tolist()
    return BootstrapInterval(mean=float(exact.mean()), low=low, high=high)
