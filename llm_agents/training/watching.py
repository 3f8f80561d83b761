"""``lightning watch``: episodes in the terminal, and as recordings, pictures and a page."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from llm_agents.envs.nethack import NetHackGame
from llm_agents.envs.nethack_tasks import TASKS, NetHackRules
from llm_agents.envs.registry import check_world
from llm_agents.errors import UserError
from llm_agents.evaluation import RandomAgent
from llm_agents.evaluation.baselines import WorldPlayer
from llm_agents.evaluation.replay_frames import EpisodeRecord, Frame, Writers
from llm_agents.evaluation.replay_nethack import Order
from llm_agents.evaluation.replay_page import PageWriter
from llm_agents.evaluation.replay_pictures import GifWriter, Mp4Writer
from llm_agents.evaluation.replay_records import RecordWriter, facts_line, message_table
from llm_agents.evaluation.replay_terminal import CastWriter, TerminalWriter
from llm_agents.methods import LoadedAgent, SymbolicPPO
from llm_agents.policies.nethack_files import load_nethack_network
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.rollouts.seeds import Purpose, derived_seed
from llm_agents.served_models import is_served
from llm_agents.training.agents import SCRIPTED, AgentRequest, home_of, named_player
from llm_agents.training.nethack_agents import nethack_folder, nethack_home
from llm_agents.training.outside_agents import ALL_OPTIONS, PlayerOptions
from llm_agents.training.playing_nethack import NetHackHome
from llm_agents.training.relocating import reward_called
from llm_agents.training.watching_nethack import (
    SCREEN_KEYS,
    GamePlayer,
    RandomPlayer,
    ScriptedPlayer,
    TrainedPlayer,
    nethack_episodes,
)
from llm_agents.training.watching_symbolic import symbolic_episodes
from llm_agents.training.watching_text import text_episodes
from llm_agents.types import Agent

log = logging.getLogger(__name__)

RANDOM, EXPLORER = "random", "explorer"
_FILES = ("cast", "gif", "mp4", "html", "json")
_TASK = "NetHackScore-v1"


@dataclass(frozen=True)
class WatchRequest:
    """What is to be watched, and how.

    Args:
        name: Zoo name, folder or Hub id of an agent; ``random``, or ``explorer`` in NetHack.
        recipe: Content of the recipe that it was trained with; empty if there is none.
        env: Name of the world or task; None for the one it was trained in.
        episodes: How many.
        max_steps: Actions after which an episode is left; None plays to the end.
        seed: Of the world and of the draws.
        fps: Frames a second.
        reward: Name or folder of a reward of messages; None takes the one the agent was paid by.
        sort: Order of the messages.
        behaviour: What a POAD agent draws its actions from, if not what it was trained with.
        cast: Recording to write.
        gif: Picture to write.
        mp4: Video to write.
        html: Page to write.
        json: Numbers to write.
        screen: Draw in the terminal, if there is one.
        title: Of recordings; None names the agent and its world.
        options: How a model plays that was not trained in a world.
    """

    name: str
    recipe: Mapping[str, Any]
    env: str | None = None
    episodes: int = 1
    max_steps: int | None = None
    seed: int = 0
    fps: float = 8.0
    reward: str | None = None
    sort: Order = "reward"
    behaviour: Literal["decomposed", "trie", "list"] | None = None
    cast: Path | None = None
    gif: Path | None = None
    mp4: Path | None = None
    html: Path | None = None
    json: Path | None = None
    screen: bool = True
    title: str | None = None
    options: PlayerOptions = field(default_factory=PlayerOptions)

    def __post_init__(self) -> None:
        """Check the ranges."""
        for option, value in (
            ("--episodes", self.episodes),
            ("--max-steps", self.max_steps),
            ("--fps", self.fps),
        ):
            if value is not None and not value > 0:
                raise UserError(f"expected {option} above 0, got {value}")


def watch_named(request: WatchRequest) -> list[EpisodeRecord]:
    """Play episodes, show them, and write the files that were asked for.

    Stopping with Ctrl-C keeps what was recorded so far.

    Raises:
        UserError: There is no such agent or world, or no encoder for a video.
    """
    title, episodes = episodes_of(request)
    return show(episodes, request, request.title or title)


def show(
    episodes: Iterable[Frame | EpisodeRecord], request: WatchRequest, title: str
) -> list[EpisodeRecord]:
    """Hand frames to the writers, and print what came of each episode."""
    writers, console = _writers(request, title), Console()
    records: list[EpisodeRecord] = []
    stopped: KeyboardInterrupt | None = None
    try:
        for item in episodes:
            if isinstance(item, Frame):
                writers.add(item)
                continue
            records.append(item)
            writers.end_episode(item)
            console.print(facts_line(item), highlight=False, markup=False, soft_wrap=True)
            if item.messages:
                console.print(message_table(item.messages))
    except KeyboardInterrupt as error:
        stopped = error
    except BaseException:
        writers.discard()
        raise
    writers.close()
    for name in _FILES:
        path = getattr(request, name)
        if path is not None:
            log.info("%s: %s", name, path)
    if stopped is not None:
        raise stopped
    return records


def _writers(request: WatchRequest, title: str) -> Writers:
    """Return the writers that were asked for; those that may be impossible come first."""
    seconds = 1 / request.fps
    writers = Writers()
    if request.mp4:
        writers.writers.append(Mp4Writer(request.mp4, seconds))
    if request.gif:
        writers.writers.append(GifWriter(request.gif, seconds))
    if request.cast:
        writers.writers.append(CastWriter(request.cast, seconds, title))
    if request.html:
        writers.writers.append(PageWriter(request.html, seconds, title))
    if request.json:
        writers.writers.append(RecordWriter(request.json, title))
    if request.screen and sys.stdout.isatty():
        writers.writers.append(TerminalWriter(sys.stdout, seconds))
    return writers


def episodes_of(request: WatchRequest) -> tuple[str, Iterable[Frame | EpisodeRecord]]:
    """Return a title and the episodes, which are played as they are asked for."""
    if request.name in (RANDOM, EXPLORER):
        request.options.refuse(ALL_OPTIONS, f"`{request.name}` has one way to play")
        task = request.env or _TASK
        if task in TASKS:
            player: GamePlayer = (
                RandomPlayer(request.seed)
                if request.name == RANDOM
                else ScriptedPlayer(request.seed)
            )
            return _game(request, player, task, None)
        if request.name == EXPLORER:
            raise UserError(
                f"expected a task of NetHack for the explorer, got `{task}`; known: "
                f"{', '.join(TASKS)}"
            )
        title: str = request.name
        agent: Agent = RandomAgent()
        home = home_of({})
        name = task
    elif (folder := _nethack_folder(request.name)) is not None:
        return _trained_game(request, folder)
    else:
        home = home_of(request.recipe)
        if not (request.env or home.names):
            raise UserError(
                f"nothing says in which world `{request.name}` is to play: give `--env`"
            )
        name = request.env or home.names[0]
        check_world(name, home.options if name in home.names else {})
        title, found = _player(request)
        if isinstance(found, SymbolicPPO):
            return f"{title} in {name}", symbolic_episodes(
                found, home, name, **_plan(request, name)
            )
        agent = found
    return f"{title} in {name}", text_episodes(agent, home, name, **_plan(request, name))


def _nethack_folder(name: str) -> Path | None:
    """Return the folder of a NetHack agent; None for all others."""
    return None if name in SCRIPTED or is_served(name) else nethack_folder(name)


def _player(request: WatchRequest) -> tuple[str, LoadedAgent | Agent]:
    """Return who plays a text world, with what it is called.

    Raises:
        UserError: There is none of that name, or it shows no decisions.
    """
    asked = AgentRequest(
        request.name, request.recipe, (), None, request.behaviour, Path(), options=request.options
    )
    player = named_player(asked)
    if isinstance(player.agent, WorldPlayer):
        raise UserError(f"`{request.name}` can't be watched: it plays whole episodes at once")
    return player.name, player.agent


def _plan(request: WatchRequest, name: str) -> dict[str, Any]:
    """Return how much of a text world is played.

    Raises:
        UserError: A reward of messages was given.
    """
    if request.reward is not None:
        raise UserError(f"expected no `--reward`: `{name}` has no messages that one is for")
    return {
        "episodes": request.episodes,
        "max_steps": request.max_steps,
        "seed": request.seed,
    }


def _trained_game(
    request: WatchRequest, folder: Path
) -> tuple[str, Iterable[Frame | EpisodeRecord]]:
    """Return a title and the episodes of a trained NetHack agent."""
    request.options.refuse(ALL_OPTIONS, f"`{request.name}` plays as it was trained")
    if request.behaviour is not None:
        raise UserError(f"`{request.name}` draws its keys from one policy: drop `--behaviour`")
    home = nethack_home(request.recipe, request.name)
    task = request.env or (home.task if home else _TASK)
    if task not in TASKS:
        raise UserError(f"expected a task of NetHack, got `{task}`; known: {', '.join(TASKS)}")
    player = TrainedPlayer(NetworkPlayer(load_nethack_network(folder)), request.seed)
    return _game(request, player, task, home)


def _game(
    request: WatchRequest, player: GamePlayer, task: str, home: NetHackHome | None
) -> tuple[str, Iterable[Frame | EpisodeRecord]]:
    """Return a title and the episodes of NetHack."""
    reward = home.reward if home else None
    if request.reward is not None:
        reward = reward_called(request.reward)
    if reward is not None and not reward.is_remembered:
        raise UserError(
            f"the reward `{reward.name}` looks at more than messages: its table of messages would "
            "say nothing; give another `--reward`"
        )
    keys = tuple(dict.fromkeys((*SCREEN_KEYS, "message", *player.keys)))
    rules = home.rules if home else NetHackRules()
    seed = derived_seed(request.seed, Purpose.EVALUATION)
    game = NetHackGame(task, seed=seed, observation_keys=keys, rules=rules)
    episodes = nethack_episodes(
        player,
        game,
        reward,
        episodes=request.episodes,
        max_steps=request.max_steps,
        order=request.sort,
    )
    return f"{request.name} in {task}", episodes
