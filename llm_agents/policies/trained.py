"""What of a module trains."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from llm_agents.errors import UserError


def trained_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the name and tensor of everything that trains."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


@torch.no_grad()
def weight_sums(module: nn.Module) -> tuple[float, ...]:
    """Return the sum of each weight tensor, which tells whether any of them has changed."""
    return tuple(float(p.double().sum()) for p in module.parameters())


def expect_trained(module: nn.Module) -> None:
    """Refuse a policy, or a method with one, of which nothing trains.

    Raises:
        UserError: Nothing does.
    """
    if not any(True for _ in trained_parameters(module)):
        raise UserError(
            "nothing of the policy trains: give it `lora` or an `adapter`, and leave "
            "`trainable: false` out"
        )


def expect_start(module: nn.Module, start: tuple[float, ...]) -> None:
    """Refuse a model, all of which trains, that is no longer what it was at the start.

    Args:
        module: The model.
        start: Its `weight_sums` then.

    Raises:
        UserError: Its weights have changed, so that the start is gone.
    """
    if weight_sums(module) != start:
        raise UserError(
            "the reference of a policy whose weights all train is where it started, and the "
            "weights have changed since: take reference log-probs before training, or train an "
            "adapter (`lora: {r: 8}`), which leaves the base as it is"
        )
