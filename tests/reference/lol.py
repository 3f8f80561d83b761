"""The A-LoL family in plain loops, from the paper and its released code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def clamp(number: float, epsilon: float | None) -> float:
    """Clamp after the exponential, as one reads it in the paper."""
    return number if epsilon is None else min(max(number, 1 - epsilon), 1 + epsilon)


def loss_of_one(
    algorithm: str,
    lp: Sequence[float],
    lq: Sequence[float],
    reward: float,
    value: float,
    *,
    epsilon: float | None,
    beta: float,
    floor: float,
    clamp_advantages: bool,
) -> float:
    """Return the loss of one response, given the log-probs of its real tokens only."""
    log_policy, log_reference = sum(lp), sum(lq)
    advantage = reward - value
    if clamp_advantages and advantage < 0:
        advantage = 0.0
    kl = beta * (log_policy - log_reference)
    ratio = clamp(math.exp(log_policy - log_reference), epsilon)
    if algorithm == "nll":
        return -log_policy
    if algorithm == "wbc":
        return -reward * log_policy
    if algorithm == "r_gold":
        return -reward * sum(p * max(math.exp(p), floor) for p in lp)
    if algorithm == "r_lol":
        return -reward * (1 if beta else ratio) * log_policy + kl
    if algorithm == "a_lol":
        return -advantage * (1 if beta else ratio) * log_policy + kl
    if algorithm == "a_lol_ref_free":
        return -advantage * log_policy
    if algorithm == "a_lol_seq":
        weighted = 0.0
        for p, q in zip(lp, lq, strict=True):
            weighted += p * clamp(math.exp(p - q), epsilon)
        return -advantage * weighted
    if algorithm == "a_lol_kl":
        return -advantage * log_policy + kl
    raise KeyError(algorithm)


def losses(
    algorithm: str,
    log_probs: np.ndarray,
    ref_log_probs: np.ndarray,
    mask: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    *,
    epsilon: float | None,
    beta: float,
    floor: float,
    clamp_advantages: bool,
) -> np.ndarray:
    """Return the loss of each response."""
    return np.array(
        [
            loss_of_one(
                algorithm,
                [float(x) for x, keep in zip(log_probs[b], mask[b], strict=True) if keep],
                [float(x) for x, keep in zip(ref_log_probs[b], mask[b], strict=True) if keep],
                float(rewards[b]),
                float(values[b]),
                epsilon=epsilon,
                beta=beta,
                floor=floor,
                clamp_advantages=clamp_advantages,
            )
            for b in range(len(log_probs))
        ]
    )
