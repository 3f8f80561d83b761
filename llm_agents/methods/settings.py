"""Settings that the offline methods share: optimizer, reference, what is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from llm_agents.errors import UserError
from llm_agents.policies.backbone import OptimizerName


@dataclass(frozen=True)
class OptimizerConfig:
    """How parameters are updated. Every number reaches the optimizer: no package default counts.

    Args:
        name: AdamW of PyTorch, or of bitsandbytes with paged or 8-bit states.
        lr: Learning rate.
        betas: Decay of the moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay.
        schedule: ``constant``, or down to 0 at the last optimizer step: ``linear``, or ``cosine``,
            along half a wave.
        warmup_steps: Optimizer steps of linear rise.
    """

    name: OptimizerName = "adamw"
    lr: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "warmup_steps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise UserError(f"expected `optimizer.{name}` to be a number from 0, got {value!r}")

    def lr_scale(self, step: int, total_steps: int) -> float:
        """Return the factor of the learning rate at optimizer step `step`, from 0.

        Step 0 doesn't depend on `total_steps`, which is not known when an optimizer is built.

        Example:
            >>> config = OptimizerConfig(schedule="linear", warmup_steps=1)
            >>> [config.lr_scale(step, 5) for step in range(6)]
            [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
        """
        scale = min(1.0, (step + 1) / (self.warmup_steps + 1))
        if self.schedule != "constant" and step > self.warmup_steps:
            left = max(0.0, (total_steps - step) / max(1, total_steps - self.warmup_steps))
            scale *= left if self.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
        return scale


@dataclass(frozen=True)
class OfflineOptions:
    """Settings that all offline methods share.

    Args:
        training_rewards: ``stored`` takes the data's own rewards if there are any, ``scored`` lets
            `reward` score the training responses once. A-LoL subtracts values fitted to `reward`
            from them, so both should be of one scale.
        budget: What `max_steps` means where a method drops responses. ``share``, as in the paper:
            with 60 % of them left, it takes 60 % of the steps. ``whole``: the steps as they stand.
        epochs: The budget as rounds of the preferred training responses, in place of
            `trainer.max_steps`.
        if_none_better: What is kept when no validation beats the reference.
        select_by: The part of a summed reward whose mean decides which weights are best; None takes
            the reward itself.
        move_reference: How much the mean of a validation must lie above the reference's for the
            policy to become the reference of the steps that follow; None never moves it.
        tokens_per_batch: Tokens a pass, padding included, when the reference goes through the
            training data. More make a pass cheaper on an accelerator only, and a kill dearer.
        cache: Where results of the reference are kept; the user's cache folder if None.
    """

    training_rewards: Literal["stored", "scored"] = "stored"
    budget: Literal["share", "whole"] = "share"
    epochs: float | None = None
    if_none_better: Literal["last", "reference"] = "last"
    select_by: str | None = None
    move_reference: float | None = None
    tokens_per_batch: int = 2048
    cache: str | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and not self.epochs > 0:
            raise UserError(f"expected `options.epochs` above 0, or null, got {self.epochs}")
        if self.tokens_per_batch < 1:
            raise UserError(
                f"expected `options.tokens_per_batch` of at least 1, got {self.tokens_per_batch}"
            )
