"""Overcooked against the released engine's trajectories and digests, and against exact planning."""

from __future__ import annotations

import hashlib
import json
import math
import random
from functools import cache

import numpy as np
import pytest

from llm_agents.envs import Overcooked, Step
from llm_agents.envs.overcooked import BEST_PLANS
from llm_agents.envs.overcooked_kitchen import DISHES, DishName
from llm_agents.envs.planning import reachable_states

TOMATO = dict(zip(("tomato", "plate", "board 1", "deliver", "chop"), range(5), strict=True))
LETTUCE = dict(
    zip(
        ("tomato", "lettuce", "onion", "plate", "board 1", "board 2", "deliver", "chop"),
        range(8),
        strict=True,
    )
)
TASKS: tuple[DishName, ...] = ("tomato-salad", "tomato-lettuce-salad")


def play(dish: DishName, macros: str, **options: float) -> list[Step]:
    """Return the steps of a plan such as ``tomato, board 1``, from a reset."""
    numbers = TOMATO if dish == "tomato-salad" else LETTUCE
    world = Overcooked(dish, **options)
    world.reset()
    return [world.step(numbers[name]) for name in macros.split(", ")]


def durations(dish: DishName, macros: str) -> list[int]:
    return [step.duration for step in play(dish, macros)]


def test_the_first_observations_are_the_released_ones() -> None:
    assert Overcooked().reset().vector == (
        *(0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 4),
        *(1, 0, 0, 0, 0, 0, 0),
    )
    assert Overcooked("tomato-lettuce-salad").reset().vector == (
        *(0, 5, 0, 1, 6, 0, 2, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4),
        *(0, 0, 0, 1, 0, 0, 0),
    )


def test_the_best_plan_of_the_tomato_salad() -> None:
    steps = play("tomato-salad", "tomato, board 1, chop, tomato, plate, deliver")
    assert [step.duration for step in steps] == [2, 5, 3, 1, 10, 7]
    rewards = [-0.001990, -0.004901, 0.193050, -0.001000, -0.009562, 0.934687]
    assert [step.reward for step in steps] == pytest.approx(rewards, abs=5e-7)
    assert [step.observation.vector[:11] for step in steps] == [
        (1, 5, 0, 0, 0, 0, 0, 0, 0, 1, 5),
        (1, 0, 0, 0, 0, 1, 0, 3, 0, 1, 1),
        (1, 0, 3, 0, 0, 1, 0, 3, 0, 1, 1),
        (1, 1, 3, 0, 0, 1, 0, 3, 0, 1, 1),
        (5, 5, 3, 5, 5, 0, 0, 0, 0, 5, 5),
        (3, 0, 3, 3, 0, 1, 0, 3, 0, 3, 1),
    ]
    assert [step.terminated for step in steps] == [False] * 5 + [True]
    episode = steps[-1].episode
    assert episode is not None
    assert episode.success
    assert episode.discounted_return == pytest.approx(0.920518, abs=5e-7)
    assert episode.undiscounted_return == pytest.approx(sum(step.reward for step in steps))
    assert (episode.num_decisions, episode.num_primitive_steps) == (6, 28)
    assert steps[-1].observation.actions == ()


def test_the_best_plan_of_the_tomato_lettuce_salad() -> None:
    steps = play(
        "tomato-lettuce-salad",
        "tomato, board 1, chop, lettuce, board 2, chop, plate, tomato, lettuce, deliver",
    )
    assert [step.duration for step in steps] == [2, 5, 3, 5, 6, 3, 8, 9, 2, 2]
    rewards = [-0.001990, -0.004901, 0.193050, -0.004901, -0.005852]
    rewards += [0.193050, -0.007726, -0.008648, -0.001990, 0.988010]
    assert [step.reward for step in steps] == pytest.approx(rewards, abs=5e-7)
    seen = [step.observation.vector[:19] for step in steps]
    assert seen[6] == (0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 0, 0, 0, 0, 0, 0, 5, 5)
    assert seen[7] == (1, 1, 3, 2, 0, 3, 0, 0, 0, 1, 1, 1, 0, 2, 0, 3, 0, 1, 1)
    assert seen[8] == (2, 1, 3, 2, 1, 3, 0, 0, 0, 2, 1, 1, 0, 2, 0, 3, 0, 2, 1)
    episode = steps[-1].episode
    assert episode is not None
    assert episode.success
    assert episode.discounted_return == pytest.approx(0.947656, abs=5e-7)
    assert episode.num_primitive_steps == 45


