"""Motif's agent: its loss, its sequences, what it learns, how it goes on, what it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.vtrace import vtrace
from llm_agents.methods.motif_agent import MotifAgent
from llm_agents.methods.motif_settings import MotifPPOConfig
from llm_agents.methods.nethack_sequences import Sequences, minibatches
from llm_agents.policies.nethack_types import NetHackRollout
from llm_agents.rollouts.nethack_collector import NetHackCollector, NetHackPlan
from tests.rollouts.toy_games import ToyGames, ToyRollouts, toy_network, toy_reward


def agent_with(seed: int = 0, core: str = "gru", **options: Any) -> MotifAgent:
    return MotifAgent(toy_network(seed, core=core), MotifPPOConfig(**options))


def rollout_of(
    agent: MotifAgent, num_steps: int = 6, games: ToyGames | None = None, count: int = 2
) -> NetHackRollout:
    """Return the agent's `count`-th rollout, which begins inside episodes."""
    plan = NetHackPlan(
        num_steps=num_steps,
        num_rollouts=9,
        seed=0,
        recurrence=agent.recurrence or num_steps,
    )
    games = games or ToyGames(3, 4, spread=3)
    collector = NetHackCollector(agent.player(), games, plan, toy_reward())
    return [collector.collect() for _ in range(count)][-1]


# --- sequences


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("length", [6, 3, 2])
def test_an_unchanged_policy_has_ratio_one_however_it_is_cut(core: str, length: int) -> None:
    agent = agent_with(core=core, recurrence=length)
    rollout = rollout_of(agent)
    assert rollout.starts.any()
    sequences = agent.sequences(rollout)
    assert len(sequences) == 3 * 6 // length
    losses = agent.losses(sequences)
    assert float(losses.ratio_error) < 1e-5
    assert float(losses.approx_kl) < 1e-6


def test_a_sequence_inside_a_rollout_is_followed_by_the_next_value() -> None:
    agent = agent_with(recurrence=2)
    rollout = rollout_of(agent, games=ToyGames(2, 5, is_limit=True))
    found = agent.sequences(rollout).next_values  # [2, 3 · 2], sequence k · E + e
    assert not found[0][~rollout.truncated[::2].flatten()].any()
    for k in range(3):
        last = 2 * k + 1
        for game in range(2):
            after = rollout.next_values[last, game]
            if last < 5 and not rollout.truncated[last, game]:
                after = rollout.values[last + 1, game]
            assert float(found[1, 2 * k + game]) == float(after)


def test_columns_stay_together() -> None:
    agent = agent_with(recurrence=3)
    rollout = rollout_of(agent)
    sequences = agent.sequences(rollout)
    part = sequences.select(torch.tensor([4, 1]))
    assert len(part) == 2
    assert torch.equal(part.actions[:, 0], rollout.actions[3:, 1])
    assert torch.equal(part.states[0], rollout.states[1, 1])
    assert torch.equal(part.observations.window[:, 1], rollout.observations.window[:3, 1])
    assert torch.equal(part.values[:, 1], rollout.values[:3, 1])


