"""Worlds that are small deterministic machines: a start, an outcome per action, an observation.

A subclass says what its states are and what an action does to one; counting steps and returns,
limits, seeds and saving are the same for all of them and live here.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

from llm_agents.envs.base import Observation, Step
from llm_agents.types import Episode

StateT = TypeVar("StateT", bound=tuple[int, ...])


class Outcome(NamedTuple, Generic[StateT]):
    """What an action does to a state.

    Args:
        state: Afterwards.
        reward: Of the action; a macro's is Σ_i γ^i · r_i over its own primitive steps.
        terminated: The world ends here.
        success: The task is done.
        duration: Primitive steps, ≥ 1.
    """

    state: StateT
    reward: float = 0.0
    terminated: bool = False
    success: bool = False
    duration: int = 1


class MachineWorld(ABC, Generic[StateT]):
    """A text world whose dynamics are a function of a tuple of whole numbers.

    The only randomness is in the start, and it depends on the seed and on the number of the episode
    since that seed: two worlds with one seed show the same episodes, whatever was done in them.

    Args:
        max_steps: Decisions after which an episode is cut; None never cuts one.
        seed: Begins the world's random numbers before any `reset` with a seed.

    Attributes:
        state_type: Builds a state from its numbers; see `TextEnv` for the other attributes.
        legend: What the signs of its drawing mean; empty where they need no words.
    """

    name: str
    num_actions: int
    vector_size: int
    gamma: float
    optimal_return: float | None
    state_type: type[StateT]
    legend: str = ""

    def __init__(self, *, max_steps: int | None, seed: int = 0) -> None:
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"expected `max_steps` ≥ 1 or None, got {max_steps}")
        self.max_steps = max_steps
        self._seed = seed
        self._next_episode = 0
        self._state: StateT | None = None
        self._ended: bool = True
        self._terminated: bool = False
        self._decisions = 0
        self._primitive_steps = 0
        self._discounted = 0.0
        self._undiscounted = 0.0
        self._seen: dict[tuple[StateT, bool], Observation] = {}
        self._known: dict[tuple[StateT, int], Outcome[StateT]] = {}

    @abstractmethod
    def start(self, generator: random.Random) -> StateT:
        """Return the state in which an episode begins."""

    @abstractmethod
    def outcome(self, state: StateT, action: int) -> Outcome[StateT]:
        """Return what the global action does to a state; one that cannot work changes nothing."""

    @abstractmethod
    def observe(self, state: StateT) -> Observation:
        """Return what a state shows, with the actions that are offered in it."""

    @abstractmethod
    def draw(self, state: StateT) -> str:
        """Return a state as a few lines for people."""

    @property
    def state(self) -> StateT:
        """Return the present state.

        Raises:
            ValueError: No episode has begun.
        """
        if self._state is None:
            raise ValueError(f"the world `{self.name}` has no episode yet: call .reset() first")
        return self._state

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode; a seed begins the world's own random numbers anew."""
        if seed is not None:
            self._seed, self._next_episode = seed, 0
        generator = random.Random(f"{self._seed}/{self._next_episode}")
        self._next_episode += 1
        self._state = self.start(generator)
        self._ended = self._terminated = False
        self._decisions = self._primitive_steps = 0
        self._discounted = self._undiscounted = 0.0
        return self._show()

    def step(self, index: int) -> Step:
        """Take the action at `index` of the last observation's list.

        Raises:
            ValueError: There is no such action, or the episode has ended.
        """
        offered = () if self._ended else self._show().action_ids
        if not 0 <= index < len(offered):
            reason = "no episode is under way" if self._ended else f"{len(offered)} are offered"
            raise ValueError(f"the world `{self.name}` has no action at {index}: {reason}")
        return self.take(offered[index])

    def take(self, action: int) -> Step:
        """Take an action by its global number, offered or not.

        Raises:
            ValueError: There is no such number, or no episode is under way.
        """
        if self._ended:
            raise ValueError(
                f"the world `{self.name}` has no episode under way: call .reset() first"
            )
        if not 0 <= action < self.num_actions:
            raise ValueError(f"expected an action below {self.num_actions}, got {action}")
        outcome = self._outcome(self.state, action)
        self._discounted += self.gamma**self._primitive_steps * outcome.reward
        self._undiscounted += outcome.reward
        self._decisions += 1
        self._primitive_steps += outcome.duration
        self._state, self._terminated = outcome.state, outcome.terminated
        truncated = not self._terminated and self._decisions == self.max_steps
        self._ended = self._terminated or truncated
        return Step(
            observation=self._show(),
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=truncated,
            duration=outcome.duration,
            episode=self._episode(outcome.success) if self._ended else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs to go on alike: plain numbers and strings."""
        return {
            "world": self.name,
            "state": [int(number) for number in self.state],
            "seed": self._seed,
            "next_episode": self._next_episode,
            "ended": self._ended,
            "terminated": self._terminated,
            "decisions": self._decisions,
            "primitive_steps": self._primitive_steps,
            "discounted": self._discounted,
            "undiscounted": self._undiscounted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        """Return to a state; give the observation that was last shown.

        Raises:
            ValueError: The state is another world's.
        """
        if state["world"] != self.name:
            raise ValueError(f"expected a state of `{self.name}`, got one of `{state['world']}`")
        self._state = self.state_type(*state["state"])
        self._seed, self._next_episode = state["seed"], state["next_episode"]
        self._ended, self._terminated = state["ended"], state["terminated"]
        self._decisions, self._primitive_steps = state["decisions"], state["primitive_steps"]
        self._discounted, self._undiscounted = state["discounted"], state["undiscounted"]
        return self._show()

    def render(self) -> str:
        """Return the situation as a few lines of text for people."""
        drawing = f"{self.draw(self.state)}\n{self.legend}".rstrip()
        return f"{drawing}\nstep {self._decisions}, return {self._discounted:.4f}"

    def _show(self) -> Observation:
        """Return the present observation, without actions where the world has ended."""
        key = (self.state, self._terminated)
        if key not in self._seen:
            observation = self.observe(self.state)
            if self._terminated:
                observation = Observation(
                    text=observation.text,
                    goal=observation.goal,
                    actions=(),
                    action_ids=(),
                    vector=observation.vector,
                )
            self._seen[key] = observation
        return self._seen[key]

    def _outcome(self, state: StateT, action: int) -> Outcome[StateT]:
        """Return `outcome`, computed once for each state and action."""
        key = (state, action)
        if key not in self._known:
            self._known[key] = self.outcome(state, action)
        return self._known[key]

    def _episode(self, success: bool) -> Episode:
        """Return the summary of the episode that has just ended."""
        return Episode(
            discounted_return=self._discounted,
            undiscounted_return=self._undiscounted,
            num_decisions=self._decisions,
            num_primitive_steps=self._primitive_steps,
            success=success,
        )