def test_the_reward_of_chopping_by_hand() -> None:
    chop = play("tomato-salad", "tomato, board 1, chop")[-1]
    assert chop.reward == pytest.approx(-0.001 - 0.99 * 0.001 + 0.99**2 * (0.2 - 0.001))


def test_an_empty_hand_delivers_nothing_and_an_empty_plate_is_wrong() -> None:
    steps = play("tomato-salad", "deliver, chop, board 1, plate, deliver")
    assert [step.duration for step in steps] == [5, 1, 2, 9, 7]
    assert steps[0].reward == pytest.approx(-0.004901, abs=5e-7)
    assert steps[0].observation.vector[9:11] == (3, 1)
    assert steps[3].reward == pytest.approx(-0.008648, abs=5e-7)
    assert steps[4].reward == pytest.approx(-0.100941, abs=5e-7)
    assert not steps[4].terminated


def test_raw_food_stays_on_the_board_and_a_full_hand_cannot_chop() -> None:
    steps = play("tomato-salad", "tomato, board 1, tomato, plate, chop, board 1, chop")
    assert [step.duration for step in steps] == [2, 5, 1, 9, 1, 9, 3]
    assert steps[2].observation.vector == steps[1].observation.vector
    assert steps[5].observation.vector[:5] == (1, 0, 0, 1, 1)
    assert steps[6].reward == pytest.approx(-0.002970, abs=5e-7)
    assert steps[6].observation.vector[2] == 0


def test_raw_food_does_not_go_where_the_plate_lies() -> None:
    steps = play("tomato-salad", "plate, board 1, tomato, board 1, plate")
    assert [step.duration for step in steps] == [6, 9, 5, 5, 1]
    assert steps[-1].observation.vector[:5] == (1, 1, 0, 1, 0)


def test_food_in_a_visible_plate_is_left_there() -> None:
    plan = "tomato, board 1, chop, tomato, plate, board 1, deliver, tomato"
    steps = play("tomato-lettuce-salad", plan)
    assert [step.duration for step in steps] == [2, 5, 3, 1, 10, 9, 2, 1]
    assert steps[-1].observation.vector == steps[-2].observation.vector


def test_food_in_a_plate_out_of_view_is_looked_for() -> None:
    plan = "tomato, board 1, chop, tomato, plate, board 1, onion, tomato"
    steps = play("tomato-lettuce-salad", plan)
    assert steps[6].observation.vector[17:19] == (2, 5)
    # the plate is on board 1: rows first, to (1, 5), then to column 2, which sees it; one idle step
    assert steps[7].observation.vector[17:19] == (1, 2)
    assert steps[7].duration == 1 + 3 + 1


def test_a_wrong_delivery_undoes_the_work_and_the_subtask_pays_again() -> None:
    steps = play("tomato-salad", "tomato, board 1, chop, tomato, deliver, tomato, board 1, chop")
    assert steps[4].reward == pytest.approx(-0.001 - 0.99 * 0.001 - 0.99**2 * 0.101)
    assert not steps[4].terminated
    assert steps[4].observation.vector[:3] == (0, 0, 0)  # home is out of view
    assert steps[7].reward == pytest.approx(steps[2].reward)


def test_chopping_the_onion_earns_nothing() -> None:
    chop = play("tomato-lettuce-salad", "onion, board 1, chop")[-1]
    assert chop.observation.vector[8] == 3
    assert chop.reward == pytest.approx(-0.001 * (1 + 0.99 + 0.99**2))


def test_a_salad_with_the_onion_in_it_is_wrong() -> None:
    plan = (
        "tomato, board 1, chop, lettuce, board 2, chop, plate, tomato, lettuce, board 1, onion, "
        "board 2, chop, onion, plate, deliver"
    )
    last = play("tomato-lettuce-salad", plan)[-1]
    assert last.duration == 3
    assert last.reward == pytest.approx(-0.001 * (1 + 0.99) - 0.99**2 * 0.101)
    assert not last.terminated


