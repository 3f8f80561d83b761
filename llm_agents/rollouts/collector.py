"""From a TorchRL collector to rollouts: T steps of E worlds, with what followed each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.collectors import Collector

from llm_agents.rollouts.acting import AgentModule
from llm_agents.rollouts.worlds import TextWorlds, choices_of
from llm_agents.types import Agent, Choice, Rollout

COLLECTOR_OPTIONS: dict[str, bool] = {
    "use_buffers": False,  # text does not fit into buffers
    "trust_policy": True,  # otherwise it is called once for its keys, which would move its draws
    "auto_register_policy_transforms": False,
}


@dataclass(frozen=True)
class RolloutPlan:
    """What a run collects.

    Args:
        num_steps: T, steps of each world in a rollout.
        num_rollouts: Rollouts of the whole run.
        seed: Decides the agent's draws.
        rank: Process of the training; each draws for itself.
        bootstrap_at_limit: Whether what a limit cut off has its value; without, a limit counts as
            an end, as the releases of TWOSOME and POAD have it.
    """

    num_steps: int
    num_rollouts: int
    seed: int = 0
    rank: int = 0
    bootstrap_at_limit: bool = True


class RolloutCollector:
    """Collects rollouts of an agent, each when it is asked for, so that none is out of date.

    Args:
        agent: Acts, and values what followed the last step and what a limit cut off.
        worlds: What it acts in.
        plan: Sizes and seed.

    Attributes:
        number: Rollouts collected so far, those before an interruption included.
    """

    def __init__(self, agent: Agent, worlds: TextWorlds, plan: RolloutPlan) -> None:
        self.agent = agent
        self.worlds = worlds
        self.plan = plan
        self.number = 0
        self._collector: Collector | None = None
        self._batches: Iterator[TensorDictBase] | None = None

    @property
    def has_started(self) -> bool:
        """Return whether the worlds are in motion: a state comes too late then."""
        return self._batches is not None

    def collect(self) -> Rollout:
        """Return the next rollout."""
        if self._batches is None:
            self._batches = self._start()
        rollout = rollout_of(
            next(self._batches).unbind(-1), agent=self.agent, plan=self.plan, number=self.number
        )
        self.number += 1
        return rollout

    def _start(self) -> Iterator[TensorDictBase]:
        """Reset the worlds, or show the restored ones, and begin to collect."""
        plan = self.plan
        self._collector = Collector(
            self.worlds,
            AgentModule(
                self.agent,
                seed=plan.seed,
                rank=plan.rank,
                num_steps=plan.num_steps,
                number=self.number,
            ),
            frames_per_batch=plan.num_steps * self.worlds.batch_size[0],
            total_frames=-1,
            **COLLECTOR_OPTIONS,
            track_traj_ids=False,
            return_same_td=True,  # `rollout_of` copies what it needs before the next one begins
        )
        return iter(self._collector)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next rollout depends on, besides the agent: plain data."""
        return {
            "number": self.number,
            "worlds": self.worlds.worlds_state() if self.has_started else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved run stood.

        Raises:
            ValueError: This collector has collected already, or has another number of worlds.
        """
        if self.has_started:
            raise ValueError("expected to load a state before the first rollout: build it anew")
        self.number = int(state["number"])
        if state["worlds"] is not None:
            self.worlds.restore(state["worlds"])

    def shutdown(self) -> None:
        """Let TorchRL close what it has opened."""
        if self._collector is not None:
            self._collector.shutdown(raise_on_error=False)
        self._collector = self._batches = None


def rollout_of(
    steps: tuple[TensorDictBase, ...],
    *,
    agent: Agent,
    plan: RolloutPlan,
    number: int,
) -> Rollout:
    """Return collected steps as a rollout, asking `agent` for the values that are not known yet.

    Args:
        steps: T entries of E worlds each.
        agent: The one that has acted, unchanged.
        plan: Of the run.
        number: Of the rollout.
    """
    terminated = _stacked(steps, ("next", "terminated"))
    truncated = _stacked(steps, ("next", "truncated"))
    values = _padded(steps, "values")
    episodes = [e for step in steps for e in step.get(("next", "episode")).tolist()]
    return Rollout(
        choices=tuple(choice for step in steps for choice in choices_of(step)),
        index=torch.stack([step.get("action") for step in steps]),
        log_probs=_padded(steps, "log_probs"),
        values=values,
        mask=_padded(steps, "unit_mask"),
        rewards=_stacked(steps, ("next", "reward")),
        terminated=terminated,
        truncated=truncated,
        durations=_stacked(steps, ("next", "duration")),
        next_values=_next_values(
            steps,
            values[..., 0],
            ended=terminated if plan.bootstrap_at_limit else terminated | truncated,
            cut=terminated | truncated,
            agent=agent,
        ),
        episodes=tuple(episode for episode in episodes if episode is not None),
        number=number,
        num_rollouts=plan.num_rollouts,
    )


def _stacked(steps: tuple[TensorDictBase, ...], key: tuple[str, str]) -> Tensor:
    """Return ``[T, E]`` of a key of shape ``[E, 1]``."""
    return torch.stack([step.get(key).squeeze(-1) for step in steps])


def _padded(steps: tuple[TensorDictBase, ...], key: str) -> Tensor:
    """Return ``[T, E, L]`` of a key of shape ``[E, L_t]``, with zeros or False on the right."""
    parts = [step.get(key) for step in steps]
    most = max(part.shape[1] for part in parts)
    return torch.stack([torch.nn.functional.pad(part, (0, most - part.shape[1])) for part in parts])


def _next_values(
    steps: tuple[TensorDictBase, ...], values: Tensor, *, ended: Tensor, cut: Tensor, agent: Agent
) -> Tensor:
    """Return ``[T, E]`` values of what followed each step, before any reset.

    Args:
        steps: T entries of E worlds each.
        values: ``[T, E]`` values of what each step started from.
        ended: ``[T, E]`` bool, nothing follows: 0.
        cut: ``[T, E]`` bool, the next entry is another episode's.
        agent: Values what no entry starts from; not called if there is nothing.
    """
    next_values = torch.cat([values[1:], torch.zeros_like(values[:1])])
    unknown = cut.clone()
    unknown[-1] = True  # what follows the last step is the next rollout's first entry
    next_values[unknown] = 0.0
    places = (unknown & ~ended).nonzero().tolist()
    if places:
        after: dict[int, list[Choice]] = {t: choices_of(steps[t].get("next")) for t, _ in places}
        with torch.no_grad():
            found = agent.state_values([after[t][e] for t, e in places])
        times, numbers = torch.tensor(places).unbind(1)
        next_values[times, numbers] = found.detach().to("cpu", next_values.dtype)
    return next_values
