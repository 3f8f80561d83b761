"""Annotating data sets: files, chunks, resumed and concurrent runs, kills, damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_agents.data.motif_annotation import MotifAnnotation, chunk_range
from llm_agents.data.motif_layout import MotifPairs
from llm_agents.errors import UserError
from llm_agents.rewards import (
    ChoiceAnnotator,
    GeneratedAnnotator,
    PointwiseAnnotator,
    RandomAnnotator,
    ReturnAnnotator,
    ScoreAnnotator,
)
from tests.data.toy_annotation import (
    MESSAGES,
    WORTH,
    annotate,
    expected,
    lead,
    pointwise,
    read,
    verdict,
    write_pairs,
)
from tests.rewards.annotation_backends import RuleBackend


def test_preferences_lie_beside_their_pairs(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path)
    results = annotate(tmp_path, pointwise())
    name = results["annotator"]
    assert name.startswith("rule_msg_defaultgoal_default_pointwise-")
    assert read(tmp_path, name) == expected(texts)
    array = np.load(tmp_path / "preference" / f"{name}.npy")
    assert (array.dtype, array.shape) == (np.int8, (24,))
    pairs = MotifPairs.open(tmp_path, ("message",), (name,))
    assert pairs.labels(name).tolist() == expected(texts)  # the layout's reader opens it
    decided = [value for value in expected(texts) if value != 2]
    assert results["first"] == decided.count(0)
    assert results["tie"] == expected(texts).count(2) == results["equal_captions"]
    assert results["first_share"] == pytest.approx(decided.count(0) / len(decided))
    assert results["asked"] == len(MESSAGES)
    assert (results["annotated"], results["unknown"]) == (24, 0)
    assert results["highest"][0] == ("You kill the newt!", 3.0)
    json.dumps(results, allow_nan=False)


def test_a_record_says_how_the_preferences_came_about(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    name = annotate(tmp_path, pointwise(goal="gold"))["annotator"]
    record = json.loads((tmp_path / "preference" / f"{name}.json").read_text())
    assert record["annotator"]["model"] == "rule"
    assert record["annotator"]["mode"] == "pointwise"
    assert record["annotator"]["goal"] == "gold"
    assert "finds or picks up gold" in record["annotator"]["prompt"][0]
    assert record["captions"] == "msg"
    assert record["pairs"]["number"] == 24
    assert record["pairs"]["sha256"] == MotifPairs.open(tmp_path, ("message",)).fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        {"goal": "stairs"},
        {"version": "reworded"},
        {"margin": 0.3},
        {"num_examples": 2},
        {"template": "chat"},
    ],
)
def test_another_prompt_is_another_file(tmp_path: Path, other: dict[str, Any]) -> None:
    write_pairs(tmp_path)
    one = annotate(tmp_path, pointwise())["annotator"]
    two = annotate(tmp_path, pointwise(**other))["annotator"]
    assert one != two
    assert annotate(tmp_path, pointwise())["annotated"] == 0  # the first one is as it was


def test_another_model_or_other_data_are_another_file(tmp_path: Path) -> None:
    write_pairs(tmp_path / "a")
    write_pairs(tmp_path / "b", seed=1)
    names = [annotate(tmp_path / folder, pointwise())["annotator"] for folder in "ab"]
    other = PointwiseAnnotator(RuleBackend(lead=lead, model="other"), version="default")
    names.append(annotate(tmp_path / "a", other)["annotator"])
    assert len(set(names)) == 3
    assert len({name.partition("-")[2] for name in names}) == 3


def test_a_chosen_name_is_for_one_way_of_annotating(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    name = "{model}_{goal}_mine"
    assert annotate(tmp_path, pointwise(), name=name)["annotator"] == "rule_defaultgoal_mine"
    with pytest.raises(UserError, match=r"another way \(annotator\.margin differ\)"):
        annotate(tmp_path, pointwise(margin=0.5), name=name)
    again = annotate(tmp_path, pointwise(margin=0.5), name=name, start_over=True)
    assert again["annotated"] == 24
    assert annotate(tmp_path, pointwise(margin=0.5), name=name)["annotated"] == 0
    with pytest.raises(UserError, match=r"without dots and slashes, got 'a\.b'"):
        annotate(tmp_path, pointwise(), name="a.b")
    with pytest.raises(UserError, match=r"asks for \['size'\], this annotator knows"):
        annotate(tmp_path, pointwise(), name="{size}")


def test_a_file_of_unknown_origin_is_left_alone(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    path = tmp_path / "preference" / "llama70b_msg_defaultgoal_default.npy"
    path.parent.mkdir()
    np.save(path, np.full(24, 3, dtype=np.int8))
    before = path.read_bytes()
    with pytest.raises(UserError, match="was not made here"):
        annotate(tmp_path, pointwise(), name=path.stem)
    assert path.read_bytes() == before


# --- chunks and what is left to do


@pytest.mark.parametrize(
    ("num_pairs", "sizes"),
    [(12, [3, 3, 3, 3]), (103, [25, 26, 26, 26]), (102, [25, 26, 25, 26]), (3, [0, 1, 1, 1])],
)
def test_chunks_hold_every_pair_once(num_pairs: int, sizes: list[int]) -> None:
    chunks = [chunk_range(num_pairs, len(sizes), chunk) for chunk in range(len(sizes))]
    assert [len(chunk) for chunk in chunks] == sizes
    assert [pair for chunk in chunks for pair in chunk] == list(range(num_pairs))


def test_the_number_of_a_chunk_is_checked() -> None:
    with pytest.raises(UserError, match="`chunk` from 0 to `num_chunks` − 1 = 4, got 5"):
        MotifAnnotation(Path(), RandomAnnotator(), num_chunks=5, chunk=5)


def test_chunks_in_any_order_equal_one_run(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path)
    for chunk in (2, 0, 3):
        name = annotate(tmp_path, pointwise(), num_chunks=4, chunk=chunk)["annotator"]
    missing = list(chunk_range(24, 4, 1))
    found = read(tmp_path, name)
    assert [i for i, value in enumerate(found) if value == 3] == missing
    results = annotate(tmp_path, pointwise(), num_chunks=4, chunk=1)
    assert read(tmp_path, name) == expected(texts)
    assert (results["annotated"], results["chunk"]) == (6, [6, 12])
    seeds = [annotate(tmp_path, RandomAnnotator(), name="whole")["annotator"]]
    for chunk in (1, 0):
        seeds.append(
            annotate(tmp_path, RandomAnnotator(), name="cut", num_chunks=2, chunk=chunk)[
                "annotator"
            ]
        )
    assert read(tmp_path, "whole") == read(tmp_path, "cut")


@pytest.mark.parametrize(("number", "num_chunks"), [(103, 4), (3, 5), (7, 7)])
def test_chunks_of_unequal_length_equal_one_run(
    tmp_path: Path, number: int, num_chunks: int
) -> None:
    texts = write_pairs(tmp_path, number=number)
    for chunk in reversed(range(num_chunks)):
        annotate(tmp_path, pointwise(), name="n", num_chunks=num_chunks, chunk=chunk)
    assert read(tmp_path, "n") == expected(texts)


def test_a_data_set_without_pairs_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "message.npy", np.zeros((0, 2, 1, 256), dtype=np.uint8))
    with pytest.raises(UserError, match=r"at least one pair in `.*`, got none"):
        annotate(tmp_path, pointwise(), name="n")


def test_a_run_may_be_cut_anew(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path, number=23)
    annotate(tmp_path, pointwise(), name="n", num_chunks=4, chunk=1)
    left = [
        annotate(tmp_path, pointwise(), name="n", num_chunks=3, chunk=chunk)["annotated"]
        for chunk in range(3)
    ]
    assert left == [7 - 2, 8 - 4, 8]  # pairs 5 to 10 were known
    assert read(tmp_path, "n") == expected(texts)


def test_starting_a_chunk_over_leaves_the_others(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path)
    annotate(tmp_path, pointwise(), name="n")
    path = tmp_path / "preference" / "n.npy"
    marked = np.load(path)
    marked[:] = 2
    np.save(path, marked)
    results = annotate(tmp_path, pointwise(), name="n", num_chunks=2, chunk=1, start_over=True)
    assert results["annotated"] == 12
    assert read(tmp_path, "n")[:12] == [2] * 12
    assert read(tmp_path, "n")[12:] == expected(texts)[12:]
    with pytest.raises(UserError, match="start over with all chunks as one"):
        annotate(tmp_path, pointwise(margin=1.0), name="n", num_chunks=2, chunk=1, start_over=True)


def test_only_unknown_pairs_are_asked_about(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path)

    def reply(text: str, seed: int) -> str:
        is_clear = "wall" not in text and "in the end" not in text
        return '("best_description": 1)' if answers or is_clear else "Hm."

    answers = False
    backend = RuleBackend(reply=reply)
    annotator = GeneratedAnnotator(backend)
    first = annotate(tmp_path, annotator, name="n")
    unknown = [i for i, pair in enumerate(texts) if pair[0] != pair[1] and "It's a wall." in pair]
    assert [i for i, value in enumerate(read(tmp_path, "n")) if value == 3] == unknown
    assert first["unknown"] == first["unreadable"] == len(unknown) > 0
    answers = True
    backend.asked.clear()
    second = annotate(tmp_path, annotator, name="n")
    assert len(backend.asked) == second["annotated"] == len(unknown)
    ties = {i for i, pair in enumerate(texts) if pair[0] == pair[1]}
    assert read(tmp_path, "n") == [2 if i in ties else 0 for i in range(24)]


@pytest.mark.parametrize("batch_size", [1, 5, 24, 1000])
def test_batches_do_not_matter(tmp_path: Path, batch_size: int) -> None:
    texts = write_pairs(tmp_path)
    results = annotate(tmp_path, pointwise(), name="n", batch_size=batch_size, flush_every=2)
    assert read(tmp_path, "n") == expected(texts)
    assert results["asked"] == len(MESSAGES)


# --- other annotators, captions, reports


def test_score_and_return_need_no_captions(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    rewards = np.load(tmp_path / "data" / "rewards.npy")
    score = np.load(tmp_path / "info" / "score.npy")
    for path in (tmp_path / "data").glob("*.npy"):
        if path.stem != "rewards":
            path.unlink()
    assert annotate(tmp_path, ReturnAnnotator())["annotator"] == "return"
    (tmp_path / "data" / "rewards.npy").unlink()
    assert annotate(tmp_path, ScoreAnnotator())["annotator"] == "score"
    right = [2 if a == b else 0 if a > b else 1 for a, b in score.tolist()]
    assert read(tmp_path, "score") == right
    sums = rewards.sum(2)
    assert read(tmp_path, "return") == [0 if a > b else 1 for a, b in sums.tolist()]
    with pytest.raises(UserError, match="message"):
        annotate(tmp_path, pointwise())


def test_agreement_with_other_annotations_is_reported(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path)
    annotate(tmp_path, pointwise(), name="points")
    annotate(tmp_path, RandomAnnotator(), name="chance")
    other = tmp_path / "preference" / "llama70b_msg_defaultgoal_default.npy"
    np.save(other, np.full(24, 3, dtype=np.int8))
    (tmp_path / "preference" / "broken.npy").write_bytes(b"?")

    def chosen(text: str) -> float:
        quoted = [part for part in text.split('"') if part in WORTH]
        return WORTH[quoted[-2]] - WORTH[quoted[-1]] + 10.0

    backend = RuleBackend(lead=chosen)
    results = annotate(tmp_path, ChoiceAnnotator(backend), name="choice")
    found = results["agreement"]
    assert sorted(found) == ["chance", "llama70b_msg_defaultgoal_default", "points"]
    decided = sum(one != two for one, two in texts)
    assert found["points"] == {
        "pairs": 24,
        "agreement": 1.0,
        "decided": decided,
        "decided_agreement": 1.0,
    }
    assert found["llama70b_msg_defaultgoal_default"]["agreement"] is None
    assert 0 < found["chance"]["decided_agreement"] < 1
    assert results["first_place_share"] == 1.0  # this judge always likes the first place
    assert results["order_agreement"] == 0.0


def test_conversations_are_kept_on_request(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path)
    annotator = GeneratedAnnotator(RuleBackend(reply=verdict))
    annotate(tmp_path, annotator, name="n", log_folder=tmp_path / "talks", batch_size=5)
    asked = {i for i, pair in enumerate(texts) if pair[0] != pair[1]}
    assert {int(path.stem) for path in (tmp_path / "talks").iterdir()} == asked
    some = min(asked)
    text = (tmp_path / "talks" / f"{some}.txt").read_text()
    assert f'"{texts[some][0]}"' in text
    assert text.rstrip().endswith(verdict(text.rpartition("[assistant]")[0], 0))


def test_captions_may_tell_statistics(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    backend = RuleBackend(reply=lambda text, seed: '("best_description": 1)')
    name = annotate(tmp_path, GeneratedAnnotator(backend), stats=True)["annotator"]
    assert "_msg_minbl_" in name
    record = json.loads((tmp_path / "preference" / f"{name}.json").read_text())
    assert record["captions"] == "msg_minbl"
    assert "Dlvl:" in backend.asked[0][-1].text
    plain = annotate(tmp_path, GeneratedAnnotator(RuleBackend()), stats=False)["annotator"]
    assert "_msg_minbl_" not in plain


def test_nothing_left_to_do_asks_nothing(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    annotate(tmp_path, pointwise(), name="n")
    backend = RuleBackend(lead=lead)
    results = annotate(tmp_path, PointwiseAnnotator(backend, version="default"), name="n")
    assert results["annotated"] == results["asked"] == backend.calls == 0
    assert results["unknown"] == 0


def test_annotators_that_keep_each_answer_get_more_pairs_at_once(tmp_path: Path) -> None:
    kept = PointwiseAnnotator(RuleBackend(lead=lead), version="default")
    assert MotifAnnotation(tmp_path, kept).batch_size == 4096
    assert MotifAnnotation(tmp_path, RandomAnnotator()).batch_size == 256
    assert MotifAnnotation(tmp_path, kept, batch_size=7).batch_size == 7


def test_a_recipe_builds_the_job(tmp_path: Path) -> None:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(MotifAnnotation, "job")
    recipe = {
        "job": {
            "directory": str(tmp_path),
            "stats": "False",  # means false
            "log_folder": None,
            "annotator": {
                "class_path": "llm_agents.rewards.GeneratedAnnotator",
                "init_args": {
                    "backend": {
                        "class_path": "llm_agents.rewards.ServerBackend",
                        "init_args": {"endpoint": "http://127.0.0.1:9/v1", "model": "org/m"},
                    },
                    "goal": "stairs",
                    "sampling": {"max_new_tokens": 9},
                },
            },
        }
    }
    job = parser.instantiate(parser.parse_object(recipe)).job
    assert isinstance(job, MotifAnnotation)
    assert job.stats is False
    assert isinstance(job.annotator, GeneratedAnnotator)
    assert job.annotator.name_parts()["goal"] == "stairs"
    assert job.annotator.sampling.max_new_tokens == 9


def test_limits_are_checked(tmp_path: Path) -> None:
    for key in ("batch_size", "flush_every"):
        with pytest.raises(UserError, match=f"`{key}` of at least 1, got 0"):
            MotifAnnotation(tmp_path, RandomAnnotator(), **{key: 0})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="message"):
        annotate(tmp_path / "nowhere", pointwise())
