"""A reward that is any Python function of the user's."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.rewards.scores import check_pairs, check_scores
from llm_agents.types import Prompt, Reward

RewardFunction = Callable[[Sequence[Prompt], Sequence[str]], Sequence[float] | Tensor]


class CallableReward(Reward):
    """A reward computed by a function ``(prompts, responses) -> one number a response``.

    Args:
        function: ``"package.module:function"``, or the function itself. A prompt is a tuple of
            turns with `role` and `text`.
        low: Lowest score that the function can return.
        high: Highest score that the function can return.
        name: Name in logs and tables; the function's own by default.
        version: Changes whenever the scores may change; by default a digest of the source of the
            function's module.

    Example:
        >>> reward = CallableReward(lambda prompts, responses: [len(r) / 10 for r in responses],
        ...                         low=0.0, high=1.0, name="length", version="1")
        >>> reward([()], ["four"])
        tensor([0.4000])
    """

    def __init__(
        self,
        function: str | RewardFunction,
        low: float = -math.inf,
        high: float = math.inf,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self.function = import_function(function) if isinstance(function, str) else function
        own_name = getattr(self.function, "__name__", type(self.function).__name__)
        self.name = name or str(own_name)
        self.version = version or source_digest(self.function)
        self.low, self.high = float(low), float(high)

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` scores."""
        check_pairs(prompts, responses)
        scores = torch.as_tensor(self.function(prompts, responses), dtype=torch.float32)
        return check_scores(
            scores, count=len(responses), name=self.name, low=self.low, high=self.high
        )


def import_function(path: str) -> RewardFunction:
    """Return the function that ``"package.module:function"`` names."""
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(f"expected `package.module:function`, got `{path}`")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"cannot import `{module_name}` of the reward `{path}`: {error}; run from the folder "
            "that holds it, or install it"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"`{module_name}` has no function `{attribute}`")
    return function  # type: ignore[no-any-return]  # known to be callable; its result is checked


def source_digest(function: RewardFunction) -> str:
    """Return a digest of the source of the function's module."""
    module = inspect.getmodule(function)
    try:
        source = inspect.getsource(module) if module else inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise UserError(
            f"cannot read the source of the reward function {function!r}: give `version`, to be "
            "changed whenever its scores may change"
        ) from error
    return hashlib.sha256(source.encode()).hexdigest()[:12]
