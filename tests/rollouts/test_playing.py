"""Episodes for evaluation: as many as asked for, shared out beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from llm_agents.envs.prompts import PromptBuilder
from llm_agents.rollouts import play
from llm_agents.types import Choice, Decisions
from tests.rollouts.worlds import Corridor, Drawer


class Onward(Drawer):
    """Takes the first action always."""

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        decided = super().act(choices, generator)
        return Decisions(
            torch.zeros_like(decided.index), decided.log_probs, decided.values, decided.mask
        )


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_each_world_plays_its_share_however_long_its_episodes_are() -> None:
    # Cutting off after the first five to finish would give the short world four of them.
    worlds = [Corridor(length=100, limit=1), Corridor(length=100, limit=20)]
    episodes = play(Onward(), worlds, 5, generator())
    assert [episode.world for episode in episodes] == [0, 0, 0, 1, 1]
    assert [episode.num_decisions for episode in episodes] == [1, 1, 1, 20, 20]


def test_worlds_without_an_episode_to_play_stay_untouched() -> None:
    worlds = [Corridor() for _ in range(4)]
    episodes = play(Drawer(), worlds, 2, generator())
    assert Counter(episode.world for episode in episodes) == {0: 1, 1: 1}
    assert [len(world.seeds) for world in worlds] == [1, 1, 0, 0]


def test_the_same_generator_plays_the_same() -> None:
    played = []
    for _ in range(2):
        worlds = [Corridor() for _ in range(3)]
        for number, world in enumerate(worlds):
            world.reset(number)
        played.append(play(Drawer(), worlds, 7, generator()))
    assert played[0] == played[1]
    assert len(played[0]) == 7


def test_each_episode_that_ends_is_told() -> None:
    told: list[int] = []
    play(Drawer(), [Corridor() for _ in range(2)], 5, generator(), advance=told.append)
    assert [count for count in told if count] == [1] * 5


def test_worlds_step_together() -> None:
    agent = Drawer()
    play(agent, [Corridor(limit=1) for _ in range(3)], 6, generator())
    assert [len(choices) for choices in agent.asked] == [3, 3]


def test_the_prompt_builder_tells_the_history() -> None:
    agent = Onward()
    prompt = PromptBuilder(history_length=1)
    play(agent, [Corridor(length=9, limit=3)], 2, generator(), prompt)
    told = ["You chose to go on." in choice.prompt for (choice,) in agent.asked]
    assert told == [False, True, True] * 2


@pytest.mark.parametrize(("count", "episodes"), [(0, 1), (1, 0)])
def test_nothing_to_play_is_an_error(count: int, episodes: int) -> None:
    with pytest.raises(ValueError, match="at least one world and one episode"):
        play(Drawer(), [Corridor() for _ in range(count)], episodes, generator())
