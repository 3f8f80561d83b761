"""Action probabilities in fixed situations."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from llm_agents.envs.babyai_text import ACTIONS
from llm_agents.envs.toy import Lamp
from llm_agents.errors import UserError
from llm_agents.methods import DRRN, GLAM, GLAMConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.drrn import DRRNetwork
from llm_agents.training.probes import ActionProbes, probabilities
from tests.methods.online import Rollouts, trainer

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=4, alpha=8, targets="all-linear")


def rows(folder: Path) -> list[list[str]]:
    with (folder / "probes.csv").open(encoding="utf8", newline="") as file:
        return list(csv.reader(file))


def agent(make_policy: MakePolicy) -> GLAM:
    torch.manual_seed(0)
    ppo = GLAMConfig(num_minibatches=2, lr=1e-2, critic_lr=1e-2)
    return GLAM(make_policy("gpt2", lora=LORA, weights=0.2), ppo=ppo, critic_widths=(8,))


def test_a_row_an_update_of_probabilities(make_policy: MakePolicy, tmp_path: Path) -> None:
    module = agent(make_policy)
    callback = ActionProbes(template=2)
    before = probabilities(module, callback.choices)
    run = trainer(tmp_path, callback)
    run.fit(module, Rollouts(module, [Lamp(seed=0)], 4, 3))
    header, *found = rows(tmp_path)
    assert header[0] == "step"
    assert header[1:7] == [f"1/{action}" for action in ACTIONS["english"]]
    assert [row[0] for row in found] == ["0", "4", "8"]
    for row in found:
        shares = torch.tensor([float(share) for share in row[1:]]).view(2, 6)
        torch.testing.assert_close(shares.sum(1), torch.ones(2), atol=1e-4, rtol=0)
    first = torch.tensor([float(share) for share in found[0][1:]]).view(2, 6)
    torch.testing.assert_close(first, before, atol=1e-4, rtol=0)
    assert found[0][1:] != found[2][1:]


def test_a_resumed_run_replaces_what_is_beyond_its_checkpoint(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = agent(make_policy)
    text = "step,a\n0,0.5\n4,0.25\n8,0.125\n"
    (tmp_path / "probes.csv").write_text(text, encoding="utf8")
    callback = ActionProbes(template=2)
    callback._file = tmp_path / "probes.csv"
    rollouts = Rollouts(module, [Lamp(seed=0)], 4, 3)
    rollouts.number = 1
    callback.on_train_batch_start(trainer(tmp_path), module, rollouts.collect(), 0)
    assert [row[0] for row in rows(tmp_path)[1:]] == ["0", "4"]


def test_what_does_not_score_is_refused(tmp_path: Path) -> None:
    module = DRRN(DRRNetwork(100, 4, 4))
    with pytest.raises(UserError, match="leave the callback out"):
        trainer(tmp_path, ActionProbes()).fit(module, Rollouts(module, [Lamp()], 4, 1))
    with pytest.raises(UserError, match="every"):
        ActionProbes(every=0)
