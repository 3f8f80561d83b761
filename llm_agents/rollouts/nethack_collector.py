"""Collects T steps of E games with an agent, all games in each forward pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_agents.envs.nethack import NetHackEpisode
from llm_agents.envs.nethack_vector import COUNT_KEY, VectorStep
from llm_agents.functional.shaping import Observed, step_rewards
from llm_agents.policies.nethack_types import (
    NetHackDecisions,
    NetHackObservations,
    NetHackPlayer,
    NetHackRollout,
    PlayedGame,
)
from llm_agents.rewards.motif import MessageReward
from llm_agents.rollouts.nethack_intrinsic import (
    SeenStep,
    intrinsic_rewards_of,
    returns_of_episodes,
    rewards_of_steps,
)
from llm_agents.rollouts.seeds import Purpose, derived_seed


class GameVector(Protocol):
    """Games that step together; `NetHackVector` is one."""

    @property
    def num_games(self) -> int:
        """Return E."""

    def reset(self) -> dict[str, NDArray[Any]]:
        """Begin an episode in every game; return the observations."""

    def send(self, actions: NDArray[np.integer[Any]]) -> None:
        """Let every game take its action."""

    def receive(self) -> VectorStep:
        """Return what the actions led to."""

    def state_dict(self) -> list[dict[str, Any]]:
        """Return what brings the games back to where they stand."""

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
        """Bring the games back; return the observations."""

    def close(self) -> None:
        """End the games."""


@dataclass(frozen=True)
class NetHackPlan:
    """What is to be collected.

    Args:
        num_steps: T, steps of each game in a rollout.
        num_rollouts: Rollouts of the whole run.
        seed: Of the run: decides what is drawn from the policy.
        recurrence: Steps after which the core's state is kept; divides T.
        observed: Whether a step's intrinsic reward is of the observation ``reached`` by it or, as
            in Motif's release, of the one that the agent was ``acting`` on.
    """

    num_steps: int
    num_rollouts: int
    seed: int
    recurrence: int
    observed: Observed = "reached"


@dataclass
class _Standing:
    """Where the games stand between two steps.

    Args:
        observations: Of shape ``[E]``.
        state: ``[E, S]``, the core's state after the last step.
        starts: ``[E]`` bool, True = the observation is an episode's first.
        acting: ``[E]`` float32, intrinsic reward of the observation.
        returns: ``[E]`` float64, intrinsic return of the episode so far.
    """

    observations: NetHackObservations
    state: Tensor
    starts: Tensor
    acting: NDArray[np.float32]
    returns: NDArray[np.float64]


class NetHackCollector:
    """Plays on where the last rollout ended.

    Args:
        player: The agent.
        vector: The games; they have begun nothing yet.
        plan: How much.
        reward: Of messages; None gives zeros.

    Attributes:
        number: Of the next rollout.
    """

    def __init__(
        self,
        player: NetHackPlayer,
        vector: GameVector,
        plan: NetHackPlan,
        reward: MessageReward | None = None,
    ) -> None:
        if plan.num_steps % plan.recurrence:
            raise ValueError(
                f"expected `recurrence` to divide the {plan.num_steps} steps of a rollout, got "
                f"{plan.recurrence}"
            )
        self.player, self.vector, self.plan, self.reward = player, vector, plan, reward
        self.number = 0
        self._standing: _Standing | None = None

    def collect(self) -> NetHackRollout:
        """Return the next rollout, by the player as it is."""
        began = time.perf_counter()
        if self._standing is None:
            self._standing = self._began(self.vector.reset())
        generator = torch.Generator().manual_seed(
            derived_seed(self.plan.seed, Purpose.DRAWS, self.number)
        )
        record = _Record(self.plan, self.vector.num_games)
        for step in range(self.plan.num_steps):
            self._step(record, step, generator)
        now = self._standing
        record.close(self.player.values(now.observations, now.state).cpu())
        rollout = self._judged(record, now)
        metrics = {**rollout.metrics, "time/collect_seconds": time.perf_counter() - began}
        self.number += 1
        return replace(rollout, metrics=metrics)

    def _step(self, record: _Record, step: int, generator: torch.Generator) -> None:
        """Let every game take a step, and keep it."""
        now = self._standing
        assert now is not None
        decisions = self.player.act(now.observations, now.state, now.starts, generator)
        self.vector.send(decisions.actions.cpu().numpy())
        record.before(step, now.observations, now.state, now.starts, decisions)
        found = self.vector.receive()
        record.after(step, found)
        if found.truncated.any():
            self._value_of_cut(found, decisions.state, record.next_values[step])
        now.observations = self.player.observe(found.observations)
        now.state = decisions.state
        now.starts = torch.from_numpy(found.terminated | found.truncated)

    def _judged(self, record: _Record, now: _Standing) -> NetHackRollout:
        """Return the rollout with its intrinsic rewards."""
        paid = rewards_of_steps(self.reward, now.acting, record.seen)
        intrinsic = step_rewards(
            acting=torch.from_numpy(paid.acting),
            reached=torch.from_numpy(paid.reached),
            observed=self.plan.observed,
        )
        now.acting = paid.last
        returns = returns_of_episodes(intrinsic.numpy(), now.returns, record.seen)
        episodes = [
            PlayedGame(**vars(episode), intrinsic_return=paid)
            for episode, paid in zip(record.episodes, returns, strict=True)
        ]
        rollout = record.rollout(self.number, self.plan.num_rollouts, intrinsic, tuple(episodes))
        if self.reward is None:
            return rollout
        return replace(rollout, metrics=_reward_metrics(record, paid.reached, self.reward))

    def _value_of_cut(self, found: VectorStep, state: Tensor, beyond: Tensor) -> None:
        """Write the values of the last observations of episodes that a limit cut."""
        is_cut = found.truncated[found.ended]
        last = {key: rows[is_cut] for key, rows in found.final_observations.items()}
        games = torch.from_numpy(found.ended[is_cut])
        values = self.player.values(self.player.observe(last), state[games.to(state.device)])
        beyond[games] = values.cpu()

    def _began(self, raw: Mapping[str, NDArray[Any]]) -> _Standing:
        """Return the standing of games that have just begun."""
        num_games = self.vector.num_games
        return _Standing(
            self.player.observe(raw),
            self.player.initial_state(num_games),
            torch.ones(num_games, dtype=torch.bool),
            intrinsic_rewards_of(self.reward, raw),
            np.zeros(num_games),
        )

    def close(self) -> None:
        """End the games."""
        self.vector.close()

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next rollout and where the games stand; not while collecting."""
        now = self._standing
        if now is None:
            return {"number": self.number}
        return {
            "number": self.number,
            "games": self.vector.state_dict(),
            "state": now.state.cpu(),
            "starts": now.starts,
            "acting": torch.from_numpy(now.acting),
            "returns": torch.from_numpy(now.returns),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called: the games' actions are played again."""
        self.number = int(state["number"])
        if "games" not in state:
            return
        raw = self.vector.load_state_dict(state["games"])
        device = self.player.initial_state(1).device
        self._standing = _Standing(
            self.player.observe(raw),
            state["state"].to(device),
            state["starts"].clone(),
            state["acting"].numpy().copy(),
            state["returns"].numpy().copy(),
        )


class _Record:
    """The arrays of a rollout while it is being collected."""

    def __init__(self, plan: NetHackPlan, num_games: int) -> None:
        shape = (plan.num_steps, num_games)
        self.recurrence = plan.recurrence
        self.observations: list[NetHackObservations] = []
        self.states: list[Tensor] = []
        self.starts = torch.zeros(shape, dtype=torch.bool)
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.log_probs, self.values, self.next_values = (torch.zeros(shape) for _ in range(3))
        self.rewards = np.zeros(shape, np.float32)
        self.terminated, self.truncated = (np.zeros(shape, np.bool_) for _ in range(2))
        self.seen: list[SeenStep] = []
        self.episodes: list[NetHackEpisode] = []

    def before(
        self,
        step: int,
        observations: NetHackObservations,
        state: Tensor,
        starts: Tensor,
        decisions: NetHackDecisions,
    ) -> None:
        """Keep what a step began with, and what the agent decided."""
        self.observations.append(observations)
        if step % self.recurrence == 0:
            self.states.append(state.cpu())
        self.starts[step] = starts
        self.actions[step] = decisions.actions.cpu()
        self.log_probs[step] = decisions.log_probs.cpu()
        self.values[step] = decisions.values.cpu()

    def after(self, step: int, found: VectorStep) -> None:
        """Keep what a step led to."""
        self.rewards[step] = found.rewards
        self.terminated[step], self.truncated[step] = found.terminated, found.truncated
        self.seen.append(SeenStep(found.observations, found.ended, found.final_observations))
        self.episodes += found.episodes

    def close(self, values: Tensor) -> None:
        """Keep the values of what follows the last step, where an episode goes on."""
        goes_on = torch.from_numpy(~(self.terminated[-1] | self.truncated[-1]))
        self.next_values[-1] = torch.where(goes_on, values, self.next_values[-1])

    def rollout(
        self,
        number: int,
        num_rollouts: int,
        intrinsic: Tensor,
        episodes: tuple[PlayedGame, ...],
    ) -> NetHackRollout:
        """Return the rollout."""
        return NetHackRollout(
            observations=NetHackObservations.stack(self.observations),
            starts=self.starts,
            states=torch.stack(self.states),
            actions=self.actions,
            log_probs=self.log_probs,
            values=self.values,
            rewards=torch.from_numpy(self.rewards),
            intrinsic=intrinsic,
            terminated=torch.from_numpy(self.terminated),
            truncated=torch.from_numpy(self.truncated),
            next_values=self.next_values,
            episodes=episodes,
            number=number,
            num_rollouts=num_rollouts,
        )


def _reward_metrics(
    record: _Record, reached: NDArray[np.float32], reward: MessageReward
) -> dict[str, float]:
    """Return what the reward said of the rollout's messages."""
    counts = np.concatenate([step.following[COUNT_KEY] for step in record.seen])
    metrics = {
        "rollout/intrinsic_share_above": float((reached != 0).mean()),
        "rollout/intrinsic_count_factor": float(reward.decay(counts.astype(np.int64)).mean()),
    }
    if reward.is_remembered:
        messages = np.concatenate([step.following["message"] for step in record.seen])
        metrics["rollout/intrinsic_raw"] = float(reward.raw(messages).mean())
        metrics["rollout/intrinsic_normalized"] = float(reward.normalized(messages).mean())
    return metrics
