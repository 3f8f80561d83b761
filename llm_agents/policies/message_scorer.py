"""What gives a game message its raw reward: the interface that Motif's reward model trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from llm_agents.policies.trained import trained_parameters
from llm_agents.types import MessageObservations

MESSAGE_SIZE = 256

ObservationKey = Literal["message", "blstats", "glyphs"]


class MessageScorer(nn.Module, ABC):
    """A network from observations to raw rewards.

    Each row is scored by itself: the others in its batch change nothing but the rounding.

    Attributes:
        keys: What it looks at; ``message`` alone makes its rewards a function of the message.
        hidden_size: H of `hidden_states`.
        base: Base model under it; None for a network of its own.
        revision: Revision of the base on the Hub.
    """

    keys: tuple[ObservationKey, ...] = ("message",)
    hidden_size: int
    base: str | None = None
    revision: str | None = None

    @abstractmethod
    def hidden_states(self, observations: MessageObservations) -> Tensor:
        """Return ``[M, H]`` float32 features of M observations."""

    @abstractmethod
    def forward(self, observations: MessageObservations) -> Tensor:
        """Return ``[M]`` float32 raw rewards of M observations."""

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return what `save` has no tensors for, as JSON values; ``class`` is the class's name."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the weights to `folder`, which exists."""

    def prepare(self, batches: Iterable[MessageObservations]) -> None:
        """Look at the distinct observations of the training data before training starts."""
        del batches

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what trains, by name."""
        return trained_parameters(self)

    @property
    def device(self) -> torch.device:
        """Return where it computes."""
        return next(self.parameters()).device

    @torch.no_grad()
    def score(self, observations: MessageObservations, batch_size: int) -> Tensor:
        """Return ``[M]`` float32 raw rewards on the CPU, `batch_size` rows a pass.

        The mode is left as it is: switch to eval mode first.
        """
        found = [torch.zeros(0)]
        for start in range(0, len(observations), batch_size):
            rows = observations.select(slice(start, start + batch_size))
            found.append(self(rows.to(self.device)).float().cpu())
        return torch.cat(found)


def check_messages(message: Tensor) -> None:
    """Raise `ValueError` unless `message` is ``[M, 256]`` bytes."""
    if message.dim() != 2 or message.shape[1] != MESSAGE_SIZE or message.dtype != torch.uint8:
        raise ValueError(
            f"expected `message` of shape (M, {MESSAGE_SIZE}) and dtype torch.uint8, got "
            f"{tuple(message.shape)} and {message.dtype}"
        )