def test_minibatches_hold_each_sequence_once_an_epoch() -> None:
    rows = list(minibatches(7, 3, 2, torch.Generator().manual_seed(0)))
    assert [len(part) for part in rows] == [3, 2, 2, 3, 2, 2]
    first, second = torch.cat(rows[:3]), torch.cat(rows[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(7))
    assert first.tolist() != second.tolist()
    with pytest.raises(UserError, match="2 sequences can't be split into 3"):
        list(minibatches(2, 3, 1, torch.Generator()))


def test_a_recurrence_that_does_not_divide_is_refused() -> None:
    agent = agent_with(recurrence=3)
    rollout = rollout_of(agent)
    with pytest.raises(UserError, match=r"let `ppo\.recurrence` divide"):
        Sequences.of(rollout, length=4, rewards=rollout.rewards)


# --- the loss


def test_the_loss_is_the_sum_of_its_parts() -> None:
    """Written out from the release's description, on a policy that has moved since the rollout."""
    agent = agent_with()
    rollout = rollout_of(agent)
    with torch.no_grad():
        for parameter in agent.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    losses = agent.losses(agent.sequences(rollout))
    reward = 0.1 * (0.1 * rollout.rewards).clamp(-10, 10) + 0.1 * rollout.intrinsic
    seen = agent.network(rollout.observations, rollout.states[0], rollout.starts)
    log_probs = seen.logits.log_softmax(-1)
    taken = log_probs.gather(-1, rollout.actions[..., None])[..., 0]
    ratio = (taken - rollout.log_probs).exp()
    corrected = vtrace(
        rewards=reward, values=seen.values, next_values=rollout.next_values,
        terminated=rollout.terminated, truncated=rollout.truncated, importance_ratio=ratio,
        gamma=0.99, rho_clip=1.0, c_clip=1.0, rollout_end="bootstrap",
    )  # fmt: skip
    gain = corrected.advantages
    gain = (gain - gain.mean()) / max(1e-3, float(gain.std()))
    bounded = ratio.clamp(0.05, 20)
    policy = -torch.minimum(gain * bounded, gain * bounded.clamp(1 / 1.1, 1.1)).mean()
    near = rollout.values + (seen.values - rollout.values).clamp(-1, 1)
    squares = torch.maximum(
        (seen.values - corrected.targets) ** 2, (near - corrected.targets) ** 2
    ).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    assert float(losses.ratio_error) > 1e-2
    torch.testing.assert_close(losses.policy_loss, policy)
    torch.testing.assert_close(losses.value_loss, squares)
    torch.testing.assert_close(losses.loss, policy + 0.5 * squares - 0.003 * entropy)


@pytest.mark.parametrize(("options", "sign"), [
    ({"exploration": "entropy"}, -1.0), ({"exploration": "uniform"}, 1.0),
])  # fmt: skip
def test_exploration_has_the_sign_it_should(options: dict[str, Any], sign: float) -> None:
    agent = agent_with(exploration_coef=1.0, **options)
    without = MotifAgent(agent.network, replace(agent.ppo, exploration_coef=0.0))
    sequences = agent.sequences(rollout_of(agent))
    with torch.no_grad():
        extra = float(agent.losses(sequences).loss - without.losses(sequences).loss)
    assert extra * sign > 0


def test_as_released_a_rollouts_last_step_teaches_nothing() -> None:
    agent = agent_with(rollout_end="self", exploration_coef=0.0, value_coef=0.0)
    rollout = rollout_of(agent, num_steps=3, games=ToyGames(1, 9), count=1)
    found: Tensor = agent._assigned(
        sequences := agent.sequences(rollout), rollout.values, torch.ones(3, 1)
    )[1]
    assert float(found[-1]) == pytest.approx(0, abs=1e-6)
    fixed = agent_with()._assigned(sequences, rollout.values, torch.ones(3, 1))[1]
    assert abs(float(fixed[-1])) > 1e-4


def test_plain_ppo_has_gae_of_the_collecting_values() -> None:
    agent = agent_with(advantages="gae", gae_lambda=1.0)
    rollout = rollout_of(agent, games=ToyGames(1, 99), count=1)
    sequences = agent.sequences(rollout)
    total = float(rollout.next_values[-1])
    for reward in sequences.rewards[:, 0].flip(0).tolist():
        total = reward + 0.99 * total
    assert sequences.targets is not None
    assert float(sequences.targets[0]) == pytest.approx(total, rel=1e-5)
    assert agent.losses(sequences).loss.requires_grad


@pytest.mark.parametrize(("options", "text"), [
    ({"gamma": 1.2}, "`ppo.gamma` from 0 to 1"),
    ({"num_epochs": 0}, "`ppo.num_epochs` of at least 1"),
    ({"recurrence": 0}, "`ppo.recurrence` above 0, or null"),
    ({"reward_clip": 0.0}, "`ppo.reward_clip` above 0"),
    ({"intrinsic_coef": -1.0}, "`ppo.intrinsic_coef` from 0"),
    ({"advantages": "td"}, "`ppo.advantages` vtrace or gae"),
    ({"ratio_bounds": (1.0, 2.0)}, "`ppo.ratio_bounds` around 1"),
    ({"rollout_end": "self", "advantages": "gae"}, "is of V-trace"),
])  # fmt: skip
def test_settings_out_of_range(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        MotifPPOConfig(**options)


# --- training


class Rewards(Callback):
    """Keeps what the rollouts paid, and what was logged last."""

    def __init__(self) -> None:
        self.extrinsic: list[float] = []
        self.logged: Mapping[str, Tensor] = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.extrinsic.append(float(batch.rewards.mean()))
        self.logged = dict(trainer.callback_metrics)


def fit(
    agent: LightningModule, data: Any, folder: Path, ckpt_path: str | None = None
) -> tuple[Trainer, Rewards]:
    seen = Rewards()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[seen],
    )  # fmt: skip
    trainer.fit(agent, data, ckpt_path=ckpt_path)
    return trainer, seen


QUICK: dict[str, Any] = {
    "extrinsic_coef": 1.0, "intrinsic_coef": 0.0, "reward_scale": 1.0, "lr": 1e-2,
    "num_minibatches": 2, "gamma": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "overlap"),
    [
        (0, True),
        *(pytest.param(seed, False, marks=pytest.mark.slow) for seed in (0, 1, 2)),
        *(pytest.param(seed, True, marks=pytest.mark.slow) for seed in (1, 2)),
    ],
)
def test_it_finds_the_gold(seed: int, overlap: bool, tmp_path: Path) -> None:
    """Chance is 0.25 a step; three in four is asked for."""
    agent = agent_with(seed, **QUICK)
    data = ToyRollouts(
        num_games=16, num_steps=8, total_frames=16 * 8 * 40, seed=seed, overlap=overlap
    )
    _, seen = fit(agent, data, tmp_path)
    assert sum(seen.extrinsic[:3]) / 3 < 0.45
    assert sum(seen.extrinsic[-3:]) / 3 > 0.75
    assert agent.outcome == {"kept": "last", "step": 5120}


