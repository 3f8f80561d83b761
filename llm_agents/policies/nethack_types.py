"""What passes between NetHack agents, their rollouts and their update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from llm_agents.types import _Movable

WINDOW = 12
"""Rows and columns of the terminal that an agent sees around its hero."""


@dataclass(frozen=True)
class NetHackObservations(_Movable):
    """What an agent sees of its games.

    Args:
        window: ``[…, 144]`` int16, the characters around the hero row by row: 256 · color + code,
            0 outside the terminal.
        vector: ``[…, 27]`` float32, the bottom line's numbers, scaled and cut to ±5.
        message: ``[…, 256]`` uint8, bytes of the message.
    """

    window: Tensor
    vector: Tensor
    message: Tensor

    @property
    def shape(self) -> torch.Size:
        """Return the axes before the features."""
        return self.vector.shape[:-1]

    def map(self, change: Any) -> NetHackObservations:  # noqa: ANN401  (a function of a tensor)
        """Return the result of `change` on each tensor."""
        return NetHackObservations(change(self.window), change(self.vector), change(self.message))

    @classmethod
    def stack(cls, steps: list[NetHackObservations]) -> NetHackObservations:
        """Return T observations of shape ``[E]`` as one of shape ``[T, E]``."""
        return cls(
            torch.stack([step.window for step in steps]),
            torch.stack([step.vector for step in steps]),
            torch.stack([step.message for step in steps]),
        )


class NetHackOutputs(NamedTuple):
    """What a network says of T steps of B games.

    Args:
        logits: ``[T, B, A]`` float32.
        values: ``[T, B]`` float32.
        state: ``[B, S]`` float32, the core's state after the last step.
    """

    logits: Tensor
    values: Tensor
    state: Tensor


class NetHackDecisions(NamedTuple):
    """An agent's answers to E observations.

    Args:
        actions: ``[E]`` int64.
        log_probs: ``[E]`` float32.
        values: ``[E]`` float32, of the observations.
        state: ``[E, S]`` float32, the core's state after them.
    """

    actions: Tensor
    log_probs: Tensor
    values: Tensor
    state: Tensor


class NetHackPlayer(Protocol):
    """What plays many games at once; its weights change with `refresh` alone."""

    def refresh(self) -> None:
        """Take over the weights of the network in training."""

    def observe(self, raw: Mapping[str, Any]) -> NetHackObservations:
        """Return what the agent sees of the engine's arrays."""

    def initial_state(self, num_games: int) -> Tensor:
        """Return ``[E, S]``, the core's state at an episode's start."""

    def act(
        self,
        observations: NetHackObservations,
        state: Tensor,
        starts: Tensor,
        generator: torch.Generator,
    ) -> NetHackDecisions:
        """Draw an action for each game.

        Args:
            observations: Of E games.
            state: ``[E, S]``, after the games' last step.
            starts: ``[E]`` bool, True = first step of an episode: the state counts as zero.
            generator: On the CPU; one draw a game.
        """

    def values(self, observations: NetHackObservations, state: Tensor) -> Tensor:
        """Return ``[E]``, the values of observations inside episodes; the state is left alone."""


@dataclass(frozen=True)
class PlayedGame:
    """What an agent's episode was like: the engine's account of it, and the intrinsic return.

    Args:
        score: The game's own, at its end.
        episode_return: Sum of the task's rewards, as the engine gives them.
        intrinsic_return: Sum of the intrinsic rewards, without any coefficient.
        num_steps: Actions.
        turns: The game's own clock.
        depth: Depth at the end.
        max_depth: Greatest depth.
        experience_level: The hero's, at the end.
        gold: In his purse, at the end.
        num_messages: Distinct messages seen, the empty one included.
        explored: Cells that the maps of the visited levels show, summed over levels.
        end: Death (or any other end of the game), success, or the time limit.
        success: Whether the task was done; False where there is none to do.
        seed: The game's.
        number: Of the episode since that seed.
    """

    score: int
    episode_return: float
    intrinsic_return: float
    num_steps: int
    turns: int
    depth: int
    max_depth: int
    experience_level: int
    gold: int
    num_messages: int
    explored: int
    end: Literal["death", "success", "limit"]
    success: bool
    seed: int
    number: int


@dataclass(frozen=True)
class NetHackRollout(_Movable):
    """T steps of E games: what `MotifAgent` trains on.

    Args:
        observations: Of shape ``[T, E]``, those that the actions were chosen from.
        starts: ``[T, E]`` bool, True = first observation of an episode.
        states: ``[K, E, S]`` float32, the core's state before steps 0, L, 2L, … (K = T / L).
        actions: ``[T, E]`` int64.
        log_probs: ``[T, E]`` float32, under the collecting policy.
        values: ``[T, E]`` float32, of the collecting policy.
        rewards: ``[T, E]`` float32, the task's own, as the engine gives them.
        intrinsic: ``[T, E]`` float32, of the messages, without any coefficient.
        terminated: ``[T, E]`` bool, the game ended after the step.
        truncated: ``[T, E]`` bool, a limit cut the episode after the step.
        next_values: ``[T, E]`` float32, value of the observation that followed where no later step
            of the rollout has it: after the last step and where a limit cut; 0 elsewhere.
        episodes: Episodes that ended in this rollout.
        number: Number of this rollout, from 0.
        num_rollouts: How many rollouts the whole run has.
        metrics: Numbers of the rollout and of the latest episodes, for the log.
    """

    observations: NetHackObservations
    starts: Tensor
    states: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    intrinsic: Tensor
    terminated: Tensor
    truncated: Tensor
    next_values: Tensor
    episodes: tuple[PlayedGame, ...]
    number: int
    num_rollouts: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Return T · E."""
        return int(self.actions.numel())

    def state_dict(self) -> dict[str, Any]:
        """Return the rollout as tensors and plain values, which load without running code."""
        found = {part.name: getattr(self, part.name) for part in fields(self)}
        found["observations"] = vars(self.observations).copy()
        found["episodes"] = [vars(episode).copy() for episode in self.episodes]
        found["metrics"] = dict(self.metrics)
        return found

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the rollout that `state_dict` was called on."""
        parts = {
            **state,
            "observations": NetHackObservations(**state["observations"]),
            "episodes": tuple(PlayedGame(**episode) for episode in state["episodes"]),
        }
        return cls(**parts)
