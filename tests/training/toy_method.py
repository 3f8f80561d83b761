"""A module, its data and callbacks that train in a millisecond a step, for tests of runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import Tensor

BATCHES = 40


class Stream:
    """Batches with a position, as the offline data's."""

    def __init__(self, seed: int, step: int) -> None:
        self.seed, self.step, self.position = seed, step, 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(BATCHES):
            position, self.position = self.position, self.position + 1
            generator = torch.Generator().manual_seed(self.seed * 1000 + position)
            yield torch.randn(4, 3, generator=generator)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class ToyData(LightningDataModule):
    """Random vectors.

    Args:
        seed: Of the vectors.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def train_dataloader(self) -> Stream:
        return Stream(self.seed, 0)

    def val_dataloader(self) -> list[Tensor]:
        return [torch.ones(4, 3)]


class ToyMethod(LightningModule):
    """A linear map that learns to be zero, beside a frozen base that is large.

    Args:
        lr: Learning rate.
        fail_at: Batch at which training breaks.
    """

    def __init__(self, lr: float = 0.1, fail_at: int | None = None) -> None:
        super().__init__()
        self.strict_loading = False
        self.linear = torch.nn.Linear(3, 1)
        self.base = torch.nn.Linear(300, 300).requires_grad_(False)
        self.lr, self.fail_at = lr, fail_at

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if batch_idx == self.fail_at:
            raise RuntimeError("broken")
        loss = self.linear(batch).square().mean()
        self.log("loss", loss, prog_bar=True, logger=False)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("train/weight", self.linear.weight.sum())

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val/loss", self.linear(batch).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.linear.parameters(), lr=self.lr)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {k: v for k, v in state.items() if not k.startswith("base")}


class SignalAt(Callback):
    """Sends a signal to this process in the middle of a batch.

    Args:
        batch: Which, from 0.
        name: The signal.
        where: File that is written when it was sent: it is sent once.
    """

    def __init__(self, batch: int, name: str, where: str) -> None:
        self.batch, self.name, self.where = batch, name, Path(where)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.batch and not self.where.exists():
            self.where.write_text("sent")
            os.kill(os.getpid(), getattr(signal, self.name))


class RowRecorder(Callback):
    """Writes which rows of the data each batch holds, one line a batch.

    Args:
        path: Where to; lines are appended.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        line = json.dumps([trainer.global_step, batch_idx, batch.tokens.rows.tolist()])
        with self.path.open("a") as file:
            file.write(line + "\n")
