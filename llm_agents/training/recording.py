"""One episode of a text world, played to its end and kept as a rollout of one world."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_agents.envs import Step, TextEnv
from llm_agents.rollouts import PromptedWorld
from llm_agents.types import Agent, Choice, Decisions, Episode, Rollout


@dataclass(frozen=True)
class Watched:
    """An episode of an agent in a text world.

    Args:
        rollout: ``T`` steps of one world.
        closing: What followed the last step.
        episode: What came of it; None if it was left before its end.
        scenes: How the world shows itself to people before each step, and at last.
        scale: What the world multiplies its rewards by; see `reward_scale`.
    """

    rollout: Rollout
    closing: Choice
    episode: Episode | None
    scenes: tuple[str, ...]
    scale: float = 1.0

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Return what the agent was asked."""
        return self.rollout.choices

    @property
    def index(self) -> Tensor:
        """Return ``[T]`` int64, what it answered."""
        return self.rollout.index[:, 0]


@torch.no_grad()
def record_episode(
    agent: Agent, world: PromptedWorld, generator: torch.Generator, longest: int
) -> Watched:
    """Play an episode.

    Args:
        agent: Acts, and values what follows the last step if the world did not end there.
        world: Is reset first.
        generator: Source of the agent's draws.
        longest: Decisions after which an episode is left; at least 1.

    Returns:
        The episode, as a rollout that has no other.
    """
    choice = world.reset()
    choices: list[Choice] = []
    decisions: list[Decisions] = []
    steps: list[Step] = []
    scenes = [world.world.render()]
    while not world.has_ended and len(steps) < longest:
        choices.append(choice)
        decisions.append(agent.act([choice], generator).to("cpu"))
        choice, step = world.step(int(decisions[-1].index[0]))
        steps.append(step)
        scenes.append(world.world.render())
    last = steps[-1]
    values = _padded([decision.values for decision in decisions])
    next_values = torch.cat([values[1:, :, 0], torch.zeros(1, 1)])
    if not last.terminated:
        next_values[-1] = agent.state_values([choice]).to("cpu")
    rollout = Rollout(
        choices=tuple(choices),
        index=torch.stack([decision.index for decision in decisions]),
        log_probs=_padded([decision.log_probs for decision in decisions]),
        values=values,
        mask=_padded([decision.mask for decision in decisions]),
        rewards=torch.tensor([[step.reward] for step in steps], dtype=torch.float32),
        terminated=torch.tensor([[step.terminated] for step in steps]),
        truncated=torch.tensor([[step.truncated] for step in steps]),
        durations=torch.tensor([[step.duration] for step in steps]),
        next_values=next_values,
        episodes=() if last.episode is None else (last.episode,),
        number=0,
        num_rollouts=1,
    )
    return Watched(rollout, choice, last.episode, tuple(scenes), reward_scale(world.world))


def reward_scale(world: TextEnv) -> float:
    """Return what a world multiplies its rewards by for training; its returns are without it."""
    return float(getattr(world, "reward_scale", 1.0))


def episode_facts(episode: Episode, scale: float) -> dict[str, float | int | str | bool]:
    """Return what came of a finished episode, on the scale of the world's returns.

    Args:
        episode: The episode.
        scale: What its rewards were multiplied by.

    Example:
        >>> episode_facts(Episode(0.93, 18.6, 5, 5, True), 20)["return"]
        0.93
    """
    discounted, total = episode.discounted_return, episode.undiscounted_return / scale
    returns = {"discounted return": discounted, "return": total}
    if abs(discounted - total) < 1e-9:
        del returns["discounted return"]
    return {
        **returns,
        "success": episode.success,
        "decisions": episode.num_decisions,
        "steps": episode.num_primitive_steps,
    }


def _padded(parts: list[Tensor]) -> Tensor:
    """Return ``[T, 1, L]`` of T tensors ``[1, L_t]``, with zeros or False on the right."""
    most = max(part.shape[1] for part in parts)
    return torch.stack([torch.nn.functional.pad(part, (0, most - part.shape[1])) for part in parts])
