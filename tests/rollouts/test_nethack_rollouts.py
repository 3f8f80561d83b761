"""Rollouts of many games: what is recorded, when it is collected, how a run goes on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.policies.nethack import SmallNetwork
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.policies.nethack_types import NetHackRollout
from llm_agents.rollouts.nethack import NetHackRollouts
from llm_agents.rollouts.nethack_collector import NetHackCollector, NetHackPlan
from llm_agents.rollouts.nethack_statistics import GameStatistics
from llm_agents.rollouts.seeds import Purpose, derived_seed
from tests.rollouts.toy_games import (
    ToyGames,
    ToyLearner,
    ToyRollouts,
    toy_network,
    toy_reward,
)


def plan(**options: Any) -> NetHackPlan:
    return NetHackPlan(**{"num_steps": 6, "num_rollouts": 9, "seed": 0, "recurrence": 3, **options})


def collector(games: ToyGames, reward: Any = None, **options: Any) -> NetHackCollector:
    return NetHackCollector(NetworkPlayer(toy_network()), games, plan(**options), reward)


def equal(first: NetHackRollout, second: NetHackRollout) -> bool:
    tensors = [name for name, value in vars(first).items() if isinstance(value, torch.Tensor)]
    parts = all(torch.equal(getattr(first, name), getattr(second, name)) for name in tensors)
    seen = all(
        torch.equal(getattr(first.observations, name), getattr(second.observations, name))
        for name in ("window", "vector", "message")
    )
    return parts and seen and first.episodes == second.episodes and first.number == second.number


# --- what is recorded


def test_a_rollout_is_what_a_plain_loop_sees() -> None:
    found = collector(ToyGames(3, 4, spread=3)).collect()
    games, player = ToyGames(3, 4, spread=3), NetworkPlayer(toy_network())
    generator = torch.Generator().manual_seed(derived_seed(0, Purpose.DRAWS, 0))
    raw, state = games.reset(), player.initial_state(3)
    starts = torch.ones(3, dtype=torch.bool)
    for step in range(6):
        if step % 3 == 0:
            assert torch.equal(found.states[step // 3], state)
        seen = player.observe(raw)
        decided = player.act(seen, state, starts, generator)
        games.send(decided.actions.numpy())
        came = games.receive()
        for name in ("window", "vector", "message"):
            assert torch.equal(getattr(found.observations, name)[step], getattr(seen, name))
        assert torch.equal(found.starts[step], starts)
        assert torch.equal(found.actions[step], decided.actions)
        assert torch.equal(found.log_probs[step], decided.log_probs)
        assert torch.equal(found.values[step], decided.values)
        assert found.rewards[step].tolist() == came.rewards.tolist()
        assert found.terminated[step].tolist() == came.terminated.tolist()
        raw, state = came.observations, decided.state
        starts = torch.from_numpy(came.terminated | came.truncated)
    after = player.values(player.observe(raw), state)
    assert torch.equal(found.next_values[-1], after.masked_fill(starts, 0))
    assert not found.next_values[:-1].any()
    assert [episode.num_steps for episode in found.episodes] == [4, 5, 6]


def test_a_second_rollout_goes_on_where_the_first_one_ended() -> None:
    whole = collector(ToyGames(2, 5)).collect
    games = collector(ToyGames(2, 5))
    first, second = games.collect(), games.collect()
    assert equal(first, whole())
    assert second.number == 1
    assert second.starts.nonzero().tolist() == [[4, 0], [4, 1]]
    assert second.states[0].any()


def test_an_intrinsic_reward_is_of_the_observation_that_follows() -> None:
    """Worth of greeting 0.5, nothing −1 (below the threshold), gold 1, farewell 2; n-th by n³."""
    found = collector(ToyGames(1, 4), toy_reward()).collect()
    gold = found.rewards[:, 0].tolist()
    wanted, seen = [], 0
    for step in range(6):
        if step % 4 == 3:
            wanted.append(2.0)
            seen = 0
        elif gold[step]:
            seen += 1
            wanted.append(1 / seen**3)
        else:
            wanted.append(0.0)
    assert found.intrinsic[:, 0].tolist() == pytest.approx(wanted)
    (episode,) = found.episodes
    assert episode.intrinsic_return == pytest.approx(sum(wanted[:4]))
    assert episode.episode_return == sum(gold[:4])


def test_as_released_it_is_of_the_observation_acted_on() -> None:
    """The greeting earns, the farewell never does, everything else comes a step later."""
    reached = collector(ToyGames(1, 4), toy_reward()).collect()
    acting = collector(ToyGames(1, 4), toy_reward(), observed="acting").collect()
    assert torch.equal(acting.actions, reached.actions)
    wanted = [0.5, *reached.intrinsic[:3, 0].tolist(), 0.5, float(reached.intrinsic[4, 0])]
    assert acting.intrinsic[:, 0].tolist() == pytest.approx(wanted)
    assert acting.episodes[0].intrinsic_return == pytest.approx(sum(wanted[:4]))


def test_a_limit_leaves_the_value_of_the_last_observation() -> None:
    games = ToyGames(2, 4, spread=2, is_limit=True)
    found = collector(games).collect()
    ended = found.truncated.nonzero().tolist()
    assert ended == [[3, 0], [4, 1]]
    assert not found.terminated.any()
    for step, game in ended:
        assert float(found.next_values[step, game]) != 0
    nowhere = found.next_values[:-1].clone()
    nowhere[3, 0] = nowhere[4, 1] = 0
    assert not nowhere.any()


def test_the_value_of_a_cut_is_of_the_farewell_and_of_the_state_after_the_step() -> None:
    found = collector(ToyGames(1, 4, is_limit=True)).collect()
    games, player = ToyGames(1, 4, is_limit=True), NetworkPlayer(toy_network())
    raw, state = games.reset(), player.initial_state(1)
    starts = torch.ones(1, dtype=torch.bool)
    generator = torch.Generator().manual_seed(derived_seed(0, Purpose.DRAWS, 0))
    for _ in range(4):
        decided = player.act(player.observe(raw), state, starts, generator)
        games.send(decided.actions.numpy())
        came = games.receive()
        raw, state, starts = came.observations, decided.state, torch.zeros(1, dtype=torch.bool)
    wanted = player.values(player.observe(came.final_observations), state)
    assert float(found.next_values[3, 0]) == pytest.approx(float(wanted))


def test_each_distinct_message_is_scored_once() -> None:
    reward = toy_reward()
    games = collector(ToyGames(4, 5), reward)
    metrics = [games.collect().metrics for _ in range(3)][-1]
    assert reward.scorer.asked <= 4  # type: ignore[attr-defined]
    assert 0 < metrics["rollout/intrinsic_share_above"] < 1
    assert 0 < metrics["rollout/intrinsic_count_factor"] < 1
    assert -1 < metrics["rollout/intrinsic_raw"] < 2


def test_a_recurrence_must_divide_the_rollout() -> None:
    with pytest.raises(ValueError, match="expected `recurrence` to divide"):
        collector(ToyGames(1), recurrence=4)


# --- when it is collected


def rollouts(learner: ToyLearner, **options: Any) -> ToyRollouts:
    given = {"num_games": 2, "num_steps": 4, "total_frames": 40, "seed": 3, "toy": {"length": 5}}
    data = ToyRollouts(**{**given, **options})
    data.connect(learner)
    return data


def change(learner: ToyLearner) -> None:
    """Do what an update does."""
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.mul_(1.1)


def trained(data: ToyRollouts, learner: ToyLearner, count: int) -> list[NetHackRollout]:
    stream: Iterator[NetHackRollout] = iter(data.train_dataloader())
    found = []
    for _ in range(count):
        found.append(next(stream))
        change(learner)
    return found


def test_a_rollout_is_by_the_weights_of_its_time() -> None:
    """Without overlap those after the last update, with overlap those before it."""
    alone, lagging = (ToyLearner(toy_network()) for _ in range(2))
    now = trained(rollouts(alone, overlap=False), alone, 3)
    late = trained(rollouts(lagging, overlap=True), lagging, 3)
    by_hand = NetHackCollector(
        player := NetworkPlayer(weights := toy_network()),
        ToyGames(2, 5, seed=derived_seed(3, Purpose.TRAINING) % 1000),
        plan(num_steps=4, recurrence=4, num_rollouts=5, seed=3),
    )
    wanted = []
    for _ in range(3):
        player.refresh()
        wanted.append(by_hand.collect())
        change(ToyLearner(weights))
    assert all(equal(a, b) for a, b in zip(now, wanted, strict=True))
    assert equal(late[0], now[0])
    assert not torch.equal(late[1].log_probs, now[1].log_probs)
    again = NetHackCollector(
        player := NetworkPlayer(toy_network()),
        ToyGames(2, 5, seed=derived_seed(3, Purpose.TRAINING) % 1000),
        plan(num_steps=4, recurrence=4, num_rollouts=5, seed=3),
    )
    again.collect()
    player.refresh()
    assert equal(again.collect(), late[1])


def test_the_run_ends_with_its_frames() -> None:
    data = rollouts(ToyLearner(toy_network()), total_frames=47)
    stream = data.train_dataloader()
    assert len(stream) == data.num_rollouts == 5
    numbers = [rollout.number for rollout in stream]
    assert numbers == [0, 1, 2, 3, 4]
    assert data.frames == 40
    assert list(data.train_dataloader()) == []


def test_statistics_and_speed_come_with_a_rollout() -> None:
    found = list(rollouts(ToyLearner(toy_network()), toy={"length": 3}).train_dataloader())[-1]
    assert found.metrics["rollout/episodes"] == 12
    assert found.metrics["rollout/length_mean"] == 3
    assert found.metrics["time/frames_per_second"] > 0


def test_a_reward_with_a_cache_keeps_what_it_said(tmp_path: Path) -> None:
    first = toy_reward(cache=tmp_path)
    data = rollouts(ToyLearner(toy_network()), reward=first)
    next(iter(data.train_dataloader()))
    data.teardown("fit")
    assert first.scorer.asked > 0
    again = toy_reward(cache=tmp_path)
    assert again.num_remembered == first.num_remembered > 0


# --- how a run goes on


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint makes of a state: nothing that runs code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("length", [4, 7])
def test_an_interrupted_run_sees_the_same_rollouts(overlap: bool, length: int) -> None:
    options = {"overlap": overlap, "toy": {"length": length}, "reward": toy_reward()}
    whole = ToyLearner(toy_network())
    wanted = trained(rollouts(whole, **options), whole, 5)
    first = ToyLearner(toy_network())
    data = rollouts(first, **options)
    trained(data, first, 2)
    state = saved(data.state_dict())
    data.close()
    second = ToyLearner(toy_network())
    for _ in range(2):
        change(second)
    other = rollouts(second, **options)
    other.load_state_dict(state)
    found = trained(other, second, 3)
    assert all(equal(a, b) for a, b in zip(wanted[2:], found, strict=True))
    assert found[-1].metrics["rollout/episodes"] == wanted[-1].metrics["rollout/episodes"]
    assert other.state_dict()["stream"]["number"] == 5


def test_a_closed_run_goes_on_in_the_same_process() -> None:
    learner = ToyLearner(toy_network())
    wanted = [rollout.number for rollout in rollouts(learner).train_dataloader()]
    data = rollouts(learner)
    stream = iter(data.train_dataloader())
    found = [next(stream).number for _ in range(2)]
    data.close()
    data.close()
    found += [rollout.number for rollout in data.train_dataloader()]
    assert found == wanted


def test_a_state_of_other_games_is_refused() -> None:
    learner = ToyLearner(toy_network())
    data = rollouts(learner)
    trained(data, learner, 1)
    state = data.state_dict()
    with pytest.raises(UserError, match="`num_games`: 2"):
        rollouts(learner, num_games=4).load_state_dict(state)
    with pytest.raises(ValueError, match="expected rollout 7 to come next, got 1"):
        data.train_dataloader().load_state_dict({"number": 7})


@pytest.mark.parametrize("at", [1, 5])
def test_a_fault_while_collecting_reaches_the_one_who_trains(at: int) -> None:
    class Broken(ToyGames):
        steps = 0

        def receive(self) -> Any:
            self.steps += 1
            if self.steps == at:
                raise RuntimeError("the worker `nethack-0` has stopped")
            return super().receive()

    games = Broken(1)

    class BrokenRollouts(ToyRollouts):
        def make_vector(self, seed: int, num_games: int) -> Any:
            return games

    data = BrokenRollouts(num_games=1, num_steps=2, total_frames=8, seed=0)
    data.connect(ToyLearner(toy_network()))
    with pytest.raises(RuntimeError, match="has stopped"):
        list(data.train_dataloader())
    data.close()
    assert games.closed == 1


# --- settings


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"task": "NetHackFun-v1"}, "expected a task out of NetHackScore-v1"),
        ({"num_games": 0}, "`num_games` and `num_steps` of at least 1"),
        ({"num_games": 2, "num_workers": 3}, "`num_workers` from 0 to num_games = 2"),
        ({"num_threads": 0}, "`num_threads` of at least 1"),
        ({"total_frames": 100}, "at least one rollout, num_games · num_steps = 2048"),
        ({"observed": "next"}, "expected `observed` reached or acting"),
        ({"window": 0}, "expected `window` of at least 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        NetHackRollouts(**options)


def test_an_agent_must_be_connected() -> None:
    data = ToyRollouts(num_games=1, num_steps=2, total_frames=4)
    with pytest.raises(ValueError, match="expected an agent"):
        data.train_dataloader()


def test_statistics_are_over_the_last_games() -> None:
    statistics = GameStatistics(window=2)
    assert statistics.summary() == {"rollout/episodes": 0.0}
    found = collector(ToyGames(1, 2), toy_reward()).collect()
    statistics.add(found.episodes)
    summary = statistics.summary()
    assert summary["rollout/episodes"] == 3
    last = [game.intrinsic_return for game in found.episodes[1:]]
    assert summary["rollout/intrinsic_return_mean"] == pytest.approx(np.mean(last))
    other = GameStatistics(window=2)
    other.load_state_dict(saved(statistics.state_dict()))
    assert other.summary() == summary


# --- the real game


@pytest.mark.nethack
@pytest.mark.parametrize("num_workers", [0, 1])
def test_rollouts_of_nethack_go_on_alike(num_workers: int) -> None:
    pytest.importorskip("nle")

    def data() -> NetHackRollouts:
        made = NetHackRollouts(
            num_games=2, num_workers=num_workers, num_steps=8, total_frames=64, seed=1,
            reward=None, overlap=True,
        )  # fmt: skip
        torch.manual_seed(0)
        made.connect(ToyLearner(SmallNetwork(8)))
        return made

    whole = data()
    wanted = list(whole.train_dataloader())
    whole.close()
    first = data()
    stream = iter(first.train_dataloader())
    next(stream)
    next(stream)
    state = saved(first.state_dict())
    first.close()
    second = data()
    second.load_state_dict(state)
    found = list(second.train_dataloader())
    second.close()
    assert len(wanted) == 4
    assert all(equal(a, b) for a, b in zip(wanted[2:], found, strict=True))
    assert wanted[0].observations.message.any()
    assert wanted[0].observations.window.any()
