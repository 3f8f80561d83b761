"""DPO, PRO and Bradley–Terry in plain loops, from the papers and their released code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dpo_losses(
    chosen: np.ndarray,
    rejected: np.ndarray,
    ref_chosen: np.ndarray,
    ref_rejected: np.ndarray,
    *,
    beta: float,
) -> np.ndarray:
    """Return the loss of each pair."""
    found = []
    for c, r, qc, qr in zip(chosen, rejected, ref_chosen, ref_rejected, strict=True):
        found.append(-math.log(sigmoid(beta * ((c - r) - (qc - qr)))))
    return np.array(found)


def pro(
    sums: Sequence[Sequence[float]],
    lengths: Sequence[Sequence[int]],
    rewards: Sequence[Sequence[float]],
    *,
    sft_index: int,
    sft_weight: float,
) -> tuple[list[float], float]:
    """Return the K − 1 ranking terms and the SFT term."""
    num_prompts, num_responses = len(sums), len(sums[0])
    terms = []
    for k in range(num_responses - 1):
        total = 0.0
        for b in range(num_prompts):
            s = [sums[b][j] / lengths[b][j] for j in range(num_responses)]
            temperature = {j: rewards[b][k] - rewards[b][j] for j in range(k + 1, num_responses)}
            own = max(temperature.values())
            pool = 1e-10 + math.exp(s[k] * own)
            for j, t in temperature.items():
                pool += math.exp(s[j] * t)
            total += math.log(pool) - s[k] * own
        terms.append(total / num_prompts)
    imitated = sum(-sums[b][sft_index] for b in range(num_prompts)) / num_prompts
    return terms, sft_weight * (num_responses - 1) ** 2 * imitated


def bradley_terry_losses(first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of each pair, from the two-way softmax of the scores."""
    found = []
    for a, b, y in zip(first, second, labels, strict=True):
        p = math.exp(a) / (math.exp(a) + math.exp(b))
        found.append(-(y * math.log(p) + (1 - y) * math.log(1 - p)))
    return np.array(found)
