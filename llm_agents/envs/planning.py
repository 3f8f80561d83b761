"""What is exactly known of a machine world: its size, its optimum, and what chance does in it.

A world is solved backwards in time from its limit, or by sweeps until nothing changes where it has
none, so the numbers are exact and cost less than playing. They are the random and the optimal line
of the learning curves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_agents.envs.machine import MachineWorld, Outcome, StateT

Actions = Literal["offered", "all"]
_MAX_SWEEPS = 10_000
_TOLERANCE = 1e-13


@dataclass(frozen=True)
class Prospects:
    """Expectations from the start of an episode, with the world's own discount and limit.

    Args:
        discounted_return: Mean of the episode's discounted return.
        success: Probability that the episode succeeds.
        num_decisions: Mean number of decisions.
    """

    discounted_return: float
    success: float
    num_decisions: float


def reachable_states(
    world: MachineWorld[StateT], start: StateT, actions: Actions = "offered"
) -> list[StateT]:
    """Return every state that can be reached, those that end the world left out.

    Args:
        world: Its transitions are asked, its own episode is left alone.
        start: Where to begin.
        actions: Follow the offered lists, or every action of every state.

    Returns:
        States in the order of a breadth-first search.
    """
    found = {start: None}
    waiting = [start]
    while waiting:
        later = []
        for state in waiting:
            for outcome in _outcomes(world, state, actions):
                if not outcome.terminated and outcome.state not in found:
                    found[outcome.state] = None
                    later.append(outcome.state)
        waiting = later
    return list(found)


def optimal_prospects(
    world: MachineWorld[StateT], start: StateT, actions: Actions = "offered"
) -> Prospects:
    """Return what the best policy that knows the state and the time expects.

    V_t(s) = max_a r(s, a) + γ^k · V_{t+1}(s')
    """

    def best(candidates: Sequence[Prospects]) -> Prospects:
        return max(candidates, key=lambda each: each.discounted_return)

    return _backwards(world, start, actions, best)


def random_prospects(
    world: MachineWorld[StateT], start: StateT, actions: Actions = "offered"
) -> Prospects:
    """Return what an agent expects that draws uniformly from the actions.

        V_t(s) = Σ_a (r(s, a) + γ^k · V_{t+1}(s')) / A

    Args:
        world: Its transitions are asked, its own episode is left alone.
        start: Where the episode begins, with all its decisions still to come.
        actions: Draw from the offered lists, or from every action of every state.

    Raises:
        ValueError: There is no limit, and episodes need not end.
    """

    def mean(candidates: Sequence[Prospects]) -> Prospects:
        count = len(candidates)
        return Prospects(
            discounted_return=sum(each.discounted_return for each in candidates) / count,
            success=sum(each.success for each in candidates) / count,
            num_decisions=sum(each.num_decisions for each in candidates) / count,
        )

    return _backwards(world, start, actions, mean)


def start_state(world: MachineWorld[StateT], seed: int = 0) -> StateT:
    """Return a start of the world; the start where nothing is random."""
    return world.start(random.Random(seed))


def _outcomes(
    world: MachineWorld[StateT], state: StateT, actions: Actions
) -> list[Outcome[StateT]]:
    """Return what each action leads to."""
    chosen = range(world.num_actions) if actions == "all" else world.observe(state).action_ids
    return [world.outcome(state, action) for action in chosen]


def _backwards(
    world: MachineWorld[StateT],
    start: StateT,
    actions: Actions,
    choose: Callable[[Sequence[Prospects]], Prospects],
) -> Prospects:
    """Return the expectations at the start: one sweep over all states for each decision left."""
    outcomes = {
        state: _outcomes(world, state, actions) for state in reachable_states(world, start, actions)
    }
    after: dict[StateT, Prospects] = dict.fromkeys(outcomes, Prospects(0.0, 0.0, 0.0))
    for left in range(world.max_steps or _MAX_SWEEPS):
        cut = left == 0 and world.max_steps is not None
        before = {
            state: choose([_prospects(world, each, after, cut) for each in results])
            for state, results in outcomes.items()
        }
        if world.max_steps is None and _change(before, after) < _TOLERANCE:
            return before[start]
        after = before
    if world.max_steps is None:
        raise ValueError(f"episodes of `{world.name}` go on for ever: set `max_steps`")
    return after[start]


def _change(new: dict[StateT, Prospects], old: dict[StateT, Prospects]) -> float:
    """Return the largest difference between two sweeps, in returns and lengths."""
    return max(
        abs(new[state].discounted_return - old[state].discounted_return)
        + abs(new[state].num_decisions - old[state].num_decisions)
        for state in new
    )


def _prospects(
    world: MachineWorld[StateT],
    outcome: Outcome[StateT],
    after: dict[StateT, Prospects],
    cut: bool,
) -> Prospects:
    """Return the expectations of one action, given those of the states after it."""
    if outcome.terminated or cut:
        return Prospects(outcome.reward, float(outcome.success), 1.0)
    rest = after[outcome.state]
    return Prospects(
        discounted_return=outcome.reward + world.gamma**outcome.duration * rest.discounted_return,
        success=rest.success,
        num_decisions=1.0 + rest.num_decisions,
    )
