"""The data module of online methods: rollouts of the agent in training, each when it is due."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, cast

import torch
from lightning import LightningDataModule, LightningModule, Trainer

from llm_agents.envs import TextEnv
from llm_agents.envs.prompts import PromptBuilder
from llm_agents.envs.registry import make_world, world_path
from llm_agents.errors import UserError
from llm_agents.rollouts.collector import RolloutCollector, RolloutPlan
from llm_agents.rollouts.processes import ProcessRolloutCollector
from llm_agents.rollouts.prompted import PromptedWorld
from llm_agents.rollouts.seeds import Purpose, world_seeds
from llm_agents.rollouts.statistics import EpisodeStatistics
from llm_agents.rollouts.stream import Stream, expect_frames, expect_same
from llm_agents.rollouts.worlds import TextWorlds
from llm_agents.types import Agent, Rollout

_logger = logging.getLogger(__name__)

WorldOptions = dict[str, Any]  # of any world; each checks its own


class RolloutStream(Stream):
    """The run's rollouts from where the collector stands.

    Args:
        collector: Collects them.
        statistics: Counts their episodes.
        trainer: Told to stop after the last one, however many epochs it was to train for.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        statistics: EpisodeStatistics,
        trainer: Trainer | None = None,
    ) -> None:
        super().__init__(collector.plan.num_rollouts, trainer, data="TextRollouts")
        self._collector = collector
        self._statistics = statistics

    @property
    def number(self) -> int:
        """Return the rollouts given out, those before an interruption included."""
        return self._collector.number

    def __iter__(self) -> Iterator[Rollout]:
        """Yield the rollouts that are left."""
        while self.number < len(self):
            rollout = self._collector.collect()
            self._statistics.add(rollout.episodes)
            self.stop_after_last()
            yield rollout
        self.stop_after_last()


