"""Finished games of NetHack for evaluation: who plays which tasks, from the same seeds for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_agents.envs.nethack_tasks import ACTIONS, TASKS, NetHackRules
from llm_agents.envs.nethack_vector import COUNT_KEY, NetHackVector
from llm_agents.errors import UserError
from llm_agents.evaluation.episodes import RANDOM, TRAINED, ZERO_SHOT
from llm_agents.evaluation.nethack import GamesPlayer, GamesResults, evaluate_games
from llm_agents.methods import MotifAgent
from llm_agents.methods.names import method_name
from llm_agents.policies.nethack_player import OBSERVATION_KEYS, observe
from llm_agents.policies.nethack_types import (
    NetHackDecisions,
    NetHackObservations,
    NetHackPlayer,
    PlayedGame,
)
from llm_agents.rewards.motif import MessageReward
from llm_agents.rollouts.nethack import NetHackRollouts
from llm_agents.rollouts.playing import shares
from llm_agents.rollouts.seeds import Purpose, derived_seed
from llm_agents.training.settings import EvaluationConfig


class UniformPlayer:
    """Presses keys at random: a `NetHackPlayer` without a network."""

    def refresh(self) -> None:
        """Stay as it is."""

    def observe(self, raw: Mapping[str, Any]) -> NetHackObservations:
        """Return what an agent would see."""
        return observe(raw)

    def initial_state(self, num_games: int) -> Tensor:
        """Return ``[E, 0]``: there is nothing to remember."""
        return torch.zeros(num_games, 0)

    def act(
        self,
        observations: NetHackObservations,
        state: Tensor,
        starts: Tensor,
        generator: torch.Generator,
    ) -> NetHackDecisions:
        """Draw each action equally often."""
        del observations
        count = len(starts)
        actions = torch.randint(len(ACTIONS), (count,), generator=generator)
        log_probs = torch.full((count,), 1 / len(ACTIONS)).log()
        return NetHackDecisions(actions, log_probs, torch.zeros(count), state)

    def values(self, observations: NetHackObservations, state: Tensor) -> Tensor:
        """Return zeros."""
        del state
        return torch.zeros(observations.shape)


@dataclass(frozen=True)
class NetHackHome:
    """The task that an agent is at home in, and how its games are played.

    Args:
        task: Name of the task.
        rules: Of its games.
        reward: Of messages; None where only the game pays.
        num_workers: Processes that play.
    """

    task: str
    rules: NetHackRules
    reward: MessageReward | None
    num_workers: int

    @classmethod
    def of(cls, data: NetHackRollouts) -> NetHackHome:
        """Return the home of the agent that a data module collects with."""
        return cls(data.task, data.rules, data.reward, data.num_workers)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the observation keys that agent and reward look at."""
        of_reward = () if self.reward is None else self.reward.scorer.keys
        return tuple(dict.fromkeys((*OBSERVATION_KEYS, "message", *of_reward)))

    def tasks(self, config: EvaluationConfig) -> tuple[str, ...]:
        """Return the tasks to be played: its own, then the recipe's others.

        Raises:
            UserError: There is no such task, or one comes twice.
        """
        names = (self.task, *config.worlds)
        wrong = [name for name in names if name not in TASKS or names.count(name) > 1]
        if wrong:
            raise UserError(
                f"expected other tasks of NetHack than `{self.task}` in `evaluation.worlds`, each "
                f"once, got `{wrong[0]}`; known: {', '.join(TASKS)}"
            )
        return names


