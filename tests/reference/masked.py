"""Masked reductions and log-probs in plain loops."""

from __future__ import annotations

import math

import numpy as np


def kept(values: np.ndarray, mask: np.ndarray) -> list[float]:
    """Return the values under the mask, in order."""
    return [float(x) for x, keep in zip(values.ravel(), mask.ravel(), strict=True) if keep]


def mean(values: np.ndarray, mask: np.ndarray) -> float:
    numbers = kept(values, mask)
    return sum(numbers) / len(numbers)


def var(values: np.ndarray, mask: np.ndarray, *, unbiased: bool) -> float:
    numbers, middle = kept(values, mask), mean(values, mask)
    return sum((x - middle) ** 2 for x in numbers) / (len(numbers) - int(unbiased))


def log_probs(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return ln(exp(logit of the token) / sum of exp(logits)), row by row."""
    found = np.zeros(ids.shape)
    for place in np.ndindex(*ids.shape):
        total = sum(math.exp(float(x)) for x in logits[place])
        found[place] = math.log(math.exp(float(logits[place][ids[place]])) / total)
    return found
