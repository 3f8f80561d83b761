"""Agents in NetHack: finished games in; score, rewards, depth, level and messages out."""

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
from llm_agents.policies.nethack_types import PlayedGame

GAMES_KIND = "games"

GamesPlayer = Callable[[int], Sequence[PlayedGame]]
"""Plays a number of games of one task with one agent, from seeds that every agent gets."""

MEASURES: Mapping[str, str] = {
    "score": "score",
    "episode_return": "return",
    "intrinsic_return": "intrinsic return",
    "max_depth": "depth",
    "experience_level": "level",
    "num_messages": "messages",
    "turns": "turns",
    "num_steps": "steps",
    "gold": "gold",
    "explored": "explored",
}
"""Fields of a game that have a mean and an interval, with their names in tables."""


@dataclass(frozen=True)
class GamesResult:
    """Numbers of one agent in one task.

    Args:
        task: Name of the task.
        agent: ``trained``, or what it is compared with.
        means: Of each of `MEASURES`; the intrinsic return is missing where there is no reward.
        success: Share of the games in which the task was done.
        deaths: Share of the games that ended by death.
        seconds: Time spent on playing.
    """

    task: str
    agent: str
    means: Mapping[str, Interval]
    success: Interval
    deaths: Interval
    seconds: float

    @property
    def num_games(self) -> int:
        """Return the number of games."""
        return self.success.n


@dataclass(frozen=True)
class GameRecord:
    """A game with who played it.

    Args:
        task: Name of the task.
        agent: Who played it.
        game: What came of it.
    """

    task: str
    agent: str
    game: PlayedGame


@dataclass(frozen=True)
class GamesResults:
    """What the evaluation of a NetHack agent found.

    Args:
        name: What was evaluated.
        bootstrap: How the intervals were computed.
        seed: Seed of the games and of the draws.
        results: One entry for each agent in each task: the one that they are about first.
        games: Every game that counts.
        date: When, in UTC.
        versions: Versions of the packages that matter.
        details: Anything the caller adds.
    """

    name: str
    bootstrap: BootstrapConfig
    seed: int
    results: tuple[GamesResult, ...]
    games: tuple[GameRecord, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=package_versions)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overall(self) -> GamesResult:
        """Return the entry of the agent that the results are about, in the first task."""
        return self.results[0]

    def values(self, task: str, agent: str, measure: str) -> list[float]:
        """Return a measure of every game of an agent in a task."""
        return [
            float(getattr(entry.game, measure))
            for entry in self.games
            if (entry.task, entry.agent) == (task, agent)
        ]


def evaluate_games(
    players: Mapping[str, Mapping[str, GamesPlayer]],
    num_games: int,
    *,
    has_intrinsic: bool,
    name: str,
    seed: int,
    bootstrap: BootstrapConfig | None = None,
    details: Mapping[str, Any] | None = None,
) -> GamesResults:
    """Let agents play tasks.

    Args:
        players: By task, then by agent; the first of the first is what the results are about.
        num_games: Games of each agent in each task.
        has_intrinsic: Whether there is a reward of messages.
        name: What is evaluated, for tables.
        seed: Of games and draws; kept in the results.
        bootstrap: How intervals are computed.
        details: Kept in the results as they are.

    Returns:
        Numbers of each agent in each task, and every game.
    """
    bootstrap = bootstrap or BootstrapConfig()
    results, records = [], []
    for task, agents in players.items():
        for agent, play in agents.items():
            start = time.perf_counter()
            games = play(num_games)
            seconds = time.perf_counter() - start
            results.append(
                summarize_games(
                    task, agent, games, bootstrap, has_intrinsic=has_intrinsic, seconds=seconds
                )
            )
            records += [GameRecord(task, agent, game) for game in games]
    return GamesResults(
        name=name,
        bootstrap=bootstrap,
        seed=seed,
        results=tuple(results),
        games=tuple(records),
        details=dict(details or {}),
    )


def summarize_games(
    task: str,
    agent: str,
    games: Sequence[PlayedGame],
    bootstrap: BootstrapConfig,
    *,
    has_intrinsic: bool,
    seconds: float = 0.0,
) -> GamesResult:
    """Return the numbers of some games."""
    if not games:
        raise ValueError(f"expected games of `{task}`, got none")
    means = {
        measure: bootstrap_mean(
            torch.tensor([float(getattr(game, measure)) for game in games], dtype=torch.float64),
            bootstrap,
        )
        for measure in MEASURES
        if has_intrinsic or measure != "intrinsic_return"
    }
    return GamesResult(
        task=task,
        agent=agent,
        means=means,
        success=share([game.success for game in games], bootstrap.confidence),
        deaths=share([game.end == "death" for game in games], bootstrap.confidence),
        seconds=round(seconds, 3),
    )


def write_games_results(folder: str | Path, results: GamesResults) -> Path:
    """Write results as ``results.json``, under a temporary name first.

    Returns:
        The file's path.
    """
    values = asdict(results)
    values["games"] = [
        {"task": entry.task, "agent": entry.agent, **asdict(entry.game)} for entry in results.games
    ]
    return write_object(folder, values, kind=GAMES_KIND)


def read_games_results(folder: str | Path) -> GamesResults:
    """Read what `write_games_results` wrote.

    Args:
        folder: Folder of ``results.json``, or that file.

    Raises:
        UserError: There are no results, or they are of another kind or format.
    """
    values = read_object(folder, kind=GAMES_KIND)
    try:
        results = tuple(
            GamesResult(
                **{
                    **entry,
                    "means": {name: Interval(**mean) for name, mean in entry["means"].items()},
                    "success": Interval(**entry["success"]),
                    "deaths": Interval(**entry["deaths"]),
                }
            )
            for entry in values["results"]
        )
        games = tuple(_record(entry) for entry in values["games"])
        rest = {**values, "bootstrap": BootstrapConfig(**values["bootstrap"])}
        return GamesResults(**{**rest, "results": results, "games": games})
    except (KeyError, TypeError) as error:
        raise UserError(f"the results of games in `{folder}` are damaged: {error}") from error


def _record(entry: Mapping[str, Any]) -> GameRecord:
    """Rebuild a game."""
    numbers = {key: entry[key] for key in entry if key not in ("task", "agent")}
    return GameRecord(entry["task"], entry["agent"], PlayedGame(**numbers))
