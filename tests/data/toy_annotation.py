"""A data set whose messages have a known worth, and its annotation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from llm_agents.data.motif_annotation import MotifAnnotation
from llm_agents.data.motif_layout import MotifPairs
from llm_agents.rewards import (
    PointwiseAnnotator,
)
from llm_agents.rewards.annotator import Annotator
from tests.rewards.annotation_backends import RuleBackend

MESSAGES = ["You kill the newt!", "", "It's a wall.", "The newt bites!", "$ - 7 gold pieces."]
WORTH = dict(zip(MESSAGES, (3.0, 0.0, -0.5, -3.0, 2.0), strict=True))


def message(text: str) -> np.ndarray:
    row = np.zeros(256, dtype=np.uint8)
    row[: len(text)] = list(text.encode("latin1"))
    return row


def write_pairs(folder: Path, number: int = 24, seed: int = 0, length: int = 1) -> list[list[str]]:
    """Write a data set and return its messages, of the first step of each side."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, len(MESSAGES), (number, 2, length))
    data = np.array([[[message(MESSAGES[i]) for i in side] for side in row] for row in chosen])
    stats = np.zeros((number, 2, length, 27), dtype=np.int64)
    stats[..., 12] = 1 + np.arange(number)[:, None, None]
    rewards = generator.normal(size=(number, 2, length))
    score = generator.integers(0, 5, (number, 2))
    MotifPairs.create(
        folder, {"message": data, "blstats": stats, "rewards": rewards}, {"score": score}
    )
    return [[MESSAGES[side[0]] for side in row] for row in chosen]


def lead(text: str) -> float:
    return WORTH[text.rpartition(': "')[2].partition('"\n')[0].rstrip('"')]


def expected(pairs: list[list[str]]) -> list[int]:
    leads = [WORTH[one] - WORTH[two] for one, two in pairs]
    return [2 if lead == 0 else 0 if lead > 0 else 1 for lead in leads]


def pointwise(**options: Any) -> PointwiseAnnotator:
    return PointwiseAnnotator(RuleBackend(lead=lead), **{"version": "default"} | options)


def read(folder: Path, name: str) -> list[int]:
    found: list[int] = np.load(folder / "preference" / f"{name}.npy").tolist()
    return found


def annotate(folder: Path, annotator: Annotator, **options: Any) -> dict[str, Any]:
    job = MotifAnnotation(folder, annotator, progress=False, **options)
    return dict(job.run(folder))


def verdict(text: str, seed: int) -> str:
    quoted = [part for part in text.split('"') if part in WORTH]
    return f'("best_description": {1 if WORTH[quoted[-2]] > WORTH[quoted[-1]] else 2})'
