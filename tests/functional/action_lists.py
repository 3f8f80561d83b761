"""Lists of actions as padded tensors, for the tests of their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tests.functional.online_inputs import exact


class Padded(NamedTuple):
    log_probs: Tensor
    mask: Tensor


def padded(actions: Sequence[Sequence[float]], filler: float = math.nan) -> Padded:
    """Return ``[1, A, L]`` values and mask of one list."""
    length = max(map(len, actions))
    rows = [[*tokens, *[filler] * (length - len(tokens))] for tokens in actions]
    mask = torch.arange(length) < torch.tensor([len(tokens) for tokens in actions])[:, None]
    return Padded(exact([rows]), mask[None])


def offered(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape, dtype=torch.bool)
