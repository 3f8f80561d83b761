"""Seeds that no two worlds share, whatever the number of processes."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a seed is for: those for one purpose tell nothing of those for another."""

    TRAINING = 0
    EVALUATION = 1
    DRAWS = 2


def derived_seed(seed: int, purpose: Purpose, *place: int) -> int:
    """Return the seed, from 0 to 2³¹ − 1, that belongs to a place of a run.

    Neighbouring seeds and places give unrelated ones; sums such as ``seed + rank`` would give two
    runs the same.

    Args:
        seed: The run's seed.
        purpose: What it is for.
        place: Numbers that tell it from the others, such as process and world.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *place))
    return int(sequence.generate_state(1)[0]) >> 1


def world_seeds(
    seed: int, count: int, *, rank: int = 0, purpose: Purpose = Purpose.TRAINING
) -> tuple[int, ...]:
    """Return a seed for each of `count` worlds of one process, all different.

    Args:
        seed: The run's seed.
        count: Worlds of the process.
        rank: The process.
        purpose: What the worlds are for.

    Example:
        >>> len(set(world_seeds(0, 4) + world_seeds(1, 4) + world_seeds(0, 4, rank=1)))
        12
    """
    found: dict[int, None] = {}
    number = 0
    while len(found) < count:  # one of 2³¹ may come twice
        found[derived_seed(seed, purpose, rank, number)] = None
        number += 1
    return tuple(found)
