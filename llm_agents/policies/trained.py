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
