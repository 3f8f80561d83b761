"""Several processes collect what their shares of the worlds would, with the weights in training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from llm_agents.methods import POAD, TokenPPOConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.rollouts import PromptedWorld, RolloutCollector, TextRollouts, TextWorlds
from llm_agents.rollouts.collector import RolloutPlan
from llm_agents.rollouts.processes import ProcessRolloutCollector, joined
from llm_agents.types import Rollout
from tests.methods.online import Metrics, trainer
from tests.rollouts.worlds import Corridor, Drawer

PLAN = RolloutPlan(num_steps=6, num_rollouts=9, seed=4)
PPO = TokenPPOConfig(lr=1e-2, target_kl=None)
SHARES = (range(2), range(2, 4))


def worlds(numbers: range = range(4)) -> TextWorlds:
    return TextWorlds([PromptedWorld(Corridor(), number=e, seed=10 + e) for e in numbers])


def in_one_process(agent: Drawer, count: int) -> list[Rollout]:
    """Collect the shares of two processes one after the other."""
    shares = [RolloutCollector(agent, worlds(own), PLAN) for own in SHARES]
    rollouts = []
    for _ in range(count):
        rollouts.append(joined([share.collect() for share in shares]))
        with torch.no_grad():
            agent.scale.mul_(0.5)
    return rollouts


def assert_equal(one: Rollout, two: Rollout) -> None:
    for name in Rollout.__dataclass_fields__:
        left, right = getattr(one, name), getattr(two, name)
        if isinstance(left, torch.Tensor):
            assert torch.equal(left, right), name
        else:
            assert left == right, name


@pytest.mark.slow
def test_two_processes_collect_what_their_shares_would_before_and_after_an_interruption() -> None:
    expected = in_one_process(Drawer(units=True), 4)
    agent = Drawer(units=True)
    first = ProcessRolloutCollector(agent, worlds(), PLAN, num_processes=2)
    found = []
    for _ in range(2):
        found.append(first.collect())
        with torch.no_grad():
            agent.scale.mul_(0.5)
    state = first.state_dict()
    first.shutdown()
    second = ProcessRolloutCollector(agent, worlds(), PLAN, num_processes=2)
    second.load_state_dict(state)
    for _ in range(2):
        found.append(second.collect())
        with torch.no_grad():
            agent.scale.mul_(0.5)
    second.shutdown()
    for one, two in zip(found, expected, strict=True):
        assert_equal(one, two)


def test_worlds_are_shared_out_evenly() -> None:
    with pytest.raises(ValueError, match="divides the 4 worlds, got 3"):
        ProcessRolloutCollector(Drawer(), worlds(), PLAN, num_processes=3)


def test_shares_are_joined_world_by_world() -> None:
    agent = Drawer(units=True)
    parts = [
        RolloutCollector(agent, worlds(own), PLAN).collect() for own in (range(1), range(1, 4))
    ]
    whole = joined([parts[0], parts[0], parts[0]])
    assert whole.index.shape == (6, 3)
    assert whole.choices[0] == whole.choices[1] == parts[0].choices[0]
    assert whole.choices[3] == parts[0].choices[1]
    assert whole.mask.shape[2] == parts[0].mask.shape[2]
    assert whole.num_steps == len(whole.choices)


@pytest.mark.slow
def test_a_language_model_learns_from_two_processes(
    make_policy: Callable[..., LanguagePolicy], tmp_path: Path
) -> None:
    """Each rollout is drawn with the weights that the update before it left, in both processes."""
    lora = LoraConfig(r=4, alpha=8, targets="all-linear", top_layers=1)
    module = POAD(make_policy("llama", lora=lora), ppo=PPO, critic_widths=(16,))
    before = [p.detach().clone() for _, p in module.policy.trainable_parameters()]
    data = TextRollouts(
        "toy-chest", num_worlds=4, num_steps=8, total_frames=96, num_processes=2, seed=1
    )
    metrics = Metrics()
    trainer(tmp_path, metrics).fit(module, data)
    assert len(metrics.rows) == 3
    assert [row["rollout/frames"] for row in metrics.rows] == [32, 64, 96]
    assert max(row["train/first_ratio_error"] for row in metrics.rows) <= 1e-5
    assert [row["train/policy_steps"] for row in metrics.rows] == [4, 4, 4]
    after = [p for _, p in module.policy.trainable_parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert metrics.rows[-1]["train/grad_norm"] > 0
