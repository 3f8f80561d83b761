"""Agents in worlds: which worlds are played, who plays beside the agent, what is kept of it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
from torch import nn

from llm_agents.data import CloningData
from llm_agents.envs import TextEnv
from llm_agents.envs.registry import make_world
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    EpisodeResults,
    RandomAgent,
    World,
    ZeroShotAgent,
    evaluate_agent,
)
from llm_agents.evaluation.baselines import WorldPlayer
from llm_agents.evaluation.episodes import RANDOM, TRAINED, ZERO_SHOT
from llm_agents.evaluation.outside_players import OutsidePlayer
from llm_agents.evaluation.results import package_versions
from llm_agents.evaluation.unfinished import UnfinishedEpisodes
from llm_agents.job_progress import job_progress
from llm_agents.methods import Cloning, LoadedAgent
from llm_agents.methods.names import method_name
from llm_agents.methods.online_ppo import OnlinePPO
from llm_agents.policies.backbone import is_adapted
from llm_agents.policies.model_digest import text_model_version
from llm_agents.rollouts import TextRollouts, play, play_symbolic
from llm_agents.rollouts.seeds import Purpose, world_seeds
from llm_agents.rollouts.symbolic import SymbolicAgent
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import Agent, Episode

if TYPE_CHECKING:
    from llm_agents.envs.prompts import PromptBuilder


log = logging.getLogger(__name__)

_ADDED = re.compile(r"\.(lora_|modules_to_save)")  # what peft puts beside a base's weights

WorldData = TextRollouts | CloningData
"""What says in which worlds an agent is at home."""


def plays_worlds(data: object) -> TypeGuard[WorldData]:
    """Return whether what is trained on `data` is an agent that plays worlds."""
    return isinstance(data, TextRollouts) or (
        isinstance(data, CloningData) and bool(data.world_names)
    )


@dataclass(frozen=True)
class TrainingWorlds:
    """The worlds that an agent is at home in, and how it sees them and all others.

    Args:
        names: Names of the worlds.
        options: Constructor arguments of these worlds; others are made without.
        prompt: How observations become prompts; None is the builder's default.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]
    prompt: PromptBuilder | None

    @classmethod
    def of(cls, data: WorldData) -> TrainingWorlds:
        """Return the worlds of a data module."""
        return cls(tuple(dict.fromkeys(data.world_names)), data.world_options, data.prompt)

    def make(self, name: str) -> TextEnv:
        """Return a new world."""
        return make_world(name, **(self.options if name in self.names else {}))


def play_fresh(
    home: TrainingWorlds,
    name: str,
    config: EvaluationConfig,
    agent: Agent | SymbolicAgent | WorldPlayer,
    num_episodes: int,
    generator: torch.Generator,
) -> list[Episode]:
    """Play episodes in new worlds, whose seeds no training world has and every agent gets."""
    count = min(config.num_worlds, num_episodes)
    seeds = world_seeds(config.seed, count, purpose=Purpose.EVALUATION)
    worlds = []
    for seed in seeds:
        world = home.make(name)
        world.reset(seed)
        worlds.append(world)
    if isinstance(agent, WorldPlayer):
        return agent.play_worlds(worlds, num_episodes)
    if isinstance(agent, SymbolicAgent):
        return play_symbolic(agent, worlds, num_episodes, generator)
    note = agent.note if isinstance(agent, OutsidePlayer) else None
    with job_progress(f"{name}: episodes played", num_episodes, note=note) as advance:
        return play(agent, worlds, num_episodes, generator, home.prompt, advance=advance)


def worlds_to_play(
    home: TrainingWorlds, config: EvaluationConfig, names: Sequence[str] = ()
) -> list[World]:
    """Return the worlds called `names`; without names those of training, then the recipe's others.

    Raises:
        UserError: A world is named twice, or there is none of that name.
    """
    twice = sorted(set(config.worlds) & set(home.names))
    if twice:
        raise UserError(
            f"expected worlds in `evaluation.worlds` that are not trained in, got {twice[0]}: "
            "leave it out, it is played anyway"
        )
    return [
        World(
            name=name,
            play=partial(play_fresh, home, name, config),
            optimal_return=home.make(name).optimal_return,
            is_trained_on=name in home.names,
        )
        for name in dict.fromkeys(names or (*home.names, *config.worlds))
    ]


