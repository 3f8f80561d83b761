"""What methods share of an optimizer's step: its rate, the norm of its gradient, its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from llm_agents.methods.settings import OptimizerConfig
from llm_agents.methods.step_means import StepMeans
from llm_agents.policies.backbone import build_optimizer


def scheduled_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter], num_steps: Callable[[], int]
) -> dict[str, Any]:
    """Return an optimizer, and its schedule by optimizer steps, as Lightning takes them.

    Args:
        config: How parameters are updated.
        parameters: What is updated.
        num_steps: Optimizer steps of the run; asked from the first step on, and only where the
            rate depends on it, as Lightning does not know it before.
    """
    optimizer = build_optimizer(
        config.name,
        list(parameters),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )

    def scale(step: int) -> float:
        needs_total = step > 0 and config.schedule != "constant"
        return config.lr_scale(step, num_steps() if needs_total else 1)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the scalar norm of all gradients together; those that there are none of count 0."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clip_gradients(
    parameters: Sequence[nn.Parameter], norm: Tensor, *, bound: float | None
) -> None:
    """Scale gradients of the common norm `norm` down where it is above `bound`; None for none."""
    if bound is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, bound, norm)


def log_step(module: LightningModule, means: StepMeans, optimizer: torch.optim.Optimizer) -> None:
    """Log the means over the batches of an optimizer step, and its learning rate."""
    metrics = means.take()
    metrics["train/lr"] = float(optimizer.param_groups[0]["lr"])
    module.log_dict(metrics, batch_size=1)
    module.log("loss", metrics["train/loss"], prog_bar=True, logger=False, batch_size=1)
