"""Intrinsic rewards of a rollout's observations, all at its end: new messages in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_agents.envs.nethack_vector import COUNT_KEY
from llm_agents.rewards.motif import MessageReward

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float32]


def intrinsic_rewards_of(reward: MessageReward | None, raw: Arrays) -> Floats:
    """Return what observations pay: their messages' shaped rewards, divided by the counts' power.

    Args:
        reward: Of messages; None pays nothing.
        raw: ``[N, …]`` by the engine's keys, the counts among them.

    Returns:
        ``[N]``.
    """
    counts = raw[COUNT_KEY].astype(np.int64)
    if reward is None or not len(counts):
        return np.zeros(len(counts), np.float32)
    return reward.shaped(raw) * reward.decay(counts)


class SeenStep(NamedTuple):
    """What the messages of a step are judged by.

    Args:
        following: ``[E, …]``, the observations that the next step begins with.
        ended: ``[K]``, the games whose episode ended.
        final: ``[K, …]``, the last observations of these episodes.
    """

    following: Arrays
    ended: NDArray[np.int64]
    final: Arrays


class StepRewards(NamedTuple):
    """Intrinsic rewards of T steps of E games.

    Args:
        acting: ``[T, E]``, of the observations that the steps began with.
        reached: ``[T, E]``, of those that they led to, before any reset.
        last: ``[E]``, of the observations that the next rollout begins with.
    """

    acting: Floats
    reached: Floats
    last: Floats


def rewards_of_steps(
    reward: MessageReward | None, first: Floats, steps: list[SeenStep]
) -> StepRewards:
    """Judge a rollout's observations.

    Args:
        reward: Of messages; None pays nothing.
        first: ``[E]``, rewards of the observations that the rollout began with.
        steps: T of them.
    """
    keys = (COUNT_KEY, *(reward.scorer.keys if reward is not None else ()))
    parts = [part for step in steps for part in (step.following, step.final)]
    together = {key: np.concatenate([part[key] for part in parts]) for key in keys}
    paid = intrinsic_rewards_of(reward, together)
    ends = np.cumsum([len(part[COUNT_KEY]) for part in parts])[:-1]
    found = np.split(paid, ends)
    following = np.stack(found[::2])
    reached = following.copy()
    for step, (seen, final) in enumerate(zip(steps, found[1::2], strict=True)):
        reached[step, seen.ended] = final
    return StepRewards(np.concatenate([first[None], following[:-1]]), reached, following[-1])


def returns_of_episodes(
    earned: Floats, so_far: NDArray[np.float64], steps: list[SeenStep]
) -> list[float]:
    """Return the intrinsic returns of the episodes that ended, in order.

    Args:
        earned: ``[T, E]``.
        so_far: ``[E]``, of the episodes under way; moved on to the end of the rollout.
        steps: T of them.
    """
    found: list[float] = []
    for step, seen in enumerate(steps):
        so_far += earned[step]
        found += so_far[seen.ended].tolist()
        so_far[seen.ended] = 0
    return found
