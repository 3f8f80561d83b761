"""Means of a loss's parts over the batches of one optimizer step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from llm_agents.types import TokenBatch


class Losses(Protocol):
    """A named tuple of a loss and its parts."""

    @property
    def loss(self) -> Tensor:
        """Return the scalar to minimize."""

    def _asdict(self) -> dict[str, Any]: ...


class StepMeans:
    """Collects scalars, and the means of what there is one of a row, under names for the log.

    They stay on their device until they are asked for.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[Tensor]] = {}

    def add(self, losses: Losses, tokens: TokenBatch) -> None:
        """Add a batch's loss and parts, its number of tokens, and the share of padding."""
        for name, part in losses._asdict().items():
            if isinstance(part, Tensor) and part.dim() < 2:
                self.add_number(name, part.detach().float().mean())
        lengths = tokens.prompt_mask.sum(1) + tokens.response_mask.sum(1)
        self.add_number("padding_share", 1 - lengths.sum() / (lengths.max() * len(lengths)))
        self.add_number("tokens", lengths.sum().float())
        self.add_number("response_tokens", tokens.response_mask.sum(1).float().mean())

    def add_number(self, name: str, number: Tensor) -> None:
        """Add one scalar."""
        self._found.setdefault(f"train/{name}", []).append(number)

    def has(self, name: str) -> bool:
        """Tell whether there is a number of that name since the last `take`."""
        return f"train/{name}" in self._found

    def take(self) -> dict[str, float]:
        """Return the means and begin anew."""
        means = {name: torch.stack(parts).mean() for name, parts in self._found.items()}
        self._found = {}
        if not means:
            return {}
        return dict(zip(means, torch.stack(list(means.values())).tolist(), strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """Return what was collected since the last `take`."""
        return {name: torch.stack(parts).cpu() for name, parts in self._found.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what another one had collected."""
        self._found = {name: list(parts.unbind()) for name, parts in state.items()}
