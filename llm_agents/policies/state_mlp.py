"""GLAM's network on the language model's state: of values, and of actions that are heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class StateMLP(nn.Module):
    """Numbers from the state at a prompt's end: its value, or a score of each action.

        W_3 · σ(W_2 · σ(W_1 · h + b_1) + b_2) + b_3,   float32

    Unlike `StateValueHead` it lets gradients through to the states: in GLAM the whole model learns
    from the value loss too.

    Args:
        hidden_size: H.
        num_outputs: 1 for a value; the number of actions for an action head.
        widths: Units of the hidden layers.

    References:
        GLAM (arXiv 2302.02662), section 3.2, as released: 1024 and 1024 units.
    """

    def __init__(
        self, hidden_size: int, num_outputs: int = 1, widths: Sequence[int] = (1024, 1024)
    ) -> None:
        sizes = [hidden_size, *widths, num_outputs]
        if min(sizes) < 1:
            raise ValueError(
                f"expected `hidden_size`, `num_outputs` and `widths` of at least 1, got "
                f"{hidden_size}, {num_outputs} and {tuple(widths)}"
            )
        super().__init__()
        self.config: dict[str, int | list[int]] = {
            "hidden_size": hidden_size,
            "num_outputs": num_outputs,
            "widths": list(widths),
        }
        self.hidden_size, self.num_outputs = hidden_size, num_outputs
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes[:-1]):
            layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-2], num_outputs))

    def forward(self, states: Tensor) -> Tensor:
        """Return what the network says of each state.

        Args:
            states: ``[…, H]`` hidden states after the final norm, any precision.

        Returns:
            ``[…]`` float32 values of a network with one output, else ``[…, num_outputs]``.

        Raises:
            ValueError: The states have another size.
        """
        if states.shape[-1:] != (self.hidden_size,):
            raise ValueError(
                f"expected `states` of shape (…, {self.hidden_size}), got {tuple(states.shape)}"
            )
        found: Tensor = self.layers(states.float())
        return found.squeeze(-1) if self.num_outputs == 1 else found
