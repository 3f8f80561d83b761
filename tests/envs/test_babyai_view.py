"""What the agent sees, against minigrid's own way of finding it out."""

from __future__ import annotations

import doctest
import random
from typing import Any

import numpy as np
import pytest

from llm_agents.envs import BabyAIText
from llm_agents.envs import babyai_view as view
from llm_agents.envs.babyai_bot import Bot
from llm_agents.envs.babyai_text import COLORS, STATES, TYPES
from llm_agents.envs.babyai_view import EMPTY, UNSEEN, Viewer


def test_the_example_runs() -> None:
    assert doctest.testmod(view).failed == 0


def minigrids(world: BabyAIText) -> dict[str, Any]:
    from minigrid.minigrid_env import MiniGridEnv

    return MiniGridEnv.gen_obs(world.engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "steps"),
    [("GoToLocal", 250), ("GoTo", 250), ("BossLevel", 250), ("KeyCorridorS3R3", 250)],
)
def test_the_view_is_minigrids(level: str, steps: int) -> None:
    world, draws = BabyAIText(level, seed=1), random.Random(level)
    observation, doors, held = world.reset(), set(), 0
    for _ in range(steps):
        image = minigrids(world)["image"]
        assert np.array_equal(np.array(observation.vector).reshape(7, 7, 3), image)
        doors |= set(image[image[:, :, 0] == 4][:, 2].tolist())
        held += world.engine.carrying is not None
        step = world.step(draws.choice((0, 1, 2, 2, 2, 3, 4, 5, 5)))
        observation = step.observation if step.episode is None else world.reset()
    assert held or level not in ("GoToLocal", "BossLevel")
    assert 0 in doors or level not in ("GoTo", "BossLevel")  # it has seen, and stood in, open ones


def test_the_view_is_minigrids_through_locked_doors() -> None:
    world, bot = BabyAIText("MixedTrainLocal", kind="open", seed=3), Bot()
    seen = set()
    for _ in range(5):
        observation, ended = world.reset(), False
        while not ended:
            image = minigrids(world)["image"]
            assert np.array_equal(np.array(observation.vector).reshape(7, 7, 3), image)
            seen |= set(image[image[:, :, 0] == 4][:, 2].tolist())
            step = world.step(bot(world))
            observation, ended = step.observation, step.episode is not None
    assert 2 in seen


def test_the_numbers_are_minigrids() -> None:
    from minigrid.core import constants

    assert [constants.OBJECT_TO_IDX[name] for name in TYPES] == list(range(len(TYPES)))
    assert [constants.COLOR_TO_IDX[name] for name in COLORS] == list(range(len(COLORS)))
    assert [constants.STATE_TO_IDX[name] for name in STATES] == list(range(len(STATES)))


def test_nothing_behind_a_wall_is_seen() -> None:
    from minigrid.core.world_object import Ball, Wall

    cells: list[Any] = [None] * 81
    for column in range(9):
        cells[4 * 9 + column] = Wall()
    cells[3 * 9 + 4] = Ball("red")
    codes = np.array(Viewer().look(cells, 9, (4, 6), 3)).reshape(7, 7, 3)
    assert (codes[:, :4] == UNSEEN).all()
    assert (codes[:, 4, 0] == 2).all()
    assert (codes[:, 5:] == EMPTY).all()


def test_a_grid_of_another_size_is_noticed() -> None:
    viewer = Viewer()
    viewer.look([None] * 9, 3, (1, 1), 0)
    assert viewer.look([None] * 121, 11, (5, 8), 3) == [EMPTY] * 49
