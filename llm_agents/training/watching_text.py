"""Episodes of text worlds for `lightning watch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from llm_agents.evaluation import RandomAgent
from llm_agents.evaluation.outside_players import ScoringPlayer
from llm_agents.evaluation.replay_frames import EpisodeRecord, Frame
from llm_agents.evaluation.replay_text import Moment, Token, text_frames
from llm_agents.methods import DRRN, Cloning, OnlinePPO
from llm_agents.policies.modes import evaluation
from llm_agents.rollouts import PromptedWorld
from llm_agents.rollouts.seeds import Purpose, derived_seed, world_seeds
from llm_agents.training.playing import TrainingWorlds
from llm_agents.training.portraits import credit_pictures
from llm_agents.training.probes import probabilities
from llm_agents.training.recording import Watched, episode_facts, record_episode
from llm_agents.types import Agent, Choice

LONGEST = 1000  # decisions, where neither the world nor the user has a limit
_BATCH = 16  # choices that are scored together


def text_episodes(
    agent: Agent,
    home: TrainingWorlds,
    name: str,
    *,
    episodes: int,
    max_steps: int | None,
    seed: int,
) -> Iterator[Frame | EpisodeRecord]:
    """Yield the frames of each episode, and then what came of it.

    An episode is played to its end first: credit is only known then.

    Args:
        agent: Acts.
        home: Says how it sees worlds.
        name: The world.
        episodes: How many.
        max_steps: Decisions after which an episode is left; None plays on.
        seed: Of the world, which goes on from episode to episode, and of the draws.
    """
    (number,) = world_seeds(seed, 1, purpose=Purpose.EVALUATION)
    world = PromptedWorld(home.make(name), home.prompt, number=0, seed=number)
    draws = torch.Generator().manual_seed(derived_seed(seed, Purpose.DRAWS))
    for episode in range(1, episodes + 1):
        watched = record_episode(agent, world, draws, max_steps or LONGEST)
        moments = moments_of(agent, watched)
        closing = shown(watched.closing.prompt, watched.scenes[-1])
        is_complete = watched.episode is not None
        yield from text_frames(episode, moments, closing, is_complete=is_complete)
        yield EpisodeRecord(episode, facts_of(watched), is_complete=is_complete)


def shown(prompt: str, scene: str) -> str:
    """Return what the agent read and how the world shows itself to people."""
    return f"{prompt}\n\n{scene}" if scene.strip() else prompt


@torch.no_grad()
def moments_of(agent: Agent, watched: Watched) -> list[Moment]:
    """Return an episode's decisions with probabilities and credit, on the scale of returns."""
    choices, rollout = watched.choices, watched.rollout
    chances = chances_of(agent, choices)
    tokens: list[tuple[Token, ...]] = [()] * len(choices)
    if isinstance(agent, OnlinePPO):
        for step, credit in enumerate(credit_pictures(agent, watched)):
            values = (value / watched.scale for value in credit.advantages)
            tokens[step] = tuple(map(Token, credit.tokens, values))
    return [
        Moment(
            prompt=shown(choice.prompt, watched.scenes[step]),
            actions=choice.actions,
            probabilities=chances[step],
            chosen=int(rollout.index[step, 0]),
            value=float(rollout.values[step, 0, 0]) / watched.scale,
            reward=float(rollout.rewards[step, 0]) / watched.scale,
            tokens=tokens[step],
        )
        for step, choice in enumerate(choices)
    ]


def chances_of(agent: Agent, choices: Sequence[Choice]) -> list[tuple[float, ...] | None]:
    """Return what an agent draws its actions from in each situation; None where nothing says it."""
    if isinstance(agent, RandomAgent):
        return [(1 / len(choice.actions),) * len(choice.actions) for choice in choices]
    if isinstance(agent, ScoringPlayer):
        found = agent.action_log_probs(choices).exp().tolist()
        return [tuple(row[: len(c.actions)]) for row, c in zip(found, choices, strict=True)]
    if not isinstance(agent, OnlinePPO | Cloning | DRRN):
        return [None] * len(choices)
    rows: list[list[float]] = []
    for start in range(0, len(choices), _BATCH):
        some = choices[start : start + _BATCH]
        if isinstance(agent, DRRN):
            with evaluation(agent):
                values = agent.action_values(some) / agent.settings.temperature
            rows += values.softmax(-1).tolist()
        else:
            rows += probabilities(agent, some).tolist()
    return [tuple(r[: len(c.actions)]) for r, c in zip(rows, choices, strict=True)]


def facts_of(watched: Watched) -> dict[str, float | int | str | bool]:
    """Return what came of an episode."""
    if watched.episode is None:
        rewards = float(watched.rollout.rewards.sum()) / watched.scale
        return {"return": rewards, "decisions": len(watched.choices), "end": "left"}
    return episode_facts(watched.episode, watched.scale)
