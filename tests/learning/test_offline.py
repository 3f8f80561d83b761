"""Every objective learns one batch; A-LoL learns a toy task from data; two processes agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from llm_agents.data import OfflineDataModule
from llm_agents.functional.lol import ALGORITHMS
from llm_agents.methods import DPO, PRO, ALoL, OptimizerConfig, ValueFitConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.types import GenerationConfig, Prompt, Reward

QUESTIONS = ("Is it warm?", "Is it cold out there?", "Shall we go?", "Do you see the red ball?")


class YesReward(Reward):
    """Share of the eight characters of "yes yes " that a response begins with."""

    name, version, low, high = "yes", "1", 0.0, 1.0

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        found = [sum(a == b for a, b in zip(r, "yes yes ", strict=False)) for r in responses]
        return torch.tensor([count / 8 for count in found], dtype=torch.float32)


class Losses(Callback):
    """Keeps the losses and the gradients of the first step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradients: dict[str, Tensor] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if not self.gradients:
            self.gradients = {
                name: parameter.grad.clone()
                for name, parameter in pl_module.named_parameters()
                if parameter.grad is not None
            }


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return str(path)


def task(path: Path, repeats: int, responses: Sequence[str], rewards: Sequence[float]) -> str:
    rows = [
        {
            "prompt": f"{question} {number}",
            "responses": list(responses),
            "rewards": list(rewards),
            "preferred": 0,
        }
        for number in range(repeats)
        for question in QUESTIONS
    ]
    return write(path, rows)


def data(path: str, **options: Any) -> OfflineDataModule:
    settings = {"template": "plain", "max_response_tokens": 80, "seed": 1, "validation": path}
    return OfflineDataModule(path, **{**settings, **options})


def policy() -> LanguagePolicy:
    torch.manual_seed(0)
    lora = LoraConfig(r=4, alpha=8, targets="all-linear")
    return LanguagePolicy.from_pretrained("tiny-random-llama", lora=lora)


def run(module: LightningModule, source: OfflineDataModule, steps: int, **options: Any) -> Losses:
    log = Losses()
    settings = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_steps=steps, callbacks=[log], **{**settings, **options})
    trainer.fit(module, datamodule=source)
    return log


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "cache"))


FAST = OptimizerConfig(lr=1e-2)
SHORT = GenerationConfig(max_new_tokens=8)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_objective_learns_one_batch(tmp_path: Path, algorithm: Any) -> None:
    """Four prompts, the good answer of seven tokens: its likelihood rises in 30 steps."""
    path = task(tmp_path / "rows.jsonl", 1, ("yes yes", "no no no"), (0.9, 0.2))
    module = ALoL(
        policy(),
        YesReward(),
        algorithm=algorithm,
        kl_coef=0.2 if algorithm == "a_lol_kl" else 0.0,
        value=ValueFitConfig(epochs=2, lr=1e-3),
        optimizer=FAST,
        generation=SHORT,
    )
    source = data(path, batch_size=4)
    run(module, source, 30, default_root_dir=tmp_path, limit_val_batches=0)
    batch = next(source.table_batches(100_000))
    good = batch.select(source.table_preferred()[batch.rows])
    with torch.no_grad():
        before = -policy().eval().sequence_log_probs(good).mean()
        after = -module.policy.eval().sequence_log_probs(good).mean()
    assert float(before) > 15
    assert float(after) < 5


@pytest.mark.parametrize("method", [DPO, PRO])
def test_ranking_methods_learn_one_batch(tmp_path: Path, method: Any) -> None:
    path = task(tmp_path / "rows.jsonl", 1, ("yes yes", "no no no"), (1.5, -0.5))
    log = run(
        method(policy(), optimizer=FAST),
        data(path, batch_size=4),
        30,
        default_root_dir=tmp_path,
        limit_val_batches=0,
    )
    assert log.losses[0] > 0.6
    assert log.losses[-1] < 0.35


def test_a_lol_raises_the_reward_of_a_toy_task(tmp_path: Path) -> None:
    """The reference babbles; half of the data are as good as it, the rest say the right thing."""
    path = task(tmp_path / "rows.jsonl", 4, ("yes yes", "qq"), (0.9, 0.0))
    module = ALoL(
        policy(),
        YesReward(),
        algorithm="a_lol_seq",
        sampling="all_priority",
        value=ValueFitConfig(epochs=40, lr=3e-3),
        optimizer=FAST,
        generation=SHORT,
    )
    run(module, data(path, batch_size=8), 60, default_root_dir=tmp_path, val_check_interval=10)
    reference = float(module.reference_scores.rewards.mean())
    assert reference < 0.2
    assert module.best.score > 0.8
    assert module.advantage_stats.everything.share_kept < 0.9
    assert module.total_steps < 60


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """O8 under gloo: 2 rows on each of two processes are a batch of 4."""
    rows = [
        {"prompt": question, "responses": ["y" * length]}
        for question, length in zip(QUESTIONS, (1, 2, 4, 64), strict=True)
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    found = []
    for devices, batch_size in ((1, 4), (2, 2)):
        module = ALoL(policy(), algorithm="nll", optimizer=FAST)
        source = data(path, batch_size=batch_size, validation=None)
        keep = SaveGradients(tmp_path / f"{devices}.pt")
        trainer = Trainer(
            max_steps=1,
            callbacks=[keep],
            accelerator="cpu",
            devices=devices,
            strategy="auto" if devices == 1 else "ddp_fork",
            default_root_dir=tmp_path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=source)
        found.append(torch.load(keep.path, weights_only=True))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], atol=1e-5, rtol=1e-5), name


class SaveGradients(Callback):
    """Writes the first process's gradients, after they were averaged over processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if trainer.is_global_zero:
            gradients = {
                name: parameter.grad
                for name, parameter in pl_module.named_parameters()
                if parameter.grad is not None
            }
            torch.save(gradients, self.path)
