"""How fast TWOSOME, POAD and their variants learn in the text worlds: several seeds, real model.

Every run is ``llm-agents run`` of a recipe with overrides, on one thread. Killed at any moment, the
same command goes on; runs that are finished are not run again, so that seeds and variants can be
added. Tables and curves go to ``benchmarks/results/``.

    python benchmarks/online_learning.py --work runs/online_learning
    python benchmarks/online_learning.py --work runs/online_learning --tasks food \
        --variants twosome poad ntpo --seeds 5
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from agent_runs import AgentRun, draw_curves
from keeping import RESULTS, keep
from seeds import interval

KEPT = RESULTS / "online_learning.json"
SHARES = (0.90, 0.97)


@dataclass(frozen=True)
class Task:
    """A world with its recipes.

    Args:
        recipe: What comes after the method's name in the recipes' names.
        optimum: Best discounted return there is.
        random: Discounted return of uniform random actions, computed from the rules.
    """

    recipe: str
    optimum: float
    random: float


TASKS = {
    "food": Task("virtualhome_food_preparation", 0.773781, 0.00288),
    "tomato": Task("overcooked_tomato_salad", 0.920518, -0.0964),
    "entertainment": Task("virtualhome_entertainment", 0.598737, 0.00043),
    "tomato_lettuce": Task("overcooked_tomato_lettuce_salad", 0.947656, -0.2280),
}

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "twosome": ("twosome", {}),
    "twosome_token": ("twosome", {"model.normalization": "token"}),
    "twosome_sum": ("twosome", {"model.normalization": "sum"}),
    "poad": ("poad", {}),
    "poad_list": ("poad", {"model.behaviour": "list", "model.tokens": "all"}),
    "poad_all_tokens": ("poad", {"model.tokens": "all"}),
    "ntpo": ("poad", {"model.credit": "ntpo"}),
    "ntpo_0.9": ("poad", {"model.credit": "ntpo", "model.intra_action_gamma": 0.9}),
    "ntpo_0.8": ("poad", {"model.credit": "ntpo", "model.intra_action_gamma": 0.8}),
    "ntpo_0.5": ("poad", {"model.credit": "ntpo", "model.intra_action_gamma": 0.5}),
}


@dataclass(frozen=True)
class Run(AgentRun):
    """One variant on one task with one seed."""

    task: str
    variant: str

    def train(self, overrides: Sequence[str]) -> None:
        """Run it, or go on with it, unless it has finished."""
        method, changes = VARIANTS[self.variant]
        self.execute(f"{method}_{TASKS[self.task].recipe}", changes, overrides)

    def frames_to(self, share: float) -> int | None:
        """Return the frames after which the curve first reached a share of the optimum."""
        bar = share * TASKS[self.task].optimum
        return next((frames for frames, found in self.curve() if found >= bar), None)


def summarize(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the numbers of one variant on one task over its seeds."""
    worlds = [run.worlds() for run in runs]
    summary: dict[str, Any] = {"seeds": [run.seed for run in runs]}
    for name in worlds[0]:
        found = [entry[name]["discounted_return"]["mean"] for entry in worlds]
        success = [entry[name]["success"]["mean"] for entry in worlds]
        summary[name] = {
            "return": interval(found),
            "by_seed": [round(value, 4) for value in found],
            "success": round(statistics.fmean(success), 4),
        }
    for share in SHARES:
        summary[f"frames_to_{share:.0%}"] = [run.frames_to(share) for run in runs]
    summary["frames"] = [run.curve()[-1][0] for run in runs]
    kept = [minutes for run in runs if (minutes := run.minutes()) is not None]
    summary["minutes"] = round(statistics.median(kept), 1) if kept else None
    summary["best_of_curve"] = [round(max(v for _, v in run.curve()), 4) for run in runs]
    return summary


def zero_shot(runs: Sequence[Run]) -> float | None:
    """Return what the base without training reached, mean over seeds."""
    names = [name for name in runs[0].worlds() if name.startswith("zero-shot@")]
    if not names:
        return None
    found = [run.worlds()[names[0]]["discounted_return"]["mean"] for run in runs]
    return statistics.fmean(found)


def picture(task: str, groups: dict[str, list[Run]], path: Path) -> None:
    """Draw each variant's curve: mean over seeds, band from the worst seed to the best."""
    figure, axis = plt.subplots(figsize=(7.6, 3.8), layout="constrained")
    draw_curves(axis, groups)
    axis.axhline(TASKS[task].optimum, color="0.3", linewidth=1, linestyle="--", label="optimum")
    axis.axhline(TASKS[task].random, color="0.6", linewidth=1, linestyle=":", label="random")
    untrained = [found for runs in groups.values() if (found := zero_shot(runs)) is not None]
    if untrained:
        axis.axhline(untrained[0], color="0.6", linewidth=1, linestyle="-.", label="zero-shot")
    axis.set_ylabel("discounted return of finished episodes")
    axis.set_title(TASKS[task].recipe.replace("_", " "))
    figure.legend(fontsize=8, loc="outside right", title="seeds in brackets", title_fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/online_learning"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["twosome", "poad"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument(
        "--summarize", action="store_true", help="run nothing: the tables of what has finished"
    )
    parser.add_argument("overrides", nargs="*", help="settings for every run, after --")
    options = parser.parse_args()
    queue = [
        Run(options.work / f"{task}-{variant}-{seed}", seed, task, variant)
        for seed in range(1, options.seeds + 1)
        for task in options.tasks
        for variant in options.variants
    ]
    if not options.summarize:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda run: run.train(options.overrides), queue))
    write_results(queue)


def write_results(queue: Sequence[Run]) -> None:
    """Put what has finished beside what is known of other tasks and variants."""
    known = json.loads(KEPT.read_text(encoding="utf8")) if KEPT.exists() else {}
    tables: dict[str, dict[str, Any]] = known.get("tasks", {})
    for task in dict.fromkeys(run.task for run in queue):
        groups: dict[str, list[Run]] = {}
        for run in queue:
            if run.task == task and run.is_finished:
                groups.setdefault(run.variant, []).append(run)
        if not groups:
            continue
        for variant, runs in groups.items():
            tables.setdefault(task, {"optimum": TASKS[task].optimum})[variant] = summarize(runs)
        picture(task, groups, RESULTS / f"online_learning_{task}.png")
    keep("online_learning", ("torch", "transformers"), tasks=tables)
    print(json.dumps(tables))


if __name__ == "__main__":
    main()