@pytest.mark.parametrize(
    ("dish", "digest", "episodes", "total", "primitive"),
    [
        ("tomato-salad", "714a500e68b1b4b9642ebab1f1c9203e", 36, -6.108868, 6158),
        ("tomato-lettuce-salad", "16d4f5681176bb559a8d18a9c746a50d", 31, -18.212454, 6296),
    ],
)
def test_two_thousand_macros_hash_to_the_released_engines_digest(
    dish: DishName, digest: str, episodes: int, total: float, primitive: int
) -> None:
    world = Overcooked(dish)
    world.reset()
    sha, number, ended, reward, duration = hashlib.sha256(), 2024, 0, 0.0, 0
    for _ in range(2000):
        number = (1103515245 * number + 12345) % 2**31
        action = (number >> 16) % world.num_actions
        step = world.step(action)
        done = step.terminated or step.truncated
        seen = ",".join(map(str, step.observation.vector))
        line = f"{action}:{seen}:{step.reward:.6f}:{int(done)}:{step.duration}\n"
        sha.update(line.encode())
        ended, reward, duration = ended + done, reward + step.reward, duration + step.duration
        if done:
            world.reset()
    assert sha.hexdigest()[:32] == digest
    assert (ended, duration) == (episodes, primitive)
    assert reward == pytest.approx(total, abs=5e-7)


@pytest.mark.parametrize(
    ("dish", "states", "observations"),
    [("tomato-salad", 24, 22), ("tomato-lettuce-salad", 1156, 806)],
)
def test_as_many_states_as_the_release_has(dish: DishName, states: int, observations: int) -> None:
    world = Overcooked(dish)
    found = reachable_states(world, world.kitchen.start())
    assert len(found) == states
    outcomes = [
        world.outcome(state, action) for state in found for action in range(world.num_actions)
    ]
    served = {outcome.state for outcome in outcomes if outcome.terminated}
    assert len({world.observe(state).vector for state in {*found, *served}}) == observations


