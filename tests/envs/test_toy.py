"""Toy worlds: what each asks, solved by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from llm_agents.envs.base import Step, TextEnv
from llm_agents.envs.machine import MachineWorld
from llm_agents.envs.planning import optimal_prospects, random_prospects, start_state
from llm_agents.envs.toy import Chest, Clock, Corridor, Lamp


def do(world: TextEnv, *texts: str) -> Step:
    observation = world.load_state_dict(world.state_dict())
    for text in texts:
        step = world.step(observation.actions.index(text))
        observation = step.observation
    return step


@pytest.mark.parametrize("seed", range(8))
def test_the_lamp_pays_for_its_own_color(seed: int) -> None:
    lamp = Lamp()
    observation = lamp.reset(seed)
    color = observation.text.removesuffix(".").split()[-1]
    step = do(lamp, f"press the {color} button")
    assert (step.reward, step.terminated) == (1.0, True)
    assert step.episode is not None
    assert step.episode.success
    assert step.observation.vector == observation.vector


def test_the_lamp_does_not_pay_for_another_color() -> None:
    lamp = Lamp(2)
    wrong = {"red.": "press the green button", "green.": "press the red button"}
    step = do(lamp, wrong[lamp.reset().text.split()[-1]])
    assert (step.reward, step.terminated) == (0.0, True)
    assert random_prospects(lamp, start_state(lamp)).success == 0.5


def test_the_corridor_by_hand() -> None:
    corridor = Corridor(2)
    side = "left" if "on the left" in corridor.reset().text else "right"
    other = {"left": "right", "right": "left"}[side]
    assert "three steps away" in do(corridor, f"walk to the {other}").observation.text
    step = do(corridor, *[f"walk to the {side}"] * 3)
    assert (step.reward, step.terminated, step.duration) == (1.0, True, 1)
    assert step.episode is not None
    assert step.episode.discounted_return == pytest.approx(0.95**3)
    assert step.episode.num_decisions == 4


def test_a_macro_is_worth_the_steps_it_takes() -> None:
    # walking one step and running the last two: 0.95 for the walk, 0.95 inside the run
    corridor = Corridor(3, macros=True)
    side = "left" if "on the left" in corridor.reset().text else "right"
    do(corridor, f"walk to the {side}")
    step = do(corridor, f"run to the end on the {side}")
    assert (step.reward, step.duration) == (pytest.approx(0.95), 2)
    assert step.episode is not None
    assert step.episode.discounted_return == pytest.approx(0.95**2) == corridor.optimal_return
    assert (step.episode.num_decisions, step.episode.num_primitive_steps) == (2, 3)


def test_the_wall_of_the_corridor_holds() -> None:
    corridor = Corridor(1, max_steps=2)
    other = "right" if "on the left" in corridor.reset().text else "left"
    before = do(corridor, f"walk to the {other}")
    after = do(corridor, f"walk to the {other}")
    assert after.observation == before.observation
    assert (after.truncated, after.duration) == (True, 1)


def test_the_distance_can_be_hidden() -> None:
    corridor = Corridor(3, show_distance=False)
    texts = {corridor.observe(start_state(corridor)._replace(position=at)).text for at in (-2, 2)}
    assert any(text.endswith("close.") for text in texts)
    assert any(text.endswith("far away.") for text in texts)


def test_the_chest_by_hand() -> None:
    chest = Chest()
    observation = chest.reset()
    assert len(observation.actions) == 4
    key = "silver" if "the silver key" in observation.text else "golden"
    other = {"silver": "golden", "golden": "silver"}[key]
    assert do(chest, "open the chest", "kick the chest").observation == observation
    wrong = do(chest, f"pick up the {other} key").observation
    assert wrong.actions == ("put the key back on the table", "open the chest", "kick the chest")
    assert do(chest, "open the chest").observation == wrong
    do(chest, "put the key back on the table", f"pick up the {key} key")
    opened = do(chest, "open the chest").observation
    assert opened.actions == ("take the coin",)
    step = do(chest, "take the coin")
    assert (step.reward, step.terminated) == (1.0, True)
    assert step.episode is not None
    assert step.episode.discounted_return == pytest.approx(0.95**7)


def test_the_clock_is_only_ever_cut() -> None:
    clock = Clock(max_steps=3, penalty=0.5)
    observation = clock.reset()
    assert do(clock, "wait for a minute").reward == -0.5
    step = do(clock, "wind the clock", "wind the clock")
    assert (step.terminated, step.truncated) == (False, True)
    assert step.observation == observation
    assert step.episode is not None
    assert step.episode.discounted_return == pytest.approx(-0.5 + 0.9 + 0.81)
    assert clock.optimal_return == pytest.approx(1 + 0.9 + 0.81)


def test_the_optimum_does_not_depend_on_the_start() -> None:
    worlds: Sequence[MachineWorld] = (Lamp(), Corridor(4), Corridor(4, macros=True), Chest())
    for world in worlds:
        for seed in range(6):
            best = optimal_prospects(world, start_state(world, seed))
            assert best.discounted_return == pytest.approx(world.optimal_return)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Lamp(7), "expected 2 to 6 colors, got 7"),
        (lambda: Corridor(10), "expected a distance of 1 to 9, got 10"),
        (lambda: Corridor(5, max_steps=4), "the exit is 5 steps away, `max_steps` is 4"),
        (lambda: Chest(max_steps=2), "the coin is three steps away, `max_steps` is 2"),
    ],
)
def test_impossible_toys_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
