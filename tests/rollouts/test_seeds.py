"""Seeds that differ wherever they are to differ."""

from __future__ import annotations

from itertools import product

from llm_agents.rollouts.seeds import Purpose, derived_seed, world_seeds


def test_worlds_ranks_seeds_and_purposes_share_no_seed() -> None:
    places = list(product(range(5), range(4), (Purpose.TRAINING, Purpose.EVALUATION)))
    drawn = [
        one
        for seed, rank, purpose in places
        for one in world_seeds(seed, 8, rank=rank, purpose=purpose)
    ]
    drawn += [derived_seed(seed, Purpose.DRAWS, rank, 0, 0) for seed, rank, _ in places[::2]]
    assert len(set(drawn)) == len(drawn) == len(places) * 8 + len(places) // 2
    assert all(0 <= one < 2**31 for one in drawn)


def test_the_same_place_has_the_same_seed_and_more_worlds_change_none() -> None:
    assert world_seeds(3, 2) == world_seeds(3, 6)[:2]
    assert derived_seed(3, Purpose.DRAWS, 0, 1, 2) == derived_seed(3, Purpose.DRAWS, 0, 1, 2)
    assert derived_seed(3, Purpose.DRAWS, 0, 1, 2) != derived_seed(3, Purpose.DRAWS, 0, 2, 1)
