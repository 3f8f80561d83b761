"""Trajectories for the tests of advantages: the worked example, and random ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from tests.reference import gae as reference

settled = settings(deadline=None)
SEEDS = st.integers(0, 10**6)
MODERATE = st.floats(-3, 3)


def exact(numbers: object) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64)


def close(found: Tensor, expected: object, atol: float = 6e-7) -> None:
    torch.testing.assert_close(found.detach(), exact(expected), rtol=0, atol=atol)


def flags(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool)


GAMMA = 0.95
LENGTHS = torch.tensor([[2], [3]])


def worked(case: str, gae_lambda: float = 0.9, *, level: str = "tokens") -> dict[str, Any]:
    """Two steps of one world, of 2 and of 3 tokens.

    Case A ends after the second step, B does not, C ends after the first.
    """
    inputs: dict[str, Any] = {
        "rewards": exact([[0.2], [1.0]]),
        "values": exact([[[0.5, 0.6, 0.0]], [[0.7, 0.8, 0.9]]]),
        "next_values": exact([[0.7], [0.4]]),
        "mask": torch.arange(3) < LENGTHS[..., None],
        "terminated": flags([case == "C"], [case == "A"]),
        "truncated": flags([False], [False]),
        "discounts": exact([[GAMMA], [GAMMA]]),
        "gae_lambda": gae_lambda,
    }
    if level == "actions":
        inputs["values"] = inputs["values"][..., 0]
        del inputs["mask"]
    return inputs


class Random(NamedTuple):
    """A rollout of T steps in E worlds with up to L tokens an action; NaN beyond each action."""

    inputs: dict[str, Any]
    lengths: np.ndarray

    def action_inputs(self) -> dict[str, Any]:
        rest = {name: value for name, value in self.inputs.items() if name != "mask"}
        return rest | {"values": self.inputs["values"][..., 0]}

    def loop(self, world: int, **coefficients: float) -> list[list[float]]:
        """Return the plain loop's advantages of one world."""
        columns = {
            name: self.inputs[name][:, world].numpy()
            for name in ("rewards", "next_values", "terminated", "truncated", "discounts")
        }
        values = [
            self.inputs["values"][t, world, :length].numpy()
            for t, length in enumerate(self.lengths[:, world])
        ]
        return reference.tokens(values=values, **columns, **coefficients)


def random_rollout(seed: int, *, longest: int = 4, shape: tuple[int, int] = (7, 3)) -> Random:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, shape)
    mask = torch.arange(longest) < torch.from_numpy(lengths)[..., None]
    values = torch.from_numpy(rng.normal(size=(*shape, longest))).masked_fill(~mask, torch.nan)
    terminated = torch.from_numpy(rng.random(shape) < 0.2)
    truncated = torch.from_numpy(rng.random(shape) < 0.2)
    # Inside an episode the next observation's value is that of the next step's first token.
    left = torch.from_numpy(rng.normal(size=shape))
    following = torch.cat([values[1:, :, 0], left[-1:]])
    next_values = torch.where(terminated | truncated, left, following)
    return Random(
        {
            "rewards": torch.from_numpy(rng.normal(size=shape)),
            "values": values,
            "next_values": next_values,
            "mask": mask,
            "terminated": terminated,
            "truncated": truncated,
            "discounts": torch.from_numpy(rng.uniform(0.5, 1, shape)),
        },
        lengths,
    )
