"""A toy task: say "yes yes" rather than "no no no"; a tiny random Llama; a reward that counts."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from llm_agents.data import OfflineDataModule
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.types import Prompt, Reward

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

QUESTIONS = ("Is it warm?", "Is it cold out there?", "Shall we go?", "Do you see the red ball?")
LORA = LoraConfig(r=4, alpha=8, targets="all-linear")


class YesReward(Reward):
    """Share of the first eight characters that "yes yes " has at the same place."""

    name, version, low, high = "yes", "1", 0.0, 1.0

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        del prompts
        wanted = "yes yes "
        found = [sum(a == b for a, b in zip(text, wanted, strict=False)) for text in responses]
        return torch.tensor([count / len(wanted) for count in found], dtype=torch.float32)


class LossLog(Callback):
    """Keeps what was logged at each optimizer step, and the rows of each batch."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rows: list[list[int]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del trainer, pl_module, batch_idx
        self.losses.append(float(outputs["loss"]))
        self.rows.append(batch.tokens.rows.tolist())


def write_rows(
    path: Path, rewards: tuple[Any, ...] = (0.9, 0.2), repeats: int = 4, num_questions: int = 4
) -> str:
    """Write a JSON-lines file of the toy task."""
    rows = [
        {
            "prompt": f"{question} {number}",
            "responses": ["yes yes", "no no no"],
            "rewards": list(rewards),
            "preferred": 0,
        }
        for number in range(repeats)
        for question in QUESTIONS[:num_questions]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return str(path)


def make_policy(base: str = "tiny-random-llama", **options: Any) -> LanguagePolicy:
    """Load a tiny policy; a fresh LoRA by default."""
    torch.manual_seed(0)
    if "adapter" not in options and options.get("trainable", True):
        options.setdefault("lora", LORA)
    return LanguagePolicy.from_pretrained(base, **options)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the reference answers in the test's own folder."""
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "cache"))