def evaluate_in_worlds(
    agent: LoadedAgent | Agent | WorldPlayer,
    worlds: Sequence[World],
    config: EvaluationConfig,
    *,
    name: str,
    details: Mapping[str, Any],
    label: str = TRAINED,
    unfinished: UnfinishedEpisodes | None = None,
) -> EpisodeResults:
    """Let an agent and those it is compared with play.

    Args:
        agent: The one that the results are about.
        worlds: What is played.
        config: How many episodes, and who plays beside.
        name: What is evaluated, for tables.
        details: Kept in the results.
        label: What the one is called in the results: a bare model is its own zero-shot baseline.
        unfinished: See `evaluate_agent`.
    """
    player = cast(Agent, agent)  # one that sees images, or a bot, is played as such
    agents: dict[str, Agent] = {label: player}
    baselines = (RANDOM, ZERO_SHOT) if config.baselines is None else config.baselines
    if ZERO_SHOT in baselines and label == TRAINED:
        if has_frozen_base(agent):
            agents[ZERO_SHOT] = ZeroShotAgent(player, agent.policy)
        else:
            log.info("no zero-shot agent beside this one: it has no frozen base to fall back to")
    if RANDOM in baselines:
        agents.setdefault(RANDOM, RandomAgent())
    return evaluate_agent(
        agents,
        worlds,
        config.episodes,
        name=name,
        seed=config.seed,
        bootstrap=config.bootstrap,
        details=details,
        unfinished=unfinished,
    )


def unfinished_episodes(
    folder: Path,
    agent: object,
    home: TrainingWorlds,
    worlds: Sequence[World],
    config: EvaluationConfig,
    details: Mapping[str, Any],
) -> UnfinishedEpisodes:
    """Return what a folder keeps of the same evaluation: weights, prompts, worlds, versions."""
    policy = getattr(agent, "policy", None)
    identity = {
        "weights": _trained_digest(agent) if isinstance(agent, nn.Module) else None,
        "base": [getattr(policy, "base", None), getattr(policy, "revision", None)],
        "model": None if policy is None else text_model_version(policy.model, policy.tokenizer),
        "home": home,
        "versions": package_versions(),
        "worlds": [world.name for world in worlds],
        "config": asdict(config),
        "details": details,
    }
    return UnfinishedEpisodes(folder, identity)


def _trained_digest(agent: nn.Module) -> str:
    """Return a digest of what was trained: all weights, or those beside an adapter's base."""
    digest = hashlib.sha256()
    policy = getattr(agent, "policy", None)
    has_adapter = policy is not None and is_adapted(policy.model)
    for name, value in sorted(agent.state_dict().items()):
        if has_adapter and name.startswith("policy.model.") and not _ADDED.search(name):
            continue
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def has_frozen_base(agent: object) -> TypeGuard[OnlinePPO | Cloning]:
    """Return whether an agent is a language model with an adapter that can be left out.

    One with an action head has learnt its actions outside the model, and is nothing without it.
    """
    policy = getattr(agent, "policy", None)
    if policy is None or getattr(agent, "action_head", None) is not None:
        return False
    return is_adapted(policy.model) or not policy.trainable


def check_settings(config: EvaluationConfig, *, in_worlds: bool) -> None:
    """Refuse settings of the other kind of evaluation, which would have no effect.

    Raises:
        UserError: Names the setting.
    """
    default = EvaluationConfig()
    names: tuple[str, ...]
    if in_worlds:
        names, other = ("reward", "generation"), "answers to test prompts"
    else:
        names, other = ("worlds",), "agents in worlds"
    for name in names:
        if getattr(config, name) != getattr(default, name):
            raise UserError(f"expected no `evaluation.{name}`: it is for {other}")


def check_warm_up(agent: OnlinePPO, data: TextRollouts) -> None:
    """Refuse two numbers of warm-up steps: data and method count the same ones.

    Raises:
        UserError: Names both.
    """
    if data.warm_up_frames != agent.ppo.warm_up_frames:
        raise UserError(
            f"expected one number of warm-up steps, got data.warm_up_frames: {data.warm_up_frames} "
            f"and model.ppo.warm_up_frames: {agent.ppo.warm_up_frames}: set both alike"
        )


def agent_details(agent: LoadedAgent, home: TrainingWorlds) -> dict[str, Any]:
    """Return what is kept beside an agent's numbers."""
    return {
        "method": method_name(agent),
        "task": "+".join(home.names),
        "world_options": dict(home.options),
        **agent.description(),
        **agent.outcome,
    }


def put_on(agent: LoadedAgent, device: torch.device) -> None:
    """Put an agent where it is to act; quantized weights stay where they are."""
    policy = getattr(agent, "policy", None)
    if policy is None or policy.config.quantization is None:
        agent.to(device)
        return
    for name, part in agent.named_children():
        if name != "policy":
            part.to(device)