@pytest.mark.slow
def test_messages_alone_lead_it_to_the_gold(tmp_path: Path) -> None:
    agent = agent_with(**{**QUICK, "extrinsic_coef": 0.0, "intrinsic_coef": 1.0})
    reward = toy_reward(exponent=0.0)
    data = ToyRollouts(num_games=16, num_steps=8, total_frames=16 * 8 * 40, seed=0, reward=reward)
    _, seen = fit(agent, data, tmp_path)
    assert sum(seen.extrinsic[-3:]) / 3 > 0.75
    assert float(seen.logged["rollout/intrinsic_mean"]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_it_remembers(core: str, tmp_path: Path) -> None:
    """The direction is shown at an episode's start alone: without memory 7 of 8 steps are chance.

    A policy of the present observation gets at most (1 + 7 / 4) / 8 = 0.34.
    """
    agent = agent_with(core=core, **QUICK)
    data = ToyRollouts(
        num_games=32, num_steps=16, total_frames=32 * 16 * 60, seed=0, toy={"memory": True}
    )
    _, seen = fit(agent, data, tmp_path)
    assert sum(seen.extrinsic[-3:]) / 3 > 0.45


def test_what_is_logged(tmp_path: Path) -> None:
    agent = agent_with()
    data = ToyRollouts(num_games=2, num_steps=8, total_frames=64, seed=0, reward=toy_reward())
    _, seen = fit(agent, data, tmp_path)
    wanted = {
        "train/loss", "train/policy_loss", "train/value_loss", "train/entropy", "train/approx_kl",
        "train/grad_norm", "train/explained_variance", "rollout/frames", "rollout/score_mean",
        "rollout/return_mean", "rollout/intrinsic_return_mean", "rollout/depth_mean",
        "rollout/experience_level_mean", "rollout/turns_mean", "rollout/messages_mean",
        "rollout/intrinsic_raw", "rollout/intrinsic_normalized", "rollout/intrinsic_share_above",
        "rollout/intrinsic_count_factor", "time/frames_per_second", "time/collect_seconds",
    }  # fmt: skip
    assert wanted <= set(seen.logged)
    assert float(seen.logged["rollout/frames"]) == 64


class Save(Callback):
    """Writes a checkpoint after a rollout, and stops there as a kill would."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch.number == self.number:
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupted_run_ends_with_the_same_weights(overlap: bool, tmp_path: Path) -> None:
    def parts() -> tuple[MotifAgent, ToyRollouts]:
        data = ToyRollouts(
            num_games=4, num_steps=8, total_frames=4 * 8 * 6, seed=5, overlap=overlap,
            reward=toy_reward(), toy={"length": 7, "spread": 3},
        )  # fmt: skip
        torch.manual_seed(11)
        return agent_with(num_minibatches=2, lr=1e-2), data

    whole, data = parts()
    logged = fit(whole, data, tmp_path)[1].logged
    torch.manual_seed(12)
    first, data = parts()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Save(tmp_path / "a.ckpt", 2)],
    )  # fmt: skip
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer.fit(first, data)
    second, data = parts()
    _, seen = fit(second, data, tmp_path, ckpt_path=str(tmp_path / "a.ckpt"))
    assert len(seen.extrinsic) == 3
    for name, value in logged.items():
        if not name.startswith("time/"):
            assert torch.equal(seen.logged[name], value), name
    for (name, a), b in zip(whole.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_checkpoint_of_another_network_is_refused() -> None:
    checkpoint: dict[str, Any] = {"state_dict": agent_with().state_dict()}
    agent_with().on_save_checkpoint(checkpoint)
    other = MotifAgent(toy_network(core="lstm"))
    with pytest.raises(UserError, match="does not fit the agent"):
        other.on_load_checkpoint(checkpoint)
    with pytest.raises(UserError, match="not written by a run of MotifAgent"):
        other.on_load_checkpoint({"state_dict": {}})


def test_a_number_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    agent = agent_with()
    with torch.no_grad():
        agent.network.value_head.bias.fill_(float("nan"))
    data = ToyRollouts(num_games=2, num_steps=4, total_frames=16, seed=0)
    with pytest.raises(UserError, match="the loss is nan"):
        fit(agent, data, tmp_path)


def test_another_method_is_refused_by_the_data(tmp_path: Path) -> None:
    class Other(LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            raise NotImplementedError

        def configure_optimizers(self) -> None:
            return None

    with pytest.raises(UserError, match="a method that plays NetHack, such as MotifAgent"):
        fit(Other(), ToyRollouts(num_games=2, num_steps=4, total_frames=16), tmp_path)


def test_a_saved_agent_acts_alike(tmp_path: Path) -> None:
    agent = agent_with()
    agent.save_pretrained(tmp_path)
    loaded = MotifAgent.from_pretrained(tmp_path)
    rollout, again = rollout_of(agent), rollout_of(loaded)
    assert torch.equal(rollout.actions, again.actions)
    assert torch.equal(rollout.values, again.values)
    assert loaded.description() == {
        "network": "SmallNetwork", "hidden_size": 16, "core": "gru", "num_actions": 4,
    }  # fmt: skip


def test_it_logs_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    class Log(Callback):
        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
        ) -> None:
            frames = float(trainer.callback_metrics.get("rollout/frames", -1))
            seen.append((batch.number, frames))

    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Log()],
    )  # fmt: skip
    agent = MotifAgent(toy_network(), log_every=3)
    trainer.fit(agent, ToyRollouts(num_games=2, num_steps=4, total_frames=48, seed=0))
    assert seen == [(0, 8), (1, 8), (2, 8), (3, 32), (4, 32), (5, 48)]
    with pytest.raises(UserError, match="expected `log_every` of at least 1"):
        MotifAgent(toy_network(), log_every=0)
