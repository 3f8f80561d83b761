"""Rollouts that several processes collect together, each with its share of the worlds.

A process starts in its first rollout, takes the agent along, and reads weights from memory that it
shares with the training. What an agent remembers of a prompt is remembered by each process for
itself, so that this pays where forward passes, not repeated prompts, take the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from torchrl.collectors import MultiSyncCollector
from torchrl.data import NonTensor

from llm_agents.rollouts.acting import AgentModule
from llm_agents.rollouts.collector import (
    COLLECTOR_OPTIONS,
    RolloutCollector,
    RolloutPlan,
    rollout_of,
)
from llm_agents.rollouts.prompted import PromptedWorld
from llm_agents.rollouts.worlds import TextWorlds
from llm_agents.types import Agent, Rollout

MOST_UNITS = 128
"""Units, such as tokens, that an action may have where several processes collect."""


class ReportingWorlds(TextWorlds):
    """Text worlds that tell their state with the last step of every rollout, as ``state``.

    It is the state before the reset of those whose episode ended: `restore` makes up for it.

    Args:
        worlds: At least one.
        num_steps: Steps of a rollout.
        states: What to begin from; None begins with new episodes.
    """

    def __init__(
        self,
        worlds: Sequence[PromptedWorld],
        num_steps: int,
        states: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(worlds)
        self.num_steps = num_steps
        self._step_number = 0
        self.observation_spec["state"] = NonTensor((len(worlds),), example_data=None)
        if states is not None:
            self.restore(states)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDict:
        """Begin episodes; there is no state to tell."""
        return super()._reset(tensordict).set("state", NonTensorStack(*[None] * len(self.worlds)))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        """Take an action in every world; tell the states after the last of a rollout."""
        shown = super()._step(tensordict)
        self._step_number = (self._step_number + 1) % self.num_steps
        is_last = self._step_number == 0
        states = self.worlds_state() if is_last else [None] * len(self.worlds)
        return shown.set("state", NonTensorStack(*states))


class SharedAgent:
    """What a process acts with: to TorchRL a plain function, whose weights are no concern of its.

    TorchRL stacks what the processes send, so that all of it has the same width: `MOST_UNITS`.

    Args:
        module: Decides; its agent's weights lie in shared memory.
    """

    out_keys = AgentModule.out_keys  # without them TorchRL calls it once to see what they are

    def __init__(self, module: AgentModule) -> None:
        self.module = module

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Decide.

        Raises:
            ValueError: An action has more units than there is room for.
        """
        decided = self.module(tensordict)
        for key in ("log_probs", "values", "unit_mask"):
            value = decided.get(key)
            if value.shape[1] > MOST_UNITS:
                raise ValueError(
                    f"expected actions of at most {MOST_UNITS} units, got {value.shape[1]}: "
                    "collect in one process"
                )
            decided.set(key, torch.nn.functional.pad(value, (0, MOST_UNITS - value.shape[1])))
        return decided


class ProcessRolloutCollector(RolloutCollector):
    """Collects in several processes at once, by the rules of `RolloutCollector`.

    The worlds' seeds are those of one process, the agent's draws are not.

    Args:
        agent: Can be pickled, as every `LightningModule` of this package can; its weights are moved
            into shared memory and may only be changed in place.
        worlds: All of them, in order; each process takes as many.
        plan: Sizes and seed.
        num_processes: Processes; a divisor of the number of worlds.

    Raises:
        ValueError: The worlds can't be shared out evenly.
    """

    def __init__(
        self, agent: Agent, worlds: TextWorlds, plan: RolloutPlan, num_processes: int
    ) -> None:
        super().__init__(agent, worlds, plan)
        count = len(worlds.worlds)
        if num_processes < 1 or count % num_processes:
            raise ValueError(
                f"expected a number of processes that divides the {count} worlds, got "
                f"{num_processes}"
            )
        self.num_processes = num_processes
        self._states: list[dict[str, Any]] | None = None

    def collect(self) -> Rollout:
        """Return the next rollout, the worlds in order."""
        if self._batches is None:
            self._batches = self._start()
        shares = [share.unbind(-1) for share in next(self._batches).unbind(0)]
        parts = [
            rollout_of(steps, agent=self.agent, plan=self.plan, number=self.number)
            for steps in shares
        ]
        self._states = [
            state for steps in shares for state in steps[-1].get(("next", "state")).tolist()
        ]
        self.number += 1
        return joined(parts)

    def _start(self) -> Iterator[TensorDictBase]:
        """Start the processes."""
        plan, share = self.plan, len(self.worlds.worlds) // self.num_processes
        if isinstance(self.agent, torch.nn.Module):
            self.agent.share_memory()
        module = AgentModule(
            self.agent,
            seed=plan.seed,
            rank=plan.rank,
            num_steps=plan.num_steps,
            number=self.number,
            has_foreign_weights=True,
        )
        makers = []
        for first in range(0, len(self.worlds.worlds), share):
            own = slice(first, first + share)
            states = None if self._states is None else self._states[own]
            makers.append(partial(_share_of, self.worlds.worlds[own], plan.num_steps, states))
        self._collector = MultiSyncCollector(
            makers,
            SharedAgent(module),
            frames_per_batch=plan.num_steps * len(self.worlds.worlds),
            total_frames=-1,
            cat_results="stack",
            num_threads=torch.get_num_threads(),
            **COLLECTOR_OPTIONS,
        )
        return iter(self._collector)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next rollout depends on, besides the agent: plain data."""
        return {"number": self.number, "worlds": self._states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved run stood.

        Raises:
            ValueError: This collector has collected already, or has another number of worlds.
        """
        super().load_state_dict(state)
        self._states = state["worlds"]


def _share_of(
    worlds: Sequence[PromptedWorld], num_steps: int, states: Sequence[dict[str, Any]] | None
) -> ReportingWorlds:
    """Return a process's worlds; copies, since TorchRL makes some in this process as well."""
    return ReportingWorlds(deepcopy(worlds), num_steps, states)


def joined(parts: Sequence[Rollout]) -> Rollout:
    """Return rollouts of some worlds each as one of all of them.

    Args:
        parts: Of equally many steps; their worlds follow each other.
    """
    steps, worlds = parts[0].index.shape
    units = max(int(part.mask.sum(-1).max()) for part in parts)
    columns: dict[str, Any] = {}
    for name in ("index", "rewards", "terminated", "truncated", "durations", "next_values"):
        columns[name] = torch.cat([getattr(part, name) for part in parts], dim=1)
    for name in ("log_probs", "values", "mask"):
        found = [getattr(part, name)[..., :units] for part in parts]
        padded = [torch.nn.functional.pad(one, (0, units - one.shape[2])) for one in found]
        columns[name] = torch.cat(padded, dim=1)
    return Rollout(
        choices=tuple(
            choice
            for t in range(steps)
            for part in parts
            for choice in part.choices[t * worlds : (t + 1) * worlds]
        ),
        episodes=tuple(episode for part in parts for episode in part.episodes),
        number=parts[0].number,
        num_rollouts=parts[0].num_rollouts,
        **columns,
    )
