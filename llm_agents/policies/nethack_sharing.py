"""Equal rows found, so that what depends on them is computed once."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_DENSE_LIMIT = 1 << 21
"""Numbers up to which a table of flags is faster than sorting."""


class Shared(NamedTuple):
    """Rows of a table without repetition.

    Args:
        first: ``[U]`` int64, a row of each kind.
        kinds: ``[N]`` int64, the kind of each row.
    """

    first: Tensor
    kinds: Tensor


def distinct_rows(table: Tensor) -> Shared:
    """Find equal rows of an integer table on the CPU.

    Rows are compared by a hash of 64 bits; then each is compared with the one that stands for it,
    and if one differs all are compared as they are.

    Args:
        table: ``[N, C]`` of any integer type.

    Returns:
        The kinds in no particular order.
    """
    rows = np.ascontiguousarray(table.numpy())
    size = rows.shape[1] * rows.itemsize
    words = rows.view(np.int64) if size % 8 == 0 else rows.astype(np.int64)
    keys = words @ _multipliers(words.shape[1])
    _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
    if not np.array_equal(rows[first[kinds]], rows):
        whole = rows.view(np.dtype((np.void, size)))[:, 0]
        _, first, kinds = np.unique(whole, return_index=True, return_inverse=True)
    return Shared(torch.from_numpy(first), torch.from_numpy(kinds))


@cache
def _multipliers(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return odd numbers for the hash."""
    drawn = np.random.default_rng(0).integers(-(2**62), 2**62, count)
    return drawn * 2 + 1


def renumber(numbers: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Give the numbers that occur the places 0 … U − 1.

    Args:
        numbers: Any shape, int64 in [0, size).
        size: Bound on the numbers.

    Returns:
        ``[U]`` the numbers that occur, ascending; the place of each, of the shape of `numbers`.

    Example:
        >>> renumber(torch.tensor([7, 3, 7]), 10)
        (tensor([3, 7]), tensor([1, 0, 1]))
    """
    if size > _DENSE_LIMIT:
        found, places = torch.unique(numbers, return_inverse=True)
        return found, places
    occurs = torch.zeros(size, dtype=torch.int32, device=numbers.device)
    occurs[numbers.flatten()] = 1
    order = occurs.cumsum(0) - 1
    return occurs.nonzero()[:, 0], order.index_select(0, numbers.flatten()).view(numbers.shape)
