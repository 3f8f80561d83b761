"""``lightning plot``: the learning curves of several runs in one picture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from llm_agents.errors import UserError
from llm_agents.evaluation import read_episode_results
from llm_agents.training.bars import ANSWERS, EPISODES, draw_answers, draw_play, results_groups
from llm_agents.training.comparing import are_games, compare_runs
from llm_agents.training.past_runs import RECIPE_FILE, RESULTS_FILE
from llm_agents.training.portraits import draw_curves, draw_probes, levels
from llm_agents.training.probes import PROBES_FILE
from llm_agents.training.suites import compare_suites, hold_suites

_NOT_COMPARED = ("seed_everything", "run", "evaluation", "reproduces", "publish")


def plot_runs(runs: Sequence[str], out: Path, published: Path | None = None) -> list[Path]:
    """Draw the curves of runs, one for each label or recipe, with an interval over its runs.

    Runs of agents are compared by what they reached, too, as bars with intervals; so are policies
    that write, and entries of the zoo, which have no curve. Where folders hold results of a suite,
    those are drawn instead. A run that logged its action probabilities in fixed situations
    gets a picture of them.

    Args:
        runs: Folders, each with its label before an ``=`` if it is to have one.
        out: Picture to write.
        published: File of Motif's published curves, drawn beneath those of NetHack runs.

    Returns:
        The files that were written.

    Raises:
        UserError: A folder holds no run in a world, or no episode ended in any of them.
    """
    if hold_suites([Path(run.rpartition("=")[2]) for run in runs]):
        return compare_suites(_suite_groups(runs), out)
    answered = results_groups(runs, ANSWERS)
    if answered is not None:
        return [draw_answers(answered, out)]
    played = results_groups(runs, EPISODES)
    if played is not None and not any(_is_run(f) for each in played.values() for f in each):
        return [draw_play(played, out)]
    groups = _groups(runs)
    folders = [folder for each in groups.values() for folder in each]
    if are_games(folders):
        return compare_runs(groups, out, published=published)
    if published is not None:
        raise UserError("expected finished runs of NetHack agents to draw over published curves")
    results = [read_episode_results(f) for f in folders if (f / RESULTS_FILE).is_file()]
    worlds = list(dict.fromkeys(entry.overall.world for entry in results))
    lines = levels(results[0], worlds[0]) if len(worlds) == 1 else {}
    metrics = {label: [f / "metrics.csv" for f in each] for label, each in groups.items()}
    drawn = draw_curves(metrics, out, lines=lines, title=", ".join(worlds))
    if drawn is None:
        raise UserError("expected a run in which an episode ended: there is no curve to draw")
    bars = []
    if len(results) == len(folders) > 1:
        bars = [draw_play(groups, out.with_name(f"{out.stem}_bars{out.suffix}"))]
    return [drawn, *bars, *_probe_pictures(groups, out)]


def _is_run(folder: Path) -> bool:
    """Return whether a folder holds a curve, rather than an entry of the zoo."""
    return (folder / "metrics.csv").is_file()


def _suite_groups(runs: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders of suites by label: by default the name of the folder above."""
    groups: dict[str, list[Path]] = {}
    for run in runs:
        label, _, path = run.rpartition("=")
        groups.setdefault(label or Path(path).resolve().parent.name, []).append(Path(path))
    return groups


def _probe_pictures(groups: Mapping[str, Sequence[Path]], out: Path) -> list[Path]:
    """Draw the action probabilities of the runs that logged them, a picture a label."""
    found = []
    for label, folders in groups.items():
        files = [folder / PROBES_FILE for folder in folders]
        if all(file.is_file() for file in files):
            name = re.sub(r"[^A-Za-z0-9]+", "-", label)
            suffix = f"_probes_{name}" if len(groups) > 1 else "_probes"
            path = out.with_name(f"{out.stem}{suffix}{out.suffix}")
            found.append(draw_probes(files, path, title=label))
    return found


def _groups(runs: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders of runs by label.

    Raises:
        UserError: One is no run.
    """
    groups: dict[str, list[Path]] = {}
    recipes: dict[str, str] = {}
    for run in runs:
        label, _, path = run.rpartition("=")
        folder = Path(path)
        if not (folder / "metrics.csv").is_file():
            raise UserError(f"expected the folder of a run, but {folder} holds no metrics.csv")
        groups.setdefault(label or _label(folder, recipes), []).append(folder)
    return groups


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
