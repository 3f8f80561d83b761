"""Text worlds as a TorchRL environment: what a step carries, resets, seeds, states."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from llm_agents.rollouts import PromptedWorld, TextWorlds
from llm_agents.rollouts.worlds import choices_of
from llm_agents.types import Choice
from tests.rollouts.worlds import Corridor


def make(count: int = 3, **options: int) -> TextWorlds:
    return TextWorlds([PromptedWorld(Corridor(**options), number=e, seed=e) for e in range(count)])


def act(env: TextWorlds, shown: TensorDict, index: list[int]) -> tuple[TensorDict, TensorDict]:
    return env.step_and_maybe_reset(shown.set("action", torch.tensor(index)))


def test_torchrl_finds_the_specs_kept() -> None:
    check_env_specs(make())


def test_a_reset_shows_text_with_each_worlds_own_actions() -> None:
    env = make(2)
    env.worlds[1].world.start = 2
    shown = env.reset()
    assert choices_of(shown) == [
        Choice("You are in cell 0 after 0 steps. You should now", ("go on",)),
        Choice(
            "You are in cell 2 after 0 steps. You should now", ("go on", "stay here", "run back")
        ),
    ]
    assert shown["action_mask"].tolist() == [[True, False, False], [True, True, True]]
    assert not shown["done"].any()


def test_an_ended_episode_leaves_its_last_observation_and_the_next_entry_is_the_new_ones() -> None:
    env = make(2, limit=2)
    shown = env.reset()
    before, shown = act(env, shown, [0, 0])
    assert not before["next", "done"].any()
    before, after = act(env, shown, [0, 0])
    assert before["next", "truncated"].tolist() == [[True], [True]]
    assert not before["next", "terminated"].any()
    assert ["after 2 steps" in choice.prompt for choice in choices_of(before["next"])] == [True] * 2
    assert ["after 0 steps" in choice.prompt for choice in choices_of(after)] == [True] * 2
    episodes = before["next"].get("episode").tolist()
    assert [episode.world for episode in episodes] == [0, 1]
    assert [episode.num_decisions for episode in episodes] == [2, 2]
    assert not after["done"].any()


def test_only_the_world_that_ended_is_reset() -> None:
    env = TextWorlds([PromptedWorld(Corridor(limit=1)), PromptedWorld(Corridor(limit=9), number=1)])
    before, after = act(env, env.reset(), [0, 0])
    assert before["next", "done"].tolist() == [[True], [False]]
    assert "after 0 steps" in choices_of(after)[0].prompt
    assert "after 1 steps" in choices_of(after)[1].prompt
    assert before["next"].get("episode").tolist()[1] is None
    assert choices_of(before["next"])[1] == choices_of(after)[1]


def test_the_first_episode_takes_the_seed_and_later_ones_none() -> None:
    env = make(2, limit=1)
    _, shown = act(env, env.reset(), [0, 0])
    act(env, shown, [0, 0])
    assert [world.world.seeds for world in env.worlds] == [[0, None, None], [1, None, None]]


def test_torchrls_own_seeding_gives_every_world_another_seed() -> None:
    env = make(4)
    env.reset()
    env.set_seed(7)
    env.reset()
    own = [world.world.seeds[-1] for world in env.worlds]
    assert len(set(own)) == 4
    assert None not in own
    env.set_seed(7)
    env.reset()
    assert [world.world.seeds[-1] for world in env.worlds] == own


def test_a_restored_environment_shows_what_was_last_shown_and_goes_on_alike() -> None:
    env = make()
    shown = env.reset()
    for _ in range(7):
        _, shown = act(env, shown, [0, 0, 0])
    other = make()
    other.restore(env.worlds_state())
    again = other.reset()
    assert choices_of(again) == choices_of(shown)
    for _ in range(20):
        one, shown = act(env, shown, [0, 0, 0])
        two, again = act(other, again, [0, 0, 0])
        assert choices_of(one["next"]) == choices_of(two["next"])
        assert choices_of(shown) == choices_of(again)
        assert one["next", "reward"].tolist() == two["next", "reward"].tolist()
        assert one["next"].get("episode").tolist() == two["next"].get("episode").tolist()
    assert "after 0" in choices_of(other.reset())[0].prompt


def test_the_state_of_other_worlds_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the states of 2 worlds, got 3"):
        make(2).restore(make(3).worlds_state())
    with pytest.raises(ValueError, match="at least one world"):
        TextWorlds([])


def test_random_actions_are_admissible_and_all_are_drawn() -> None:
    env = make(2, limit=50)
    seen = set()
    shown = env.reset()
    torch.manual_seed(0)
    for _ in range(60):
        drawn = env.rand_action(shown)
        seen |= set(drawn["action"].tolist())
        _, shown = env.step_and_maybe_reset(drawn)
    assert seen == {0, 1, 2}
    with pytest.raises(ValueError, match="admissible"):
        act(env, env.reset(), [5, 0])
