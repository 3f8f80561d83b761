"""Whether weights are still what they were, without looking at them.

Each write in place counts up a tensor's ``_version``, but those of a fused optimizer don't. So
optimizers also tell, through torch's own hook, which parameters they have stepped.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

_STEPS = "_llm_agents_steps"  # attribute of a parameter: optimizer steps since it was watched


def weight_version(parameters: Iterable[nn.Parameter]) -> int:
    """Return a number that grows whenever one of `parameters` is written.

    Writes through ``.data`` by hand are not seen.
    """
    return sum(parameter._version + getattr(parameter, _STEPS, 0) for parameter in parameters)


@cache
def watch_optimizers() -> None:
    """Have all optimizers of this process count their steps from now on."""
    register_optimizer_step_post_hook(_count_step)


def _count_step(optimizer: Optimizer, *_: Any) -> None:  # noqa: ANN401  # a step's own arguments
    """Count a step of an optimizer at each of its parameters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            setattr(parameter, _STEPS, getattr(parameter, _STEPS, 0) + 1)