@torch.no_grad()
def play_games(
    player: NetHackPlayer,
    home: NetHackHome,
    task: str,
    num_games: int,
    *,
    seed: int,
    side_by_side: int,
) -> list[PlayedGame]:
    """Return finished games, each place's share fixed before the first step.

    Taking the first games to finish instead would favour short ones. The intrinsic return is of the
    observations that actions led to, the last one included.

    Args:
        player: Acts.
        home: Says how games are played and what messages are worth.
        task: What is played.
        num_games: How many.
        seed: Of the games and of the draws.
        side_by_side: Games that are played together.
    """
    count = min(side_by_side, num_games)
    left = np.array(shares(num_games, count))
    generator = torch.Generator().manual_seed(derived_seed(seed, Purpose.DRAWS))
    workers = min(home.num_workers, count)
    game_seed = derived_seed(seed, Purpose.EVALUATION)
    with NetHackVector(count, workers, task, game_seed, home.keys, home.rules) as vector:
        played: list[list[PlayedGame]] = [[] for _ in range(count)]
        raw, returns = vector.reset(), np.zeros(count)
        state, starts = player.initial_state(count), torch.ones(count, dtype=torch.bool)
        while left.any():
            decided = player.act(player.observe(raw), state, starts, generator)
            found = vector.step(decided.actions.cpu().numpy())
            gained = _intrinsic(home.reward, found.observations)
            if len(found.ended):
                gained[found.ended] = _intrinsic(home.reward, found.final_observations)
            returns += gained
            for place, episode in zip(found.ended.tolist(), found.episodes, strict=True):
                if left[place]:
                    game = PlayedGame(**vars(episode), intrinsic_return=float(returns[place]))
                    played[place].append(game)
                    left[place] -= 1
            returns[found.ended] = 0
            raw, state = found.observations, decided.state
            starts = torch.from_numpy(found.terminated | found.truncated)
    return [game for games in played for game in games]


def _intrinsic(reward: MessageReward | None, raw: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return what the messages of observations pay."""
    if reward is None:
        return np.zeros(len(raw["message"]), np.float32)
    return reward.shaped(raw) * reward.decay(raw[COUNT_KEY].astype(np.int64))


def evaluate_nethack(
    player: NetHackPlayer,
    home: NetHackHome,
    config: EvaluationConfig,
    *,
    name: str,
    details: Mapping[str, Any],
    tasks: Sequence[str] = (),
) -> GamesResults:
    """Let an agent, and a random one beside it, play the same games.

    Args:
        player: The agent that the results are about.
        home: See `NetHackHome`.
        config: How many games, which tasks, who plays beside.
        name: What is evaluated, for tables.
        details: Kept in the results.
        tasks: What is played; the home's and the recipe's if empty.
    """
    agents: dict[str, NetHackPlayer] = {TRAINED: player}
    if RANDOM in baselines_of(config):
        agents[RANDOM] = UniformPlayer()
    players: dict[str, dict[str, GamesPlayer]] = {
        task: {
            who: partial(
                play_games,
                agent,
                home,
                task,
                seed=config.seed,
                side_by_side=config.num_worlds,
            )
            for who, agent in agents.items()
        }
        for task in tasks or home.tasks(config)
    }
    return evaluate_games(
        players,
        config.episodes,
        has_intrinsic=home.reward is not None,
        name=name,
        seed=config.seed,
        bootstrap=config.bootstrap,
        details=details,
    )


def baselines_of(config: EvaluationConfig) -> tuple[str, ...]:
    """Return who plays beside a NetHack agent.

    Raises:
        UserError: Someone who can't.
    """
    if config.baselines is None:
        return (RANDOM,)
    if ZERO_SHOT in config.baselines:
        raise UserError(
            f"expected no `{ZERO_SHOT}` among `evaluation.baselines`: the agent has no language "
            f"model that could play; known: {RANDOM}"
        )
    return config.baselines


def nethack_details(agent: MotifAgent, home: NetHackHome) -> dict[str, Any]:
    """Return what is kept beside an agent's numbers."""
    return {
        "method": method_name(agent),
        "task": home.task,
        **agent.description(),
        "extrinsic_coef": agent.ppo.extrinsic_coef,
        "intrinsic_coef": agent.ppo.intrinsic_coef,
        "reward": described_reward(home.reward),
        **agent.outcome,
    }


def described_reward(reward: MessageReward | None) -> dict[str, str] | None:
    """Return what is kept of the reward of messages beside numbers."""
    return None if reward is None else {"name": reward.name, "version": reward.version}
