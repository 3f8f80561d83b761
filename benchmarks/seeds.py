"""Runs of recipes with several seeds, one thread each, and what several seeds say."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}


def log_of(folder: Path) -> Path:
    """Return where a run's output goes."""
    return folder.with_name(f"{folder.name}.log")


def run_recipe(
    recipe: str, folder: Path, overrides: Mapping[str, object], extra: Sequence[str] = ()
) -> bool:
    """Run a recipe with overrides, or go on with it, unless it has finished.

    Args:
        recipe: Name of a file in ``recipes/``.
        folder: Of the run; its output goes to a file beside it.
        overrides: Settings laid over the recipe.
        extra: Arguments as they are.

    Returns:
        Whether the run has its results now.
    """
    if (folder / "results.json").exists():
        return True
    command = [sys.executable, "-m", "llm_agents", "run", str(ROOT / "recipes" / f"{recipe}.yaml")]
    command += ["--resume", "auto", "--run.folder", str(folder)]
    for key, value in overrides.items():
        command += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with log_of(folder).open("a", encoding="utf8") as log:
        done = subprocess.run(
            [*command, *extra], stdout=log, stderr=log, env=environment, check=False
        )
    state = "done" if done.returncode == 0 else f"FAILED ({done.returncode}), see {log_of(folder)}"
    print(f"{folder.name}: {state}", flush=True)
    return done.returncode == 0


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return the mean over seeds with its 95 % interval from Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": round(mean, 4)}
    half = _STUDENT.get(len(values), 2.0) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}
