"""A job that counts, for the tests of what jobs do in recipes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from llm_agents.errors import UserError
from llm_agents.types import Job


@dataclass(frozen=True)
class Stride:
    """How far a step goes.

    Args:
        length: Added at each step.
        unit: What is counted.
    """

    length: int = 1
    unit: Literal["sheep", "goats"] = "sheep"


class Counting(Job):
    """Counts to a number, one line of its output a step.

    Args:
        output: File of the numbers; goes on after its last line.
        last: Number of steps.
        stride: How far a step goes.
        stop_at: Step at which the process is killed or told to stop; null never.
        how: By what.
    """

    def __init__(
        self,
        output: Path,
        *,
        last: int = 5,
        stride: Stride = Stride(),
        stop_at: int | None = None,
        how: Literal["SIGINT", "SIGTERM", "SIGKILL", "error"] = "SIGKILL",
    ) -> None:
        if last < 1:
            raise UserError(f"expected `last` of at least 1, got {last}")
        self.output, self.last, self.stride = output, last, stride
        self.stop_at, self.how = stop_at, how

    def run(self, folder: Path) -> Mapping[str, object]:
        """Count on."""
        assert folder.is_dir()
        done = len(self.output.read_text().splitlines()) if self.output.is_file() else 0
        for step in range(done, self.last):
            if step == self.stop_at:
                if self.how == "error":
                    raise UserError("expected more sheep, got none: buy some")
                os.kill(os.getpid(), getattr(signal, self.how))
                time.sleep(5)
            with self.output.open("a") as lines:
                lines.write(f"{(step + 1) * self.stride.length}\n")
        draw = float(torch.rand(()))
        numbers = {"began_at": done, "draw": draw, "lost": float("nan")}
        return {"steps": self.last, "of_which": numbers, "each": [1, 2]}


class NoJob:
    """Something else."""
