"""BabyAI's words: grammar, order, French, clauses."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agents.envs import BabyAIText, babyai_french, babyai_text
from llm_agents.envs.babyai_bot import Bot
from llm_agents.envs.babyai_french import translate_mission
from llm_agents.envs.babyai_text import (
    describe,
    descriptions_of,
    mission_of,
    to_clause,
    to_text,
)
from llm_agents.envs.babyai_view import AGENT, EMPTY, UNSEEN, Code

WALL: Code = (2, 5, 0)


def test_the_examples_run() -> None:
    assert doctest.testmod(babyai_text).failed == 0
    assert doctest.testmod(babyai_french).failed == 0


def view(cells: dict[tuple[int, int], Code]) -> list[Code]:
    """Return an empty view with some cells, by steps to the right and ahead."""
    codes = [EMPTY] * 49
    for (aside, ahead), code in cells.items():
        codes[(aside + 3) * 7 + 6 - ahead] = code
    return codes


@pytest.mark.parametrize(
    ("aside", "ahead", "english", "french"),
    [
        (-1, 2, "1 step left and 2 steps forward", "1 pas à gauche et 2 pas devant"),  # T1
        (2, 1, "2 steps right and 1 step forward", "2 pas à droite et 1 pas devant"),
        (0, 1, "1 step forward", "1 pas devant"),
        (0, 6, "6 steps forward", "6 pas devant"),
        (-3, 0, "3 steps left", "3 pas à gauche"),
        (1, 0, "1 step right", "1 pas à droite"),
    ],
)
def test_places(aside: int, ahead: int, english: str, french: str) -> None:
    codes = view({(aside, ahead): (6, 0, 0)})
    assert describe(codes) == [f"You see a red ball {english}"]
    assert describe(codes, "french") == [f"Tu vois une balle rouge {french}"]


def test_the_order() -> None:  # T2
    codes = view(
        {
            (0, 0): (5, 3, 0),
            (0, 5): WALL,
            (-2, 0): WALL,
            (3, 0): WALL,
            (-1, 1): (7, 0, 0),
            (-1, 4): (6, 1, 0),
            (2, 2): (5, 4, 0),
        }
    )
    assert describe(codes) == [
        "You carry a purple key",
        "You see a wall 5 steps forward",
        "You see a wall 2 steps left",
        "You see a wall 3 steps right",
        "You see a green ball 1 step left and 4 steps forward",
        "You see a red box 1 step left and 1 step forward",
        "You see a yellow key 2 steps right and 2 steps forward",
    ]
    assert describe(codes, "french") == [
        "Tu portes une clef violette",
        "Tu vois un mur à 5 pas devant",
        "Tu vois un mur à 2 pas à gauche",
        "Tu vois un mur à 3 pas à droite",
        "Tu vois une balle verte 1 pas à gauche et 4 pas devant",
        "Tu vois une boîte rouge 1 pas à gauche et 1 pas devant",
        "Tu vois une clef jaune 2 pas à droite et 2 pas devant",
    ]
    assert describe(codes, "french", as_released=True)[0] == "Tu portes une key purple"


def test_a_wall_behind_something_is_silent_and_so_is_one_off_the_axes() -> None:  # T3
    codes = view({(0, 2): (6, 0, 0), (0, 3): WALL, (1, 4): WALL, (-2, 0): UNSEEN, (-3, 0): WALL})
    assert describe(codes) == ["You see a wall 3 steps left", "You see a red ball 2 steps forward"]


@pytest.mark.parametrize(
    ("state", "english", "french"),
    [
        (0, "You see a open green door", "Tu vois une porte verte ouverte"),
        (1, "You see a closed green door", "Tu vois une porte verte fermée"),
        (2, "You see a locked green door", "Tu vois une porte verte fermée à clef"),
    ],
)
def test_doors_tell_their_state(state: int, english: str, french: str) -> None:  # T4
    codes = view({(0, 3): (4, 1, state)})
    assert describe(codes) == [f"{english} 3 steps forward"]
    assert describe(codes, "french") == [f"{french} 3 pas devant"]


def test_what_is_carried_is_told_once() -> None:  # T5
    world, bot = BabyAIText("MixedTrainLocal", kind="putnext"), Bot()
    world.reset(0)
    while world.engine.carrying is None:
        world.step(bot(world))
    held = world.engine.carrying
    said = world.descriptions()
    assert said[0] == f"You carry a {held.color} {held.type}"
    assert sum("carry" in each for each in said) == 1
    assert world.view()[AGENT] == held.encode()
    assert all(each.startswith("You see a ") for each in said[1:])
    assert not any("0 step" in each for each in said)


@given(st.lists(st.sampled_from(["You carry a red key", "You see a wall 1 step left"]), max_size=5))
def test_descriptions_survive_as_sentences(descriptions: list[str]) -> None:
    assert descriptions_of(to_text(descriptions)) == descriptions


@pytest.mark.parametrize("language", ["english", "french"])
@given(mission=st.text(alphabet="abc, ", max_size=20))
def test_missions_survive_as_clauses(language: str, mission: str) -> None:
    clause = to_clause(mission, language)  # type: ignore[arg-type]
    assert clause[-1].isalpha()
    assert mission_of(clause) == (mission, language)


@pytest.mark.parametrize(
    ("mission", "french"),
    [
        ("go to the red ball", "aller à la balle rouge"),
        ("go to a grey box", "aller à une boîte grise"),
        ("pick up the purple key", "attraper la clef violette"),
        ("open the door", "ouvrir la porte"),
        (
            "put a red box next to a blue ball",
            "mettre une boîte rouge à côté d'une balle bleue",
        ),
        (
            "put the green key next to the door",
            "mettre la clef verte à côté de la porte",
        ),
        (
            "pick up the grey box, then go to the grey key",
            "attraper la boîte grise, puis aller à la clef grise",
        ),
        (
            "go to the red box after you pick up a blue ball",
            "aller à la boîte rouge après avoir attrapé une balle bleue",
        ),
        (
            "open the door and put the key next to a ball after you open a red door and go to the "
            "box",
            "ouvrir la porte et mettre la clef à côté d'une balle après avoir ouvert une porte "
            "rouge et être allé à la boîte",
        ),
        ("go to the ball on your left", "aller à la balle à ta gauche"),
        ("pick up a yellow object", "attraper un objet jaune"),
        ("pick up the grey object behind you", "attraper l'objet gris derrière toi"),
    ],
)
def test_goals_in_french(mission: str, french: str) -> None:  # T17
    assert translate_mission(mission) == french


@pytest.mark.parametrize(
    ("mission", "french"),
    [
        ("go to the red ball", "aller à une balle rouge"),
        ("go to the red key", "aller à la clef rouge"),
        ("go to a grey box", "aller à une boîte grise"),
    ],
)
def test_goals_in_the_releases_french(mission: str, french: str) -> None:  # T17
    assert translate_mission(mission, as_released=True) == french
    world = BabyAIText(language="french", french="release")
    assert world.reset(0).goal == "Pour aller à une balle verte, ta prochaine étape est de"


def test_what_is_no_goal_is_refused() -> None:
    for mission in ("dance", "go to the moon", "put the ball"):
        with pytest.raises(ValueError, match="of BabyAI, got"):
            translate_mission(mission)
    with pytest.raises(ValueError, match="the only one that the release translates"):
        translate_mission("open the door", as_released=True)
