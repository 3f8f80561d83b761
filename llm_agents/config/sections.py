"""The top-level keys of a recipe: those of one that trains, and those of one that does a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A top-level key of a recipe.

    Args:
        name: The key.
        path: Class of it; its arguments are the section's keys.
        is_subclass: Whether the section names a class of its own with ``class_path``.
        is_list: Whether it holds a list of such.
        is_required: Whether it must be there.
        meaning: What it is for.
    """

    name: str
    path: str
    is_subclass: bool = False
    is_list: bool = False
    is_required: bool = False
    meaning: str = ""


SEED = "seed_everything"
SEED_MEANING = "Seed of every random choice of the run, 0 unless given; a whole number."
JOB = "job"

_ABOUT = (
    Section("reproduces", "llm_agents.training.settings.Reproduction", is_list=True),
    Section("publish", "llm_agents.training.settings.PublishConfig"),
)
TRAINING = (
    Section(
        "model",
        "lightning.pytorch.LightningModule",
        is_subclass=True,
        is_required=True,
        meaning="The method: a LightningModule.",
    ),
    Section(
        "data",
        "lightning.pytorch.LightningDataModule",
        is_subclass=True,
        meaning="Where its batches come from: a LightningDataModule.",
    ),
    Section("trainer", "lightning.pytorch.Trainer", meaning="Lightning's Trainer."),
    Section("run", "llm_agents.training.settings.RunConfig"),
    Section("evaluation", "llm_agents.training.settings.EvaluationConfig"),
    *_ABOUT,
)
WORKING = (
    Section(
        JOB,
        "llm_agents.types.Job",
        is_subclass=True,
        is_required=True,
        meaning="What is done: a Job, which trains nothing.",
    ),
    Section("run", "llm_agents.training.settings.JobRunConfig"),
    *_ABOUT,
)


def sections_of(values: Mapping[str, object]) -> tuple[Section, ...]:
    """Return the sections that a recipe may have: with a `job` those of a recipe that trains not.

    Args:
        values: The recipe's content.
    """
    return WORKING if values.get(JOB) is not None else TRAINING


def section_of(values: Mapping[str, object], name: str) -> Section | None:
    """Return one of the sections that a recipe may have; None if it may have none of that name."""
    return next((section for section in sections_of(values) if section.name == name), None)
