"""Advantages of actions and of their tokens in plain loops over one world, backwards in time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray
Flags = Sequence[bool] | np.ndarray


def actions(
    rewards: Numbers,
    values: Numbers,
    next_values: Numbers,
    terminated: Flags,
    truncated: Flags,
    discounts: Numbers,
    gae_lambda: float,
) -> list[float]:
    """Return the advantage of each step."""
    found = [0.0] * len(rewards)
    g = 0.0
    for t in reversed(range(len(rewards))):
        bootstrap = 0.0 if terminated[t] else next_values[t]
        carried = 0.0 if terminated[t] or truncated[t] else g
        g = rewards[t] + discounts[t] * bootstrap - values[t] + discounts[t] * gae_lambda * carried
        found[t] = g
    return found


def tokens(
    rewards: Numbers,
    values: Sequence[Numbers],
    next_values: Numbers,
    terminated: Flags,
    truncated: Flags,
    discounts: Numbers,
    gae_lambda: float,
    intra_action_gamma: float,
    intra_action_lambda: float,
) -> list[list[float]]:
    """Return the advantages of each step's tokens; `values` holds only the real ones."""
    found: list[list[float]] = [[] for _ in rewards]
    g = 0.0
    for t in reversed(range(len(rewards))):
        row = values[t]
        found[t] = [0.0] * len(row)
        for j in reversed(range(len(row))):
            if j == len(row) - 1:
                bootstrap = 0.0 if terminated[t] else next_values[t]
                carried = 0.0 if terminated[t] or truncated[t] else g
                delta = rewards[t] + discounts[t] * bootstrap - row[j]
                g = delta + discounts[t] * gae_lambda * carried
            else:
                delta = intra_action_gamma * row[j + 1] - row[j]
                g = delta + intra_action_gamma * intra_action_lambda * g
            found[t][j] = g
    return found
