"""What a trained agent is compared with: one that draws at random, and one that learnt nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from llm_agents.types import Agent, Choice, Decisions


class RandomAgent:
    """Draws one of the admissible actions, each with the same probability.

    Example:
        >>> agent = RandomAgent()
        >>> agent.act([Choice("You should", ("wait",))], torch.Generator()).index
        tensor([0])
    """

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return a decision for each choice."""
        counts = torch.tensor([len(choice.actions) for choice in choices])
        if len(choices) and not bool((counts > 0).all()):
            raise ValueError("expected at least one action in every choice, got an empty list")
        drawn = torch.rand(len(choices), generator=generator, device=generator.device).cpu()
        index = (drawn * counts).long().clamp(max=counts - 1)
        return Decisions(
            index=index,
            log_probs=-counts.float().log()[:, None],
            values=torch.zeros(len(choices), 1),
            mask=torch.ones(len(choices), 1, dtype=torch.bool),
        )

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` zeros."""
        return torch.zeros(len(choices))


class HasBase(Protocol):
    """A policy that can act as its base model."""

    def without_adapters(self) -> AbstractContextManager[None]:
        """Return a context in which no adapter has an effect."""


class ZeroShotAgent:
    """Acts as an agent would without any of its training.

    Args:
        agent: Decides, by its own rule.
        policy: Its policy, whose adapters are switched off meanwhile.
    """

    def __init__(self, agent: Agent, policy: HasBase) -> None:
        self.agent, self.policy = agent, policy

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return the base model's decision for each choice."""
        with self.policy.without_adapters():
            return self.agent.act(choices, generator)

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` values of the agent's own head: they play no part in its decisions."""
        return self.agent.state_values(choices)
