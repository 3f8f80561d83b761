"""Trained agents by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import seed_everything

from llm_agents.data import CloningData
from llm_agents.entries import is_whole_model
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    EpisodeResults,
    GamesResults,
    RandomAgent,
    print_table,
    write_results,
)
from llm_agents.evaluation.baselines import BotAgent, WorldPlayer
from llm_agents.evaluation.episodes import BOT, RANDOM, TRAINED, ZERO_SHOT
from llm_agents.methods import (
    TWOSOME,
    LoadedAgent,
    OnlinePPO,
    has_base,
    is_agent,
    load_agent,
    load_network_agent,
    read_agent,
)
from llm_agents.policies.bundled import ALIASES
from llm_agents.rollouts import SymbolicRollouts, TextRollouts
from llm_agents.training.building import instantiate
from llm_agents.training.nethack_agents import evaluate_games_of, nethack_folder
from llm_agents.training.playing import (
    TrainingWorlds,
    WorldData,
    agent_details,
    evaluate_in_worlds,
    unfinished_episodes,
    worlds_to_play,
)
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import Agent
from llm_agents.zoo import load_policy
from llm_agents.zoo.hub import find_folder

log = logging.getLogger(__name__)

SCRIPTED: Mapping[str, Callable[[], Agent | WorldPlayer]] = {RANDOM: RandomAgent, BOT: BotAgent}
"""Names of those that need no training."""


def agent_folder(name: str) -> Path | None:
    """Return the folder of the agent called `name`; None if what is there is no agent.

    Raises:
        UserError: There is nothing of that name.
    """
    if name in ALIASES or is_whole_model(Path(name)):
        return None
    folder = find_folder(name)
    return folder if is_agent(folder) else None


def agent_by_name(
    name: str,
    *,
    behaviour: Literal["decomposed", "trie", "list"] | None = None,
    device: str | None = None,
) -> LoadedAgent:
    """Load a trained agent, ready to act.

    Args:
        name: Zoo name, folder or Hub id.
        behaviour: What a POAD agent draws its actions from, if not what it was trained with.
        device: Where it runs; the accelerator by default, if there is one.

    Raises:
        UserError: It is no agent, or has no such choice.
    """
    folder = agent_folder(name)
    if folder is None:
        raise UserError(
            f"expected an agent, but `{name}` was not trained in a world: it has no `agent.json`"
        )
    options: dict[str, str] = {} if behaviour is None else {"behaviour": behaviour}
    if behaviour is not None and "behaviour" not in read_agent(folder)["options"]:
        raise UserError(
            f"`{name}` draws whole actions from their list: leave the behaviour out, it is a "
            "choice of POAD's"
        )
    if not has_base(folder):
        target = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return load_network_agent(folder).to(target)
    policy = load_policy(str(folder), device=device)
    if behaviour == "list":
        options["tokens"] = "all"
    return load_agent(folder, policy, **options)


@dataclass(frozen=True)
class AgentRequest:
    """Which agent is to play which worlds.

    Args:
        name: Zoo name, folder, Hub id, alias of a base model, which then plays untrained, or one of
            `SCRIPTED`.
        recipe: Content of the recipe that it was trained with; empty if there is none.
        worlds: What is played; the recipe's worlds if empty.
        episodes: Episodes in each world; the recipe's number if None.
        behaviour: See `agent_by_name`.
        out: Where results go.
        reward: Reward of messages, in NetHack; the recipe's if None.
    """

    name: str
    recipe: Mapping[str, Any]
    worlds: tuple[str, ...]
    episodes: int | None
    behaviour: Literal["decomposed", "trie", "list"] | None
    out: Path
    reward: str | None = None


def evaluate_agent_named(request: AgentRequest) -> EpisodeResults | GamesResults:
    """Let an agent play, print a table and keep the results.

    Raises:
        UserError: It can't be found, or nothing says which worlds are to be played.
    """
    seed_everything(int(request.recipe.get("seed_everything") or 0), verbose=False)
    results: EpisodeResults | GamesResults
    folder = None if request.name in SCRIPTED else nethack_folder(request.name)
    if folder is not None:
        results = evaluate_games_of(
            folder,
            request.name,
            request.recipe,
            tasks=request.worlds,
            num_games=request.episodes,
            reward=request.reward,
        )
        write_results(request.out, results)
        print_table(results)
        return results
    player = named_player(request)
    home = home_of(request.recipe)
    if not (request.worlds or home.names):
        raise UserError(
            f"nothing says in which world `{request.name}` is to play: give `--env` with the name "
            "of one"
        )
    config = instantiate(EvaluationConfig, request.recipe.get("evaluation") or {})
    if request.episodes is not None:
        config = replace(config, episodes=request.episodes)
    if request.worlds:
        config = replace(config, worlds=())
    worlds = worlds_to_play(home, config, request.worlds)
    unfinished = unfinished_episodes(
        request.out, player.agent, home, worlds, config, player.details
    )
    results = evaluate_in_worlds(
        player.agent,
        worlds,
        config,
        name=request.name,
        details=player.details,
        label=player.label,
        unfinished=unfinished,
    )
    write_results(request.out, results)
    unfinished.discard()
    print_table(results)
    return results


@dataclass(frozen=True)
class NamedPlayer:
    """Who plays.

    Args:
        agent: The agent.
        label: What it is called in results: ``trained``, ``zero-shot``, ``random`` or ``bot``.
        details: What is kept of it.
    """

    agent: LoadedAgent | Agent | WorldPlayer
    label: str
    details: Mapping[str, Any]


def named_player(request: AgentRequest) -> NamedPlayer:
    """Return the agent of a name, or one that needs no training.

    Raises:
        UserError: There is none of that name, or it has no such behaviour.
    """
    if request.name in SCRIPTED:
        if request.behaviour is not None:
            raise UserError(f"`{request.name}` has one behaviour: leave `--behaviour` out")
        return NamedPlayer(SCRIPTED[request.name](), request.name, {"method": request.name})
    if agent_folder(request.name) is None:
        agent: LoadedAgent = zero_shot_agent(request.name)
        label = ZERO_SHOT
    else:
        agent, label = agent_by_name(request.name, behaviour=request.behaviour), TRAINED
    return NamedPlayer(agent, label, agent_details(agent, home_of(request.recipe)))


def zero_shot_agent(name: str) -> OnlinePPO:
    """Return a policy without any training in worlds as an agent: TWOSOME's, normalized by words.

    Raises:
        UserError: It is no policy.
    """
    policy = load_policy(name)
    log.info("`%s` was not trained in a world: it plays zero-shot", name)
    return TWOSOME(policy).to(policy.device).eval()


def home_of(recipe: Mapping[str, Any]) -> TrainingWorlds:
    """Return the worlds that a recipe trains in; none if it trains in none."""
    section = recipe.get("data") or {}
    for kind in (TextRollouts, SymbolicRollouts, CloningData):
        if str(section.get("class_path", "")).endswith(f".{kind.__name__}"):
            return TrainingWorlds.of(cast(WorldData, instantiate(kind, section)))
    return TrainingWorlds((), {}, None)
