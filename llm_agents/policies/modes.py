"""Train and eval mode of networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """Switch every part of `module` to eval mode, and afterwards back to the mode it was in."""
    training = [part for part in module.modules() if part.training]
    for part in training:  # `eval` would visit all of them again, many times a rollout
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
