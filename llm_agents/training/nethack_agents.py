"""Trained NetHack agents by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from llm_agents.entries import is_whole_model
from llm_agents.envs.nethack_tasks import TASKS, NetHackRules
from llm_agents.errors import UserError
from llm_agents.evaluation import GamesResults
from llm_agents.methods.names import name_of_class
from llm_agents.policies.bundled import ALIASES
from llm_agents.policies.nethack_files import (
    is_nethack_agent,
    load_nethack_network,
    read_nethack_agent,
)
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.rollouts import NetHackRollouts
from llm_agents.training.building import instantiate
from llm_agents.training.playing_nethack import (
    NetHackHome,
    described_reward,
    evaluate_nethack,
)
from llm_agents.training.relocating import reward_called, without_missing_reward
from llm_agents.training.settings import EvaluationConfig
from llm_agents.zoo.hub import find_folder

_TASK, _WORKERS = "NetHackScore-v1", 1


def nethack_folder(name: str) -> Path | None:
    """Return the folder of the NetHack agent called `name`; None if what is there is none.

    Raises:
        UserError: There is nothing of that name.
    """
    if name in ALIASES or is_whole_model(Path(name)):
        return None
    folder = find_folder(name)
    return folder if is_nethack_agent(folder) else None


def nethack_home(recipe: Mapping[str, Any], name: str = "the agent") -> NetHackHome | None:
    """Return the task that a recipe trains in, with its rules and reward; None if it is no game.

    Args:
        recipe: Content of a recipe.
        name: The agent, for messages.
    """
    section = recipe.get("data") or {}
    if not str(section.get("class_path", "")).endswith(f".{NetHackRollouts.__name__}"):
        return None
    return NetHackHome.of(instantiate(NetHackRollouts, without_missing_reward(section, name)))


def default_home() -> NetHackHome:
    """Return where an agent plays of which no recipe is known."""
    return NetHackHome(_TASK, NetHackRules(), None, _WORKERS)


def evaluate_games_of(
    folder: Path,
    name: str,
    recipe: Mapping[str, Any],
    *,
    tasks: Sequence[str] = (),
    num_games: int | None = None,
    reward: str | None = None,
) -> GamesResults:
    """Let a trained agent play.

    Args:
        folder: Of the agent.
        name: What tables call it.
        recipe: Content of the recipe that it was trained with; empty if there is none.
        tasks: What is played; the recipe's tasks if empty.
        num_games: Games in each task; the recipe's number if None.
        reward: Name or folder of a reward of messages; None takes the recipe's.

    Raises:
        UserError: There is no such task or reward.
    """
    wrong = [task for task in tasks if task not in TASKS]
    if wrong:
        raise UserError(
            f"expected tasks of NetHack in `--env`, got `{wrong[0]}`; known: {', '.join(TASKS)}"
        )
    home = nethack_home(recipe, name) or default_home()
    if reward is not None:
        home = replace(home, reward=reward_called(reward))
    config = instantiate(EvaluationConfig, recipe.get("evaluation") or {})
    if num_games is not None:
        config = replace(config, episodes=num_games)
    network = load_nethack_network(folder)
    network.to("cuda" if torch.cuda.is_available() else "cpu")
    described = read_nethack_agent(folder)
    kept = [key for key in described if key not in ("format_version", "class", "options")]
    details = {
        **{key: described[key] for key in kept},
        "method": name_of_class(str(described["method"])),
        "task": home.task,
        **({} if reward else {"reward": described_reward(home.reward)}),  # what it was paid by
    }
    player = NetworkPlayer(network)
    return evaluate_nethack(player, home, config, name=name, details=details, tasks=tasks)
