"""Overcooked: serve a salad in a small kitchen with macro actions.

The tasks of TWOSOME (arXiv 2401.14151) and POAD (arXiv 2405.15821): a tomato salad, and a tomato
and lettuce salad with an onion in the way. The agent sees two cells far, every action is always
admissible and is worded by the situation, and a macro's reward is discounted inside it. The
dynamics are in `overcooked_kitchen`, the words in `overcooked_text`. Nothing is random.

Differs from the released version: the sentences are ours. Time limits are reported as truncations;
whether they bootstrap is the method's matter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from llm_agents.envs import overcooked_text
from llm_agents.envs.base import Observation, Step
from llm_agents.envs.machine import MachineWorld, Outcome
from llm_agents.envs.overcooked_kitchen import (
    DISHES,
    HAND,
    HOME,
    IN_PLATE,
    PLATE,
    DishName,
    Kitchen,
    KitchenState,
    Rewards,
)

HORIZON = 200  # primitive steps, as released
GAMMA = 0.99  # per primitive step, fixed in the release whatever the method's own discount is

BEST_PLANS: dict[DishName, tuple[int, ...]] = {
    "tomato-salad": (0, 2, 4, 0, 1, 3),
    "tomato-lettuce-salad": (0, 4, 7, 1, 5, 7, 3, 0, 1, 6),
}
"""Actions that earn the most there is at the papers' rewards: 0.920518 and 0.947656."""


class Overcooked(MachineWorld[KitchenState]):
    """The macro-action kitchen with one agent.

    Args:
        dish: Which salad.
        subtask_reward: For chopping a food that the dish wants, as often as it is chopped.
        delivery_reward: For the dish.
        wrong_delivery_penalty: Taken for delivering anything else; it goes back to its place,
            unchopped, and the episode goes on.
        step_penalty: Taken for each primitive step.
        gamma: Discount per primitive step inside a macro and of the reported return.
        radius: Cells that the agent sees in each direction; 10 shows everything, as the papers'
            symbolic agent saw it.
        horizon: Primitive steps after which an episode is cut.
        finish_macro: Let the macro that runs at the horizon finish, as released: an episode then
            has up to nine more steps. Without it the horizon cuts the macro too.
        seed: Unused: nothing here is random.

    Raises:
        ValueError: There is no such dish, or a number is out of range.
    """

    state_type = KitchenState

    def __init__(
        self,
        dish: DishName = "tomato-salad",
        *,
        subtask_reward: float = 0.2,
        delivery_reward: float = 1.0,
        wrong_delivery_penalty: float = 0.1,
        step_penalty: float = 0.001,
        gamma: float = GAMMA,
        radius: int = 2,
        horizon: int = HORIZON,
        finish_macro: bool = True,
        seed: int = 0,
    ) -> None:
        if dish not in DISHES:
            raise ValueError(f"expected a dish of {', '.join(DISHES)}, got {dish!r}")
        if radius < 1 or horizon < 1 or not 0 < gamma <= 1:
            raise ValueError(
                "expected `radius` and `horizon` of at least 1 and `gamma` in (0, 1], got "
                f"{radius}, {horizon} and {gamma}"
            )
        if wrong_delivery_penalty < 0 or step_penalty < 0:
            raise ValueError(
                "expected penalties of 0 or more, which are taken from the reward, got "
                f"{wrong_delivery_penalty} and {step_penalty}: leave the sign off"
            )
        super().__init__(max_steps=None, seed=seed)
        rewards = Rewards(subtask_reward, delivery_reward, wrong_delivery_penalty, step_penalty)
        self.name = f"overcooked-{dish}"
        self.horizon, self.finish_macro = horizon, finish_macro
        self.kitchen = Kitchen(DISHES[dish], rewards, gamma, radius)
        self.num_actions = len(self.kitchen.macros)
        self.gamma = gamma
        is_published = (rewards, gamma, horizon) == (Rewards(), GAMMA, HORIZON)
        self.optimal_return = self._return_of(BEST_PLANS[dish]) if is_published else None
        self.goal = overcooked_text.goal(self.kitchen.dish)
        foods = ", ".join(f"{food[0]} {food}" for food in self.kitchen.dish.foods)
        self.legend = (
            "@ agent, # counter, B board, D delivery, P plate\n"
            f"{foods}; a capital letter once it is chopped"
        )
        self.vector_size = len(self.observe(self.kitchen.start()).vector)

    def start(self, generator: random.Random) -> KitchenState:
        """Begin with everything in its place."""
        return self.kitchen.start()

    def outcome(self, state: KitchenState, action: int) -> Outcome[KitchenState]:
        """Carry out a macro from its first to its last primitive step."""
        return self.kitchen.run(state, action)

    def take(self, action: int) -> Step:
        """Take an action by its number; the horizon counts primitive steps.

        Raises:
            ValueError: There is no such number, or no episode is under way.
        """
        step = super().take(action)
        if step.terminated or self._primitive_steps < self.horizon:
            return step
        self._ended = True
        return step._replace(truncated=True, episode=self._episode(success=False))

    def observe(self, state: KitchenState) -> Observation:
        """Describe what the agent sees; all actions are offered."""
        seen = overcooked_text.look(self.kitchen, state)
        return Observation(
            text=overcooked_text.describe(self.kitchen, seen),
            goal=self.goal,
            actions=overcooked_text.word_actions(self.kitchen, seen),
            action_ids=tuple(range(self.num_actions)),
            vector=overcooked_text.vector(self.kitchen, seen),
        )

    def draw(self, state: KitchenState) -> str:
        """Draw the kitchen: @ agent, B board, D delivery; foods small when raw, P the plate."""
        marks = [[" " if mark in ".@" else mark for mark in row] for row in self.kitchen.rows]
        things = (*self.kitchen.dish.foods, PLATE)
        letters = {t: t[0] if state.is_raw(t) else t[0].upper() for t in things}
        for thing in things:
            row, column = self.kitchen.homes[thing]
            marks[row][column] = letters[thing] if state.place(thing) == HOME else "#"
        for thing in things:
            if state.place(thing) not in (HOME, HAND, IN_PLATE):
                row, column = self.kitchen.cell_of(state, thing)
                marks[row][column] = letters[thing]
        marks[state.row][state.column] = "@"
        inside = "".join(letters[food] for food in sorted(state.plated))
        held = "nothing" if state.held is None else letters[state.held]
        return "\n".join("".join(row) for row in marks) + f"\nhand: {held}, plate: {inside or '-'}"

    def _return_of(self, plan: Sequence[int]) -> float:
        """Return what a plan earns from the start."""
        state, earned, passed = self.kitchen.start(), 0.0, 0
        for action in plan:
            outcome = self.kitchen.run(state, action)
            earned += self.gamma**passed * outcome.reward
            state, passed = outcome.state, passed + outcome.duration
        return earned

    def _outcome(self, state: KitchenState, action: int) -> Outcome[KitchenState]:
        """Return `outcome`, computed once; at the horizon cut where macros do not finish."""
        outcome = super()._outcome(state, action)
        left = self.horizon - self._primitive_steps
        if self.finish_macro or outcome.duration <= left:
            return outcome
        return self.kitchen.run(state, action, left)
