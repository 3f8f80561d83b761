"""Motif's pairs as training data: distinct messages, split, order, whose preferences they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_agents.data import MotifData
from llm_agents.data.motif import PairStream, split_pairs
from llm_agents.data.motif_layout import MotifPairs, preference_path
from llm_agents.data.motif_sample import pack_pairs, unpack_pairs
from llm_agents.errors import UserError
from llm_agents.types import MessagePairs
from tests.data.toy_pairs import MESSAGES, as_bytes, write_pairs


def opened(folder: Path, **options: Any) -> MotifData:
    data = MotifData(str(folder), options.pop("annotator", "toy"), **options)
    data.setup()
    return data


def text(row: Any) -> str:
    return bytes(row.tolist()).rstrip(b"\0").decode("latin-1")


def sides(batch: MessagePairs) -> list[list[list[str]]]:
    """Return the messages of each pair, side and step, gathered from the distinct ones."""
    rows = [text(row) for row in batch.observations.message]
    return [[[rows[i] for i in side] for side in pair] for pair in batch.index.tolist()]


def stored(pairs: MotifPairs, rows: list[int]) -> list[list[list[str]]]:
    return [[[text(m) for m in side] for side in pairs.data["message"][row]] for row in rows]


@pytest.mark.parametrize("length", [1, 3])
def test_a_batch_holds_each_distinct_message_once(tmp_path: Path, length: int) -> None:
    data = opened(write_pairs(tmp_path / "d", 60, length=length), batch_size=16)
    pairs = MotifPairs.open(tmp_path / "d", ("message", "score"), ("toy",))
    for batch in data.train_dataloader():
        rows = batch.rows.tolist()
        assert sides(batch) == stored(pairs, rows)
        shown = [text(row) for row in batch.observations.message]
        assert len(set(shown)) == len(shown)
        assert batch.preferences.tolist() == pairs.preferences["toy"][rows].tolist()
        assert batch.scores.tolist() == pairs.info["score"][rows].tolist()


def test_equal_means_equal_bytes(tmp_path: Path) -> None:
    """Zeros inside a message distinguish it, though its text does not show them."""
    raw = [b"ab", b"a\0b", b"\0ab", b"ab"]
    rows = np.stack([np.frombuffer(b.ljust(256, b"\0"), np.uint8) for b in raw])
    MotifPairs.create(tmp_path / "d", {"message": rows.reshape(2, 2, 1, 256)})
    (tmp_path / "d" / "preference").mkdir()
    np.save(preference_path(tmp_path / "d", "toy"), np.array([0, 1], np.int8))
    data = opened(tmp_path / "d", held_out=0.0)
    assert data.report()["distinct_messages"] == 3
    steps = data.table.distinct.steps.flatten().tolist()
    assert steps[0] == steps[3]
    assert len(set(steps)) == 3


def test_fractions_leave_the_remainder_to_training() -> None:
    train, held_out = split_pairs(11, 0.2, seed=3)
    assert (len(train), len(held_out)) == (9, 2)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(11))
    assert [len(part) for part in split_pairs(500_000, 0.2, seed=3)] == [400_000, 100_000]
    again = split_pairs(11, 0.2, seed=3)
    assert torch.equal(train, again[0])
    assert not torch.equal(train, split_pairs(11, 0.2, seed=4)[0])
    assert [len(part) for part in split_pairs(100, 0.2, seed=0, limit=11)] == [9, 2]


def test_the_split_is_pytorchs_random_split() -> None:
    from torch.utils.data import random_split

    generator = torch.Generator().manual_seed(777)
    theirs = random_split(range(11), [0.8, 0.2], generator=generator)  # type: ignore[arg-type]
    ours = split_pairs(11, 0.2, seed=777)
    assert [list(part.indices) for part in theirs] == [part.tolist() for part in ours]


def test_the_data_are_split_by_their_own_seed(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "d", 60, unknown=0.2)
    data = opened(folder, seed=777, held_out=0.3, max_pairs=40)
    train, held_out = split_pairs(len(data.table), 0.3, seed=777, limit=40)
    assert torch.equal(data.train_places, train)
    assert torch.equal(data.held_out_places, held_out)
    assert (len(train), len(held_out)) == (28, 12)


def test_unknown_pairs_are_left_out_before_the_split(tmp_path: Path) -> None:
    """T13: annotations [0, 3, 2, 1] are three pairs, the tie among them."""
    folder = write_pairs(tmp_path / "d", 4)
    np.save(preference_path(folder, "toy"), np.array([0, 3, 2, 1], np.int8))
    data = opened(folder, held_out=0.0)
    batch = next(iter(data.train_dataloader()))
    assert sorted(batch.rows.tolist()) == [0, 2, 3]
    assert sorted(batch.preferences.tolist()) == [0, 1, 2]
    assert data.report()["unknown"] == 1
    assert data.val_dataloader() == []


def test_seed_and_annotator_change_the_training_messages(tmp_path: Path) -> None:
    """T14: nothing is kept between runs, so nothing can be stale."""
    folder = write_pairs(tmp_path / "d", 12, annotators=("toy", "other"))
    label = np.load(preference_path(folder, "other"))
    label[:6] = 3
    np.save(preference_path(folder, "other"), label)
    before = {path for path in folder.rglob("*") if path.is_file()}

    def training(**options: Any) -> tuple[set[str], str]:
        data = opened(folder, held_out=0.5, **options)
        found = [text(m) for o in data.training_observations(5) for m in o.message]
        expected = Counter(
            message
            for batch in data.train_dataloader()
            for pair in sides(batch)
            for side in pair
            for message in side
        )
        counts = data.training_counts().tolist()
        assert dict(zip(found, counts, strict=True)) == expected
        return set(found), data.fingerprint()

    first = training(seed=0)
    assert first == training(seed=0)
    for other in (training(seed=5), training(seed=0, annotator="other")):
        assert other[0] != first[0]
        assert other[1] != first[1]
    assert {path for path in folder.rglob("*") if path.is_file()} == before


def test_training_index_points_at_the_counted_messages(tmp_path: Path) -> None:
    data = opened(write_pairs(tmp_path / "d", 50, length=2), held_out=0.4)
    index, counts = data.training_index(), data.training_counts()
    assert torch.equal(torch.bincount(index.flatten(), minlength=len(counts)), counts)
    rows = torch.cat([o.message for o in data.training_observations(3)])
    batch = data.table.batch(data.train_places)
    assert torch.equal(rows[index], batch.observations.message[batch.index])


def test_bottom_lines_and_maps_come_on_request(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "d", 20, with_screen=True)
    data = MotifData(str(folder), "toy", batch_size=20)
    data.connect(("message", "blstats", "glyphs"))
    data.setup()
    pairs = MotifPairs.open(folder, ("blstats", "glyphs"))
    batch = next(iter(data.train_dataloader()))
    for pair, row in enumerate(batch.rows.tolist()):
        for side in range(2):
            place = batch.index[pair, side, 0]
            for key in ("blstats", "glyphs"):
                found = getattr(batch.observations, key)[place].numpy()
                np.testing.assert_array_equal(found, pairs.data[key][row, side, 0])
    assert data.report()["distinct_messages"] > len(MESSAGES)  # equal messages, other screens
    only = opened(folder)
    assert next(iter(only.train_dataloader())).observations.blstats is None


# --- order ----------------------------------------------------------------------------------------


def stream(count: int, batch_size: int, **options: Any) -> PairStream:
    return PairStream(count, lambda places: places, batch_size, seed=1, **options)  # type: ignore[arg-type,return-value]


def test_an_epoch_is_every_pair_once_and_the_short_batch_stays() -> None:
    found = stream(10, 4)
    assert len(found) == 3
    epochs = [[places.tolist() for places in found] for _ in range(3)]  # type: ignore[attr-defined]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4, 4, 2]
        assert sorted(place for batch in epoch for place in batch) == list(range(10))
    assert epochs[0] != epochs[1] != epochs[2]
    assert len(stream(400_000, 1024)) == 391


def test_a_stream_goes_on_where_it_stood() -> None:
    whole = stream(10, 4)
    expected = [p.tolist() for _ in range(2) for p in whole]  # type: ignore[attr-defined]
    first = stream(10, 4)
    batches = iter(first)
    begun = [next(batches).tolist() for _ in range(2)]  # type: ignore[attr-defined]
    second = stream(10, 4)
    second.load_state_dict(first.state_dict())
    rest = [p.tolist() for p in second]  # type: ignore[attr-defined]
    assert begun + rest[:4] == expected[:5]


def test_processes_share_an_epoch() -> None:
    shares = [stream(11, 4, rank=rank, world_size=3) for rank in range(3)]
    found = [[p.tolist() for p in share] for share in shares]  # type: ignore[attr-defined]
    assert [[len(batch) for batch in share] for share in found] == [[4]] * 3
    seen = Counter(place for share in found for batch in share for place in batch)
    assert set(seen) == set(range(11))
    assert sorted(seen.values()) == [1] * 10 + [2]  # 12 places for 11 pairs


# --- faults ---------------------------------------------------------------------------------------


def test_faults_of_the_data_are_named(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "d", 10)
    with pytest.raises(UserError, match="`other`"):
        opened(folder, annotator="other")
    np.save(preference_path(folder, "none"), np.full(10, 3, np.int8))
    with pytest.raises(UserError, match="got 0 and 0 of 10 pairs"):
        opened(folder, annotator="none")
    np.save(preference_path(folder, "ties"), np.full(10, 2, np.int8))
    with pytest.raises(UserError, match="all 8 training pairs of `ties` are ties"):
        opened(folder, annotator="ties")
    with pytest.raises(UserError, match=r"`data\.held_out` from 0 to below 1, got 1"):
        MotifData(str(folder), "toy", held_out=1.0)
    with pytest.raises(UserError, match=r"`data\.batch_size` of at least 1, got 0"):
        MotifData(str(folder), "toy", batch_size=0)
    short = np.stack([as_bytes("a")[:100]] * 4).reshape(2, 2, 1, 100)
    MotifPairs.create(tmp_path / "short", {"message": short})
    (tmp_path / "short" / "preference").mkdir()
    np.save(preference_path(tmp_path / "short", "toy"), np.array([0, 1], np.int8))
    with pytest.raises(UserError, match=r"`data/message` of shape \(N, 2, L, 256\)"):
        opened(tmp_path / "short")


def test_packed_pairs_are_the_same_pairs(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs", 60)
    pack_pairs(folder, "toy", tmp_path / "small.npz")
    unpack_pairs(tmp_path / "small.npz", tmp_path / "again")
    roots = (folder, tmp_path / "again")
    before, after = (MotifPairs.open(root, ("message", "score"), ("toy",)) for root in roots)
    assert after.fingerprint() == before.fingerprint()
    whole = (folder / "data" / "message.npy").stat().st_size
    assert (tmp_path / "small.npz").stat().st_size < whole / 5
