"""Questions to judges: structure, goals, wordings, captions as they are."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from llm_agents.errors import UserError
from llm_agents.rewards.annotation_examples import PointwisePrompts, examples
from llm_agents.rewards.annotation_parsing import read_verdict
from llm_agents.rewards.annotation_prompts import (
    GOALS,
    NOUNS,
    Goal,
    JudgeTemplate,
    PairPrompts,
    Version,
)
from tests.rewards.gold_messages import GOLD, STEERING

ALL = list(product(get_args(Goal), get_args(Version), get_args(JudgeTemplate)))


def test_there_are_five_goals_and_two_wordings() -> None:
    assert list(GOALS) == ["defaultgoal", "zeroknowledge", "combat", "gold", "stairs"]
    assert NOUNS == {"default": "description", "reworded": "message"}
    assert len(ALL) == 20


@pytest.mark.parametrize(("goal", "version", "template"), ALL)
def test_a_question_shows_both_captions_and_the_goal(
    goal: Goal, version: Version, template: JudgeTemplate
) -> None:
    prompts = PairPrompts(goal, version, template)
    one, two = 'odd {braces} "quotes"  and \n lines\n\n\nbreak ', ""
    for prompt in (prompts.question(one, two), prompts.choice(one, two)):
        text = prompt[-1].text
        assert f'"{one}"' in text  # as it is: nothing escaped, nothing tidied
        assert text.index(one) < text.rindex('""')
        assert GOALS[goal] in text
        assert "{goal}" not in text
        assert "{blocks}" not in text
        assert not text.endswith(" ")
    other = "message" if NOUNS[version] == "description" else "description"
    question = prompts.question("a", "b")[-1].text
    assert f"best_{NOUNS[version]}" in question
    assert f"best_{other}" not in question
    assert prompts.question("a", "b") != prompts.question("b", "a")


def test_the_goal_comes_before_the_analysis_or_at_the_comparison() -> None:
    default = PairPrompts("combat", "default", "chat").question("a", "b")[1].text
    reworded = PairPrompts("combat", "reworded", "chat").question("a", "b")[1].text
    goal = GOALS["combat"]
    assert default.index("1. ") < default.index(goal) < default.index("2. ")
    assert reworded.index("3. ") < reworded.index(goal) < reworded.index("4. ")


def test_without_a_goal_no_gap_is_left() -> None:
    for version, template in product(get_args(Version), get_args(JudgeTemplate)):
        prompts = PairPrompts("zeroknowledge", version, template)
        for prompt in (prompts.question("a", "b"), prompts.choice("a", "b")):
            text = prompt[-1].text
            assert "  " not in text
            assert " \n" not in text
            assert "\n\n\n" not in text


def test_every_goal_and_wording_asks_differently() -> None:
    pairs = {str(PairPrompts(*settings).wording()) for settings in ALL}
    assert len(pairs) == 20
    points = {str(PointwisePrompts(*settings).wording()) for settings in ALL}
    assert len(points) == 20


def test_a_chat_has_a_persona_and_a_second_turn() -> None:
    prompts = PairPrompts("defaultgoal", "default", "chat")
    asked = prompts.question("a", "b")
    assert [turn.role for turn in asked] == ["system", "user"]
    again = prompts.retry(asked, "I wonder.")
    assert [turn.role for turn in again] == ["system", "user", "assistant", "user"]
    assert again[2].text == "I wonder."
    for form in (
        '("best_description": 1)',
        '("best_description": 2)',
        '("best_description": None)',
    ):
        assert form in again[3].text


def test_a_document_goes_on_where_the_reply_ended() -> None:
    prompts = PairPrompts("gold", "reworded", "plain")
    asked = prompts.question("a", "b")
    assert asked[0].text.endswith('Message 1: "a"\nMessage 2: "b"\nComparison:')
    again = prompts.retry(asked, " They  differ. ")[0].text
    assert again == f"{asked[0].text} They  differ. In short:"
    assert prompts.retry(asked, "")[0].text == f"{asked[0].text} In short:"
    assert prompts.stop_strings == ("\n\n",)
    assert prompts.choice("a", "b")[0].text.endswith('Message 2: "b"\nBetter:')


@pytest.mark.parametrize("goal", get_args(Goal))
@pytest.mark.parametrize("version", get_args(Version))
def test_worked_comparisons_have_both_verdicts(goal: Goal, version: Version) -> None:
    document = PairPrompts(goal, version, "plain").question("a", "b")[0].text
    verdicts = [read_verdict(part, NOUNS[version]) for part in document.split("\n\n")]
    assert [verdict for verdict in verdicts if verdict is not None] == [0, 1]


def test_examples_say_what_the_goal_wants() -> None:
    signs = {
        "combat": ("kill", "hit", "kick", "destroy", "strike"),
        "gold": ("gold pieces",),
        "stairs": ("down", "level below"),
    }
    for goal, words in signs.items():
        shown = examples(goal)  # type: ignore[arg-type]
        wanted = [example.text for example in shown if example.is_good]
        assert all(any(word in text for word in words) for text in wanted)
        others = {"combat", "gold", "stairs"} - {goal}
        for other in others:  # what another goal wants is shown as unwanted
            theirs = {e.text for e in examples(other) if e.is_good}  # type: ignore[arg-type]
            assert theirs & {e.text for e in shown if not e.is_good}
        assert len(wanted) >= 6
    assert examples("zeroknowledge") == examples("defaultgoal")


def test_no_example_is_in_the_gold_list() -> None:
    gold = {text for pair in GOLD for text in pair[:2]}
    gold |= {text for pairs in STEERING.values() for pair in pairs for text in pair[:2]}
    for goal in get_args(Goal):
        shown = {example.text for example in examples(goal)}
        assert shown & gold <= {""}  # the empty message is one of a kind


@pytest.mark.parametrize(("goal", "version", "template"), ALL)
def test_pointwise_questions_begin_alike(
    goal: Goal, version: Version, template: JudgeTemplate
) -> None:
    prompts = PointwisePrompts(goal, version, template)
    one, two = prompts.question("You hear {x}."), prompts.question("")
    assert one[:-1] == two[:-1]
    assert "You hear {x}." in one[-1].text
    if template == "plain":
        end = one[-1].text.index("You hear {x}.")
        assert one[-1].text[:end] == two[-1].text[:end]
        assert one[-1].text.endswith(":")
    else:
        assert [turn.role for turn in one[:3]] == ["system", "user", "assistant"]
        assert {turn.text for turn in one if turn.role == "assistant"} == set(prompts.answers)


def test_fewer_examples_are_the_last_ones() -> None:
    whole = PointwisePrompts("gold", "default", "plain").question("x")[0].text.split("\n\n")
    two = PointwisePrompts("gold", "default", "plain", 2).question("x")[0].text.split("\n\n")
    assert two == [whole[0], *whole[-3:]]
    none = PointwisePrompts("gold", "default", "plain", 0).question("x")[0].text.split("\n\n")
    assert none == [whole[0], whole[-1]]


def test_bad_settings_are_named() -> None:
    with pytest.raises(UserError, match=r"`goal` to be one of defaultgoal, .*got 'diamonds'"):
        PairPrompts("diamonds", "default", "chat")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"`version` to be one of default, reworded, got 'x'"):
        PointwisePrompts("gold", "x", "chat")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`template` chat or plain, got 'alol'"):
        PairPrompts("gold", "default", "alol")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`num_examples` from 0 to 14"):
        PointwisePrompts("gold", "default", "plain", 99)
