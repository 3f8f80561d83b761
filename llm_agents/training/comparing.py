"""Several runs of NetHack agents together: curves, what they reached, and a table."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from llm_agents.errors import UserError
from llm_agents.evaluation import GamesResults, compare_games, read_curve, read_games_results
from llm_agents.evaluation.episodes import RANDOM
from llm_agents.evaluation.nethack import GAMES_KIND
from llm_agents.evaluation.nethack_pictures import plot_game_curves, plot_games
from llm_agents.evaluation.nethack_tables import comparison_tables, pair_differences
from llm_agents.evaluation.results import kind_of_results
from llm_agents.rewards.motif_results import read_motif_results
from llm_agents.training.metrics import read_rows
from llm_agents.training.past_runs import RESULTS_FILE
from llm_agents.whole_files import write_text

log = logging.getLogger(__name__)

PANELS = {
    "score": "rollout/score_mean",
    "intrinsic return": "rollout/intrinsic_return_mean",
    "depth": "rollout/max_depth_mean",
}
"""What is drawn of a run, by its name in ``metrics.csv``: means over its latest games."""


def draw_game_curves(
    runs: Mapping[str, Sequence[Path]],
    path: Path,
    *,
    title: str,
    published: Path | None = None,
) -> Path | None:
    """Draw the learning curves of NetHack runs.

    Args:
        runs: Folders of runs that differ in seed only, by what they have in common.
        path: Picture to write.
        title: Above it.
        published: File of a paper's curves, drawn beneath.

    Returns:
        `path`; None if no game ended in any run.
    """
    rows = {
        label: [read_rows(folder / "metrics.csv") for folder in folders]
        for label, folders in runs.items()
    }
    panels = {
        name: {
            label: [read_curve(found, value=column, weight="") for found in each]
            for label, each in rows.items()
        }
        for name, column in PANELS.items()
        if name != "intrinsic return" or _has_intrinsic(rows)
    }
    if not any(c.steps for groups in panels.values() for curves in groups.values() for c in curves):
        log.info("no learning curve: no game ended in training")
        return None
    curves = () if published is None else read_motif_results(published)
    return plot_game_curves(panels, path, title=title, published=curves)


def _has_intrinsic(rows: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]) -> bool:
    """Return whether any game was paid for its messages."""
    column = PANELS["intrinsic return"]
    return any(row.get(column) for each in rows.values() for found in each for row in found)


def compare_runs(
    runs: Mapping[str, Sequence[Path]], out: Path, *, published: Path | None = None
) -> list[Path]:
    """Print what NetHack runs reached, and draw their curves and their last games.

    Args:
        runs: Folders of runs, by label; equal labels differ in seed.
        out: Picture of the curves; ``<name>_games.png`` and ``<name>.json`` are written beside it.
        published: File of a paper's curves.

    Returns:
        The files that were written.

    Raises:
        UserError: A run has no results yet, or played another task than the others.
    """
    groups = {label: [read_games_results(f) for f in folders] for label, folders in runs.items()}
    task = _common_task([results for each in groups.values() for results in each])
    bootstrap = next(iter(groups.values()))[0].bootstrap
    compared = compare_games(groups, task=task, baseline=RANDOM)
    pairs = pair_differences(groups, task=task)
    tables = comparison_tables(compared, pairs, task=task, baseline=RANDOM, bootstrap=bootstrap)
    Console().print(tables)
    curves = draw_game_curves(runs, out, title=task, published=published)
    bars = plot_games(compared, out.with_name(f"{out.stem}_games{out.suffix}"), title=task)
    numbers = out.with_suffix(".json")
    values = {
        "task": task,
        "groups": [asdict(group) for group in compared],
        "differences": {
            pair: {name: asdict(interval) for name, interval in each.items()}
            for pair, each in pairs.items()
        },
    }
    write_text(numbers, json.dumps(values, indent=1, allow_nan=False) + "\n")
    return [path for path in (curves, bars, numbers) if path is not None]


def _common_task(results: Sequence[GamesResults]) -> str:
    """Return the task that all runs played first."""
    tasks = list(dict.fromkeys(each.overall.task for each in results))
    if len(tasks) != 1:
        raise UserError(f"expected runs of one task, got {', '.join(tasks)}: compare them apart")
    return tasks[0]


def are_games(folders: Sequence[Path]) -> bool:
    """Return whether runs are of NetHack agents, as their results say."""
    return bool(folders) and all(
        (folder / RESULTS_FILE).is_file() and kind_of_results(folder) == GAMES_KIND
        for folder in folders
    )
