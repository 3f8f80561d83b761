"""A plain loop that collects rollouts, and runs of an online method on toy worlds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn.functional import pad

from llm_agents.envs.base import Observation, TextEnv
from llm_agents.methods.minibatches import Samples
from llm_agents.methods.online_ppo import OnlinePPO
from llm_agents.types import Agent, Choice, Decisions, Episode, Rollout


def choice_of(observation: Observation) -> Choice:
    """Show an observation with its goal."""
    return Choice(f"{observation.text} {observation.goal}", observation.actions)


class Rollouts:
    """Rollouts of an agent in worlds, each collected when it is asked for; of a known length.

    Args:
        agent: Acts and values.
        worlds: E worlds.
        num_steps: T.
        num_rollouts: Rollouts of the whole run.
        seed: Of the agent's draws.
    """

    def __init__(
        self,
        agent: Agent,
        worlds: Sequence[TextEnv],
        num_steps: int = 16,
        num_rollouts: int = 4,
        seed: int = 1,
    ) -> None:
        self.agent, self.worlds = agent, list(worlds)
        self.num_steps, self.num_rollouts = num_steps, num_rollouts
        self.generator = torch.Generator().manual_seed(seed)
        self.number = 0
        self._shown = [choice_of(world.reset()) for world in self.worlds]

    def __len__(self) -> int:
        return self.num_rollouts

    def __iter__(self) -> Iterator[Rollout]:
        while self.number < self.num_rollouts:
            yield self.collect()

    def collect(self) -> Rollout:
        """Play T steps of each world."""
        choices: list[Choice] = []
        decisions: list[Decisions] = []
        steps, next_values, episodes = [], [], []
        for _ in range(self.num_steps):
            choices += self._shown
            decision = self.agent.act(self._shown, self.generator)
            decisions.append(decision)
            taken = [
                world.step(index)
                for world, index in zip(self.worlds, decision.index.tolist(), strict=True)
            ]
            after = [choice_of(step.observation) for step in taken]
            found = self.agent.state_values(after)
            ended = torch.tensor([step.terminated for step in taken])
            next_values.append(found.masked_fill(ended, 0))
            steps.append(taken)
            for place, step in enumerate(taken):
                if step.episode is not None:
                    episodes.append(step.episode)
                    after[place] = choice_of(self.worlds[place].reset())
            self._shown = after
        self.number += 1
        return self._rollout(choices, decisions, steps, torch.stack(next_values), episodes)

    def _rollout(
        self,
        choices: list[Choice],
        decisions: list[Decisions],
        steps: list[list[Any]],
        next_values: Tensor,
        episodes: list[Episode],
    ) -> Rollout:
        most = max(decision.mask.shape[1] for decision in decisions)

        def units(name: str) -> Tensor:
            found = [getattr(decision, name) for decision in decisions]
            return torch.stack([pad(part, (0, most - part.shape[1])) for part in found])

        def column(name: str) -> Tensor:
            return torch.tensor([[getattr(step, name) for step in taken] for taken in steps])

        return Rollout(
            choices=tuple(choices),
            index=torch.stack([decision.index for decision in decisions]),
            log_probs=units("log_probs"),
            values=units("values"),
            mask=units("mask"),
            rewards=column("reward").float(),
            terminated=column("terminated"),
            truncated=column("truncated"),
            durations=column("duration"),
            next_values=next_values,
            episodes=tuple(episodes),
            number=self.number - 1,
            num_rollouts=self.num_rollouts,
        )


class Metrics(Callback):
    """Keeps what is logged after each rollout, and the gradients of each optimizer step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def mean(self, name: str, last: int) -> float:
        """Return the mean of a metric over the last rollouts that have it."""
        found = [row[name] for row in self.rows if name in row][-last:]
        return sum(found) / len(found)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    """Return a quiet trainer for one pass over the rollouts."""
    settings: dict[str, Any] = {
        "default_root_dir": folder,
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(callbacks=list(callbacks), **{**settings, **options})


def fit(module: OnlinePPO, rollouts: Rollouts, folder: Path, **options: Any) -> Metrics:
    """Train on rollouts and return what was logged."""
    metrics = Metrics()
    trainer(folder, metrics, **options).fit(module, rollouts)
    return metrics


def gradient_norm_of(module: torch.nn.Module) -> float:
    """Return the norm of all gradients that a module has."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def some_samples(advantages: list[float], mask: Tensor | None = None) -> Samples:
    """Return samples of which only the advantages matter."""
    count = len(advantages)
    column = torch.zeros(count, 1)
    return Samples(
        choices=tuple(Choice(f"{row}", ("a",)) for row in range(count)),
        index=torch.zeros(count, dtype=torch.int64),
        mask=torch.ones(count, 1, dtype=torch.bool) if mask is None else mask,
        log_probs=column,
        values=column,
        advantages=torch.tensor(advantages)[:, None],
        returns=column,
        ref_log_probs=None,
        choice_ids=torch.arange(count),
    )
