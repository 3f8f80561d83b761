"""A toy task: say "yes yes" rather than "no no no"; a tiny random Llama; a reward that counts."""

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
from llm_agents.methods import OptimizerConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.types import GenerationConfig, Prompt, Reward

QUESTIONS = ("Is it warm?", "Is it cold out there?", "Shall we go?", "Do you see the red ball?")


class YesReward(Reward):
    """Share of the eight characters of "yes yes " that a response begins with; counts its calls."""

    name, version, low, high = "yes", "1", 0.0, 1.0

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        assert len(prompts) == len(responses)
        self.calls += 1
        torch.rand(())  # judges may use up random numbers: training must not notice
        wanted = "yes yes "
        found = [sum(a == b for a, b in zip(text, wanted, strict=False)) for text in responses]
        return torch.tensor([count / len(wanted) for count in found], dtype=torch.float32)


class ConstantReward(Reward):
    """The same score for everything."""

    name, version, low, high = "constant", "1", 0.0, 1.0

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        return torch.full((len(responses),), self.value)


class StepLog(Callback):
    """Keeps the loss and the rows of each batch, gradients of each step, and each validation."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rows: list[list[int]] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.learning_rates: list[float] = []
        self.validations: list[tuple[int, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(float(outputs["loss"]))
        self.rows.append(batch.tokens.rows.tolist())

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        self.learning_rates.append(optimizer.param_groups[0]["lr"])
        self.gradients.append(
            {n: p.grad.clone() for n, p in pl_module.named_parameters() if p.grad is not None}
        )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if "val/reward" in trainer.callback_metrics:
            reward = float(trainer.callback_metrics["val/reward"])
            self.validations.append((trainer.global_step, reward))


class Toy:
    """Makes the parts of a small run in a folder of its own."""

    Reward = YesReward
    Constant = ConstantReward
    StepLog = StepLog
    generation = GenerationConfig(max_new_tokens=8)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def rows(
        self,
        rewards: Sequence[float] = (0.9, 0.2),
        responses: Sequence[str] = ("yes yes", "no no no"),
        repeats: int = 2,
    ) -> list[dict[str, Any]]:
        """Return rows of the toy task."""
        return [
            {
                "prompt": f"{question} {number}",
                "responses": list(responses),
                "rewards": list(rewards),
                "preferred": 0,
            }
            for number in range(repeats)
            for question in QUESTIONS
        ]

    def file(self, rows: Sequence[dict[str, Any]]) -> str:
        """Write rows as JSON lines."""
        self._count += 1
        path = self.folder / f"rows-{self._count}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
        return str(path)

    def data(
        self, rows: Sequence[dict[str, Any]] | None = None, **options: Any
    ) -> OfflineDataModule:
        """Return a data module on rows, which are the validation prompts too."""
        path = self.file(self.rows() if rows is None else rows)
        settings: dict[str, Any] = {
            "train": path,
            "validation": path,
            "template": "plain",
            "max_response_tokens": 80,
            "seed": 1,
        }
        return OfflineDataModule(**{**settings, **options})

    def policy(self, base: str = "tiny-random-llama", **options: Any) -> LanguagePolicy:
        """Load a tiny policy; with a fresh LoRA unless told otherwise."""
        torch.manual_seed(0)
        if "adapter" not in options and options.get("trainable", True):
            options.setdefault("lora", LoraConfig(r=4, alpha=8, targets="all-linear"))
        return LanguagePolicy.from_pretrained(base, **options)

    def sft_adapter(self) -> str:
        """Write an adapter whose B matrices are not zero."""
        policy = self.policy()
        generator = torch.Generator().manual_seed(5)
        for name, parameter in policy.trainable_parameters():
            if "lora_B" in name:
                parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
        folder = self.folder / "sft"
        policy.save_adapter(folder)
        return str(folder)

    def trainer(self, max_steps: int, *callbacks: Callback, **options: Any) -> Trainer:
        """Return a quiet trainer on the CPU."""
        settings: dict[str, Any] = {
            "default_root_dir": self.folder,
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        return Trainer(max_steps=max_steps, callbacks=list(callbacks), **{**settings, **options})

    def fit(
        self,
        module: LightningModule,
        data: OfflineDataModule | None = None,
        max_steps: int = 4,
        callbacks: Sequence[Callback] = (),
        **options: Any,
    ) -> StepLog:
        """Run a module and return what was seen."""
        log = StepLog()
        trainer = self.trainer(max_steps, log, *callbacks, **options)
        trainer.fit(module, datamodule=self.data() if data is None else data)
        return log

    def fast(self, lr: float = 1e-2, **options: Any) -> OptimizerConfig:
        """Return an optimizer for a tiny model."""
        return OptimizerConfig(lr=lr, **options)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Return the toy task; whatever is cached stays in the test's own folder."""
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "cache"))
    return Toy(tmp_path)
