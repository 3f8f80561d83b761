"""POAD's case study: three situations at the microwave, to see which token earns the credit.

Opening, putting and closing are right at the first, second and third stage; anything else changes
nothing. Closing at the end earns 1; without it the last step of the limit costs 1 and ends the
world. The agent draws at random and only its critic learns. "open" and "close" alone tell the
actions apart, so that token should earn all the credit and the tokens of "the microwave" none.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from llm_agents.envs.base import Observation
from llm_agents.envs.machine import MachineWorld, Outcome
from llm_agents.envs.virtualhome import GAMMA
from llm_agents.envs.virtualhome_food import (
    CLOSE,
    OPEN,
    PUT,
    VARIANTS,
    FoodPreparation,
    FoodState,
    describe_food,
    view_food,
)

_OPEN, _PUT, _CLOSE = range(3)
_STAGES = (
    FoodState(near_food=True, near_container=True, holding=True),
    FoodState(near_food=True, near_container=True, holding=True, is_open=True),
    FoodState(near_food=True, near_container=True, inside=True, is_open=True),
)
_OFFERED: tuple[tuple[int, ...], ...] = ((_OPEN, _CLOSE), (_PUT,), (_OPEN, _CLOSE))


class CaseState(NamedTuple):
    """The stage (3 at the end), and the steps taken, which no observation tells (0 unlimited)."""

    stage: int = 0
    step: int = 0


class CaseStudy(MachineWorld[CaseState]):
    """The three stages of heating a pancake that POAD's token advantages are shown on.

    Args:
        limit: The step that ends the world with reward -1 unless it closes the microwave at the
            right time; None lets an episode go on until it succeeds.
        seed: Unused: nothing here is random.
    """

    state_type = CaseState

    def __init__(self, *, limit: int | None = 5, seed: int = 0) -> None:
        if limit is not None and limit < len(_STAGES):
            raise ValueError(f"expected a limit of at least {len(_STAGES)} or None, got {limit}")
        super().__init__(max_steps=None, seed=seed)
        self.name = "case-study"
        self.limit = limit
        self.num_actions = self.vector_size = len(_STAGES)
        self.gamma = GAMMA
        self.optimal_return = GAMMA**2
        self.goal = FoodPreparation().goal
        texts = VARIANTS["pancake"].actions()
        self._texts = (texts[OPEN], texts[PUT], texts[CLOSE])

    def start(self, generator: random.Random) -> CaseState:
        """Begin with the pancake in the hand at the closed microwave."""
        return CaseState()

    def outcome(self, state: CaseState, action: int) -> Outcome[CaseState]:
        """Go to the next stage with the action of this one; the limit costs 1."""
        stage = state.stage + (action == state.stage)
        step = 0 if self.limit is None else state.step + 1
        if stage == len(_STAGES):
            return Outcome(CaseState(stage, step), 1.0, terminated=True, success=True)
        if step == self.limit:
            return Outcome(CaseState(stage, step), -1.0, terminated=True)
        return Outcome(CaseState(stage, step))

    def observe(self, state: CaseState) -> Observation:
        """Describe the stage as food preparation does; the vector has a 1 at its place."""
        ended = state.stage == len(_STAGES)
        situation = _STAGES[-1]._replace(is_open=False) if ended else _STAGES[state.stage]
        offered = () if ended else _OFFERED[state.stage]
        return Observation(
            text=describe_food(view_food(situation), VARIANTS["pancake"]),
            goal=self.goal,
            actions=tuple(self._texts[action] for action in offered),
            action_ids=offered,
            vector=tuple(int(stage == state.stage) for stage in range(len(_STAGES))),
        )

    def draw(self, state: CaseState) -> str:
        """Draw the microwave; the pancake is *."""
        return ("* [ ]", "* [  ", "  [* ", "  [*]")[state.stage]
