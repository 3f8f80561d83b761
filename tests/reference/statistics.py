"""Quantiles by their definition."""

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
