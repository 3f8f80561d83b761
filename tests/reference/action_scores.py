"""Policies over lists of token sequences in plain loops and probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence


def list_policy(
    log_probs: Sequence[Sequence[float]], words: Sequence[int], normalization: str
) -> list[float]:
    """Return the probability of each action."""
    scores = []
    for tokens, num_words in zip(log_probs, words, strict=True):
        length = {"sum": 1, "token": len(tokens), "word": num_words}[normalization]
        scores.append(sum(tokens) / length)
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def branches(
    log_probs: Sequence[Sequence[float]], ids: Sequence[Sequence[int]]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the restricted log-prob of each token, and the entropy where it is drawn."""
    restricted, entropies = [], []
    for action in ids:
        row, entropy_row = [], []
        for j in range(len(action)):
            offered = {}
            for other, other_log_probs in zip(ids, log_probs, strict=True):
                if len(other) > j and tuple(other[:j]) == tuple(action[:j]):
                    offered[other[j]] = math.exp(other_log_probs[j])
            total = sum(offered.values())
            shares = {token: p / total for token, p in offered.items()}
            row.append(math.log(shares[action[j]]))
            entropy_row.append(-sum(p * math.log(p) for p in shares.values()))
        restricted.append(row)
        entropies.append(entropy_row)
    return restricted, entropies
