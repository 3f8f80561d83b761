"""Machine worlds: counting, limits, seeds, saving, refusals; planning against playing."""

from __future__ import annotations

import json
import random

import pytest

from llm_agents.envs import Observation, TextEnv
from llm_agents.envs.case_study import CaseStudy
from llm_agents.envs.machine import MachineWorld
from llm_agents.envs.planning import optimal_prospects, random_prospects, start_state
from llm_agents.envs.toy import TOYS, Chest, Clock, Corridor, CorridorState, Lamp
from llm_agents.envs.virtualhome_entertainment import Entertainment
from llm_agents.envs.virtualhome_food import VARIANTS, FoodPreparation
from llm_agents.types import Episode

WORLDS: dict[str, MachineWorld] = {
    **{name: toy() for name, toy in TOYS.items()},
    "corridor with macros": Corridor(5, macros=True, show_distance=False),
    "case study": CaseStudy(),
    **{f"food {variant}": FoodPreparation(variant) for variant in VARIANTS},
    "food fixed": FoodPreparation(lists="fixed", room_lag=False),
    "entertainment": Entertainment(),
    "entertainment fixed": Entertainment(lists="fixed", room_lag=False, sofa_sticks=False),
}


@pytest.fixture(params=WORLDS, ids=str)
def world(request: pytest.FixtureRequest) -> MachineWorld:
    return WORLDS[request.param]


def play(world: TextEnv, generator: random.Random) -> Episode:
    return finish(world, world.reset(), generator)


def test_every_world_is_in_the_list() -> None:
    assert len(WORLDS) == 4 + 1 + 1 + 7 + 1 + 2


def test_six_thousand_random_steps_keep_the_protocol(world: MachineWorld) -> None:
    # 16 worlds × 6,250 = 100,000 steps
    generator = random.Random(5)
    observation = world.reset(7)
    discounted, steps = 0.0, 0
    for _ in range(6_250):
        assert len(observation.vector) == world.vector_size
        assert len(set(observation.actions)) == len(observation.actions) > 0
        assert len(observation.actions) == len(observation.action_ids)
        assert all(0 <= action < world.num_actions for action in observation.action_ids)
        step = world.step(generator.randrange(len(observation.actions)))
        observation = step.observation
        discounted += world.gamma**steps * step.reward
        steps += step.duration
        ended = step.terminated or step.truncated
        assert not (step.terminated and step.truncated)
        assert (step.episode is not None) == ended
        assert bool(observation.actions) != step.terminated
        if step.episode is not None:
            assert step.episode.discounted_return == pytest.approx(discounted, abs=1e-12)
            assert step.episode.num_primitive_steps == steps
            assert world.optimal_return is not None
            assert discounted <= world.optimal_return + 1e-12
            observation, discounted, steps = world.reset(), 0.0, 0


def test_a_saved_world_goes_on_alike(world: MachineWorld) -> None:
    generator = random.Random(1)
    observation = world.reset(3)
    for _ in range(2 if world.name != "toy-lamp" else 0):
        observation = world.step(generator.randrange(len(observation.actions))).observation
    saved = json.loads(json.dumps(world.state_dict()))
    place = generator.getstate()
    first = [finish(world, observation, generator)] + [play(world, generator) for _ in range(9)]
    assert world.load_state_dict(saved) == observation
    generator.setstate(place)
    again = [finish(world, observation, generator)] + [play(world, generator) for _ in range(9)]
    assert first == again


def finish(world: TextEnv, observation: Observation, generator: random.Random) -> Episode:
    while True:
        step = world.step(generator.randrange(len(observation.actions)))
        observation = step.observation
        if step.episode is not None:
            return step.episode


def test_an_ended_world_is_saved_as_ended() -> None:
    lamp = Lamp()
    lamp.reset()
    ended = lamp.step(0).observation
    saved = lamp.state_dict()
    other = Lamp()
    assert other.load_state_dict(saved) == ended
    with pytest.raises(ValueError, match="no episode is under way"):
        other.step(0)


def test_the_state_of_another_world_is_refused() -> None:
    chest = Chest()
    chest.reset()
    with pytest.raises(ValueError, match="expected a state of `toy-lamp`, got one of `toy-chest`"):
        Lamp().load_state_dict(chest.state_dict())


