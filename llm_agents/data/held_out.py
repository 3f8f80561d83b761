"""Parting raw rows into train, validation and test by groups, so that nothing leaks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_agents.errors import UserError

SplitName = Literal["train", "validation", "test"]
HELD_OUT = "held_out"


@dataclass(frozen=True)
class HeldOut:
    """Which share of the rows of the training source is kept for validation and test.

    Args:
        validation: Share for validation, from 0 to 1.
        test: Share for test, from 0 to 1.
        seed: Another seed holds out other groups.

    Raises:
        UserError: The shares leave nothing to train on.
    """

    validation: float = 0.1
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise UserError(
                "expected `validation` and `test` of at least 0 that leave something to train on, "
                f"got {self.validation} and {self.test}"
            )


def part_groups(counts: Mapping[str, int], held_out: HeldOut) -> dict[str, SplitName]:
    """Deal whole groups of rows out to the splits, in an order that a hash decides.

    A group that would overshoot a split's share by more than half of its size goes on to the next.

    Args:
        counts: Rows of each group.
        held_out: The shares.

    Returns:
        The split of each group.

    Example:
        >>> parted = part_groups({str(n): 1 for n in range(4)}, HeldOut(0.25, 0.5))
        >>> sorted(parted.values())
        ['test', 'test', 'train', 'validation']
    """
    total = sum(counts.values())
    wanted: dict[SplitName, float] = {
        "test": held_out.test * total,
        "validation": held_out.validation * total,
    }
    found: dict[str, SplitName] = {}
    for group in sorted(counts, key=lambda name: _order(name, held_out.seed)):
        size = counts[group]
        split: SplitName = "train"
        for name, room in wanted.items():
            if room >= size / 2 and room > 0:
                split = name
                wanted[name] = room - size
                break
        found[group] = split
    return found


def _order(group: str, seed: int) -> bytes:
    """Return what a group is sorted by."""
    return hashlib.sha256(f"{seed}\x1d{group}".encode()).digest()
