"""What a finished run of an agent says: its curve, its minutes, what evaluation found."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from seeds import run_recipe


@dataclass(frozen=True)
class AgentRun:
    """A run of a recipe.

    Args:
        folder: Of the run.
        seed: Of the run.
    """

    folder: Path
    seed: int

    def execute(self, recipe: str, changes: Mapping[str, object], overrides: Sequence[str]) -> bool:
        """Run it, or go on with it, unless it has finished; tell whether it has now."""
        settings = {"seed_everything": self.seed, **changes}
        return run_recipe(recipe, self.folder, settings, overrides)

    @property
    def is_finished(self) -> bool:
        """Return whether it has been trained and evaluated."""
        return (self.folder / "results.json").exists()

    def curve(self, measure: str = "return_mean") -> list[tuple[int, float]]:
        """Return frames and a mean over the episodes that ended, by rollout."""
        column = f"rollout/{measure}"
        with (self.folder / "metrics.csv").open(encoding="utf8") as lines:
            return [
                (int(float(row["rollout/frames"])), float(row[column]))
                for row in csv.DictReader(lines)
                if row.get("rollout/frames") and row.get(column)
            ]

    def minutes(self) -> float | None:
        """Return the minutes of training, evaluation apart; None where they were not kept."""
        known = json.loads((self.folder / "versions.json").read_text(encoding="utf8"))
        seconds = known.get("training_seconds")
        return None if seconds is None else round(seconds / 60, 2)

    def commit(self) -> str | None:
        """Return the commit of the code that trained it; None where that was not known."""
        known = json.loads((self.folder / "versions.json").read_text(encoding="utf8"))
        return None if known.get("uncommitted_changes") else known.get("commit")

    def worlds(self) -> dict[str, dict[str, Any]]:
        """Return what evaluation found, by agent and world."""
        found = json.loads((self.folder / "results.json").read_text(encoding="utf8"))
        return {f"{entry['agent']}@{entry['world']}": entry for entry in found["worlds"]}


def draw_curves(
    axis: Axes, groups: Mapping[str, Sequence[AgentRun]], measure: str = "return_mean"
) -> None:
    """Draw each group's curve: mean over seeds, band from the worst seed to the best."""
    for number, (name, runs) in enumerate(groups.items()):
        curves = [run.curve(measure) for run in runs]
        grid = np.linspace(min(c[0][0] for c in curves), max(c[-1][0] for c in curves), 200)
        rows = np.array([_within(grid, curve) for curve in curves])
        label, low, high = f"{name} ({len(runs)})", np.nanmin(rows, 0), np.nanmax(rows, 0)
        axis.plot(grid, np.nanmean(rows, 0), color=f"C{number}", label=label)
        axis.fill_between(grid, low, high, color=f"C{number}", alpha=0.15)
    axis.set_xlabel("environment steps")


def _within(grid: NDArray[np.float64], curve: list[tuple[int, float]]) -> NDArray[np.float64]:
    """Return a curve at the points of a grid; nothing outside of what was seen of it."""
    frames, found = zip(*curve, strict=True)
    return np.interp(grid, frames, found, left=np.nan, right=np.nan)
