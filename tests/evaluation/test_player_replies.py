"""Answers in a file: none is lost, none is asked for twice, and none is another question's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_agents.errors import UserError
from llm_agents.evaluation.player_replies import ReplyJournal, ReplySettings, _read_echo


class Oracle:
    """Answers with the question in capitals, up to one that it can't answer."""

    def __init__(self, *asked: str, fails_at: str | None = None) -> None:
        self.asked, self.fails_at = asked, fails_at
        self.heard: list[str] = []

    def __call__(self, missing: list[int], keep: Any) -> None:
        for place, number in enumerate(missing):
            if self.asked[number] == self.fails_at:
                raise UserError("gone")
            self.heard.append(self.asked[number])
            keep(place, {"said": self.asked[number].upper()})


def test_equal_questions_are_asked_once_and_answered_in_their_places(tmp_path: Path) -> None:
    journal = ReplyJournal(tmp_path / "new" / "replies.jsonl")
    asked = ("b", "a", "b", "c", "a")
    oracle = Oracle(*asked)
    found = journal.answers(asked, oracle)
    assert [entry["said"] for entry in found] == ["B", "A", "B", "C", "A"]
    assert oracle.heard == ["b", "a", "c"]
    second = Oracle("c", "d")
    assert [e["said"] for e in journal.answers(("c", "d"), second)] == ["C", "D"]
    assert second.heard == ["d"]
    assert sorted(entry["said"] for entry in journal.used_answers()) == ["A", "B", "C", "D"]


@pytest.mark.parametrize(
    "rubbish", ["", '{"key": "cut', "[]\n", '"text"\n', "3\n", '{"said": "X"}\n', "\x00\n"]
)
def test_what_came_before_a_failure_is_there_afterwards(tmp_path: Path, rubbish: str) -> None:
    path = tmp_path / "replies.jsonl"
    asked = ("a", "b", "c", "d")
    with pytest.raises(UserError, match="gone"):
        ReplyJournal(path).answers(asked, Oracle(*asked, fails_at="c"))
    with path.open("a") as file:
        file.write(rubbish)
    oracle = Oracle(*asked)
    journal = ReplyJournal(path)
    assert [entry["said"] for entry in journal.answers(asked, oracle)] == ["A", "B", "C", "D"]
    assert oracle.heard == ["c", "d"]
    third = Oracle(*asked)
    ReplyJournal(path).answers(asked, third)
    assert third.heard == []
    assert not (tmp_path / "kept.jsonl").exists()
    journal.finish(tmp_path / "kept.jsonl")
    assert not path.exists()
    assert "D" in (tmp_path / "kept.jsonl").read_text()


def test_what_was_asked_otherwise_before_is_no_part_of_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    ReplyJournal(path).answers(("a", "b"), Oracle("a", "b"))
    journal = ReplyJournal(path)
    journal.answers(("b", "c"), Oracle("b", "c"))
    journal.finish(tmp_path / "kept.jsonl")
    kept = [json.loads(line)["said"] for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert kept == ["B", "C"]


def test_nothing_asked_leaves_no_file(tmp_path: Path) -> None:
    journal = ReplyJournal(tmp_path / "new" / "replies.jsonl")
    assert journal.answers((), Oracle()) == []
    journal.finish(tmp_path / "kept.jsonl")
    assert not list(tmp_path.iterdir())
    alone = ReplyJournal()
    alone.answers(("a",), Oracle("a"))
    alone.finish(None)


@pytest.mark.parametrize(
    ("usage", "tokens", "values", "is_there"),
    [
        ({"completion_tokens": 1}, ["a", " b", " c"], [None, -1, -2], True),
        ({}, ["a", " b", " c"], [None, -1, -2], True),
        ({"completion_tokens": 0}, ["a", " b"], [None, -1], True),
        ({"completion_tokens": 1}, [" c"], [-2], False),  # what was written alone
        ({"completion_tokens": 3}, [" c", " d", " e"], [-2, -1, -1], False),
        ({"completion_tokens": 1}, [], [], False),
        ({"completion_tokens": 1}, ["a", " b", " c"], [None, None, -2], False),
        ({"completion_tokens": 1}, ["a", " b", " c"], [None, -2], False),
    ],
)
def test_log_probs_of_a_text_are_told_from_those_of_what_was_written(
    usage: dict[str, int], tokens: list[str], values: list[float | None], is_there: bool
) -> None:
    found = {"tokens": tokens, "token_logprobs": values}
    reply = {"choices": [{"text": "a b c", "logprobs": found}], "usage": usage}
    echo = _read_echo(reply)
    assert (echo is not None) == is_there
    if echo is not None:
        assert (echo.tokens, echo.log_probs) == (("a", " b"), (None, -1.0))
    assert _read_echo(reply, asked="x") is None
    assert _read_echo({"choices": [{"text": "a", "logprobs": None}]}) is None


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"temperature": 2.5}])
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="temperature from 0 to 2"):
        ReplySettings(**wrong)
