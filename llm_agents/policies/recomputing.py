"""Gradient checkpointing in any mode: layers are computed again in the backward pass.

transformers does so in train mode alone, and online methods update in eval mode, where dropout
can't make the ratio of an unchanged policy differ from 1. A layer's second computation needs what
its first one stood in, such as a pass's own attention: it is entered again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_logger = logging.getLogger(__name__)
_reported: WeakSet[nn.Module] = WeakSet()


def recomputes_layers(model: PreTrainedModel) -> bool:
    """Tell whether the backward pass computes layers again, for which there may be no cache."""
    if not torch.is_grad_enabled():
        return False
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@contextmanager
def recomputed_layers(
    model: PreTrainedModel, inside: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[None]:
    """Keep no more than the input of each layer that gradient checkpointing is switched on for.

    Layers whose ``forward`` is covered already are left alone. Without gradient nothing changes.

    Args:
        model: Any model; one without layers of transformers' own kind is left to itself.
        inside: Entered around each layer's second computation.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[Any] = []
    if recomputes_layers(model):
        layers = [
            module
            for module in model.modules()
            if isinstance(module, GradientCheckpointingLayer)
            and module.gradient_checkpointing
            and "forward" not in module.__dict__
        ]
        if not layers and not model.training and model not in _reported:
            _reported.add(model)
            _logger.warning(
                "%s: gradient checkpointing has no effect in eval mode, in which online methods "
                "update: lower `ppo.choices_per_pass` instead to save memory",
                type(model).__name__,
            )
    for layer in layers:
        layer.forward = partial(_checkpointed, layer.forward, layer, inside)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _checkpointed(
    forward: Callable[..., Any],
    layer: Any,  # noqa: ANN401  # a module with a switch of its own
    inside: Callable[[], AbstractContextManager[object]],
    *args: Any,  # noqa: ANN401  # whatever a layer takes
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401  # and gives
    """Call a layer's `forward` so that autograd keeps its arguments alone."""

    def once(*given: Any) -> Any:  # noqa: ANN401
        layer.gradient_checkpointing = False  # its own, which train mode would add
        try:
            return forward(*given, **options)
        finally:
            layer.gradient_checkpointing = True

    return checkpoint(
        once, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), inside())
    )
