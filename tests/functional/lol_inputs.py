"""Inputs for the A-LoL family: the worked example, random ones, and the call with its options."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llm_agents.functional import Algorithm, LolLoss, lol_loss
from tests.reference import example_f1 as f1

OPTIONS: dict[str, Any] = {
    "clip_epsilon": 0.9,
    "kl_coef": 0.0,
    "gold_floor": 0.1,
    "clamp_advantages": True,
}


def exact(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def f1_inputs() -> dict[str, Tensor]:
    return {
        "log_probs": exact(f1.PROBS).log().requires_grad_(),
        "ref_log_probs": exact(f1.REF_PROBS).log(),
        "response_mask": torch.tensor(f1.MASK).bool(),
        "rewards": exact(f1.REWARDS),
        "values": exact(f1.VALUES),
    }


def f1_loss(algorithm: Algorithm, **options: Any) -> tuple[LolLoss, Tensor]:
    """Return the loss on F1 and its gradient with respect to the log-probs."""
    inputs = f1_inputs()
    found = compute(algorithm, inputs, **options)
    (gradient,) = torch.autograd.grad(found.loss, inputs["log_probs"])
    return found, gradient


def random_inputs(seed: int, rows: int = 5, length: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    return {
        "log_probs": (-2 * uniform(rows, length)).requires_grad_(),
        "ref_log_probs": -2 * uniform(rows, length),
        "response_mask": torch.arange(length) < lengths,
        "rewards": uniform(rows),
        "values": uniform(rows) * 0.6,
    }


def compute(algorithm: Algorithm, inputs: dict[str, Tensor], **options: Any) -> LolLoss:
    return lol_loss(algorithm, **inputs, **{**OPTIONS, **options})
