"""Episodes of agents that see images, for `lightning watch`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llm_agents.evaluation.replay_frames import EpisodeRecord, Frame, Line, Span
from llm_agents.evaluation.replay_grid import grid_lines
from llm_agents.evaluation.replay_text import Moment, Token, decision_lines, wrapped
from llm_agents.functional.gae import gae
from llm_agents.methods import SymbolicPPO
from llm_agents.policies.modes import evaluation
from llm_agents.rollouts.seeds import Purpose, derived_seed, world_seeds
from llm_agents.rollouts.symbolic import SymbolicWorld
from llm_agents.training.playing import TrainingWorlds
from llm_agents.training.recording import episode_facts, reward_scale
from llm_agents.training.watching_text import LONGEST
from llm_agents.types import Episode

_DIM = "#808080"


@dataclass
class SeenEpisode:
    """An episode as it was seen.

    Args:
        moments: Its decisions, without credit.
        screens: What was shown before each decision, and at last.
        episode: What came of it; None if it was left before its end.
        is_over: Whether the world ended, rather than a limit.
        value: What was expected after the last step, where the world did not end.
        scale: What the world multiplies its rewards by; see `reward_scale`.
    """

    moments: list[Moment] = field(default_factory=list)
    screens: list[tuple[Line, ...]] = field(default_factory=list)
    episode: Episode | None = None
    is_over: bool = False
    value: float = 0.0
    scale: float = 1.0


def symbolic_episodes(
    agent: SymbolicPPO,
    home: TrainingWorlds,
    name: str,
    *,
    episodes: int,
    max_steps: int | None,
    seed: int,
) -> Iterator[Frame | EpisodeRecord]:
    """Yield the frames of each episode, and then what came of it.

    Args:
        agent: Acts on images.
        home: Makes the world.
        name: The world.
        episodes: How many.
        max_steps: Decisions after which an episode is left; None plays on.
        seed: Of the world, which goes on from episode to episode, and of the draws.
    """
    (number,) = world_seeds(seed, 1, purpose=Purpose.EVALUATION)
    world = SymbolicWorld(home.make(name), seed=number, num_actions=agent.num_actions)
    draws = torch.Generator().manual_seed(derived_seed(seed, Purpose.DRAWS))
    for episode in range(1, episodes + 1):
        seen = see_episode(agent, world, draws, max_steps or LONGEST)
        yield from _frames(episode, with_credit(agent, seen), seen)
        yield EpisodeRecord(episode, _facts(seen), is_complete=seen.episode is not None)


@torch.no_grad()
def see_episode(
    agent: SymbolicPPO, world: SymbolicWorld, draws: torch.Generator, longest: int
) -> SeenEpisode:
    """Play an episode, keeping what was shown, thought and done, on the scale of returns.

    Args:
        agent: Acts.
        world: Is reset first.
        draws: Source of the agent's draws.
        longest: Decisions after which it is left; at least 1.
    """
    world.reset()
    scale = reward_scale(world.world)
    found, memory = SeenEpisode(scale=scale), torch.zeros(1, agent.memory_size)
    is_cut = False
    while not (found.is_over or is_cut) and len(found.moments) < longest:
        found.screens.append(screen(world))
        image, actions = torch.from_numpy(world.image)[None], world.actions
        with evaluation(agent):
            thought = agent.network(
                image.to(agent.device), [world.mission], memory.to(agent.device)
            )
            decided = agent.act_on_images(image, [world.mission], memory, draws)
        memory, chosen = decided.memory.cpu(), int(decided.actions[0])
        reward, found.is_over, is_cut, found.episode = world.step(chosen)
        chances = thought.log_probs[0].exp().cpu().tolist()
        value, reward = float(decided.values[0]) / scale, reward / scale
        listed = tuple(chances[: len(actions)])
        found.moments.append(Moment("", actions, listed, chosen, value, reward))
    found.screens.append(screen(world))
    if not found.is_over:
        last = torch.from_numpy(world.image)[None]
        with evaluation(agent):
            found.value = float(agent.image_values(last, [world.mission], memory)[0]) / scale
    return found


def with_credit(agent: SymbolicPPO, seen: SeenEpisode) -> list[Moment]:
    """Return an episode's decisions with the advantage that PPO gives each of them."""
    values = torch.tensor([moment.value for moment in seen.moments])
    end = torch.zeros(len(values), dtype=torch.bool)
    end[-1] = seen.is_over
    rewards = torch.tensor([moment.reward for moment in seen.moments])
    credit = gae(
        rewards=rewards[:, None],
        values=values[:, None],
        next_values=torch.cat([values[1:], torch.tensor([seen.value])])[:, None],
        terminated=end[:, None],
        truncated=torch.zeros_like(end)[:, None],
        discounts=torch.full_like(rewards, agent.ppo.gamma)[:, None],
        gae_lambda=agent.ppo.gae_lambda,
    ).advantages[:, 0]
    return [
        Moment(
            m.prompt,
            m.actions,
            m.probabilities,
            m.chosen,
            m.value,
            m.reward,
            (Token(m.actions[m.chosen], advantage),),
        )
        for m, advantage in zip(seen.moments, credit.tolist(), strict=True)
    ]


def screen(world: SymbolicWorld) -> tuple[Line, ...]:
    """Return what is shown now: the mission, the view in color, the whole world as it draws it."""
    image: NDArray[Any] = np.asarray(world.image)
    heading: tuple[Line, ...] = ((Span(world.mission, bold=True),), (), (Span("it sees", _DIM),))
    return (*heading, *grid_lines(image), (), *wrapped(world.world.render()))


def _frames(number: int, moments: list[Moment], seen: SeenEpisode) -> Iterator[Frame]:
    """Yield a frame a decision, and one of what it ended in."""
    limit = max((abs(t.advantage) for m in moments for t in m.tokens), default=0.0) or 1.0
    total = 0.0
    for step, moment in enumerate(moments):
        status = (("value", f"{moment.value:.3f}"), ("return so far", f"{total:.3f}"))
        side = decision_lines(moment, limit)
        yield Frame(number, step, status, seen.screens[step], side)
        total += moment.reward
    end = "left here" if seen.episode is None else "end"
    yield Frame(number, len(moments), (("return", f"{total:.3f}"), ("", end)), seen.screens[-1], ())


def _facts(seen: SeenEpisode) -> dict[str, float | int | str | bool]:
    """Return what came of an episode."""
    if seen.episode is None:
        total = sum(moment.reward for moment in seen.moments)
        return {"return": total, "decisions": len(seen.moments), "end": "left"}
    return episode_facts(seen.episode, seen.scale)
