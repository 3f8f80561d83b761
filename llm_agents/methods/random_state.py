"""The state of the global random number generators, as a checkpoint can hold it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """State of the generators that dropout and samplers draw from.

    Args:
        torch_state: PyTorch's generator on the CPU.
        python_state: State of the module ``random``.
        cuda_state: PyTorch's generator on the accelerator, if training runs on one.
    """

    torch_state: Tensor
    python_state: tuple[Any, ...]
    cuda_state: Tensor | None

    @classmethod
    def capture(cls, device: torch.device) -> Self:
        """Read the present state."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), random.getstate(), cuda)

    def restore(self, device: torch.device) -> None:
        """Make this the present state."""
        torch.set_rng_state(self.torch_state.cpu())
        version, numbers, gauss = self.python_state
        random.setstate((version, tuple(numbers), gauss))
        if self.cuda_state is not None and device.type == "cuda":
            torch.cuda.set_rng_state(self.cuda_state.cpu(), device)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers that load without running code."""
        return {
            "torch_state": self.torch_state,
            "python_state": self.python_state,
            "cuda_state": self.cuda_state,
        }
