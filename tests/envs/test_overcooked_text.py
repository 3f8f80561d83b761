"""The words of Overcooked: what is told in which order, each wording, and the four principles."""

from __future__ import annotations

import pytest

from llm_agents.envs import Observation, Overcooked, PromptBuilder
from llm_agents.envs.overcooked_kitchen import DISHES, DishName
from llm_agents.envs.planning import reachable_states
from llm_agents.envs.prompts import article_faults, mentioned, wordings
from tests.envs.test_overcooked import LETTUCE, TASKS, TOMATO

NOUNS = ("tomato", "lettuce", "onion", "bowl", "cutting board", "dish", "table")
ADJECTIVES = ("chopped", "unchopped", "empty", "first", "second", "fixed")


def after(dish: DishName, macros: str) -> Observation:
    numbers = TOMATO if dish == "tomato-salad" else LETTUCE
    world = Overcooked(dish)
    observation = world.reset()
    for name in filter(None, macros.split(", ")):
        observation = world.step(numbers[name]).observation
    return observation


def all_observations(dish: DishName) -> list[Observation]:
    world = Overcooked(dish)
    return [world.observe(state) for state in reachable_states(world, world.kitchen.start())]


@pytest.mark.parametrize(
    ("macros", "text"),
    [
        ("", "You see a tomato on the table. You carry nothing."),
        ("tomato", "You carry an unchopped tomato."),
        (
            "tomato, board 1",
            "An unchopped tomato is on the cutting board. "
            "You stand in front of the cutting board and carry nothing.",
        ),
        (
            "tomato, board 1, chop",
            "A chopped tomato is on the cutting board. "
            "You stand in front of the cutting board and carry nothing.",
        ),
        (
            "tomato, board 1, chop, tomato",
            "You stand in front of the cutting board and carry a chopped tomato.",
        ),
        (
            "tomato, board 1, chop, tomato, plate",
            "You carry a bowl with a chopped tomato in it.",
        ),
        (
            "plate, board 1",
            "A bowl is on the cutting board. "
            "You stand in front of the cutting board and carry nothing.",
        ),
        ("deliver, board 1", "You stand in front of the cutting board and carry nothing."),
    ],
)
def test_the_tomato_salad_in_words(macros: str, text: str) -> None:
    observation = after("tomato-salad", macros)
    assert observation.text == f"The room has one fixed cutting board. {text}"
    assert observation.goal == (
        "To serve a bowl with only a chopped tomato in it, you should first"
    )


@pytest.mark.parametrize(
    ("macros", "text"),
    [
        ("", "You see a tomato, a lettuce and an onion on different tables. You carry nothing."),
        (
            "tomato",
            "You see a lettuce and an onion on different tables. You carry an unchopped tomato.",
        ),
        (
            "tomato, board 1, chop, lettuce, board 2, chop",
            "A chopped tomato is on the first cutting board. "
            "A chopped lettuce is on the second cutting board. "
            "You stand in front of the second cutting board and carry nothing.",
        ),
        (
            "tomato, board 1, chop, lettuce, board 2, chop, plate, tomato, lettuce, board 1",
            "A bowl with a chopped tomato and a chopped lettuce in it is on the first cutting "
            "board. You stand in front of the first cutting board and carry nothing.",
        ),
    ],
)
def test_the_tomato_lettuce_salad_in_words(macros: str, text: str) -> None:
    observation = after("tomato-lettuce-salad", macros)
    assert observation.text == f"The room has two fixed cutting boards. {text}"
    assert observation.goal == (
        "To serve a bowl with only a chopped tomato and a chopped lettuce in it, you should first"
    )


@pytest.mark.parametrize(
    ("macros", "actions"),
    [
        ("", ("pick up the tomato", "take the bowl", "walk to the cutting board",
              "serve nothing", "chop nothing")),
        ("tomato", ("pick up the tomato", "take the bowl", "put the tomato on the cutting board",
                    "serve the dish", "chop nothing")),
        ("tomato, board 1", ("pick up the tomato", "take the bowl", "walk to the cutting board",
                             "serve nothing", "chop the tomato")),
        ("tomato, board 1, chop", ("pick up the tomato", "take the bowl",
                                   "walk to the cutting board", "serve nothing",
                                   "chop the tomato")),
        ("tomato, board 1, chop, tomato", ("pick up the tomato", "take the bowl",
                                           "walk to the cutting board", "serve the dish",
                                           "chop nothing")),
        ("plate", ("put the tomato in the bowl", "take the bowl",
                   "put the bowl on the cutting board", "serve the dish", "chop nothing")),
        ("plate, board 1", ("pick up the tomato", "take the bowl", "walk to the cutting board",
                            "serve nothing", "chop nothing")),
    ],
)  # fmt: skip
def test_actions_are_worded_by_the_situation(macros: str, actions: tuple[str, ...]) -> None:
    assert after("tomato-salad", macros).actions == actions


@pytest.mark.parametrize(
    ("macros", "index", "text"),
    [
        ("", 3, "take the empty bowl"),
        ("plate", 3, "take the empty bowl"),
        ("plate", 0, "put the tomato in the bowl"),
        ("plate", 2, "put the onion in the bowl"),
        ("lettuce", 5, "put the lettuce on the second cutting board"),
        ("tomato, board 1, chop, tomato, plate", 3, "take the bowl"),
        ("tomato, board 1, chop, tomato, plate, board 1", 3, "take the bowl"),
        ("tomato, board 1, chop, tomato, plate, board 1, onion", 3, "take the empty bowl"),
        ("tomato, board 1, onion, board 2", 7, "chop the onion"),
        ("tomato, board 1, onion, board 2, board 1", 7, "chop the tomato"),
        ("tomato, board 1, chop, tomato, plate, board 1", 7, "chop nothing"),
    ],
)
def test_actions_of_the_tomato_lettuce_salad(macros: str, index: int, text: str) -> None:
    assert after("tomato-lettuce-salad", macros).actions[index] == text


@pytest.mark.parametrize("dish", TASKS)
def test_equal_vectors_are_told_in_equal_words_and_different_ones_are_not(dish: DishName) -> None:
    told: dict[tuple[int, ...], set[tuple[str, tuple[str, ...]]]] = {}
    for observation in all_observations(dish):
        told.setdefault(observation.vector, set()).add((observation.text, observation.actions))
    assert all(len(texts) == 1 for texts in told.values())


@pytest.mark.parametrize("dish", TASKS)
def test_the_four_principles_hold_in_every_state(dish: DishName) -> None:
    builder = PromptBuilder()
    observations = all_observations(dish)
    mentions = []
    for observation in observations:
        choice = builder.choice(observation)  # refuses what does not flow
        assert article_faults(choice.prompt, NOUNS, ADJECTIVES) == []
        for action in choice.actions:
            assert article_faults(action, NOUNS, ADJECTIVES) == []
        mentions += mentioned(choice)
    assert sum(mentions) > 0.7 * len(mentions)
    texts = wordings(observations)
    foods = len(DISHES[dish].foods)
    assert len(texts) == Overcooked(dish).num_actions
    assert all(len(texts[food]) == 2 for food in range(foods))
    assert len(texts[foods]) == (1 if foods == 1 else 2)
    assert all(len(texts[go]) == foods + 2 for go in range(foods + 1, max(texts) - 1))
    assert texts[max(texts) - 1] == {"serve nothing", "serve the dish"}
    assert len(texts[max(texts)]) == foods + 1
