"""DRRN: what it remembers, what it learns from, how it acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from llm_agents.envs.toy import Chest, Clock, Lamp
from llm_agents.errors import UserError
from llm_agents.methods import DRRN, DRRNConfig, load_network_agent
from llm_agents.methods.replay import Situation, Transition
from llm_agents.policies.drrn import DRRNetwork
from llm_agents.rollouts import TextRollouts
from llm_agents.types import Choice
from tests.methods.online import Metrics, Rollouts, gradient_norm_of, trainer

CHOICES = [Choice("You see a wall", ("turn left", "go on")), Choice("A ball", ("wait",))]


def agent(**settings: Any) -> DRRN:
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"batch_size": 16, "lr": 1e-3, "memory": 1000, **settings}
    return DRRN(DRRNetwork(300, 16, 16), DRRNConfig(**numbers))


def fit(module: DRRN, data: Any, folder: Path) -> Metrics:
    metrics = Metrics()
    run = trainer(folder, metrics)
    run.fit(module, data) if isinstance(data, Rollouts) else run.fit(module, datamodule=data)
    return metrics


def test_the_defaults_are_those_of_the_release() -> None:
    config = DRRNConfig()
    assert (config.gamma, config.temperature, config.batch_size) == (0.9, 1.0, 64)
    assert (config.memory, config.lr, config.max_grad_norm) == (5_000_000, 1e-4, 5.0)
    assert config.steps_per_rollout == 1, "a rollout is 4 steps of each world"


@pytest.mark.parametrize(
    "wrong", [{"gamma": 2.0}, {"temperature": 0.0}, {"memory": 3, "batch_size": 4}, {"lr": -1.0}]
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"settings.{next(iter(wrong))}"):
        DRRNConfig(**wrong)


# --- acting


def test_actions_are_drawn_from_the_softmax_over_values() -> None:
    module = agent(temperature=0.5)
    values = module.action_values(CHOICES[:1])[0].detach()
    expected = (values / 0.5).log_softmax(0)
    found = module.act(CHOICES[:1] * 4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.log_probs[:, 0], expected[found.index])
    share = float((found.index == 0).float().mean())
    assert share == pytest.approx(float(expected[0].exp()), abs=0.035)
    torch.testing.assert_close(found.values[0, 0], values.max())
    torch.testing.assert_close(module.state_values(CHOICES[:1])[0], values.max())


def test_where_nothing_can_be_done_nothing_can_be_earned() -> None:
    module = agent()
    found = module.state_values([Choice("The end", ()), CHOICES[0]])
    torch.testing.assert_close(found[1:], module.state_values(CHOICES[:1]))
    assert float(found[0]) == 0


# --- what is remembered


def remembered(module: DRRN) -> list[Transition]:
    return module.replay.sample(len(module.replay))


def test_every_step_becomes_one_transition(tmp_path: Path) -> None:
    module = agent(batch_size=1000)
    rollouts = Rollouts(module, [Chest(seed=e) for e in range(3)], 5, 4)
    pieces = [rollouts.collect() for _ in range(4)]
    for rollout in pieces:
        module.replay.add(module._transitions(rollout))
    ended = torch.cat([r.terminated | r.truncated for r in pieces])
    assert len(module.replay) == 3 * 20 - int((~ended[-1]).sum()), "the last ones wait"
    found = remembered(module)
    assert sum(one.after is None for one in found) == int(ended.sum())
    encoded = {module.network.encode(choice) for r in pieces for choice in r.choices}
    for one in found:
        assert one.situation in encoded
        assert one.after is None or one.after in encoded
        assert 0 <= one.taken < len(one.situation.actions)
    assert sum(one.reward for one in found) == pytest.approx(
        float(torch.cat([r.rewards for r in pieces]).sum())
    )


def test_what_follows_is_the_next_step_of_the_same_episode() -> None:
    module = agent(batch_size=1000)
    rollouts = Rollouts(module, [Chest(seed=4)], 6, 3)
    pieces = [rollouts.collect() for _ in range(3)]
    found = [one for rollout in pieces for one in module._transitions(rollout)]
    choices = [choice for rollout in pieces for choice in rollout.choices]
    ended = torch.cat([r.terminated | r.truncated for r in pieces])[:, 0].tolist()
    for number, one in enumerate(found):
        assert one.situation == module.network.encode(choices[number])
        expected = None if ended[number] else module.network.encode(choices[number + 1])
        assert one.after == expected


def test_targets_are_rewards_and_what_follows() -> None:
    module = agent(gamma=0.8)
    first, second = (Situation(*module.network.encode(choice)) for choice in CHOICES)
    transitions = [
        Transition(first, 0, 1.5, second, 0.0),
        Transition(first, 1, 2.0, None, 0.0),
        Transition(second, 0, 3.0, None, 5.0),
    ]
    best = float(module.state_values(CHOICES[1:])[0])
    found = module.targets(transitions)
    torch.testing.assert_close(found, torch.tensor([1.5 + 0.8 * best, 2.0, 3.0 + 0.8 * 5]))
    loss, taken = module.losses(transitions)
    values = module.action_values([CHOICES[0], CHOICES[0], CHOICES[1]]).detach()
    torch.testing.assert_close(taken, torch.stack([values[0, 0], values[1, 1], values[2, 0]]))
    expected = torch.nn.functional.smooth_l1_loss(taken, found)
    torch.testing.assert_close(loss.detach(), expected)


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_limit_counts_as_the_data_say(tmp_path: Path, bootstrap: bool) -> None:
    data = TextRollouts(
        "toy-clock",
        {"max_steps": 3},
        num_worlds=2,
        num_steps=6,
        total_frames=24,
        bootstrap_at_limit=bootstrap,
        seed=0,
    )
    module = agent(batch_size=1000)
    fit(module, data, tmp_path)
    cut = [one for one in remembered(module) if one.after is None]
    assert len(cut) == 8
    assert all((one.bootstrap != 0) is bootstrap for one in cut)


def test_nothing_is_learnt_before_there_is_enough(tmp_path: Path) -> None:
    module = agent(batch_size=30)
    before = [p.detach().clone() for p in module.network.parameters()]
    metrics = fit(module, Rollouts(module, [Lamp(seed=e) for e in range(4)], 4, 1), tmp_path)
    assert "train/loss" not in metrics.rows[0]
    assert metrics.rows[0]["train/memory"] == 16
    after = module.network.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_gradient_is_bounded(tmp_path: Path) -> None:
    module = agent(max_grad_norm=1e-3, batch_size=4)
    seen: list[float] = []

    def spy(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        seen.append(gradient_norm_of(module))

    handle = register_optimizer_step_pre_hook(spy)
    metrics = fit(module, Rollouts(module, [Clock(penalty=9.0)], 8, 1), tmp_path)
    handle.remove()
    assert seen == pytest.approx([1e-3], rel=1e-3)
    assert metrics.rows[0]["train/grad_norm"] > 2e-3, "from before"


# --- files


def test_a_saved_agent_acts_alike_and_learns_no_words(tmp_path: Path) -> None:
    module = agent()
    fit(module, Rollouts(module, [Lamp(seed=e) for e in range(2)], 8, 3), tmp_path / "run")
    module.save_pretrained(tmp_path / "agent")
    again = load_network_agent(tmp_path / "agent")
    assert isinstance(again, DRRN)
    seen = [Choice("A lamp on the wall shines blue.", ("press the blue button", "wait"))]
    for choices in (seen, seen * 3):
        first = module.act(choices, torch.Generator().manual_seed(1))
        second = again.act(choices, torch.Generator().manual_seed(1))
        assert torch.equal(first.index, second.index)
    words = again.network.vocabulary.words
    again.act([Choice("An unheard-of contraption", ("frobnicate it",))], torch.Generator())
    assert again.network.vocabulary.words == words
    (tmp_path / "agent" / "network.safetensors").unlink()
    with pytest.raises(UserError, match=r"network.safetensors is missing"):
        load_network_agent(tmp_path / "agent")


def test_several_processes_are_refused(tmp_path: Path) -> None:
    worlds = TextRollouts("toy-lamp", num_worlds=2, total_frames=64, num_processes=2)
    with pytest.raises(UserError, match="num_processes: 1"):
        fit(agent(), worlds, tmp_path)


# --- learning


@pytest.mark.slow
def test_it_learns_to_read_the_lamp(tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = DRRNConfig(lr=1e-2, temperature=0.1, gamma=0.9, steps_per_rollout=4)
    module = DRRN(DRRNetwork(300, 32, 32), settings)
    metrics = fit(module, Rollouts(module, [Lamp(seed=e) for e in range(8)], 4, 60), tmp_path)
    rates = [row["rollout/success_rate"] for row in metrics.rows]
    assert sum(rates[:10]) / 10 < 0.6
    assert sum(rates[-10:]) / 10 > 0.9
