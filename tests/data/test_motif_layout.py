"""Motif's pairs on disk, captions and the choice of pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agents.data.motif_layout import (
    Field,
    MotifPairs,
    caption,
    caption_table,
    group_messages,
    pair_writer,
    preference_path,
    sample_pairs,
)
from llm_agents.errors import UserError


def message(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("latin-1").ljust(256, b"\0"), dtype=np.uint8)


def blstats(**places: int) -> np.ndarray:
    stats = np.zeros(27, dtype=np.int64)
    for place, value in places.items():
        stats[int(place[1:])] = value
    return stats


def pairs_of(folder: Path, texts: list[tuple[str, str]], **info: np.ndarray) -> MotifPairs:
    messages = np.stack([[[message(text)] for text in pair] for pair in texts])
    return MotifPairs.create(folder, {"message": messages}, info)


def prefer(folder: Path, annotator: str, values: list[int], dtype: type = np.int8) -> None:
    path = preference_path(folder, annotator)
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.array(values, dtype=dtype))


# --- the layout


def test_what_is_created_opens_with_the_published_names_and_shapes(tmp_path: Path) -> None:
    score = np.array([[1.0, 2.0], [3.0, 4.0]])
    pairs_of(tmp_path, [("a", "b"), ("", "c")], score=score, character=np.full((2, 2), "mon-hum"))
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "data/message.npy",
        "info/character.npy",
        "info/score.npy",
    ]
    pairs = MotifPairs.open(tmp_path, ("message", "score", "character"))
    assert pairs.data["message"].shape == (2, 2, 1, 256)
    assert pairs.data["message"].dtype == np.uint8
    assert isinstance(pairs.data["message"], np.memmap)
    assert not pairs.data["message"].flags.writeable
    assert (pairs.num_pairs, len(pairs), pairs.length) == (2, 2, 1)
    assert pairs[1]["score"].tolist() == [3.0, 4.0]
    assert pairs[1]["character"].tolist() == ["mon-hum", "mon-hum"]


def test_visible_are_the_pairs_that_every_annotator_knows(tmp_path: Path) -> None:
    pairs_of(tmp_path, [("a", "b")] * 4)
    prefer(tmp_path, "one", [0, 3, 2, 1])
    prefer(tmp_path, "two", [1, 1, 3, 0])
    one = MotifPairs.open(tmp_path, preferences=("one",))
    assert one.visible.tolist() == [0, 2, 3]
    assert one.labels("one").tolist() == [0, 2, 1]
    both = MotifPairs.open(tmp_path, preferences=("one", "two"))
    assert both.visible.tolist() == [0, 3]
    item = both[1]
    assert (item["idx"], item["one_pref"], item["two_pref"]) == (1, 1, 0)
    assert len(MotifPairs.open(tmp_path)) == 4


def test_annotators_alone_may_be_opened(tmp_path: Path) -> None:
    pairs_of(tmp_path, [("a", "b")] * 3, score=np.arange(6.0).reshape(3, 2))
    prefer(tmp_path, "score", [1, 1, 3])
    pairs = MotifPairs.open(tmp_path, (), ("score",))
    assert (pairs.num_pairs, len(pairs), pairs.length) == (3, 2, 1)
    assert len(MotifPairs.open(tmp_path, ("score",))) == 3


def test_missing_keys_are_all_named(tmp_path: Path) -> None:
    pairs_of(tmp_path, [("a", "b")])
    with pytest.raises(UserError, match=r"`glyphs`, `gold`, `nobody`.*found data/message"):
        MotifPairs.open(tmp_path, ("message", "glyphs", "gold"), ("nobody",))
    with pytest.raises(UserError, match="found none"):
        MotifPairs.open(tmp_path / "elsewhere")


def test_a_key_is_the_file_name_up_to_its_first_dot(tmp_path: Path) -> None:
    pairs_of(tmp_path, [("a", "b")])
    (tmp_path / "data" / "message.npy").rename(tmp_path / "data" / "message.v2.npy")
    assert len(MotifPairs.open(tmp_path)) == 1


def test_any_integer_type_will_do_and_blstats_become_int32(tmp_path: Path) -> None:
    stats = np.arange(2 * 2 * 1 * 27, dtype=np.int16).reshape(2, 2, 1, 27)
    pairs = MotifPairs.create(tmp_path, {"blstats": stats})
    assert pairs[0]["blstats"].dtype == np.int32
    prefer(tmp_path, "wide", [2, 1], dtype=np.int64)
    assert MotifPairs.open(tmp_path, (), ("wide",)).labels("wide").dtype == np.int8


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    pairs_of(tmp_path, [("a", "b")] * 3, score=np.zeros((3, 2)))
    path = tmp_path / "data" / "message.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"message\.npy.*copy it again"):
        MotifPairs.open(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"message\.npy"):
        MotifPairs.open(tmp_path)
    path.write_bytes(whole)
    np.save(tmp_path / "info" / "score.npy", np.zeros((2, 2)))
    with pytest.raises(UserError, match=r"info/score begins \(3, 2\).*\(2, 2\)"):
        MotifPairs.open(tmp_path, ("message", "score"))
    prefer(tmp_path, "odd", [0, 4, 1])
    with pytest.raises(UserError, match=r"from 0 to 3.*4"):
        MotifPairs.open(tmp_path, preferences=("odd",))
    pickled = np.array([["a", "b"]] * 3, dtype=object)
    np.save(tmp_path / "info" / "character.npy", pickled, allow_pickle=True)
    with pytest.raises(UserError, match=r"character\.npy"):
        MotifPairs.open(tmp_path, ("character",))


def test_a_writer_that_fails_leaves_no_pairs(tmp_path: Path) -> None:
    fields = {"message": Field((256,), np.uint8)}

    def fill(count: int) -> None:
        with pair_writer(tmp_path, num_pairs=3, length=1, data=fields, info={}) as arrays:
            arrays["message"][:count] = 1
            if count < 3:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fill(2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    fill(3)
    assert int(MotifPairs.open(tmp_path).data["message"].sum()) == 3 * 2 * 256
    with pytest.raises(UserError, match="holds pairs already"):
        fill(3)


def test_the_fingerprint_tells_contents_apart(tmp_path: Path) -> None:
    one = pairs_of(tmp_path / "one", [("a", "b"), ("c", "d")])
    same = pairs_of(tmp_path / "same", [("a", "b"), ("c", "d")])
    other = pairs_of(tmp_path / "other", [("a", "b"), ("c", "e")])
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


# --- captions


@pytest.mark.parametrize(
    ("texts", "groups", "starts"),
    [
        (["a", "a", "", "b"], ["a (x2)", "b"], [0, 3]),
        (["", "", ""], [], [0]),
        (["a", "b", "a"], ["a", "b", "a"], [0, 1, 2]),
        (["", "x", "", ""], ["x"], [1]),
        (["a", "", "a"], ["a", "a"], [0, 2]),
        (["b", "a", "a", "a"], ["b", "a (x3)"], [0, 1]),
    ],
)
def test_runs_are_collapsed_and_empty_steps_left_out(
    texts: list[str], groups: list[str], starts: list[int]
) -> None:
    assert group_messages(texts) == (groups, starts)


@given(st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=9))
def test_groups_hold_every_message_that_is_not_empty(texts: list[str]) -> None:
    groups, starts = group_messages(texts)
    counts = [int(group[4:-1]) if "x" in group else 1 for group in groups]
    assert sum(counts) == sum(map(bool, texts))
    if groups:
        assert [texts[start] for start in starts] == [group[0] for group in groups]
        spelled = [
            text
            for start, n in zip(starts, counts, strict=True)
            for text in texts[start : start + n]
        ]
        assert spelled == [text for text in texts if text]
    else:
        assert starts == [0]


def test_captions_spell_the_statistics_as_the_status_line_does() -> None:
    stats = np.stack([blstats(_12=3, _13=12, _10=10, _11=14, _18=2, _21=2)] * 2)
    shown = "Dlvl:3 $:12 HP:10 (14) Xp:2 Hungry"
    assert caption(np.stack([message("Hi."), message("")]), stats) == f"Hi. {shown}"
    assert caption(np.stack([message(""), message("")]), stats) == shown
    stats[:, 21] = 1
    assert caption(np.stack([message("Hi."), message("Ho.")]), stats) == (
        "Hi. Dlvl:3 $:12 HP:10 (14) Xp:2\nHo. Dlvl:3 $:12 HP:10 (14) Xp:2"
    )
    assert caption(np.stack([message("Hi."), message("Ho.")])) == "Hi.\nHo."


def test_zero_bytes_are_dropped_and_others_are_their_characters() -> None:
    raw = np.zeros((1, 256), dtype=np.uint8)
    raw[0, :5] = [65, 0, 66, 233, 10]
    assert caption(raw) == "ABé\n"


def test_the_caption_table_lists_each_caption_once(tmp_path: Path) -> None:
    pairs = pairs_of(tmp_path, [("a", "b"), ("", "a"), ("a", "a"), ("c", "")])
    table = caption_table(pairs)
    assert table.texts == ("a", "b", "", "c")
    assert table.index.tolist() == [[0, 1], [2, 0], [0, 0], [3, 2]]
    assert table.counts.tolist() == [4, 1, 2, 1]
    part = caption_table(pairs, np.array([3, 0]))
    assert part.texts == ("c", "", "a", "b")
    assert part.index.tolist() == [[0, 1], [2, 3]]


def test_captions_that_differ_in_bytes_only_are_one(tmp_path: Path) -> None:
    messages = np.zeros((1, 2, 1, 256), dtype=np.uint8)
    messages[0, 0, 0, :2] = [65, 66]
    messages[0, 1, 0, :3] = [65, 0, 66]  # a zero byte inside
    table = caption_table(MotifPairs.create(tmp_path, {"message": messages}))
    assert table.texts == ("AB",)
    assert table.index.tolist() == [[0, 0]]


def test_statistics_need_their_array(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="blstats"):
        caption_table(pairs_of(tmp_path, [("a", "b")]), with_stats=True)


# --- which stretches make pairs


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_pairs_are_distinct_stretches_inside_their_episodes(
    lengths: list[int], length: int, seed: int
) -> None:
    pairs = sample_pairs(lengths, length, seed)
    used = [stretch for pair in pairs for stretch in pair]
    assert len(pairs) == sum(steps // length for steps in lengths) // 2
    assert len(set(used)) == len(used)
    assert all(0 <= s.start <= lengths[s.episode] - length for s in used)
    assert pairs == sample_pairs(lengths, length, seed)


def test_single_steps_use_the_whole_of_every_episode_and_mix_them() -> None:
    pairs = sample_pairs([40, 60], 1, 0)
    assert {s for pair in pairs for s in pair} == {(0, k) for k in range(40)} | {
        (1, k) for k in range(60)
    }
    assert sum(one.episode != two.episode for one, two in pairs) > 10
    assert pairs != sample_pairs([40, 60], 1, 1)
