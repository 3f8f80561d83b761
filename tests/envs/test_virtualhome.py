"""Both VirtualHome tasks: digests of long runs, sizes, what chance does in them, their prompts."""

from __future__ import annotations

import hashlib
import random
import re
from typing import Literal

import pytest

from llm_agents.envs.machine import MachineWorld
from llm_agents.envs.planning import random_prospects, reachable_states, start_state
from llm_agents.envs.virtualhome import join
from llm_agents.envs.virtualhome_entertainment import Entertainment
from llm_agents.envs.virtualhome_food import VARIANTS, FoodPreparation


def digest(world: MachineWorld, mode: Literal["all", "offered"]) -> tuple[str, int, float]:
    """Run 2,000 actions of a linear congruential generator; hash every transition."""
    number, lines, episodes, total = 2024, hashlib.sha256(), 0, 0.0
    observation = world.reset()
    for _ in range(2_000):
        number = (1103515245 * number + 12345) % 2**31
        if mode == "all":
            action = (number >> 16) % world.num_actions
        else:
            action = observation.action_ids[(number >> 16) % len(observation.action_ids)]
        step = world.take(action)
        ended = step.terminated or step.truncated
        vector = ",".join(map(str, step.observation.vector))
        line = f"{action}:{vector}:{step.reward:.6f}:{int(ended)}:{step.duration}\n"
        lines.update(line.encode())
        observation, total, episodes = step.observation, total + step.reward, episodes + ended
        if ended:
            observation = world.reset()
    return lines.hexdigest()[:32], episodes, total


@pytest.mark.parametrize(
    ("world", "mode", "expected"),
    [
        (FoodPreparation(), "all", ("55f00357ef5522b9ef8271dff3f74080", 40, 0.0)),
        (FoodPreparation(), "offered", ("a2e408909f46c322ae7e741ea2bc2760", 40, 1.0)),
        (FoodPreparation("laundry"), "all", ("55f00357ef5522b9ef8271dff3f74080", 40, 0.0)),
        (FoodPreparation("pizza"), "offered", ("a2e408909f46c322ae7e741ea2bc2760", 40, 1.0)),
        (Entertainment(), "all", ("66305518ae1a5f5beb47a31ede4db08f", 40, 0.0)),
        (Entertainment(), "offered", ("e91ae43ff2362eb60e9d0a6143244dcf", 40, 0.0)),
    ],
)
def test_two_thousand_steps_are_those_of_the_releases(
    world: MachineWorld, mode: Literal["all", "offered"], expected: tuple[str, int, float]
) -> None:
    assert digest(world, mode) == expected


@pytest.mark.parametrize(
    ("world", "mode", "num_states", "num_vectors", "num_texts"),
    [
        (FoodPreparation(), "offered", 45, 18, 18),
        (FoodPreparation(), "all", 51, 18, 18),
        # the text does not tell whether things on the coffee table were put there just now
        (Entertainment(), "offered", 219, 97, 89),
    ],
)
def test_sizes(
    world: MachineWorld,
    mode: Literal["all", "offered"],
    num_states: int,
    num_vectors: int,
    num_texts: int,
) -> None:
    states = reachable_states(world, start_state(world), mode)
    shown = [world.observe(state) for state in states]
    assert len(states) == num_states
    assert len({each.vector for each in shown}) == num_vectors
    assert len({each.text for each in shown}) == num_texts


def test_sizes_of_entertainment_with_every_action() -> None:
    world = Entertainment()
    states = reachable_states(world, start_state(world), "all")
    vectors = {world.observe(state).vector for state in states}
    ends = {
        world.observe(outcome.state).vector
        for state in states
        for action in range(world.num_actions)
        if (outcome := world.outcome(state, action)).terminated
    }
    assert (len(states), len(vectors | ends)) == (572, 213)


@pytest.mark.parametrize(
    ("world", "success", "discounted_return", "length"),
    [(FoodPreparation(), 0.0159, 0.0031, 49.8), (Entertainment(), 0.0033, 0.0005, 50.0)],
)
def test_chance_does_what_the_specification_measured(
    world: MachineWorld, success: float, discounted_return: float, length: float
) -> None:
    exact = random_prospects(world, start_state(world))
    assert exact.success == pytest.approx(success, abs=0.001)
    assert exact.discounted_return == pytest.approx(discounted_return, abs=0.0003)
    assert exact.num_decisions == pytest.approx(length, abs=0.05)


@pytest.mark.parametrize("world", [FoodPreparation(), Entertainment()], ids=lambda w: w.name)
def test_played_episodes_agree_with_the_exact_chance(world: MachineWorld) -> None:
    generator = random.Random(3)
    exact = random_prospects(world, start_state(world))
    successes, count = 0, 2_000  # 100,000 steps
    for _ in range(count):
        observation, episode = world.reset(), None
        while episode is None:
            step = world.step(generator.randrange(len(observation.actions)))
            observation, episode = step.observation, step.episode
        successes += episode.success
    error = (exact.success * (1 - exact.success) / count) ** 0.5
    assert abs(successes / count - exact.success) < 4 * error


@pytest.mark.parametrize("world", [FoodPreparation(), Entertainment()], ids=lambda w: w.name)
def test_a_limit_cuts_and_does_not_end(world: MachineWorld) -> None:
    world.reset()
    for _ in range(49):
        step = world.take(2)
        assert step.episode is None
    step = world.take(2)
    assert (step.terminated, step.truncated) == (False, True)
    assert step.observation.actions
    assert step.episode is not None
    assert (step.episode.success, step.episode.num_decisions) == (False, 50)


@pytest.mark.parametrize(
    "world",
    [*(FoodPreparation(variant) for variant in VARIANTS), Entertainment()],
    ids=lambda w: w.name,
)
def test_prompts_follow_the_four_principles(world: MachineWorld) -> None:
    verbs = {"walk", "grab", "put", "open", "close", "turn", "sit", "stand"}
    assert re.search(r"\w$", world.goal)  # type: ignore[attr-defined]  # cohesion: an open clause
    for state in reachable_states(world, start_state(world)):
        shown = world.observe(state)
        prompt = f"{shown.text} {shown.goal}"
        assert shown.text.endswith(".")
        assert not re.search(r"  |\s$|\.\.|[^.,\w '-]", prompt)
        assert all(part[0].isupper() for part in shown.text.split(". "))
        for action in shown.actions:
            assert action.split()[0] in verbs
            assert re.search(r" (the|a|an) ", action)  # articles
            # preferred actions appear: what an action is about stands in the prompt
            assert action.split(" the ")[-1] in prompt
        assert prompt.count("You hold") == 1


def test_lists_in_prose() -> None:
    assert join(["the milk"]) == "the milk"
    assert join(["the chips", "the milk"]) == "the chips and the milk"
    assert join(["a", "b", "c"]) == "a, b and c"