@cache
def table(dish: DishName) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the next state, the duration, the reward and the end of each state and action."""
    world = Overcooked(dish)
    states = reachable_states(world, world.kitchen.start())
    number = {state: i for i, state in enumerate(states)}
    shape = (len(states), world.num_actions)
    after, taken = np.zeros(shape, int), np.zeros(shape, int)
    reward, ends = np.zeros(shape), np.zeros(shape, bool)
    for i, state in enumerate(states):
        for action in range(world.num_actions):
            outcome = world.outcome(state, action)
            after[i, action] = number.get(outcome.state, 0)
            taken[i, action], reward[i, action] = outcome.duration, outcome.reward
            ends[i, action] = outcome.terminated
    return after, taken, reward, ends


def prospects(dish: DishName, choose: str) -> tuple[float, float, float]:
    """Return the exact return, success and primitive steps: backwards over (state, step).

    The limit counts primitive steps, so a value belongs to a state and the steps passed.
    """
    world = Overcooked(dish)
    after, taken, reward, ends = table(dish)
    value = np.zeros((3, world.horizon + taken.max(), len(after)))
    rows = np.arange(len(after))
    for passed in reversed(range(world.horizon)):
        rest = np.where(ends, 0.0, value[:, passed + taken, after])
        q = np.stack(
            [
                reward + world.gamma**taken * rest[0],
                np.where(ends, 1.0, rest[1]),
                taken + rest[2],
            ]
        )
        best = q[0].argmax(1)
        value[:, passed] = q.mean(2) if choose == "random" else q[:, rows, best]
    returned, success, steps = value[:, 0, 0]
    return float(returned), float(success), float(steps)


@pytest.mark.parametrize(
    ("dish", "optimum", "steps"),
    [("tomato-salad", 0.920518, 28), ("tomato-lettuce-salad", 0.947656, 45)],
)
def test_dynamic_programming_finds_no_better_plan(
    dish: DishName, optimum: float, steps: int
) -> None:
    world = Overcooked(dish)
    assert world.optimal_return == pytest.approx(optimum, abs=5e-7)
    assert prospects(dish, "best") == pytest.approx((world.optimal_return, 1.0, steps))


@pytest.mark.parametrize(
    ("dish", "serving", "never_serving"),
    [("tomato-salad", 0.920518, 1.6288), ("tomato-lettuce-salad", 0.947656, 1.7581)],
)
def test_without_a_limit_a_discount_by_actions_pays_for_never_serving(
    dish: DishName, serving: float, never_serving: float
) -> None:
    after, taken, reward, ends = table(dish)
    found = []
    for powers in (taken, np.ones_like(taken)):
        value = np.zeros(len(after))
        for _ in range(3000):
            q = reward + np.where(ends, 0.0, 0.99**powers * value[after])
            value = q.max(1)
        state, is_served = 0, False
        for _ in range(50):
            action = int(q[state].argmax())
            is_served = is_served or bool(ends[state, action])
            state = int(after[state, action])
        found.append((value[0], is_served))
    assert found[0] == (pytest.approx(serving, abs=1e-6), True)
    assert found[1] == (pytest.approx(never_serving, abs=1e-4), False)


@pytest.mark.parametrize("dish", TASKS)
def test_the_best_plan_earns_the_optimal_return_and_not_more(dish: DishName) -> None:
    world = Overcooked(dish)
    world.reset()
    episode = [world.step(action) for action in BEST_PLANS[dish]][-1].episode
    assert episode is not None
    assert episode.discounted_return == world.optimal_return


@pytest.mark.parametrize(
    ("dish", "measured", "tolerances"),
    [
        ("tomato-salad", (-0.091, 0.452, 164.5), (0.01, 0.02, 2.0)),
        ("tomato-lettuce-salad", (-0.228, 0.0098, 201.5), (0.002, 0.001, 0.2)),
    ],
)
def test_a_random_agent_does_as_measured_on_the_released_engine(
    dish: DishName, measured: tuple[float, ...], tolerances: tuple[float, ...]
) -> None:
    world = Overcooked(dish)
    exact = prospects(dish, "random")
    for found, expected, tolerance in zip(exact, measured, tolerances, strict=True):
        assert abs(found - expected) < tolerance
    generator = random.Random(11)
    played = []
    for _ in range(1000):
        world.reset()
        episode = None
        while episode is None:
            episode = world.step(generator.randrange(world.num_actions)).episode
        played.append(
            (episode.discounted_return, float(episode.success), episode.num_primitive_steps)
        )
    for column, expected in zip(np.array(played).T, exact, strict=True):
        assert abs(column.mean() - expected) < 4 * column.std() / math.sqrt(1000)


@pytest.mark.parametrize("dish", TASKS)
def test_fifty_thousand_random_macros_keep_the_protocol(dish: DishName) -> None:
    world, generator = Overcooked(dish), random.Random(3)
    observation = world.reset()
    rewards: list[float] = []
    passed = 0
    discounted = 0.0
    for _ in range(50_000):
        assert len(observation.vector) == world.vector_size
        assert all(0 <= number <= 7 for number in observation.vector)
        assert observation.action_ids == tuple(range(world.num_actions))
        assert len(set(observation.actions)) == world.num_actions
        step = world.step(generator.randrange(world.num_actions))
        rewards.append(step.reward)
        discounted += 0.99**passed * step.reward
        passed += step.duration
        assert 1 <= step.duration <= 10
        assert not (step.terminated and step.truncated)
        assert step.truncated == (passed >= 200 and not step.terminated)
        assert (step.episode is not None) == (step.terminated or step.truncated)
        observation = step.observation
        if step.episode is not None:
            assert step.episode.success == step.terminated
            assert step.episode.discounted_return == pytest.approx(discounted)
            assert step.episode.undiscounted_return == pytest.approx(sum(rewards))
            assert step.episode.num_decisions == len(rewards)
            assert step.episode.num_primitive_steps == passed <= 209
            assert step.episode.discounted_return <= (world.optimal_return or 0)
            observation = world.reset()
            rewards, passed, discounted = [], 0, 0.0


def overrun(**options: bool) -> Step:
    """Play to step 198, then start a macro of ten steps."""
    world = Overcooked(**options)
    world.reset()
    for name in ("tomato", "board 1", "chop", "tomato", *["chop"] * 187):
        assert world.step(TOMATO[name]).episode is None
    return world.step(TOMATO["plate"])


def test_a_macro_that_runs_at_the_horizon_finishes() -> None:
    step = overrun()
    assert (step.truncated, step.terminated, step.duration) == (True, False, 10)
    assert step.episode is not None
    assert step.episode.num_primitive_steps == 208
    assert step.reward == pytest.approx(-0.009562, abs=5e-7)
    assert step.observation.vector[:5] == (5, 5, 3, 5, 5)
    assert step.observation.actions  # a limit, not an end: its value may be asked for


def test_the_horizon_cuts_the_macro_where_it_may() -> None:
    step = overrun(finish_macro=False)
    assert (step.truncated, step.terminated, step.duration) == (True, False, 2)
    assert step.episode is not None
    assert step.episode.num_primitive_steps == 200
    assert step.reward == pytest.approx(-0.001990)
    assert step.observation.vector[9:11] == (3, 1)


def test_a_delivery_after_the_horizon_ends_the_world() -> None:
    world = Overcooked(horizon=25)
    world.reset()
    step = [world.step(action) for action in BEST_PLANS["tomato-salad"]][-1]
    assert (step.terminated, step.truncated) == (True, False)
    assert step.episode is not None
    assert step.episode.success


def test_a_seed_changes_nothing() -> None:
    worlds = [Overcooked(), Overcooked(seed=5)]
    shown = [worlds[0].reset(1), worlds[1].reset()]
    for action in BEST_PLANS["tomato-salad"]:
        assert shown[0] == shown[1]
        shown = [world.step(action).observation for world in worlds]


def test_a_saved_state_goes_on_alike() -> None:
    world, other = (Overcooked("tomato-lettuce-salad") for _ in range(2))
    generator = random.Random(8)
    world.reset()
    for _ in range(300):
        saved = json.loads(json.dumps(world.state_dict()))
        shown = other.load_state_dict(saved)
        assert shown.vector == world.observe(world.state).vector
        action = generator.randrange(8)
        step = world.step(action)
        assert other.step(action) == step
        if step.episode is not None:
            ended = json.loads(json.dumps(world.state_dict()))
            assert other.load_state_dict(ended) == step.observation
            with pytest.raises(ValueError, match="no episode is under way"):
                other.step(0)
            world.reset()


def test_another_dishs_state_is_refused() -> None:
    world = Overcooked()
    world.reset()
    with pytest.raises(ValueError, match=r"expected a state of `overcooked-tomato-lettuce-salad`"):
        Overcooked("tomato-lettuce-salad").load_state_dict(world.state_dict())


def test_the_kitchen_is_drawn() -> None:
    world = Overcooked("tomato-lettuce-salad")
    world.reset()
    assert world.render().splitlines() == [
        "#####t#",
        "B   @ l",
        "B     o",
        "D     #",
        "#     #",
        "#     #",
        "#####P#",
        "hand: nothing, plate: -",
        "@ agent, # counter, B board, D delivery, P plate",
        "t tomato, l lettuce, o onion; a capital letter once it is chopped",
        "step 0, return 0.0000",
    ]
    for name in ("tomato", "board 1", "chop", "lettuce", "board 2", "chop", "plate", "tomato"):
        world.step(LETTUCE[name])
    assert world.render().splitlines()[:8] == [
        "#######",
        "B@    #",
        "L     o",
        "D     #",
        "#     #",
        "#     #",
        "#######",
        "hand: P, plate: T",
    ]


def test_rewards_radius_and_discount_are_options() -> None:
    last = play("tomato-salad", "tomato, board 1, chop", subtask_reward=0.5, gamma=1.0)[-1]
    assert last.reward == pytest.approx(0.5 - 0.003)
    assert Overcooked(subtask_reward=0.5).optimal_return is None
    assert Overcooked(radius=10).optimal_return == Overcooked().optimal_return
    everything = Overcooked("tomato-lettuce-salad", radius=10).reset().vector
    assert everything[:19] == (0, 5, 0, 1, 6, 0, 2, 6, 0, 6, 5, 1, 0, 2, 0, 3, 0, 1, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dish": "soup"}, "expected a dish of tomato-salad, tomato-lettuce-salad, got 'soup'"),
        ({"gamma": 0.0}, r"`gamma` in \(0, 1\], got 2, 200 and 0.0"),
        ({"horizon": 0}, "at least 1"),
        ({"step_penalty": -0.001}, "leave the sign off"),
    ],
)
def test_options_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Overcooked(**options)


def test_all_dishes_are_tested() -> None:
    assert set(TASKS) == set(DISHES) == set(BEST_PLANS)
