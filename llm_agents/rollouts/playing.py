"""Episodes to the end, for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from llm_agents.envs import TextEnv
from llm_agents.envs.prompts import PromptBuilder
from llm_agents.rollouts.prompted import PromptedWorld
from llm_agents.types import Agent, Choice, Episode


def shares(num_episodes: int, num_worlds: int) -> list[int]:
    """Return how many episodes each world plays; they differ by one at most.

    Raises:
        ValueError: There is no world or nothing to play.
    """
    if num_worlds < 1 or num_episodes < 1:
        raise ValueError(
            f"expected at least one world and one episode, got {num_worlds} worlds and "
            f"{num_episodes} episodes"
        )
    share, rest = divmod(num_episodes, num_worlds)
    return [share + (e < rest) for e in range(num_worlds)]


def play(
    agent: Agent,
    worlds: Sequence[TextEnv],
    num_episodes: int,
    generator: torch.Generator,
    prompt: PromptBuilder | None = None,
    *,
    advance: Callable[[int], None] | None = None,
) -> list[Episode]:
    """Return `num_episodes` finished episodes, each world's share fixed before the first step.

    Taking the first ones to finish instead would favour short episodes. Worlds that still have
    episodes to play step together, so that an agent sees as many choices at a time as it may.

    Args:
        agent: Acts, by drawing from `generator`.
        worlds: E worlds; the first ``num_episodes % E`` of them play one more than the others.
        num_episodes: At least 1.
        generator: Source of the agent's draws.
        prompt: How observations become prompts; None is the builder's own default.
        advance: Told of each episode that has ended, and of 0 after each step.

    Returns:
        The episodes, world by world, those of a world in order.

    Raises:
        ValueError: There is no world or nothing to play.
    """
    left = shares(num_episodes, len(worlds))
    prompted = [PromptedWorld(world, prompt, number=e) for e, world in enumerate(worlds)]
    played: list[list[Episode]] = [[] for _ in worlds]
    shown: dict[int, Choice] = {e: prompted[e].reset() for e in range(len(worlds)) if left[e]}
    while shown:
        active = sorted(shown)
        with torch.no_grad():
            decisions = agent.act([shown[e] for e in active], generator)
        if advance is not None:
            advance(0)
        for e, index in zip(active, decisions.index.tolist(), strict=True):
            shown[e], step = prompted[e].step(index)
            if step.episode is None:
                continue
            played[e].append(step.episode)
            if advance is not None:
                advance(1)
            left[e] -= 1
            if left[e]:
                shown[e] = prompted[e].reset()
            else:
                del shown[e]
    return [episode for episodes in played for episode in episodes]
