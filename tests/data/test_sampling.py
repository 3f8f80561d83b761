"""The stream of rows: coverage, shares, ranks, resume."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.data import StepSampler, StepShape
from llm_agents.data.sampling import draw, padding_share


def sampler(count: int, *shape: int, **options: object) -> StepSampler:
    lengths = torch.arange(count) * 7 % 13 + 1
    return StepSampler(lengths, StepShape(*shape), **{"seed": 3, **options})


@settings(deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9)
)
def test_uniform_rows_come_once_a_round_over_all_processes(
    count: int, batch_size: int, accumulation: int, world_size: int, seed: int
) -> None:
    rounds = 3
    shape = (batch_size, accumulation)
    ranks = [sampler(count, *shape, rank, world_size, seed=seed) for rank in range(world_size)]
    step_rows = batch_size * accumulation * world_size
    steps = -(-rounds * count // step_rows)
    stream: list[int] = []
    for step in range(steps):
        dealt = [
            rank.batch(step * accumulation + turn) for turn in range(accumulation) for rank in ranks
        ]
        assert all(len(rows) == batch_size for rows in dealt)
        stream += [row for rows in dealt for row in rows]
    times = Counter(stream)
    whole = steps * step_rows // count
    assert set(times) == set(range(count))
    assert all(whole <= n <= whole + 1 for n in times.values())


def test_each_round_has_another_order_and_the_same_seed_the_same() -> None:
    one = sampler(20, 4)
    rounds = [[row for rows in one for row in rows] for _ in range(3)]
    assert all(sorted(rows) == list(range(20)) for rows in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    again = sampler(20, 4)
    assert [[row for rows in again for row in rows] for _ in range(3)] == rounds
    other = sampler(20, 4, seed=4)
    assert [row for rows in other for row in rows] != rounds[0]


def test_sorting_leaves_the_rows_of_a_step_unchanged_and_saves_padding() -> None:
    lengths = torch.randint(1, 200, (512,), generator=torch.Generator().manual_seed(0))
    one = StepSampler(lengths, StepShape(4, 1), seed=5)
    four = StepSampler(lengths, StepShape(4, 4), seed=5)
    sixteen = StepSampler(lengths, StepShape(16, 1), seed=5)
    for step in range(8):
        rows = sorted(row for i in range(4) for row in four.batch(step * 4 + i))
        assert rows == sorted(sixteen.batch(step))
        cuts = [lengths[four.batch(step * 4 + i)] for i in range(4)]
        assert all(a.min() >= b.max() for a, b in pairwise(cuts))
    shares = [padding_share(lengths, list(s)) for s in (one, four, sixteen)]
    assert shares[1] < 0.75 * shares[0] < shares[2]


def test_processes_share_a_step_and_their_batches_are_of_like_length() -> None:
    lengths = torch.arange(1, 49)
    alone = StepSampler(lengths, StepShape(3, 8), seed=1)
    ranks = [StepSampler(lengths, StepShape(3, 4, rank, 2), seed=1) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == 8
    for step in range(2):
        dealt = [ranks[turn % 2].batch(step * 4 + turn // 2) for turn in range(8)]
        assert dealt == [alone.batch(step * 8 + turn) for turn in range(8)]


def test_weighted_draws_follow_the_weights_with_replacement() -> None:
    weights = torch.tensor([0.1, 0.0, 0.2, 0.7])
    one = sampler(4, 2, weights=weights, num_batches=20_000)
    batches = list(one)
    assert len(batches) == 20_000
    times = Counter(row for rows in batches for row in rows)
    assert times[1] == 0
    for row, share in enumerate((0.1, 0.0, 0.2, 0.7)):
        assert times[row] / 40_000 == pytest.approx(share, abs=0.01)
    equal = sum(a == b for a, b in batches) / len(batches)
    assert equal == pytest.approx(0.1**2 + 0.2**2 + 0.7**2, abs=0.015)  # .54


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_weighted_sampling_draws_the_batch_size_asked_for(batch_size: int) -> None:
    one = sampler(5, batch_size, 2, weights=torch.ones(5), num_batches=6)
    assert [len(rows) for rows in one] == [batch_size] * 6


def test_a_row_of_weight_zero_is_never_drawn_even_at_the_ends() -> None:
    cumulated = torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0], dtype=torch.float64).cumsum(0)
    draws = torch.tensor([0.0, 1 / 3, 1 / 3 - 1e-12, 1.0 - 2**-53, 1.0], dtype=torch.float64)
    assert draw(cumulated, draws).tolist() == [1, 3, 1, 3, 3]


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 0.0, 2.0, 3.0, 1.0, 1.0])])
@pytest.mark.parametrize("stop", [0, 1, 5, 6, 7, 13])
def test_a_resumed_stream_goes_on_as_the_unbroken_one(
    weights: torch.Tensor | None, stop: int
) -> None:
    unbroken = sampler(7, 2, 3, weights=weights, num_batches=6)
    rows = [batch for _ in range(4) for batch in unbroken]
    broken = sampler(7, 2, 3, weights=weights, num_batches=6)
    seen = []
    while broken.position < stop:
        for batch in broken:
            seen.append(batch)
            if broken.position == stop:
                break
    resumed = sampler(7, 2, 3, weights=weights, num_batches=6, seed=99)
    resumed.load_state_dict(broken.state_dict())
    seen += [batch for _ in range(3) for batch in resumed]
    assert rows[: len(seen)] == seen[: len(rows)]
    assert len(seen) == stop + 18


def test_a_single_row_fills_every_step() -> None:
    one = sampler(1, 4, 2)
    assert len(one) == 2
    assert list(one) == [[0, 0, 0, 0]] * 2


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"weights": torch.zeros(3)}, "a positive weight"),
        ({"weights": torch.tensor([1.0, -1, 2])}, "finite `weights` of at least 0"),
        ({"weights": torch.tensor([1.0, float("nan"), 2])}, "finite `weights`"),
        ({"weights": torch.ones(2)}, r"`weights` of shape \(3,\), got \(2,\)"),
        ({"num_batches": 0}, "`num_batches` of at least 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        sampler(3, 2, **options)


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="`batch_size` of at least 1, got 0"):
        StepShape(0)
    with pytest.raises(ValueError, match="`rank` below 2, got 2"):
        StepShape(1, 1, 2, 2)
    with pytest.raises(ValueError, match=r"`lengths` of shape \(R,\)"):
        StepSampler(torch.zeros(0), StepShape(1), seed=0)