@pytest.mark.parametrize("index", [-1, 4])
def test_an_action_outside_of_the_list_is_refused(index: int) -> None:
    chest = Chest()
    chest.reset()
    with pytest.raises(ValueError, match=f"no action at {index}: 4 are offered"):
        chest.step(index)


def test_a_world_without_an_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="no action at 0: no episode is under way"):
        Chest().step(0)
    with pytest.raises(ValueError, match=r"call \.reset\(\) first"):
        Chest().state_dict()
    with pytest.raises(ValueError, match=r"call \.reset\(\) first"):
        Chest().take(0)


def test_an_unknown_action_is_refused() -> None:
    chest = Chest()
    chest.reset()
    with pytest.raises(ValueError, match="expected an action below 6, got 6"):
        chest.take(6)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="expected `max_steps` ≥ 1 or None, got 0"):
        Clock(max_steps=0)


def test_rendering_shows_step_and_return(world: MachineWorld) -> None:
    world.reset(0)
    lines = world.render().splitlines()
    assert lines[-1] == "step 0, return 0.0000"
    assert len(lines) >= 2
    assert world.render().isascii()


def test_seeds_choose_episodes_and_are_not_ignored() -> None:
    def starts(seed: int) -> list[str]:
        world = Lamp(6)
        return [world.reset(seed).text, *(world.reset().text for _ in range(20))]

    assert starts(1) == starts(1)
    assert starts(1) != starts(2)
    assert len(set(starts(1))) == 6
    assert Lamp(6, seed=1).reset().text == starts(1)[0]


def test_what_was_done_does_not_change_the_next_start() -> None:
    one, other = Corridor(seed=4), Corridor(seed=4)
    generator = random.Random(0)
    for _ in range(10):
        play(one, generator)
        other.reset()
        assert one.state_dict()["next_episode"] == other.state_dict()["next_episode"]
    assert one.reset() == other.reset()


def test_the_optimum_by_dynamic_programming_is_the_stated_one(world: MachineWorld) -> None:
    best = optimal_prospects(world, start_state(world))
    assert best.discounted_return == pytest.approx(world.optimal_return, abs=1e-12)
    assert best.success == 1.0


def test_random_play_agrees_with_the_exact_expectation() -> None:
    for world in (Corridor(2, macros=True, max_steps=6), Chest(), CaseStudy()):
        exact = random_prospects(world, start_state(world))
        generator = random.Random(11)
        world.reset(0)
        episodes = [play(world, generator) for _ in range(4_000)]
        successes = sum(episode.success for episode in episodes) / len(episodes)
        # four standard errors of a proportion
        error = (exact.success * (1 - exact.success) / len(episodes)) ** 0.5
        assert abs(successes - exact.success) < 4 * error
        returns = [episode.discounted_return for episode in episodes]
        mean = sum(returns) / len(returns)
        spread = (sum((each - mean) ** 2 for each in returns) / len(returns)) ** 0.5
        assert abs(mean - exact.discounted_return) < 4 * spread / len(returns) ** 0.5
        lengths = sum(episode.num_decisions for episode in episodes) / len(episodes)
        assert lengths == pytest.approx(exact.num_decisions, rel=0.05)


def test_macros_are_discounted_by_their_duration() -> None:
    # Two decisions, exit two steps to the right. The first: walk away, walk there, run away (two
    # steps), run there. The second pays γ^(k−1) where it reaches the exit: running from −1 (k = 3),
    # walking or running from 1 (k = 1), running from −2 (k = 4).
    world = Corridor(2, macros=True, max_steps=2)
    gamma = 0.95
    away, there, far = gamma**2 / 4, 2 / 4, gamma**3 / 4
    expected = (gamma * away + gamma * there + gamma**2 * far + gamma) / 4
    assert random_prospects(world, CorridorState(0, 1)).discounted_return == pytest.approx(expected)


def test_planning_refuses_a_world_that_never_ends() -> None:
    clock = Clock()
    clock.max_steps = None
    with pytest.raises(ValueError, match="`toy-clock` go on for ever"):
        random_prospects(clock, start_state(clock))
