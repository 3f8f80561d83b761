"""``lightning plot``: the learning curves of several runs in one picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from llm_agents.errors import UserError
from llm_agents.evaluation import EpisodeResults, read_episode_results
from llm_agents.training.portraits import draw_curves, levels
from llm_agents.training.run_folder import RECIPE_FILE, RESULTS_FILE

_NOT_COMPARED = ("seed_everything", "run", "evaluation", "reproduces", "publish")


def plot_runs(runs: Sequence[str], out: Path) -> Path:
    """Draw the curves of runs, one for each label or recipe, with an interval over its runs.

    Args:
        runs: Folders, each with its label before an ``=`` if it is to have one.
        out: Picture to write.

    Raises:
        UserError: A folder holds no run in a world, or no episode ended in any of them.
    """
    groups: dict[str, list[Path]] = {}
    recipes: dict[str, str] = {}
    results: list[EpisodeResults] = []
    for run in runs:
        label, _, path = run.rpartition("=")
        folder = Path(path)
        metrics = folder / "metrics.csv"
        if not metrics.is_file():
            raise UserError(f"expected the folder of a run, but {folder} holds no metrics.csv")
        label = label or _label(folder, recipes)
        groups.setdefault(label, []).append(metrics)
        if (folder / RESULTS_FILE).is_file():
            results.append(read_episode_results(folder))
    worlds = list(dict.fromkeys(entry.overall.world for entry in results))
    lines = levels(results[0], worlds[0]) if len(worlds) == 1 else {}
    drawn = draw_curves(groups, out, lines=lines, title=", ".join(worlds))
    if drawn is None:
        raise UserError("expected a run in which an episode ended: there is no curve to draw")
    return drawn


def _label(folder: Path, recipes: dict[str, str]) -> str:
    """Return a name for all runs of one recipe, whatever their seeds; remember it in `recipes`."""
    path = folder / RECIPE_FILE
    if not path.is_file():
        raise UserError(f"expected the folder of a run, but {folder} holds no {RECIPE_FILE}")
    values = yaml.safe_load(path.read_text(encoding="utf8"))
    same = json.dumps({key: values[key] for key in values if key not in _NOT_COMPARED})
    if same not in recipes:
        name = folder.resolve().parent.name
        taken = list(recipes.values())
        recipes[same] = name if name not in taken else f"{name} {len(taken) + 1}"
    return recipes[same]
