"""Statistics in plain loops, and quantiles by their definition."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(numbers: Sequence[float], level: float) -> float:
    """Return the linearly interpolated quantile."""
    ordered = sorted(numbers)
    place = level * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def all_resampled_means(values: Sequence[float]) -> list[float]:
    """Return the means of all N**N equally likely resamples."""
    size = len(values)
    found = []
    for number in range(size**size):
        total = 0.0
        for _ in range(size):
            number, which = divmod(number, size)
            total += values[which]
        found.append(total / size)
    return found
