"""Replies of models that play: what counts as an action, and what doesn't."""

from __future__ import annotations

import pytest

from llm_agents.evaluation.player_questions import question, read_reply, repeated
from llm_agents.types import Choice, Turn

ACTIONS = ("pick up the ball", "go forward", "turn left")
ORDER = (2, 0, 1)  # 1. turn left · 2. pick up the ball · 3. go forward


def test_a_question_lists_the_actions_in_its_order() -> None:
    (turn,) = question(Choice("You see a ball. You should", ACTIONS), ORDER, "choose")
    assert turn.role == "user"
    lines = turn.text.splitlines()
    assert lines[0] == "You see a ball. You should …"
    assert lines[3:6] == ["1. turn left", "2. pick up the ball", "3. go forward"]
    (turn,) = question(Choice("You should", ACTIONS), ORDER, "write")
    assert turn.text.splitlines()[3:6] == ["- turn left", "- pick up the ball", "- go forward"]


@pytest.mark.parametrize(
    ("reply", "index"),
    [
        ("1", 2),
        ("2", 0),
        (" 3 \n", 1),
        ("(2)", 0),
        ("2.", 0),
        ("2)", 0),
        ("**2**", 0),
        ('"2"', 0),
        ("2. pick up the ball", 0),
        ("2: Pick up  the ball.", 0),
        ("2 - pick up the ball", 0),
        ("02", 0),
        ("Go forward.", 1),
        ("<think>1 or 2? Not 1.</think>\n\n3", 1),
        ("<think></think>turn left", 2),
    ],
)
def test_a_choice_that_can_be_read(reply: str, index: int) -> None:
    assert read_reply(reply, ACTIONS, ORDER, "choose") == index


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "   ",
        ".",
        "0",
        "4",
        "-1",
        "1.5",
        "1 2",
        "1, 2",
        "1 or 2",
        "2. go forward",  # number and text contradict each other
        "The answer is 2",
        "2 because of the ball",
        "two",
        "²",
        "2\n3",
        "<think>2</think>",
        "<think>2",
        "2</think>",
        "turn",
        "turn left or go forward",
        "99999999999999999999",
    ],
)
def test_a_choice_that_cannot_be_read(reply: str) -> None:
    assert read_reply(reply, ACTIONS, ORDER, "choose") is None


@pytest.mark.parametrize(
    ("reply", "index"),
    [
        ("pick up the ball", 0),
        ("  Pick Up The Ball.  ", 0),
        ("- turn left", 2),
        ("`go forward`", 1),
        ("*go  forward*.", 1),
        ("“turn left”", 2),
        ("2", None),
        ("pick up the red ball", None),
        ("pick up the ball and go forward", None),
        ("pick up", None),
        ("go forward!", None),
        ("", None),
    ],
)
def test_written_actions_are_matched_strictly(reply: str, index: int | None) -> None:
    assert read_reply(reply, ACTIONS, ORDER, "write") == index


@pytest.mark.parametrize(
    ("actions", "reply", "index"),
    [
        (("take A", "take a"), "take a", 1),
        (("take A", "take a"), "take A", 0),
        (("take A", "take a"), "TAKE A", None),
        (("stop()", "move_to(kitchen)"), "move_to(kitchen)", 1),
        (("poser la clé", "lâcher"), "LÂCHER", 1),
        (("say 1", "say 2"), "say 2", 1),
    ],
)
def test_actions_of_other_kinds(actions: tuple[str, ...], reply: str, index: int | None) -> None:
    assert read_reply(reply, actions, (0, 1), "write") == index


def test_a_number_means_the_place_even_where_actions_are_numbers() -> None:
    assert read_reply("2", ("2", "1"), (0, 1), "choose") == 1
    assert read_reply("2", ("2", "1"), (0, 1), "write") == 0


def test_asking_again_shows_the_reply_and_never_an_empty_turn() -> None:
    asked = question(Choice("You should", ACTIONS), ORDER, "choose")
    again = repeated(asked, "I think\n", 3, "choose")
    assert again[1] == Turn("assistant", "I think")
    assert "from 1 to 3" in again[2].text
    assert [turn.role for turn in again] == ["user", "assistant", "user"]
    for empty in ("", "  ", "<think>hm</think> "):
        assert repeated(asked, empty, 3, "write")[1].text == "…"
