"""Agents in worlds: finished episodes in, return, success and length with intervals out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean, share
from llm_agents.evaluation.results import (
    package_versions,
    read_object,
    write_object,
)
from llm_agents.evaluation.unfinished import UnfinishedEpisodes
from llm_agents.types import Agent, Episode

TRAINED, ZERO_SHOT, RANDOM, BOT = "trained", "zero-shot", "random", "bot"
KIND = "episodes"

Player = Callable[[Agent, int, torch.Generator], list[Episode]]
"""Plays a number of episodes of one world with an agent."""


@dataclass(frozen=True)
class World:
    """A world to be played.

    Args:
        name: As tables show it.
        play: Plays so many episodes of it.
        optimal_return: Best discounted return there is; None where nobody knows it.
        is_trained_on: Whether the agent was trained in it.
    """

    name: str
    play: Player
    optimal_return: float | None = None
    is_trained_on: bool = True


@dataclass(frozen=True)
class WorldResult:
    """Numbers of one agent in one world.

    Args:
        world: Name of the world.
        agent: ``trained``, or what it is compared with: ``zero-shot``, ``random``.
        discounted_return: As the world's paper reports it.
        undiscounted_return: Sum of the rewards.
        success: Share of the episodes in which the task was done.
        decisions: Decisions an episode.
        primitive_steps: Steps of the world an episode.
        optimal_return: Best discounted return there is; None where nobody knows it.
        is_trained_on: Whether the agent was trained in it.
        seconds: Time spent on playing.
    """

    world: str
    agent: str
    discounted_return: Interval
    undiscounted_return: Interval
    success: Interval
    decisions: Interval
    primitive_steps: Interval
    optimal_return: float | None
    is_trained_on: bool
    seconds: float

    @property
    def num_episodes(self) -> int:
        """Return the number of episodes."""
        return self.discounted_return.n


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode with the place where it was played.

    Args:
        world: Name of the world.
        agent: Who played it.
        episode: What came of it.
    """

    world: str
    agent: str
    episode: Episode


@dataclass(frozen=True)
class EpisodeResults:
    """What the evaluation of an agent found.

    Args:
        name: What was evaluated.
        bootstrap: How the intervals were computed.
        seed: Seed of the worlds and of the draws.
        worlds: One entry for each agent in each world: the one that they are about first.
        episodes: Every episode that counts.
        date: When, in UTC.
        versions: Versions of the packages that matter.
        details: Anything the caller adds.
    """

    name: str
    bootstrap: BootstrapConfig
    seed: int
    worlds: tuple[WorldResult, ...]
    episodes: tuple[PlayedEpisode, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=package_versions)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overall(self) -> WorldResult:
        """Return the entry of the agent that the results are about, in the first world."""
        return self.worlds[0]

    def of(self, world: str, agent: str = TRAINED) -> WorldResult | None:
        """Return the entry of an agent in a world, if there is one."""
        found = (e for e in self.worlds if (e.world, e.agent) == (world, agent))
        return next(found, None)


def evaluate_agent(
    agents: Mapping[str, Agent],
    worlds: Sequence[World],
    num_episodes: int,
    *,
    name: str = "agent",
    seed: int = 0,
    bootstrap: BootstrapConfig | None = None,
    details: Mapping[str, Any] | None = None,
    unfinished: UnfinishedEpisodes | None = None,
) -> EpisodeResults:
    """Let each agent play each world.

    Args:
        agents: By name; the first one is what the results are about.
        worlds: The one that it was trained in first.
        num_episodes: Episodes of each agent in each world; all of them end.
        name: What is evaluated, for tables.
        seed: Seed of the draws; every agent and world gets the same ones.
        bootstrap: How intervals are computed.
        details: Kept in the results as they are.
        unfinished: Keeps what has been played, which is not played again; nothing is kept if None.

    Returns:
        Numbers of each agent in each world, and every episode.

    Raises:
        UserError: There is no world, or two have one name.
    """
    names = [world.name for world in worlds]
    if not names or len(set(names)) < len(names):
        raise UserError(f"expected worlds of different names to play, got {names}")
    bootstrap = bootstrap or BootstrapConfig()
    results, played = [], []
    for world in worlds:
        for who, agent in agents.items():
            known = None if unfinished is None else unfinished.find(world.name, who)
            if known is None:
                start = time.perf_counter()
                generator = torch.Generator().manual_seed(seed)
                known = world.play(agent, num_episodes, generator), time.perf_counter() - start
                if unfinished is not None:
                    unfinished.keep(world.name, who, *known)
            episodes, seconds = known
            results.append(summarize_episodes(world, who, episodes, bootstrap, seconds=seconds))
            played += [PlayedEpisode(world.name, who, episode) for episode in episodes]
    return EpisodeResults(
        name=name,
        bootstrap=bootstrap,
        seed=seed,
        worlds=tuple(results),
        episodes=tuple(played),
        details=dict(details or {}),
    )


def summarize_episodes(
    world: World,
    agent: str,
    episodes: Sequence[Episode],
    bootstrap: BootstrapConfig,
    *,
    seconds: float = 0.0,
) -> WorldResult:
    """Return the numbers of some episodes; shares are over the episodes that ended."""
    if not episodes:
        raise ValueError(f"expected episodes of `{world.name}`, got none")

    def mean(values: Sequence[float]) -> Interval:
        return bootstrap_mean(torch.tensor(values, dtype=torch.float64), bootstrap)

    return WorldResult(
        world=world.name,
        agent=agent,
        discounted_return=mean([episode.discounted_return for episode in episodes]),
        undiscounted_return=mean([episode.undiscounted_return for episode in episodes]),
        success=share([episode.success for episode in episodes], bootstrap.confidence),
        decisions=mean([float(episode.num_decisions) for episode in episodes]),
        primitive_steps=mean([float(episode.num_primitive_steps) for episode in episodes]),
        optimal_return=world.optimal_return,
        is_trained_on=world.is_trained_on,
        seconds=round(seconds, 3),
    )


def write_episode_results(folder: str | Path, results: EpisodeResults) -> Path:
    """Write results as ``results.json``, under a temporary name first.

    Returns:
        The file's path.
    """
    values = asdict(results)
    values["episodes"] = [
        {
            **asdict(entry.episode),
            "slot": entry.episode.world,
            "world": entry.world,
            "agent": entry.agent,
        }
        for entry in results.episodes
    ]
    return write_object(folder, values, kind=KIND)


def read_episode_results(folder: str | Path) -> EpisodeResults:
    """Read what `write_episode_results` wrote.

    Args:
        folder: Folder of ``results.json``, or that file.

    Raises:
        UserError: There are no results, or they are of another kind or format.
    """
    values = read_object(folder, kind=KIND)
    intervals = (
        "discounted_return",
        "undiscounted_return",
        "success",
        "decisions",
        "primitive_steps",
    )
    worlds = tuple(
        WorldResult(**{**entry, **{key: Interval(**entry[key]) for key in intervals}})
        for entry in values["worlds"]
    )
    return EpisodeResults(
        **{
            **values,
            "bootstrap": BootstrapConfig(**values["bootstrap"]),
            "worlds": worlds,
            "episodes": tuple(_played(entry) for entry in values["episodes"]),
        }
    )


def _played(entry: Mapping[str, Any]) -> PlayedEpisode:
    """Rebuild an episode."""
    numbers = {key: entry[key] for key in entry if key not in ("world", "agent", "slot")}
    return PlayedEpisode(entry["world"], entry["agent"], Episode(**numbers, world=entry["slot"]))
