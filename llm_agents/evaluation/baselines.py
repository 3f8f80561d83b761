"""Who trained agents are compared with: one that draws at random, one without training, a bot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from llm_agents.envs import BabyAIText, TextEnv
from llm_agents.envs.babyai_bot import Bot, play_shares
from llm_agents.errors import UserError
from llm_agents.types import Agent, Choice, Decisions, Episode


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


@runtime_checkable
class WorldPlayer(Protocol):
    """What plays worlds by what they are rather than by what they show."""

    def play_worlds(self, worlds: Sequence[TextEnv], num_episodes: int) -> list[Episode]:
        """Return finished episodes, each world's share fixed before the first step."""


class BotAgent:
    """BabyAI's scripted expert, which sees what the agent sees and remembers it.

    Example:
        >>> BotAgent().play_worlds([BabyAIText()], 2)[1].success
        True
    """

    def play_worlds(self, worlds: Sequence[TextEnv], num_episodes: int) -> list[Episode]:
        """Return finished episodes.

        Args:
            worlds: E worlds; the first ``num_episodes % E`` of them play one more than the others.
            num_episodes: At least 1.

        Raises:
            UserError: A world is not one of BabyAI's, or the bot finds no way.
        """
        found = [world for world in worlds if isinstance(world, BabyAIText)]
        if len(found) < len(worlds):
            other = next(world for world in worlds if not isinstance(world, BabyAIText))
            raise UserError(f"expected a world of BabyAI for its bot, got `{other.name}`")
        return play_shares(found, Bot(), num_episodes)