class TextRollouts(LightningDataModule):
    """Experience of an agent in text worlds.

    The agent is the module in training, or the one given to `connect`. One pass over the training
    data is the whole run; the trainer stops after it.

    Args:
        world: Name of the world, or a list of names that are dealt out to the worlds in turn. In
            Python a class of worlds will do for its name.
        world_options: Constructor arguments of the world (of every world, if there are several).
        num_worlds: E, worlds that step together.
        num_steps: T, steps of each world in a rollout.
        total_frames: Steps of all worlds in the run; what is left of a rollout at the end is not
            collected.
        warm_up_frames: Steps before those of `total_frames`, for a method that trains nothing but
            its critic at first; rounded down to whole rollouts as well.
        prompt: How observations become prompts; None is the builder's own default.
        bootstrap_at_limit: Whether an episode that a limit cut counts on with the value of its last
            observation; without, a limit counts as an end, as in the releases of TWOSOME and POAD.
        num_processes: Processes that collect, each with its share of the worlds, beside the one
            that trains; 1 collects in that one. See `processes`.
        window: Finished episodes that the statistics are over.
        seed: Decides the worlds' and the agent's random numbers; None takes the run's
            `seed_everything`, else 0.

    Attributes:
        seeds: Of this process's worlds; all different, those of other processes too.
        statistics: Of the episodes that have finished.
    """

    def __init__(
        self,
        world: str | list[str],
        world_options: WorldOptions | None = None,
        *,
        num_worlds: int = 4,
        num_steps: int = 32,
        total_frames: int = 50_000,
        warm_up_frames: int = 0,
        prompt: PromptBuilder | None = None,
        bootstrap_at_limit: bool = True,
        num_processes: int = 1,
        window: int = 100,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.world_names = [world_path(w) for w in (world if isinstance(world, list) else [world])]
        self.world_options: WorldOptions = dict(world_options or {})
        self.num_worlds = num_worlds
        self.num_steps = num_steps
        self.total_frames = total_frames
        self.warm_up_frames = warm_up_frames
        self.prompt = prompt or PromptBuilder()
        self.bootstrap_at_limit = bootstrap_at_limit
        self.num_processes = num_processes
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self.seeds: tuple[int, ...] = ()
        self.statistics = EpisodeStatistics(window)
        self._agent: Agent | None = None
        self._collector: RolloutCollector | None = None
        self._saved: dict[str, Any] | None = None
        self._check()

    def _check(self) -> None:
        """Refuse sizes of which no rollout can be made."""
        if not self.world_names:
            raise UserError("expected the name of a world in `world`, got an empty list")
        if self.num_worlds < 1 or self.num_steps < 1 or self.warm_up_frames < 0:
            raise UserError(
                "expected `num_worlds` and `num_steps` of at least 1 and `warm_up_frames` of at "
                f"least 0, got {self.num_worlds}, {self.num_steps} and {self.warm_up_frames}"
            )
        if self.num_worlds < len(self.world_names):
            raise UserError(
                f"expected at least one world of each of {', '.join(self.world_names)}, got "
                f"num_worlds: {self.num_worlds}: set it to {len(self.world_names)} or more"
            )
        if self.num_processes < 1 or self.num_worlds % self.num_processes:
            raise UserError(
                "expected `num_processes` to divide `num_worlds`, got "
                f"{self.num_processes} and {self.num_worlds}"
            )
        expect_frames(self.total_frames, self.frames_per_rollout, places="num_worlds")

    # --- sizes

    @property
    def num_ranks(self) -> int:
        """Return the processes that train."""
        return 1 if self.trainer is None else self.trainer.world_size

    @property
    def frames_per_rollout(self) -> int:
        """Return the steps of a rollout, over all processes that train."""
        return self.num_worlds * self.num_steps * self.num_ranks

    @property
    def warm_up_rollouts(self) -> int:
        """Return how many rollouts come before those of `total_frames`."""
        return self.warm_up_frames // self.frames_per_rollout

    @property
    def num_rollouts(self) -> int:
        """Return the rollouts of the whole run."""
        return self.warm_up_rollouts + self.total_frames // self.frames_per_rollout

    @property
    def frames(self) -> int:
        """Return the steps collected so far, over all ranks, those before a resumption too."""
        number = 0 if self._collector is None else self._collector.number
        return number * self.frames_per_rollout

    # --- preparation

    def connect(self, agent: Agent) -> None:
        """Collect with `agent`; only needed without a trainer."""
        if agent is not self._agent:
            self._close()
        self._agent = agent

    def setup(self, stage: str | None = None) -> None:
        """Take the module in training as the agent.

        Raises:
            UserError: It is no agent.
        """
        if stage not in (None, "fit") or self.trainer is None:
            return
        self._check_agent(self.trainer.lightning_module)
        self.connect(cast(Agent, self.trainer.lightning_module))

    def _check_agent(self, module: LightningModule) -> None:
        """Refuse a module that doesn't act as it is to."""
        if not hasattr(module, "act") or not hasattr(module, "state_values"):
            raise UserError(
                f"expected a method that acts, such as TWOSOME or POAD, with TextRollouts, got "
                f"{type(module).__name__}: give it a data module of its own kind"
            )

    def teardown(self, stage: str | None = None) -> None:
        """Close what TorchRL has opened."""
        if stage in (None, "fit"):
            self._close()

    def _close(self) -> None:
        """Keep where the collector stands, and close it."""
        if self._collector is not None:
            self._saved = self.state_dict()
            self._collector.shutdown()
            self._collector = None

    # --- rollouts

    def train_dataloader(self) -> RolloutStream:
        """Return the rollouts that are left, on the agent as it is when each is asked for."""
        if self._collector is None:
            self._collector = self._new_collector()
        return RolloutStream(self._collector, self.statistics, self.trainer)

    def _new_collector(self) -> RolloutCollector:
        """Build the worlds and go on where a saved state stood."""
        if self._agent is None:
            raise ValueError("expected an agent: call connect(agent) before train_dataloader()")
        rank = 0 if self.trainer is None else self.trainer.global_rank
        self.seeds = world_seeds(self.seed, self.num_worlds, rank=rank)
        plan = RolloutPlan(
            num_steps=self.num_steps,
            num_rollouts=self.num_rollouts,
            seed=self.seed,
            rank=rank,
            bootstrap_at_limit=self.bootstrap_at_limit,
        )
        collector = self._collector_of(self._agent, plan)
        if self._saved is not None:
            own = self._saved["ranks"][rank]
            collector.load_state_dict(own["collector"])
            self.statistics.load_state_dict(own["statistics"])
            self._saved = None
        whose = f" of rank {rank}" if self.num_ranks > 1 else ""
        _logger.info("seeds of the worlds%s: %s", whose, ", ".join(map(str, self.seeds)))
        return collector

    def _collector_of(self, agent: Agent, plan: RolloutPlan) -> RolloutCollector:
        """Return a collector on new worlds with the present seeds."""
        worlds = TextWorlds(
            [
                PromptedWorld(self._world(number), self.prompt, number=number, seed=seed)
                for number, seed in enumerate(self.seeds)
            ]
        )
        if self.num_processes == 1:
            return RolloutCollector(agent, worlds, plan)
        return ProcessRolloutCollector(agent, worlds, plan, self.num_processes)

    def _world(self, number: int) -> TextEnv:
        """Return a new world by its index."""
        return make_world(self.world_names[number % len(self.world_names)], **self.world_options)

    def make_worlds(self, count: int | None = None, world: str | None = None) -> list[TextEnv]:
        """Return new worlds for `playing.play`, with seeds that no training world has.

        Args:
            count: How many; None is as many as in training.
            world: Name of another world than that of training, made without options.
        """
        seeds = world_seeds(self.seed, count or self.num_worlds, purpose=Purpose.EVALUATION)
        worlds = []
        for number, seed in enumerate(seeds):
            made = self._world(number) if world is None else make_world(world)
            made.reset(seed)
            worlds.append(made)
        return worlds

    # --- checkpoints

    def _identity(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with the interrupted one."""
        return {
            "world": self.world_names,
            "world_options": self.world_options,
            "prompt": asdict(self.prompt),
            "num_worlds": self.num_worlds,
            "num_steps": self.num_steps,
            "num_processes": self.num_processes,
            "ranks": self.num_ranks,
            "seed": self.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what the next rollout depends on: its number, seeds, worlds, statistics."""
        if self._collector is None:
            return {} if self._saved is None else self._saved
        own = {
            "seeds": list(self.seeds),
            "collector": self._collector.state_dict(),
            "statistics": self.statistics.state_dict(),
        }
        ranks: list[dict[str, Any]] = [own]
        if self.num_ranks > 1:  # the first rank writes for all
            ranks = [{} for _ in range(self.num_ranks)]
            torch.distributed.all_gather_object(ranks, own)
        return {"identity": self._identity(), "ranks": ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the interrupted run stood, from the next call of `train_dataloader` on.

        Raises:
            UserError: The state is of other worlds or prompts.
        """
        if not state_dict:
            return
        expect_same(state_dict["identity"], self._identity(), what="worlds")
        self._saved = None
        self._close()
        self._saved = state_dict
