"""The value of a hidden state: the critic of TWOSOME and POAD."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class StateValueHead(nn.Module):
    """Value of each hidden state by itself: of an observation, or before each token of an action.

        V = W_k · relu(… relu(W_1 · h)),   no biases, unbounded, float32

    The states are the base model's after its final norm, with adapters off: constant for a text, so
    they are computed once per run. No gradient passes through them.

    Args:
        hidden_size: H.
        widths: Units of the hidden layers, from the states to the value; empty is a linear value.

    References:
        TWOSOME (arXiv 2401.14151), as released: 1024 and 512 units. POAD (arXiv 2405.15821) reads
        the same head before every token.
    """

    def __init__(self, hidden_size: int, widths: Sequence[int] = (1024, 512)) -> None:
        sizes = [hidden_size, *widths]
        if min(sizes) < 1:
            raise ValueError(
                f"expected `hidden_size` and `widths` of at least 1, got {hidden_size} and "
                f"{tuple(widths)}"
            )
        super().__init__()
        self.config: dict[str, int | list[int]] = {
            "hidden_size": hidden_size,
            "widths": list(widths),
        }
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs, bias=False), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1, bias=False))

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the value of each state.

        Args:
            states: ``[…, H]`` hidden states after the final norm, any precision.
            mask: ``[…]`` bool, True = state; padding may hold anything and has value 0. None is all
                True.

        Returns:
            ``[…]`` float32.
        """
        hidden_size = self.config["hidden_size"]
        if states.shape[-1:] != (hidden_size,):
            raise ValueError(
                f"expected `states` of shape (…, {hidden_size}), got {tuple(states.shape)}"
            )
        states = states.detach().float()  # the language model learns nothing
        if mask is None:
            return self._values(states)
        if mask.shape != states.shape[:-1]:
            raise ValueError(
                f"expected `mask` of shape {tuple(states.shape[:-1])} like `states`, "
                f"got {tuple(mask.shape)}"
            )
        values = torch.zeros(mask.shape, dtype=torch.float32, device=states.device)
        return values.masked_scatter(mask, self._values(states[mask]))

    def _values(self, states: Tensor) -> Tensor:
        """Return the values of states that are all real."""
        values: Tensor = self.layers(states)
        return values.squeeze(-1)
