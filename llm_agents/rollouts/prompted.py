"""A world with its prompt builder: choices in, choices out, and both their states as data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_agents.envs import Observation, Step, TextEnv
from llm_agents.envs.prompts import Moment, PromptBuilder
from llm_agents.types import Choice


class PromptedWorld:
    """A text world as an agent sees it.

    Args:
        world: The world.
        prompt: How its observations become prompts; None is the builder's own default.
        number: Its index in its vector; finished episodes carry it.
        seed: Of its first episode, which begins the world's own random numbers; None leaves them
            as they are.

    Attributes:
        has_ended: Whether the episode has ended, and a reset is due.
    """

    def __init__(
        self,
        world: TextEnv,
        prompt: PromptBuilder | None = None,
        *,
        number: int = 0,
        seed: int | None = None,
    ) -> None:
        self.world = world
        self.prompt = prompt or PromptBuilder()
        self.number = number
        self.has_ended = True
        self._next_seed = seed
        self._history: tuple[Moment, ...] = ()
        self._observation: Observation | None = None

    def reset(self) -> Choice:
        """Begin an episode."""
        seed, self._next_seed = self._next_seed, None
        self._history = ()
        return self._show(self.world.reset(seed), has_ended=False)

    def seed_next(self, seed: int) -> None:
        """Begin the world's own random numbers anew in the next episode."""
        self._next_seed = seed

    def step(self, index: int) -> tuple[Choice, Step]:
        """Take an action; return what follows, of the old episode where it ended.

        Raises:
            ValueError: There is no such action, or no episode is under way.
        """
        if self._observation is None or self.has_ended:
            raise ValueError("expected an episode under way: call reset() first")
        step = self.world.step(index)
        self._history = self.prompt.remember(self._history, self._observation, index)
        if step.episode is not None:
            step = step._replace(episode=replace(step.episode, world=self.number))
        return self._show(step.observation, has_ended=step.terminated or step.truncated), step

    def _show(self, observation: Observation, *, has_ended: bool) -> Choice:
        """Return an observation as a choice."""
        self._observation, self.has_ended = observation, has_ended
        return self.prompt.choice(observation, self._history)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs: plain numbers and strings."""
        return {
            "world": self.world.state_dict(),
            "history": [list(moment) for moment in self._history],
            "next_seed": self._next_seed,
            "has_ended": self.has_ended,
        }

    def load_state_dict(self, state: dict[str, Any]) -> Choice:
        """Return to a state; give the choice that was last shown."""
        self._next_seed = state["next_seed"]
        self._history = tuple(Moment(*moment) for moment in state["history"])
        observation = self.world.load_state_dict(state["world"])
        return self._show(observation, has_ended=state["has_ended"])
