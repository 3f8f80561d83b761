"""A tiny world that shows itself as an image: a ball to turn to, or away from."""

from __future__ import annotations

import random
from typing import NamedTuple

from llm_agents.envs.base import Observation
from llm_agents.envs.machine import MachineWorld, Outcome

COLORS = ("red", "green", "blue")
ACTIONS = ("turn left", "turn right", "go forward")


class Situation(NamedTuple):
    """Which colour the mission names, which column has the ball (0 or 6), and steps done."""

    color: int
    side: int
    steps: int


class Balls(MachineWorld[Situation]):
    """A ball to the left or to the right, shown in the first step only where `hides`.

    The mission says whether to turn towards it ("go to") or away from it ("flee from"). Reward 1
    for turning rightly; with `hides` the turn is asked for in the second step, when the ball is no
    more to be seen, so that it must be remembered.
    """

    state_type = Situation

    def __init__(self, *, hides: bool = False, max_steps: int = 4, seed: int = 0) -> None:
        super().__init__(max_steps=max_steps, seed=seed)
        self.name, self.hides = "test-balls", hides
        self.num_actions, self.vector_size, self.gamma = 3, 147, 1.0
        self.optimal_return = 1.0

    def start(self, generator: random.Random) -> Situation:
        """Draw mission and side."""
        return Situation(generator.randrange(2), generator.randrange(2), 0)

    def outcome(self, state: Situation, action: int) -> Outcome[Situation]:
        """Turning ends the episode, unless the ball is still to be hidden."""
        later = state._replace(steps=state.steps + 1)
        if action == 2 or (self.hides and state.steps == 0):
            return Outcome(later)
        right = action == (state.side ^ state.color)
        return Outcome(later, float(right), terminated=True, success=right)

    def observe(self, state: Situation) -> Observation:
        """Show the ball, if it is to be seen."""
        cells = [(1, 0, 0)] * 49
        if not (self.hides and state.steps):
            cells[(6 if state.side else 0) * 7 + 3] = (6, 0, 0)
        mission = ("go to the ball", "flee from the ball")[state.color]
        return Observation(
            text="You see a ball.",
            goal=f"To {mission}, your next step is to",
            actions=ACTIONS,
            action_ids=(0, 1, 2),
            vector=tuple(number for cell in cells for number in cell),
        )

    def draw(self, state: Situation) -> str:
        """Draw the ball."""
        return "o  " if state.side == 0 else "  o"
