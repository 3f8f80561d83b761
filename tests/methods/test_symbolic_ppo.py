"""Recurrent PPO on images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from llm_agents.errors import UserError
from llm_agents.functional import gae
from llm_agents.methods import SymbolicPPO, SymbolicPPOConfig, load_network_agent
from llm_agents.policies.babyai_symbolic import BabyAISymbolic
from llm_agents.rollouts import SymbolicRollouts
from llm_agents.rollouts.collector import RolloutPlan
from llm_agents.rollouts.symbolic import SymbolicCollector, SymbolicWorld
from llm_agents.types import SymbolicRollout
from tests.closeness import assert_rounding
from tests.methods.online import Metrics, gradient_norm_of, trainer
from tests.rollouts.symbolic_worlds import Balls

WORLD = "tests.rollouts.symbolic_worlds:Balls"


def agent(norm: Any = "group", features: int = 16, **ppo: Any) -> SymbolicPPO:
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"recurrence": 4, **ppo}
    return SymbolicPPO(BabyAISymbolic(3, features, norm=norm), SymbolicPPOConfig(**numbers))


def rollout_of(module: SymbolicPPO, num_worlds: int = 3, num_steps: int = 8) -> SymbolicRollout:
    worlds = [
        SymbolicWorld(Balls(hides=True), number=e, seed=e, num_actions=3) for e in range(num_worlds)
    ]
    return SymbolicCollector(module, worlds, RolloutPlan(num_steps, 2)).collect()


def data(**options: Any) -> SymbolicRollouts:
    numbers: dict[str, Any] = {"num_worlds": 4, "num_steps": 8, "total_frames": 64, "seed": 0}
    return SymbolicRollouts(WORLD, **{**numbers, **options})


def fit(module: SymbolicPPO, source: SymbolicRollouts, folder: Path) -> Metrics:
    metrics = Metrics()
    trainer(folder, metrics).fit(module, datamodule=source)
    return metrics


def test_the_defaults_are_those_of_the_release() -> None:
    config = SymbolicPPOConfig()
    assert (config.gamma, config.gae_lambda, config.recurrence) == (0.99, 0.99, 20)
    assert (config.num_epochs, config.num_minibatches) == (4, 2)
    assert (config.lr, config.betas, config.eps) == (1e-4, (0.9, 0.999), 1e-5)
    assert (config.entropy_coef, config.value_coef) == (0.01, 1.0), "of half the squared error"
    assert (config.clip_epsilon, config.value_clip, config.max_grad_norm) == (0.2, 0.2, 0.5)
    source = SymbolicRollouts("babyai-go-to-red-ball")
    assert (source.num_worlds, source.num_steps, source.total_frames) == (64, 40, 400_000)
    assert not source.bootstrap_at_limit


@pytest.mark.parametrize("wrong", [{"gamma": 2.0}, {"recurrence": 0}, {"value_clip": 0.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"ppo.{next(iter(wrong))}"):
        SymbolicPPOConfig(**wrong)


# --- sub-sequences


def test_a_rollout_is_cut_along_its_worlds() -> None:
    module = agent()
    rollout = rollout_of(module)
    parts = module.parts(rollout)
    assert parts.images.shape == (6, 4, 7, 7, 3)
    expected = gae(
        rewards=rollout.rewards,
        values=rollout.values,
        next_values=rollout.next_values,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        discounts=torch.full_like(rollout.rewards, 0.99),
        gae_lambda=0.99,
    )
    for row in range(6):
        steps, world = slice(4 * (row // 3), 4 * (row // 3) + 4), row % 3
        assert torch.equal(parts.actions[row], rollout.index[steps, world])
        assert torch.equal(parts.starts[row], rollout.starts[steps, world])
        assert torch.equal(parts.advantages[row], expected.advantages[steps, world])
        assert torch.equal(parts.memories[row], rollout.memories[steps, world][0])
    assert parts.followers.tolist() == [3, 4, 5, -1, -1, -1]


@pytest.mark.parametrize("wrong", [{"recurrence": 3}, {"num_minibatches": 7}])
def test_a_rollout_that_can_not_be_cut_is_refused(wrong: dict[str, int]) -> None:
    module = agent(**wrong)
    with pytest.raises(UserError, match="can't be cut into sub-sequences"):
        module.parts(rollout_of(module))


def test_going_through_again_gives_what_was_collected() -> None:
    module = agent()
    rollout = rollout_of(module)
    parts = module.parts(rollout)
    rows = torch.tensor([4, 0, 5])
    found = module.replay(rollout.missions, parts, parts.memories[rows], rows)
    taken = found.log_probs.gather(-1, parts.actions[rows][..., None])[..., 0]
    assert_rounding(taken, parts.log_probs[rows])
    assert_rounding(found.values, parts.values[rows])
    follows = parts.memories[parts.followers[rows[1]]]
    begins = parts.starts[parts.followers[rows[1]], 0]
    assert_rounding(found.memory[1] * ~begins, follows)


def test_gradients_do_not_cross_the_beginning_of_an_episode() -> None:
    module = agent()
    rollout = rollout_of(module)
    parts = module.parts(rollout)
    starts = torch.zeros_like(parts.starts)
    starts[:, 2] = True
    parts = parts._replace(starts=starts)
    rows = torch.tensor([0])
    memory = parts.memories[rows].clone().requires_grad_()
    found = module.replay(rollout.missions, parts, memory, rows)
    (late,) = torch.autograd.grad(found.values[0, 2:].sum(), memory, retain_graph=True)
    (early,) = torch.autograd.grad(found.values[0, :2].sum(), memory)
    assert float(late.abs().max()) == 0
    assert float(early.abs().max()) > 0


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_ratios_begin_at_one_unless_statistics_are_the_batch_s(tmp_path: Path, norm: str) -> None:
    metrics = fit(agent(norm), data(), tmp_path)
    errors = [row["train/first_ratio_error"] for row in metrics.rows]
    assert (max(errors) < 1e-4) is (norm == "group")
    assert max(errors) < 0.5


def test_a_later_epoch_begins_with_what_the_one_before_has_left(tmp_path: Path) -> None:
    class Watching(SymbolicPPO):
        def _step(self, rollout: Any, parts: Any, memories: Any, rows: Any) -> Any:
            last = super()._step(rollout, parts, memories, rows)
            self.seen.append((rows.clone(), memories.clone(), last.clone()))  # type: ignore[has-type]
            return last

    torch.manual_seed(0)
    config = SymbolicPPOConfig(recurrence=4, num_epochs=2, num_minibatches=2, lr=1e-2)
    module = Watching(BabyAISymbolic(3, 16, norm="group"), config)
    module.seen: list[Any] = []
    trainer(tmp_path).fit(module, datamodule=data(total_frames=32))
    first, second = module.seen[:2], module.seen[2:]
    left = {int(r): last for rows, _, lasts in first for r, last in zip(rows, lasts, strict=True)}
    began = {int(r): m for rows, ms, _ in second for r, m in zip(rows, ms, strict=True)}
    fresh = {int(r): m for rows, ms, _ in first for r, m in zip(rows, ms, strict=True)}
    for row in range(4):
        assert torch.equal(began[row], fresh[row]), "the rollout's beginning"
        assert torch.equal(began[row + 4], left[row])
    assert any(not torch.equal(began[row], fresh[row]) for row in range(4, 8))


def test_the_gradient_is_bounded(tmp_path: Path) -> None:
    module = agent(max_grad_norm=1e-3)
    seen: list[float] = []

    def spy(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        seen.append(gradient_norm_of(module))

    handle = register_optimizer_step_pre_hook(spy)
    metrics = fit(module, data(total_frames=32), tmp_path)
    handle.remove()
    assert seen == pytest.approx([1e-3] * 8, rel=1e-3), "4 epochs of 2 minibatches"
    assert metrics.rows[0]["train/grad_norm"] > 2e-3, "from before"


# --- files


def test_a_saved_agent_acts_alike_and_learns_no_words(tmp_path: Path) -> None:
    module = agent("batch")
    fit(module, data(), tmp_path / "run")
    module.eval()
    module.save_pretrained(tmp_path / "agent")
    again = load_network_agent(tmp_path / "agent")
    assert isinstance(again, SymbolicPPO)
    rollout = rollout_of(module, 2, 4)
    images, memory = rollout.images[0], rollout.memories[0]
    missions = ["go to the ball", "flee from a shadow"]
    found = again.act_on_images(images, missions, memory, torch.Generator().manual_seed(1))
    assert again.network.vocabulary.words == module.network.vocabulary.words
    assert "shadow" not in again.network.vocabulary.words
    module.network.vocabulary.is_frozen = True
    expected = module.act_on_images(images, missions, memory, torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# --- learning


@pytest.mark.slow
@pytest.mark.parametrize("hides", [False, True])
def test_it_learns(tmp_path: Path, hides: bool) -> None:
    torch.manual_seed(0)
    config = SymbolicPPOConfig(recurrence=4, lr=3e-3, gamma=0.9, value_clip=None)
    module = SymbolicPPO(BabyAISymbolic(3, 16, norm="group"), config)
    count = 60 if hides else 20
    source = data(
        world_options={"hides": hides}, num_worlds=16, num_steps=16, total_frames=256 * count
    )
    metrics = fit(module, source, tmp_path)
    assert metrics.rows[0]["rollout/success_rate"] < 0.75
    assert metrics.mean("rollout/success_rate", last=5) > 0.8


def test_a_non_finite_gradient_stops_the_run(tmp_path: Path) -> None:
    module = agent()
    rollout = rollout_of(module)
    worse = replace(rollout, rewards=torch.full_like(rollout.rewards, torch.inf))

    class Once:
        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Any:
            yield worse

    with pytest.raises(UserError, match=r"Lower `ppo.lr`"):
        trainer(tmp_path).fit(module, Once())
