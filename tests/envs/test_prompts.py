"""The prompt builder: parts, templates, history, the principles, and what it refuses."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from llm_agents.envs import Moment, Observation, PromptBuilder, make_world, prompts, world_names
from llm_agents.envs.prompts import article_faults, cohesion_faults, mentioned, wordings
from llm_agents.errors import UserError
from llm_agents.types import Choice

DOOR = Observation(
    text="You see a door.",
    goal="To leave the room, you should",
    actions=("open the door", "wait, then look"),
    action_ids=(4, 2),
    vector=(1,),
)
HALL = replace(DOOR, text="You stand in the hall.")
PAST = [Moment(f"You see {n}.", "You should", f"take {n}") for n in ("a cup", "a pen", "a box")]


def test_the_examples_run() -> None:
    assert doctest.testmod(prompts).failed == 0


def test_a_prompt_is_the_text_and_the_goal() -> None:
    choice = PromptBuilder().choice(DOOR, PAST)
    assert choice == Choice("You see a door. To leave the room, you should", DOOR.actions)


def test_actions_with_a_comma_are_listed_apart() -> None:
    assert PromptBuilder(list_actions=True).choice(DOOR).prompt == (
        "You see a door. You can now: open the door; wait, then look. To leave the room, you should"
    )


def test_the_goal_may_be_hidden() -> None:
    builder = PromptBuilder(show_goal=False, closing="You decide to")
    assert builder.choice(DOOR).prompt == "You see a door. You decide to"


@pytest.mark.parametrize(
    ("length", "told"),
    [
        (1, "You see a box. You chose to take a box. "),
        (2, "You see a pen. You chose to take a pen. You see a box. You chose to take a box. "),
    ],
)
def test_the_last_moments_are_told(length: int, told: str) -> None:
    prompt = PromptBuilder(history_length=length).choice(DOOR, PAST).prompt
    assert prompt == f"{told}You see a door. To leave the room, you should"


def test_the_history_grows_to_its_length() -> None:
    builder = PromptBuilder(history_length=2)
    first = Moment(DOOR.text, DOOR.goal, "open the door")
    assert builder.remember((), DOOR, 0) == (first,)
    past = builder.remember(builder.remember((first,), HALL, 1), DOOR, 1)
    assert [moment.action for moment in past] == ["wait, then look", "wait, then look"]
    assert [moment.observation for moment in past] == [HALL.text, DOOR.text]
    assert PromptBuilder().remember((first,), DOOR, 0) == ()


def test_a_moment_may_tell_the_whole_sentence() -> None:
    builder = PromptBuilder(history_length=1, moment="{observation} {goal} {action}.")
    past = builder.remember((), DOOR, 0)
    assert builder.choice(HALL, past).prompt == (
        "You see a door. To leave the room, you should open the door. "
        "You stand in the hall. To leave the room, you should"
    )


def test_an_empty_part_takes_its_line_along() -> None:
    builder = PromptBuilder(
        template="A game.\n\n{history}\n{observation}\n{actions}\n{goal}", history_length=1
    )
    assert builder.choice(DOOR).prompt == (
        "A game.\n\nYou see a door.\nTo leave the room, you should"
    )
    assert builder.choice(DOOR, PAST).prompt == (
        "A game.\n\nYou see a box. You chose to take a box.\nYou see a door.\n"
        "To leave the room, you should"
    )


def test_after_the_end_there_are_no_actions_and_no_list() -> None:
    ended = replace(DOOR, actions=(), action_ids=())
    choice = PromptBuilder(list_actions=True).choice(ended)
    assert choice == Choice("You see a door. To leave the room, you should", ())


def test_braces_in_a_text_are_kept() -> None:
    assert PromptBuilder().choice(replace(DOOR, text="A sign says {goal}.")).prompt == (
        "A sign says {goal}. To leave the room, you should"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{observation} {gaol}"}, "plain fields out of history, observation"),
        ({"template": "{goal}"}, "with observation and goal among them"),
        ({"template": "{goal} {observation}"}, "ends with {goal}"),
        ({"template": "{observation} {goal} now"}, "ends with {goal}"),
        ({"template": "{observation} {goal"}, "write a brace that is no field twice"),
        ({"template": "{observation!r} {goal}"}, "plain fields"),
        ({"template": "{observation} {goal}", "list_actions": True}, "expected {actions} in"),
        ({"template": "{observation} {goal}", "history_length": 1}, "expected {history} in"),
        ({"moment": "{observation}"}, "with action among them"),
        ({"action_list": "Choose."}, "with actions among them"),
        ({"history_length": -1}, "0 or more, got -1"),
        ({"closing": "What next?"}, "ends in '\\?': end it in a word"),
        ({"closing": "You should "}, "ends in ' '"),
    ],
)
def test_faulty_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PromptBuilder(**options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": "You should leave."}, "ends in '.'"),
        ({"goal": "", "text": ""}, "the clause is empty"),
        ({"actions": ("Open the door", "wait")}, "'Open the door' does not start with a bare verb"),
        ({"actions": ("to wait", "wait")}, "'to wait' does not start"),
        ({"actions": (" wait", "look")}, "' wait' does not start"),
        ({"actions": ("", "look")}, "'' does not start"),
        ({"actions": ("the door", "look")}, "'the door' does not start"),
        ({"actions": ("wait.", "look")}, "'wait.' ends in '.'"),
        ({"actions": ("wait", "wait")}, "'wait' is listed twice"),
    ],
)
def test_worlds_that_do_not_flow_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptBuilder().choice(replace(DOOR, **changes))


def test_the_check_can_be_left_off() -> None:
    shouting = replace(DOOR, actions=("LEFT", "RIGHT"))
    assert PromptBuilder(check_cohesion=False).choice(shouting).actions == ("LEFT", "RIGHT")


def test_faults_are_all_named() -> None:
    assert len(cohesion_faults(Choice("Done.", ("a door", "go!", "go!")))) == 5


def test_articles_are_looked_for_before_every_noun() -> None:
    nouns = ["tomato", "cutting board"]
    assert article_faults("put tomato on the first cutting board", nouns, ["first"]) == ["tomato"]
    assert article_faults("Tomato and a cutting board", nouns) == ["tomato"]
    assert article_faults("put the tomato on cutting board", nouns) == ["cutting board"]
    assert article_faults("a tomato, an unchopped tomato", nouns, ["unchopped"]) == []


def test_mentions_are_words_of_weight() -> None:
    choice = Choice("You see the tomato. You should", ("take the tomato", "go to the hall", "see"))
    assert mentioned(choice) == (True, False, True)


def test_wordings_go_by_number() -> None:
    closed = replace(DOOR, actions=("close the door", "wait, then look"))
    assert wordings([DOOR, closed]) == {
        4: {"open the door", "close the door"},
        2: {"wait, then look"},
    }


@pytest.mark.parametrize("name", world_names())
def test_every_world_flows_along_a_walk(name: str) -> None:
    world = make_world(name)
    for list_actions in (False, True):
        builder = PromptBuilder(list_actions=list_actions, history_length=2)
        observation, past = world.reset(1), ()
        for number in range(60):
            choice = builder.choice(observation, past)
            assert choice.actions == observation.actions
            index = number % len(observation.actions)
            past = builder.remember(past, observation, index)
            step = world.step(index)
            observation = step.observation
            builder.choice(observation, past)
            if step.episode is not None:
                observation, past = world.reset(), ()
