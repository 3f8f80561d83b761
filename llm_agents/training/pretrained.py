"""Letting a trained agent play, in a line of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import yaml

from llm_agents.errors import UserError
from llm_agents.policies.nethack_files import load_nethack_network
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.policies.nethack_types import PlayedGame
from llm_agents.training.agents import agent_by_name, home_of
from llm_agents.training.nethack_agents import default_home, nethack_folder, nethack_home
from llm_agents.training.playing import play_fresh
from llm_agents.training.playing_nethack import play_games
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import Agent, Episode
from llm_agents.zoo import recipe_of


def play_pretrained(
    name: str, *, env: str | None = None, episodes: int = 1, seed: int = 0
) -> list[Episode] | list[PlayedGame]:
    """Let a trained agent play whole episodes in the world that it was trained in, or in another.

    It sees the world through the prompts and options of its recipe, and draws its actions as it did
    in training.

    Args:
        name: Zoo name, folder or Hub id of an agent.
        env: Name of the world or task; None for its own.
        episodes: How many, at least 1.
        seed: Of the world and of the draws.

    Returns:
        What came of each: `Episode`, or `PlayedGame` in NetHack.

    Raises:
        UserError: There is no such agent or world, or nothing says which world is meant.

    Example:
        >>> play_pretrained("runs/poad/adapter", episodes=3)[0].success  # doctest: +SKIP
        True
    """
    if episodes < 1:
        raise UserError(f"expected at least 1 episode, got {episodes}")
    recipe = pretrained_recipe(name)
    folder = nethack_folder(name)
    if folder is not None:
        own = nethack_home(recipe, name) or default_home()
        player = NetworkPlayer(load_nethack_network(folder))
        return play_games(player, own, env or own.task, episodes, seed=seed, side_by_side=1)
    home = home_of(recipe)
    if not (env or home.names):
        raise UserError(f"nothing says in which world `{name}` is to play: give `env`")
    config = EvaluationConfig(num_worlds=1, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    agent = cast(Agent, agent_by_name(name))  # one that sees images is played as such
    return play_fresh(home, env or home.names[0], config, agent, episodes, generator)


def pretrained_recipe(name: str) -> Mapping[str, Any]:
    """Return the recipe that an agent was trained with; empty if there is none."""
    path = recipe_of(name)
    loaded = None if path is None else yaml.safe_load(path.read_text(encoding="utf8"))
    return loaded if isinstance(loaded, dict) else {}
