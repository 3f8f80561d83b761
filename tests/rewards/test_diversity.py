"""tf-idf diversity: the specification's numbers, a plain count, files."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.errors import UserError
from llm_agents.rewards import DiversityReward

FITTED_ON = [
    "the cat sat on the mat",
    "a dog sat",
    "the dog ate the cat food today",
    "birds fly",
]


@pytest.fixture(scope="module")
def reward() -> DiversityReward:
    return DiversityReward.fit(FITTED_ON)


def test_inverse_document_frequencies(reward: DiversityReward) -> None:
    common = {"cat", "dog", "sat", "the"}
    assert "a" not in reward.idf  # one letter
    for word, value in reward.idf.items():
        expected = math.log(5 / 3) + 1 if word in common else math.log(5 / 2) + 1
        assert value == pytest.approx(expected, abs=1e-12)
    assert round(reward.idf["cat"], 6) == 1.510826
    assert round(reward.idf["mat"], 6) == 1.916291


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("birds", 0.1),
        ("the cat sat", 0.173205),
        ("the dog ate the cat food", 0.430610),
        ("the cat sat on the mat today", 0.395356),
        ("unknown words only", 0.0),
        ("", 0.0),
        ("The CAT sat.", 0.173205),
    ],
)
def test_worked_scores(reward: DiversityReward, response: str, expected: float) -> None:
    assert reward([()], [response]).tolist() == [pytest.approx(expected, abs=5e-7)]


def test_the_penalty_is_for_fewer_than_five_words() -> None:
    """Of k equally rare words the mean weight is 1/√k: the score peaks at five."""
    words = [f"word{number}" for number in range(8)]
    reward = DiversityReward.fit(words)
    scores = [reward.score(" ".join(words[:count])) for count in range(1, 9)]
    expected = [(k / 10 if k < 5 else 1) / math.sqrt(k) for k in range(1, 9)]
    assert scores == pytest.approx(expected, abs=1e-12)
    assert max(scores) == scores[4]


def test_an_end_token_is_no_word() -> None:
    with_end = DiversityReward.fit([f"{text}<|endoftext|>" for text in FITTED_ON])
    assert with_end.idf == DiversityReward.fit(FITTED_ON).idf
    assert "endoftext" not in with_end.idf
    assert with_end.score("the cat sat<|endoftext|>") == with_end.score("the cat sat")


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab c"), max_size=12), min_size=1, max_size=6))
def test_scores_lie_in_the_range(texts: list[str]) -> None:
    if not any(len(word) > 1 for text in texts for word in text.split()):
        with pytest.raises(UserError, match="expected words"):
            DiversityReward.fit(texts)
        return
    reward = DiversityReward.fit(texts)
    scores = reward([()] * len(texts), texts)
    assert bool(((scores >= 0) & (scores <= 5**-0.5 + 1e-6)).all())
    torch.testing.assert_close(reward([()] * len(texts), texts), scores)


def test_a_file_gives_the_same_reward(reward: DiversityReward, tmp_path: Path) -> None:
    reward.save(tmp_path / "new" / "tfidf.json")
    loaded = DiversityReward.from_file(str(tmp_path / "new" / "tfidf.json"))
    assert (loaded.idf, loaded.version) == (reward.idf, reward.version)
    assert DiversityReward.fit(FITTED_ON[:3]).version != reward.version
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tfidf.json"]


@pytest.mark.parametrize("key", ["response", "responses", "references"])
def test_it_fits_to_a_file_of_rows(reward: DiversityReward, tmp_path: Path, key: str) -> None:
    rows = [{"prompt": "x", key: text if key == "response" else [text]} for text in FITTED_ON]
    path = tmp_path / "train.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf8") as file:
        file.write("".join(json.dumps(row) + "\n\n" for row in rows))
    assert DiversityReward.from_file(str(path)).idf == reward.idf


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.json", None, "found no file"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"format": 9}', "expected a tf-idf file of format 1"),
        ("a.jsonl", '{"text": "x"}', "a.jsonl:1: expected one of the keys response"),
    ],
)
def test_a_wrong_file_is_named(
    tmp_path: Path, name: str, content: str | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=expected):
        DiversityReward.from_file(str(tmp_path / name))
