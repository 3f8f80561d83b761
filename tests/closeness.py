"""How far two right computations of the same numbers may lie apart, on any processor.

Processors differ in how they add up: how many numbers at once, fused with the product or not, split
over how many threads; libraries pick another kernel for another shape. None of the orders is the
right one, so a tolerance can't be what one of them showed. It follows from four facts:

- a sum of n terms is exact but for about √n · u of the sum of its terms' sizes, u being half of the
  format's epsilon: rounding errors of changing signs add up like a random walk;
- a network is a chain of such sums, each of which takes up the errors of those before it; between
  them stand norms and softmaxes, which keep sizes, so that errors add and don't grow;
- both sides have such an error where neither is computed in float64: twice that.

For the tiny models (sums of 128 terms at most; two layers of four products each, an embedding and
a head) that makes 1.3e-4 for log-probs of 10 nats, where a wrong mask, position or token moves them
by 0.01 and more: errors of each stage add up in full here, which they hardly ever do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

TERMS = 128  # of the longest sum in the tiny models: the width of their feed-forward layers
STAGES = 10  # sums after one another in them
SIDES = 2

Numbers = Tensor | float | Sequence["Numbers"]


def rounding(
    expected: Numbers,
    *,
    terms: int = TERMS,
    stages: int = STAGES,
    dtype: torch.dtype = torch.float32,
) -> float:
    """Return what rounding alone may do to numbers of the size of `expected`.

        2 · stages · √terms · eps / 2 · max |expected|

    Args:
        expected: The reference, in float64 where there is one; its largest number counts.
        terms: Terms of the longest sum on the way.
        stages: Sums that follow one another.
        dtype: The least precise format on the way, whatever the one at its ends.
    """
    unit = torch.finfo(dtype).eps / 2
    return SIDES * stages * math.sqrt(terms) * unit * _size(expected)


def assert_rounding(
    found: Tensor,
    expected: Tensor,
    *,
    terms: int = TERMS,
    stages: int = STAGES,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Assert that two tensors are equal but for rounding, and whole numbers altogether."""
    if not expected.is_floating_point():
        assert torch.equal(found, expected)
        return
    atol = rounding(expected, terms=terms, stages=stages, dtype=dtype)
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=atol)


def _size(numbers: Numbers) -> float:
    """Return the largest absolute value; infinities must be equal anyway."""
    if isinstance(numbers, Tensor):
        finite = numbers.detach()[numbers.detach().isfinite()]
        return float(finite.abs().max()) if finite.numel() else 0.0
    if isinstance(numbers, Sequence):
        return max(map(_size, numbers), default=0.0)
    return abs(numbers)
