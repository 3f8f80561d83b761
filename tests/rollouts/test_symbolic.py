"""Rollouts of agents that see images and remember."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_agents.envs.toy import Lamp
from llm_agents.errors import UserError
from llm_agents.methods import DRRN, SymbolicPPO
from llm_agents.policies.babyai_symbolic import BabyAISymbolic, SymbolicDecisions
from llm_agents.policies.drrn import DRRNetwork
from llm_agents.rollouts import SymbolicRollouts, play_symbolic
from llm_agents.rollouts.collector import RolloutPlan
from llm_agents.rollouts.symbolic import SymbolicAgent, SymbolicCollector, SymbolicWorld
from llm_agents.types import SymbolicRollout
from tests.methods.online import trainer
from tests.rollouts.symbolic_worlds import Balls


class Counter:
    """Remembers how many steps of the episode it has seen; turns left at the `turn`-th."""

    memory_size, num_actions = 1, 3

    def __init__(self, turn: int = 3) -> None:
        self.turn = turn
        self.calls = 0

    def act_on_images(
        self, images: Tensor, missions: Sequence[str], memory: Tensor, generator: torch.Generator
    ) -> SymbolicDecisions:
        assert images.shape == (len(missions), 7, 7, 3)
        self.calls += 1
        after = memory + 1
        index = torch.where(after[:, 0] == self.turn, 0, 2)
        draws = torch.rand(len(missions), generator=generator)
        return SymbolicDecisions(index, draws, after[:, 0], after)

    def image_values(self, images: Tensor, missions: Sequence[str], memory: Tensor) -> Tensor:
        return 100 + memory[:, 0]


def collector(
    num_worlds: int = 3, num_steps: int = 7, turn: int = 3, **options: bool
) -> SymbolicCollector:
    worlds = [SymbolicWorld(Balls(), number=e, seed=e, num_actions=3) for e in range(num_worlds)]
    return SymbolicCollector(Counter(turn), worlds, RolloutPlan(num_steps, 4, **options))


def test_memory_begins_anew_with_every_episode() -> None:
    found = collector()
    first, second = found.collect(), found.collect()
    memories = torch.cat([first.memories, second.memories])[..., 0]
    expected = torch.tensor([float(step % 3) for step in range(14)])[:, None].expand(14, 3)
    assert torch.equal(memories, expected)
    assert torch.equal(torch.cat([first.starts, second.starts]), expected == 0)
    assert torch.equal(first.values, memories[:7] + 1)
    assert (first.number, second.number, second.num_rollouts) == (0, 1, 4)
    assert len(first.episodes) == 6
    assert {e.world for e in first.episodes} == {0, 1, 2}


def test_what_follows_is_valued_where_nothing_else_is_known() -> None:
    rollout = collector().collect()
    ended = rollout.terminated
    assert torch.equal(ended[:, 0], torch.tensor([False, False, True] * 2 + [False]))
    assert bool((rollout.next_values[ended] == 0).all())
    inside = ~ended[:-1]
    assert torch.equal(rollout.next_values[:-1][inside], rollout.values[1:][inside])
    assert torch.equal(rollout.next_values[-1], torch.full((3,), 101.0))


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_limit_counts_as_the_plan_says(bootstrap: bool) -> None:
    rollout = collector(num_steps=9, turn=99, bootstrap_at_limit=bootstrap).collect()
    cut = rollout.truncated
    assert torch.equal(cut[:, 0], torch.arange(9) % 4 == 3)
    assert bool((rollout.next_values[cut] == (104.0 if bootstrap else 0.0)).all())
    assert torch.equal(rollout.next_values[-1], torch.full((3,), 101.0))


def test_images_and_missions_are_those_of_the_worlds() -> None:
    rollout = collector(num_worlds=8, num_steps=1).collect()
    for number, seed in enumerate(range(8)):
        shown = Balls().reset(seed)
        assert rollout.images[0, number].flatten().tolist() == list(shown.vector)
        mission = rollout.missions[int(rollout.mission_index[0, number])]
        assert shown.goal == f"To {mission}, your next step is to"
    assert set(rollout.missions) == {"go to the ball", "flee from the ball"}


def same(first: SymbolicRollout, second: SymbolicRollout) -> bool:
    names = ("images", "mission_index", "memories", "index", "log_probs", "values", "next_values")
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)


def test_a_saved_collector_goes_on_alike(tmp_path: Path) -> None:
    whole = collector()
    pieces = [whole.collect() for _ in range(3)]
    half = collector()
    half.collect()
    torch.save(half.state_dict(), tmp_path / "state.pt")
    again = collector()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert same(again.collect(), pieces[1])
    assert same(again.collect(), pieces[2])


def test_worlds_without_an_image_and_with_more_actions_are_refused() -> None:
    with pytest.raises(UserError, match="vector of 3 numbers"):
        SymbolicWorld(Lamp(), num_actions=6)
    with pytest.raises(UserError, match="num_actions: 3"):
        SymbolicWorld(Balls(), num_actions=2)


def test_evaluation_plays_each_world_its_share() -> None:
    found = play_symbolic(as_agent(Counter(3)), [Balls(seed=e) for e in range(3)], 7, draws())
    assert [e.world for e in found] == [0, 0, 0, 1, 1, 2, 2]
    assert all(e.num_decisions == 3 for e in found)
    with pytest.raises(ValueError, match="at least one world"):
        play_symbolic(as_agent(Counter()), [], 1, draws())


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def as_agent(counter: Counter) -> SymbolicAgent:
    """Return a module, as every agent in evaluation is one."""

    class Module(torch.nn.Module):
        memory_size, num_actions = 1, 3

        def act_on_images(self, *args: object) -> SymbolicDecisions:
            assert not self.training
            return counter.act_on_images(*args)  # type: ignore[arg-type]

        def image_values(self, *args: object) -> Tensor:
            return counter.image_values(*args)  # type: ignore[arg-type]

    return Module()


def test_evaluation_does_not_move_the_statistics_of_a_network() -> None:
    agent = SymbolicPPO(BabyAISymbolic(3, 16)).train()
    before = {name: value.clone() for name, value in agent.named_buffers()}
    play_symbolic(agent, [Balls(seed=e) for e in range(2)], 4, draws())
    assert agent.training
    assert all(torch.equal(value, before[name]) for name, value in agent.named_buffers())


def test_a_method_that_reads_is_refused(tmp_path: Path) -> None:
    data = SymbolicRollouts("toy-lamp", num_worlds=1, num_steps=1, total_frames=1)
    with pytest.raises(UserError, match="give it TextRollouts"):
        trainer(tmp_path).fit(DRRN(DRRNetwork(20, 2, 2)), datamodule=data)
