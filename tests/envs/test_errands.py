"""Errands: pay of parts and wholes by hand, the optimum, chance, and what is told."""

from __future__ import annotations

import re

import pytest

from llm_agents.envs import make_world
from llm_agents.envs.errands import Errands
from llm_agents.envs.planning import optimal_prospects, random_prospects, start_state
from llm_agents.errors import UserError


def asked(text: str) -> str:
    words = re.fullmatch(
        r"Someone asks for help with the (\w+)\. It belongs in the (\w+) and may be touched with "
        r"the (\w+) only\.",
        text,
    )
    assert words is not None, text
    return "put the {} in the {} with the {}".format(*words.groups())


@pytest.mark.parametrize("words", [2, 3, 6])
def test_doing_as_asked_earns_the_optimum(words: int) -> None:
    world = Errands(words, 3)
    observation = world.reset(seed=words)
    assert len(observation.actions) == words**3 == len(set(observation.actions))
    texts = []
    for _ in range(3):
        texts.append(asked(observation.text))
        step = world.step(observation.actions.index(texts[-1]))
        assert step.reward == 1.0
        observation = step.observation
    assert step.episode is not None
    assert step.episode.success
    assert step.episode.discounted_return == pytest.approx(1 + 0.95 + 0.95**2)
    assert world.optimal_return == pytest.approx(2.8525)
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("pay", "wrong", "reward"),
    [("parts", 1, 2 / 3), ("parts", 2, 1 / 3), ("parts", 3, 0.0), ("whole", 1, 0.0)],
)
def test_wrong_parts_are_not_paid(pay: str, wrong: int, reward: float) -> None:
    world = Errands(3, 1, pay=pay)
    observation = world.reset(seed=1)
    right = world.parts(observation.actions.index(asked(observation.text)))
    parts = [(part + (place < wrong)) % 3 for place, part in enumerate(right)]
    step = world.step(parts[0] * 9 + parts[1] * 3 + parts[2])
    assert step.reward == pytest.approx(reward)
    assert step.terminated
    assert step.episode is not None
    assert not step.episode.success


@pytest.mark.parametrize("told", ["all", "thing"])
def test_the_optimum_and_chance_are_those_of_planning(told: str) -> None:
    world = Errands(2, 2, told=told)
    world.reset(seed=0)
    best = optimal_prospects(world, start_state(world))
    assert best.discounted_return == pytest.approx(world.optimal_return)
    chance = random_prospects(world, start_state(world))
    assert chance.discounted_return == pytest.approx(0.5 * (1 + 0.95))  # each part by halves
    assert chance.success == pytest.approx(1 / 64)


def test_a_thing_has_its_place_and_tool() -> None:
    world = Errands(4, 1, told="thing")
    seen: dict[str, set[tuple[int, int]]] = {}
    for seed in range(60):
        observation = world.reset(seed=seed)
        thing, *rest = world.parts(world.state.errand)
        seen.setdefault(observation.text, set()).add((rest[0], rest[1]))
        assert observation.vector[:4].index(1) == thing
        assert not any(observation.vector[4:12])
    assert len(seen) == 4
    assert all(len(pairs) == 1 for pairs in seen.values())
    assert len(set.union(*seen.values())) == 4  # and the things differ in them


def test_the_next_errand_visits_all() -> None:
    world = Errands(3, 9)
    number, seen = 0, set()
    for _ in range(27):
        seen.add(number)
        number = world.outcome(world.state_type(0, 0, number), 0).state.errand
    assert len(seen) == 27


@pytest.mark.parametrize(
    "options", [{"words": 1}, {"words": 7}, {"errands": 0}, {"pay": "much"}, {"told": "nothing"}]
)
def test_what_is_out_of_range_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match=f"`{next(iter(options))}`"):
        make_world("errands", **options)
