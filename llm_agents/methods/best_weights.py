"""The best weights that validation has seen: in memory, and in a file beside the checkpoints.

A checkpoint names the file and does not hold it: many checkpoints of a run share their best
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.methods.content_cache import tensors_digest
from llm_agents.whole_files import write_tensors

_NUM_KEPT = 3  # the newest checkpoint names one of the last two


@dataclass
class BestWeights:
    """Weights and their score.

    Args:
        step: Optimizer step of them; -1 while nothing beat the bar.
        score: Their score; the bar to beat while there are none.
        weights: Copies on the CPU by parameter name.
    """

    step: int = -1
    score: float = float("-inf")
    weights: dict[str, Tensor] | None = None
    _digest: str = field(default="", repr=False)

    def offer(self, score: float, step: int, parameters: Iterable[tuple[str, Tensor]]) -> bool:
        """Keep a copy of `parameters` if `score` is strictly better; return whether it is."""
        if not score > self.score:
            return False
        self.step, self.score, self._digest = step, score, ""
        self.weights = {name: value.detach().cpu().clone() for name, value in parameters}
        return True

    def save(self, folder: Path, *, writes: bool) -> dict[str, Any]:
        """Return what a checkpoint keeps, once the weights are in `folder`.

        Args:
            folder: Made when the first weights are written; the last few files stay.
            writes: Whether this process is the one that writes.
        """
        if self.weights is None:
            return {"step": self.step, "score": self.score, "file": None}
        if not self._digest:
            self._digest = tensors_digest(sorted(self.weights.items()))
        path = folder / f"step-{self.step}-{self._digest[:16]}.safetensors"
        if writes and not path.exists():
            write_tensors(path, self.weights, survives_power_loss=True)
            written = sorted(folder.glob("step-*.safetensors"), key=lambda old: old.stat().st_mtime)
            for old in written[:-_NUM_KEPT]:
                old.unlink()
        return {"step": self.step, "score": self.score, "file": path.name}

    @classmethod
    def load(cls, state: dict[str, Any], folder: Path) -> Self:
        """Rebuild from what a checkpoint kept.

        Raises:
            UserError: The file is missing or is not the one that was written.
        """
        best = cls(int(state["step"]), float(state["score"]))
        if state["file"] is None:
            return best
        path = folder / state["file"]
        try:
            best.weights = load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"the best weights so far, which the checkpoint names, can't be read from {path}: "
                f"{error}; put the run's folder {folder.name} back, or start a new run"
            ) from error
        best._digest = tensors_digest(sorted(best.weights.items()))
        if best._digest[:16] not in path.name:
            raise UserError(f"{path} is damaged: put back the file that the run wrote")
        return best


@contextmanager
def swapped(
    parameters: Callable[[], Iterable[tuple[str, Tensor]]], weights: dict[str, Tensor]
) -> Iterator[None]:
    """Have `weights` in the parameters inside, and afterwards what was there before.

    Args:
        parameters: Yields them by name, each time that it is called.
        weights: By the same names.
    """
    before = {name: parameter.detach().clone() for name, parameter in parameters()}
    copy_into(parameters(), weights)
    try:
        yield
    finally:
        copy_into(parameters(), before)


@torch.no_grad()
def copy_into(parameters: Iterable[tuple[str, Tensor]], weights: dict[str, Tensor]) -> None:
    """Copy `weights` into the parameters of the same names."""
    for name, parameter in parameters:
        parameter.copy_(weights[name])


def worse_than_reference(score: float) -> str:
    """Return what results say where the last weights are kept though none was better."""
    return (
        f"no validation was better than the reference ({score:.4g}): the weights kept are the last "
        "ones, and by this score no better than what training started from; "
        "`model.options.if_none_better: reference` keeps that instead"
    )
