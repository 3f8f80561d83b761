"""Rollouts of agents that see a world as numbers rather than as text, and remember.

The world is any text world whose observation's `vector` begins with the 7 × 7 cells of a view; the
mission is that of its goal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn

from llm_agents.envs import Observation, TextEnv
from llm_agents.envs.babyai_text import mission_of
from llm_agents.errors import UserError
from llm_agents.policies.babyai_symbolic import VIEW, SymbolicDecisions
from llm_agents.policies.modes import evaluation
from llm_agents.rollouts.collector import RolloutPlan
from llm_agents.rollouts.datamodule import TextRollouts, WorldOptions
from llm_agents.rollouts.playing import shares
from llm_agents.rollouts.seeds import Purpose, derived_seed
from llm_agents.types import Episode, SymbolicRollout

_NUM_CELLS = VIEW[0] * VIEW[1] * VIEW[2]


@runtime_checkable
class SymbolicAgent(Protocol):
    """What acts on images and missions, with a memory of the episode.

    Attributes:
        memory_size: M.
        num_actions: Actions are below this.
    """

    memory_size: int
    num_actions: int

    def act_on_images(
        self, images: Tensor, missions: Sequence[str], memory: Tensor, generator: torch.Generator
    ) -> SymbolicDecisions:
        """Return decisions for E situations, without gradient."""

    def image_values(self, images: Tensor, missions: Sequence[str], memory: Tensor) -> Tensor:
        """Return ``[E]`` values of E situations, without gradient."""


class SymbolicWorld:
    """A text world seen as an image and a mission.

    Args:
        world: The world.
        number: Its index in its vector; finished episodes carry it.
        seed: Of its first episode, which begins the world's own random numbers.
        num_actions: Actions that the agent knows; the world's list may be no longer.
    """

    def __init__(
        self, world: TextEnv, *, number: int = 0, seed: int | None = None, num_actions: int
    ) -> None:
        if world.vector_size < _NUM_CELLS:
            raise UserError(
                f"the world `{world.name}` has a vector of {world.vector_size} numbers, and an "
                f"image takes {_NUM_CELLS}: a symbolic agent plays worlds such as "
                "babyai-go-to-red-ball"
            )
        if world.num_actions > num_actions:
            raise UserError(
                f"the world `{world.name}` has {world.num_actions} actions, the agent's network "
                f"{num_actions}: set `model.network.num_actions: {world.num_actions}`"
            )
        self.world, self.number = world, number
        self._next_seed = seed
        self.image = np.zeros(VIEW, np.uint8)
        self.mission = ""
        self.actions: tuple[str, ...] = ()

    def reset(self) -> None:
        """Begin an episode."""
        seed, self._next_seed = self._next_seed, None
        self._show(self.world.reset(seed))

    def step(self, index: int) -> tuple[float, bool, bool, Episode | None]:
        """Take an action; return reward, whether it ended or was cut, and what the episode was."""
        step = self.world.step(index)
        self._show(step.observation)
        episode = None if step.episode is None else replace(step.episode, world=self.number)
        return step.reward, step.terminated, step.truncated, episode

    def _show(self, observation: Observation) -> None:
        """Take over what the world shows."""
        self.image = np.array(observation.vector[:_NUM_CELLS], np.uint8).reshape(VIEW)
        self.mission = mission_of(observation.goal)[0]
        self.actions = observation.actions

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs: plain numbers and strings."""
        return {"world": self.world.state_dict(), "next_seed": self._next_seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Return to a state between two steps of an episode."""
        self._next_seed = state["next_seed"]
        self._show(self.world.load_state_dict(state["world"]))


class SymbolicCollector:
    """Collects rollouts of a recurrent agent, each when it is asked for.

    Args:
        agent: Acts, remembers, and values what followed the last step and what a limit cut off.
        worlds: E worlds, which step together.
        plan: Sizes and seed.

    Attributes:
        number: Rollouts collected so far, those before an interruption included.
    """

    def __init__(
        self, agent: SymbolicAgent, worlds: Sequence[SymbolicWorld], plan: RolloutPlan
    ) -> None:
        self.agent, self.worlds, self.plan = agent, tuple(worlds), plan
        self.number = 0
        self._memory = torch.zeros(len(self.worlds), agent.memory_size)
        self._starts = [True] * len(self.worlds)
        self._is_running = False

    def collect(self) -> SymbolicRollout:
        """Return the next rollout."""
        if not self._is_running:
            for world in self.worlds:
                world.reset()
            self._is_running = True
        rollout = self._rollout()
        self.number += 1
        return rollout

    def _rollout(self) -> SymbolicRollout:
        """Play T steps of each world."""
        seed = derived_seed(self.plan.seed, Purpose.DRAWS, self.plan.rank, 0, self.number)
        generator = torch.Generator().manual_seed(seed)
        columns: dict[str, list[Tensor]] = {}
        missions: dict[str, int] = {}
        episodes: list[Episode] = []
        for step in range(self.plan.num_steps):
            for name, value in self._step(step, missions, episodes, generator):
                columns.setdefault(name, []).append(value)
        next_values = columns.pop("next_values")
        stacked = {name: torch.stack(values) for name, values in columns.items()}
        ended = stacked["terminated"] | stacked["truncated"]
        following = torch.stack([*stacked["values"][1:], next_values[-1]])
        return SymbolicRollout(
            **stacked,
            missions=tuple(missions),
            next_values=torch.where(ended, torch.stack(next_values), following),
            episodes=tuple(episodes),
            number=self.number,
            num_rollouts=self.plan.num_rollouts,
        )

    def _step(
        self,
        step: int,
        missions: dict[str, int],
        episodes: list[Episode],
        generator: torch.Generator,
    ) -> Iterator[tuple[str, Tensor]]:
        """Take a step of every world, and yield what is kept of it."""
        images, texts = self._shown()
        self._memory[torch.tensor(self._starts)] = 0
        yield "images", images
        yield "starts", torch.tensor(self._starts)
        yield "memories", self._memory
        numbers = [missions.setdefault(text, len(missions)) for text in texts]
        yield "mission_index", torch.tensor(numbers)
        decisions = self.agent.act_on_images(images, texts, self._memory, generator)
        index, log_probs, values, memory = (part.cpu() for part in decisions)
        yield "index", index
        yield "log_probs", log_probs
        yield "values", values
        taken = [w.step(i) for w, i in zip(self.worlds, index.tolist(), strict=True)]
        rewards, terminated, truncated, found = zip(*taken, strict=True)
        yield "rewards", torch.tensor(rewards, dtype=torch.float32)
        yield "terminated", torch.tensor(terminated)
        yield "truncated", torch.tensor(truncated)
        self._memory = memory.clone()
        is_last = step + 1 == self.plan.num_steps
        yield "next_values", self._next_values(terminated, truncated, is_last=is_last)
        episodes += [episode for episode in found if episode is not None]
        self._starts = [a or b for a, b in zip(terminated, truncated, strict=True)]
        for world, is_over in zip(self.worlds, self._starts, strict=True):
            if is_over:
                world.reset()

    def _next_values(
        self, terminated: Sequence[bool], truncated: Sequence[bool], *, is_last: bool
    ) -> Tensor:
        """Return ``[E]`` values of what follows, before any reset; 0 where nobody asks."""
        found = torch.zeros(len(self.worlds))
        bootstrap = self.plan.bootstrap_at_limit
        is_cut = torch.tensor(truncated) & ~torch.tensor(terminated)
        asked = is_cut if bootstrap else torch.zeros_like(is_cut)
        if is_last:
            asked = asked | ~(torch.tensor(terminated) | torch.tensor(truncated))
        if not bool(asked.any()):
            return found
        images, texts = self._shown()  # all of them: batch statistics of a few would be others
        values = self.agent.image_values(images, texts, self._memory).cpu()
        return torch.where(asked, values, found)

    def _shown(self) -> tuple[Tensor, list[str]]:
        """Return what the worlds show: ``[E, 7, 7, 3]`` images, and missions."""
        images = torch.from_numpy(np.stack([world.image for world in self.worlds]))
        return images, [world.mission for world in self.worlds]

    def state_dict(self) -> dict[str, Any]:
        """Return what the next rollout depends on, besides the agent."""
        return {
            "number": self.number,
            "worlds": [w.state_dict() for w in self.worlds] if self._is_running else None,
            "memory": self._memory,
            "starts": self._starts,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the saved run stood."""
        self.number = int(state["number"])
        self._memory, self._starts = state["memory"].clone(), list(state["starts"])
        if state["worlds"] is not None:
            for world, own in zip(self.worlds, state["worlds"], strict=True):
                world.load_state_dict(own)
            self._is_running = True

    def shutdown(self) -> None:
        """Nothing has been opened."""


class SymbolicRollouts(TextRollouts):
    """Experience of a symbolic agent: worlds seen as images and missions.

    Args:
        world: Name of the world, or a list of names that are dealt out to the worlds in turn.
        world_options: Constructor arguments of the world.
        num_worlds: E, worlds that step together.
        num_steps: T, steps of each world in a rollout.
        total_frames: Steps of all worlds in the run.
        bootstrap_at_limit: Whether an episode that a limit cut counts on with the value of its last
            observation; without, a limit counts as an end, as in the releases of BabyAI and GLAM.
        window: Finished episodes that the statistics are over.
        seed: Decides the worlds' and the agent's random numbers; None takes the run's
            `seed_everything`, else 0.
    """

    def __init__(
        self,
        world: str | list[str],
        world_options: WorldOptions | None = None,
        *,
        num_worlds: int = 64,
        num_steps: int = 40,
        total_frames: int = 400_000,
        bootstrap_at_limit: bool = False,
        window: int = 100,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            world,
            world_options,
            num_worlds=num_worlds,
            num_steps=num_steps,
            total_frames=total_frames,
            bootstrap_at_limit=bootstrap_at_limit,
            window=window,
            seed=seed,
        )

    def _check_agent(self, module: LightningModule) -> None:
        """Refuse a module that acts on text."""
        if not isinstance(module, SymbolicAgent):
            raise UserError(
                f"expected a method that acts on images, such as SymbolicPPO, with "
                f"SymbolicRollouts, got {type(module).__name__}: give it TextRollouts"
            )

    def _collector_of(self, agent: Any, plan: RolloutPlan) -> Any:  # noqa: ANN401  (of another kind)
        """Return a collector on new worlds with the present seeds."""
        worlds = [
            SymbolicWorld(
                self._world(number), number=number, seed=seed, num_actions=agent.num_actions
            )
            for number, seed in enumerate(self.seeds)
        ]
        return SymbolicCollector(agent, worlds, plan)


def play_symbolic(
    agent: SymbolicAgent,
    worlds: Sequence[TextEnv],
    num_episodes: int,
    generator: torch.Generator,
) -> list[Episode]:
    """Return `num_episodes` finished episodes, as `play` does for agents that read.

    Args:
        agent: Acts, in eval mode, by drawing from `generator`.
        worlds: E worlds; the first ``num_episodes % E`` of them play one more than the others.
        num_episodes: At least 1.
        generator: Source of the agent's draws.
    """
    left = shares(num_episodes, len(worlds))
    seen = [
        SymbolicWorld(world, number=e, num_actions=agent.num_actions)
        for e, world in enumerate(worlds)
    ]
    memory = torch.zeros(len(worlds), agent.memory_size)
    played: list[list[Episode]] = [[] for _ in worlds]
    active = [e for e in range(len(worlds)) if left[e]]
    for e in active:
        seen[e].reset()
    while active:
        images = torch.from_numpy(np.stack([seen[e].image for e in active]))
        with evaluation(cast(nn.Module, agent)):
            decisions = agent.act_on_images(
                images, [seen[e].mission for e in active], memory[active], generator
            )
        memory[active] = decisions.memory.cpu()
        for e, index in zip(tuple(active), decisions.actions.tolist(), strict=True):
            episode = seen[e].step(index)[3]
            if episode is None:
                continue
            played[e].append(episode)
            memory[e] = 0
            left[e] -= 1
            if left[e]:
                seen[e].reset()
            else:
                active.remove(e)
    return [episode for episodes in played for episode in episodes]
