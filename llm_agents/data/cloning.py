"""The data module of behavioural cloning: what somebody did, as choices with an answer."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from lightning import LightningDataModule

from llm_agents.data.sampling import StepSampler, StepShape
from llm_agents.data.streams import BatchStream, EvaluationStream
from llm_agents.data.trajectories import TrajectoryStep, episodes_of, read_trajectories
from llm_agents.envs.prompts import PromptBuilder
from llm_agents.errors import UserError
from llm_agents.types import Demonstrations

_logger = logging.getLogger(__name__)

WorldOptions = dict[str, Any]  # of any world; each checks its own


class CloningData(LightningDataModule):
    """Trajectories to imitate, and the worlds in which the imitation is then played.

    All steps of an episode are in one part, training or validation.

    Args:
        train: JSON-lines files of trajectories, see `data.trajectories`; ``sample`` is bundled.
        validation: Share of the episodes held out, drawn at random; 0 holds none out.
        max_steps: Steps that training takes of the files, whole episodes from the first; None takes
            all.
        only_successes: Leave out episodes whose rewards sum to 0 or less.
        batch_size: Steps of a micro-batch.
        eval_batch_size: Steps of a validation batch.
        world: Name of the world, or names, that the evaluation plays; none evaluates nothing.
        world_options: Constructor arguments of the world.
        prompt: How observations become prompts there: as they did in the trajectories.
        seed: Decides what is held out, the order, and the evaluation's worlds; None takes the run's
            `seed_everything`, else 0.

    Attributes:
        statistics: Episodes and steps of each part, once they are read.
    """

    def __init__(
        self,
        train: str | list[str],
        *,
        validation: float = 0.05,
        max_steps: int | None = None,
        only_successes: bool = False,
        batch_size: int = 8,
        eval_batch_size: int = 32,
        world: str | list[str] | None = None,
        world_options: WorldOptions | None = None,
        prompt: PromptBuilder | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.files = [train] if isinstance(train, str) else list(train)
        self.validation, self.max_steps, self.only_successes = (
            validation,
            max_steps,
            only_successes,
        )
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.world_names = [world] if isinstance(world, str) else list(world or ())
        self.world_options: WorldOptions = dict(world_options or {})
        self.prompt = prompt or PromptBuilder()
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self.statistics: dict[str, dict[str, int]] = {}
        self._parts: tuple[list[TrajectoryStep], list[TrajectoryStep]] | None = None
        self._stream: BatchStream[Demonstrations] | None = None
        self._saved: dict[str, int] | None = None
        if not self.files:
            raise UserError("expected the name of at least one file in `train`, got an empty list")
        if not 0 <= validation < 1:
            raise UserError(f"expected `validation` from 0 to below 1, got {validation}")
        for name in ("batch_size", "eval_batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"expected `{name}` of at least 1, got {getattr(self, name)}")
        if max_steps is not None and max_steps < 1:
            raise UserError(f"expected `max_steps` of at least 1, or null, got {max_steps}")

    # --- reading

    def setup(self, stage: str | None = None) -> None:
        """Read the trajectories."""
        if stage in (None, "fit"):
            self._read()

    def _read(self) -> tuple[list[TrajectoryStep], list[TrajectoryStep]]:
        """Return the steps of training and validation."""
        if self._parts is not None:
            return self._parts
        episodes: list[list[TrajectoryStep]] = []
        for file in self.files:  # numbers of episodes are those of a file
            episodes += episodes_of(read_trajectories(file))
        if self.only_successes:
            episodes = [e for e in episodes if sum(step.reward for step in e) > 0]
        if self.max_steps is not None:
            episodes = _first_steps(episodes, self.max_steps)
        if not episodes:
            raise UserError(
                f"expected at least one episode in {', '.join(self.files)} that "
                "`only_successes` and `max_steps` leave, got none"
            )
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(episodes), generator=generator).tolist()
        count = min(int(self.validation * len(episodes)), len(episodes) - 1)
        parts = [sorted(order[count:]), sorted(order[:count])]
        train, held_out = ([step for e in part for step in episodes[e]] for part in parts)
        self._parts = train, held_out
        self.statistics = {
            name: {"episodes": len(part), "steps": len(steps)}
            for name, part, steps in zip(("train", "validation"), parts, self._parts, strict=True)
        }
        told = (
            f"{name} {found['episodes']:,} episodes, {found['steps']:,} steps"
            for name, found in self.statistics.items()
        )
        _logger.info("trajectories: %s", " · ".join(told))
        return self._parts

    # --- batches

    def train_dataloader(self) -> BatchStream[Demonstrations]:
        """Return the batches of one round, in an order of their own each round."""
        steps = self._read()[0]
        if self._stream is None:
            trainer = self.trainer
            shape = StepShape(
                self.batch_size,
                1 if trainer is None else int(trainer.accumulate_grad_batches),
                0 if trainer is None else trainer.global_rank,
                1 if trainer is None else trainer.world_size,
            )
            lengths = torch.tensor([len(step.prompt) for step in steps])
            sampler = StepSampler(lengths, shape, seed=self.seed)
            if self._saved is not None:
                sampler.load_state_dict(self._saved)
            self._stream = BatchStream(sampler, lambda rows: _batch(steps, rows))
        return self._stream

    def val_dataloader(self) -> EvaluationStream[Demonstrations] | list[Demonstrations]:
        """Return the held-out steps in order."""
        steps = self._read()[1]
        if not steps:
            return []
        trainer = self.trainer
        return EvaluationStream(
            len(steps),
            lambda rows: _batch(steps, rows),
            self.eval_batch_size,
            0 if trainer is None else trainer.global_rank,
            1 if trainer is None else trainer.world_size,
        )

    # --- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return where the batches stand."""
        if self._stream is None:
            return {}
        return {
            "stream": self._stream.state_dict(),
            "prompt": asdict(self.prompt),
            "steps": len(self._read()[0]),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the interrupted run stood.

        Raises:
            UserError: The files have other steps now.
        """
        if not state_dict:
            return
        found = len(self._read()[0])
        if found != state_dict["steps"]:
            raise UserError(
                f"expected the {state_dict['steps']} steps of the interrupted run in "
                f"{', '.join(self.files)}, got {found}: restore the files, or start a new run"
            )
        self._saved = state_dict["stream"]
        if self._stream is not None:
            self._stream.load_state_dict(self._saved)


def _first_steps(
    episodes: Sequence[list[TrajectoryStep]], max_steps: int
) -> list[list[TrajectoryStep]]:
    """Return whole episodes up to the one in which the number of steps is reached."""
    found, count = [], 0
    for episode in episodes:
        if count >= max_steps:
            break
        found.append(episode)
        count += len(episode)
    return found


def _batch(steps: Sequence[TrajectoryStep], rows: Sequence[int]) -> Demonstrations:
    """Return steps as a batch."""
    chosen = [steps[row] for row in rows]
    return Demonstrations(
        choices=tuple(step.choice for step in chosen),
        index=torch.tensor([step.index for step in chosen]),
    )
