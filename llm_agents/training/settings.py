"""The sections of a recipe beside Lightning's: `run`, `evaluation`, `reproduces`, `publish`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_agents.errors import UserError
from llm_agents.evaluation import BootstrapConfig
from llm_agents.types import GenerationConfig, Reward


@dataclass(frozen=True)
class RunConfig:
    """Where a run is kept, and how often it is saved.

    Args:
        folder: Folder of the run; ``runs/<name>/<time>`` if null.
        name: Name of the recipe's runs; the recipe's file name if null.
        stages: What is done: train, and evaluate what was trained. Without ``fit`` the policy is
            evaluated as the recipe gives it.
        checkpoint_every: Optimizer steps, or decisions in the worlds where a method collects
            rollouts, between checkpoints; null saves by time alone.
        checkpoint_minutes: Minutes after which a checkpoint is due too, or twenty times as long as
            writing one takes, if that is more; null saves by steps alone.
        keep_checkpoints: Newest checkpoints kept.
        log_every: Steps of the same kind between lines of progress where there is no terminal.
    """

    folder: str | None = None
    name: str | None = None
    stages: tuple[Literal["fit", "evaluate"], ...] = ("fit", "evaluate")
    checkpoint_every: int | None = 100
    checkpoint_minutes: float | None = 1.0
    keep_checkpoints: int = 2
    log_every: int = 10

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "log_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"expected `run.{name}` above 0, got {value}")


@dataclass(frozen=True)
class JobRunConfig:
    """Where the run of a job is kept.

    Args:
        folder: Folder of the run; ``runs/<name>/<time>`` if null.
        name: Name of the recipe's runs; the recipe's file name if null.
    """

    folder: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class EvaluationConfig:
    """How what was trained is evaluated at the end: on test prompts, or in worlds.

    Args:
        reward: Judge of the answers; the model's own if null.
        generation: How answers are generated; as in validation if null.
        task: Name of the task in results and tables; that of the data if null.
        gold: Score the data's own answers too, those to the validation prompts included.
        num_prompts: Prompts of each test set, the first ones; null takes all.
        episodes: Episodes in each world.
        worlds: Further worlds, which the agent was not trained in.
        num_worlds: Worlds that are played side by side.
        baselines: Who plays the same worlds: an agent that draws at random, and the base model;
            null takes all that there are for the kind of agent.
        pictures: Draw learning curve, action probabilities and the credit of tokens.
        bootstrap: How intervals are computed.
        seed: Seed of the generation, where it samples, of the worlds and of the agent's draws.
    """

    reward: Reward | None = None
    generation: GenerationConfig | None = None
    task: str | None = None
    gold: bool = False
    num_prompts: int | None = None
    episodes: int = 100
    worlds: tuple[str, ...] = ()
    num_worlds: int = 10
    baselines: tuple[Literal["random", "zero-shot"], ...] | None = None
    pictures: bool = True
    bootstrap: BootstrapConfig = field(default_factory=BootstrapConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.num_prompts is not None and self.num_prompts < 1:
            raise UserError(
                f"expected `evaluation.num_prompts` of at least 1, got {self.num_prompts}: leave "
                "`evaluate` out of `run.stages` to skip the evaluation"
            )
        for name in ("episodes", "num_worlds"):
            value = getattr(self, name)
            if value < 1:
                raise UserError(f"expected `evaluation.{name}` of at least 1, got {value}")


@dataclass(frozen=True)
class Reproduction:
    """A published number and ours: the tables of the documentation are made of these.

    Args:
        paper: Identifier of the paper.
        table: Table or figure.
        metric: What is measured.
        paper_value: The published number; null if none is given.
        our_value: What the recipe measured; null if nobody has run it.
        tolerance: Largest difference that counts as reproduced.
        note: Anything that a reader should know.
    """

    paper: str
    table: str
    metric: str
    paper_value: float | None = None
    our_value: float | None = None
    tolerance: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class PublishConfig:
    """Where `lightning publish` sends the adapter, and what its card says.

    Args:
        repo_id: ``owner/name`` on the Hub.
        license: Licence identifier of the Hub.
        datasets: Hub ids of the training data.
        private: Make a new repository private.
        data_source: Where the data files come from, or the command that makes them, for the card.
    """

    repo_id: str | None = None
    license: str | None = None
    datasets: tuple[str, ...] = ()
    private: bool = False
    data_source: str | None = None
