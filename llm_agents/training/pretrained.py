"""Programs in Python: what was trained there is evaluated, what was trained anywhere plays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor

from llm_agents.data import OfflineDataModule
from llm_agents.errors import UserError
from llm_agents.evaluation import EpisodeResults, Results
from llm_agents.methods import LoadedAgent, OfflineModule
from llm_agents.methods.names import method_name
from llm_agents.policies.nethack_files import load_nethack_network
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.policies.nethack_types import PlayedGame
from llm_agents.rollouts.symbolic import SymbolicAgent
from llm_agents.training.agents import agent_by_name, home_of
from llm_agents.training.evaluating import policy_results, task_name
from llm_agents.training.nethack_agents import default_home, nethack_folder, nethack_home
from llm_agents.training.playing import (
    TrainingWorlds,
    agent_details,
    evaluate_in_worlds,
    play_fresh,
    plays_worlds,
    worlds_to_play,
)
from llm_agents.training.playing_nethack import play_games
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import Agent, Choice, Decisions, Episode, Reward
from llm_agents.zoo import recipe_of


def evaluate(
    trained: LightningModule,
    data: LightningDataModule,
    *,
    reward: Reward | None = None,
    num_prompts: int | None = None,
    episodes: int = 100,
    worlds: Sequence[str] = (),
    baselines: Sequence[Literal["random", "zero-shot"]] | None = None,
    seed: int = 0,
) -> Results | EpisodeResults:
    """Evaluate what was trained as a recipe does at its end.

    `print_table` of `llm_agents.evaluation` shows the results, `write_results` keeps them in a
    folder.

    Args:
        trained: A method that was trained on `data`.
        data: Names the test sets (`OfflineDataModule`), or the worlds (`TextRollouts`).
        reward: Judge of answers; the method's own if None.
        num_prompts: Prompts of each test set, the first ones; None takes all.
        episodes: Episodes in each world.
        worlds: Further worlds, which the agent was not trained in.
        baselines: Who plays the same worlds beside it; None takes all that there are.
        seed: Of worlds and draws.

    Returns:
        What came of it, each number with an interval.

    Raises:
        UserError: There is nothing to evaluate, or no reward to judge answers by.
    """
    config = EvaluationConfig(
        num_prompts=num_prompts,
        episodes=episodes,
        worlds=tuple(worlds),
        baselines=None if baselines is None else tuple(baselines),
        seed=seed,
    )
    if plays_worlds(data) and isinstance(trained, LoadedAgent):
        home = TrainingWorlds.of(data)
        details = {**agent_details(trained, home), "training_seed": data.seed}
        played = worlds_to_play(home, config)
        name = method_name(trained)
        return evaluate_in_worlds(trained, played, config, name=name, details=details)
    if not isinstance(data, OfflineDataModule) or not isinstance(trained, OfflineModule):
        raise UserError(
            "expected a method that answers prompts with an OfflineDataModule, or an agent with "
            f"TextRollouts, got {type(trained).__name__} and {type(data).__name__}"
        )
    return _answers(trained, data, reward or trained.reward, config)


def _answers(
    trained: OfflineModule,
    data: OfflineDataModule,
    reward: Reward | None,
    config: EvaluationConfig,
) -> Results:
    """Return what a policy's answers to the test prompts are worth."""
    if not data.sources["test"]:
        raise UserError("expected test data: give the data module `test`")
    if reward is None:
        raise UserError(f"{type(trained).__name__} has no reward: give `reward`")
    name = method_name(trained)
    details = {"method": name, "task": task_name(data), **trained.outcome}
    return policy_results(
        trained.policy, reward, data, trained.generation, config, name=name, details=details
    )


def play_pretrained(
    name: str, *, env: str | None = None, episodes: int = 1, seed: int = 0, show: bool = False
) -> list[Episode] | list[PlayedGame]:
    """Let a trained agent play whole episodes in the world that it was trained in, or in another.

    It sees the world through the prompts and options of its recipe, and draws its actions as it did
    in training.

    Args:
        name: Zoo name, folder or Hub id of an agent.
        env: Name of the world or task; None for its own.
        episodes: How many, at least 1.
        seed: Of the world and of the draws.
        show: Print each action that an agent in a text world takes.

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
        _refuse_show(name, show=show)
        own = nethack_home(recipe, name) or default_home()
        player = NetworkPlayer(load_nethack_network(folder))
        return play_games(player, own, env or own.task, episodes, seed=seed, side_by_side=1)
    home = home_of(recipe)
    if not (env or home.names):
        raise UserError(f"nothing says in which world `{name}` is to play: give `env`")
    config = EvaluationConfig(num_worlds=1, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    agent = cast(Agent, agent_by_name(name))  # one that sees images is played as such
    if isinstance(agent, SymbolicAgent):
        _refuse_show(name, show=show)
    elif show:
        agent = _Telling(agent)
    return play_fresh(home, env or home.names[0], config, agent, episodes, generator)


@dataclass(frozen=True)
class _Telling:
    """An agent whose actions are printed as it takes them.

    Args:
        agent: Acts.
    """

    agent: Agent

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return the agent's decisions, printed."""
        decisions = self.agent.act(choices, generator)
        for choice, index in zip(choices, decisions.index.tolist(), strict=True):
            sys.stdout.write(f"{choice.actions[index]}\n")
        return decisions

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return the agent's values."""
        return self.agent.state_values(choices)


def _refuse_show(name: str, *, show: bool) -> None:
    """Raise if actions are to be printed that are no texts."""
    if show:
        raise UserError(
            f"the actions of `{name}` are no texts that could be shown: drop `show`, or take "
            f"`lightning watch {name}`"
        )


def pretrained_recipe(name: str) -> Mapping[str, Any]:
    """Return the recipe that an agent was trained with; empty if there is none."""
    path = recipe_of(name)
    loaded = None if path is None else yaml.safe_load(path.read_text(encoding="utf8"))
    return loaded if isinstance(loaded, dict) else {}
