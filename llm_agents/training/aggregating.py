"""``lightning aggregate``: the folders of finished runs as one table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from llm_agents.errors import UserError
from llm_agents.evaluation.aggregation import (
    Aggregate,
    RunSummary,
    Segment,
    Validation,
    aggregate,
    metric_of,
)
from llm_agents.evaluation.aggregation_tables import (
    draw,
    markdown,
    write_csv,
    write_runs_csv,
    write_task_csv,
)
from llm_agents.evaluation.results import Results, TestSetResult, read_results
from llm_agents.rewards.tasks import FINAL
from llm_agents.training.chain import FIRST
from llm_agents.training.metrics import STEP, Row, read_rows
from llm_agents.training.past_runs import RECIPE_FILE, RESULTS_FILE
from llm_agents.whole_files import write_text

_NOT_COMPARED = ("seed_everything", "run", "reproduces", "publish")


def aggregate_runs(runs: Sequence[str], out: Path) -> list[Path]:
    """Write the tables of finished runs: CSV, a CSV of each task and of single runs, Markdown, PNG.

    Args:
        runs: Folders of runs, or folders of which each holds some, with an algorithm's label before
            an ``=`` where its own name won't do.
        out: The CSV; the other files' names begin as its own.

    Returns:
        The files that were written.

    Raises:
        UserError: A folder holds no finished run of a method that answers prompts.
    """
    found = aggregate([summary for run in runs for summary in _summaries(run)])
    out = out.with_suffix(".csv")
    files = [write_csv(out, found), write_runs_csv(out.with_name(f"{out.stem}_runs.csv"), found)]
    for task in found.tasks:
        path = out.with_name(f"{out.stem}_{task}.csv")
        files.append(write_task_csv(path, found.of_task(task)))
    text = out.with_suffix(".md")
    write_text(text, markdown(found))
    return [*files, text, draw(found, out.with_suffix(".png"))]


def tables_of(runs: Sequence[str]) -> Aggregate:
    """Return what `aggregate_runs` writes, for use in Python."""
    return aggregate([summary for run in runs for summary in _summaries(run)])


def _summaries(run: str) -> list[RunSummary]:
    """Return the summaries of the runs that one argument names."""
    label, _, path = run.rpartition("=")
    folder = Path(path)
    if (folder / RESULTS_FILE).is_file():
        return [summarize_run(folder, label or None)]
    inside = sorted(found.parent for found in folder.glob(f"*/{RESULTS_FILE}"))
    if not inside:
        raise UserError(
            f"expected the folder of a finished run, or of some, but `{folder}` has no "
            f"{RESULTS_FILE}: finish it with `--resume auto`"
        )
    return [summarize_run(found, label or None) for found in inside]


def summarize_run(folder: Path, label: str | None = None) -> RunSummary:
    """Read a run's folder.

    Args:
        folder: With recipe, numbers and results.
        label: Name of the algorithm; the recipe's own if None.

    Raises:
        UserError: Something is missing, or the run answers no prompts.
    """
    path = folder / RECIPE_FILE
    if not path.is_file():
        raise UserError(f"expected the folder of a run, but `{folder}` has no {RECIPE_FILE}")
    recipe: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf8"))
    results = read_results(folder, with_texts=False)
    details = results.details
    task = str(details.get("task") or "unnamed")
    metric = metric_of(task, results.overall.parts)
    rows = read_rows(folder / "metrics.csv")
    validations = tuple(_validations(rows, metric))
    kept = int(details.get("step") or 0)
    base, settings = _identity(recipe)
    return RunSummary(
        task=task,
        metric=metric,
        baseline_model=base,
        algorithm=label or str(details.get("method") or results.name),
        settings="" if label else settings,
        seed=int(recipe.get("seed_everything") or 0),
        validations=tuple(found for found in validations if found.step > 0),
        val=next((found.value for found in validations if found.step == kept), None),
        test=_means(results.overall).get(metric),
        means=_segments(results, next((row for row in rows if row[STEP] == kept), {})),
        results=results,
    )


def _validations(rows: Sequence[Row], metric: str) -> list[Validation]:
    """Return what the validations of a run found, its start's included."""
    name = "val/reward" if metric == FINAL else f"val/parts/{metric}"
    found = []
    for row in rows:
        if name in row:
            epoch = row.get("epoch")
            value = row[name]
            found.append(Validation(None if epoch is None else int(epoch), int(row[STEP]), value))
    return found


def _means(test: TestSetResult) -> dict[str, float]:
    """Return the mean of the whole reward and of its parts."""
    return {**{name: part.mean for name, part in test.parts.items()}, FINAL: test.reward.mean}


def _segments(results: Results, kept: Row) -> dict[Segment, dict[str, float]]:
    """Return the means of each reward by segment, as far as the run has them."""
    found: dict[Segment, dict[str, float]] = {"test_gen": _means(results.overall)}
    gold = results.overall.gold
    if gold is not None and gold.reward is not None:
        parts = {name: part.mean for name, part in gold.parts.items()}
        found["test_gold"] = {**parts, FINAL: gold.reward.mean}
    if "val/reward" in kept:
        parts = {
            name.removeprefix("val/parts/"): value
            for name, value in kept.items()
            if name.startswith("val/parts/")
        }
        found["val_gen"] = {**parts, FINAL: kept["val/reward"]}
    gold = results.overall.gold
    if gold is not None and gold.reward is not None:
        scores = {name: part.mean for name, part in gold.parts.items()}
        found["test_gold"] = {**scores, FINAL: gold.reward.mean}
    if "val_gold" in results.details:
        found["val_gold"] = dict(results.details["val_gold"])
    return found


def _identity(recipe: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a run started from, and a digest of what runs that differ by seed have alike."""
    values = json.loads(json.dumps({k: v for k, v in recipe.items() if k not in _NOT_COMPARED}))
    model = (values.get("model") or {}).get("init_args") or {}
    policy = (model.get("policy") or {}).get("init_args") or {}
    for name in ("adapter", "base"):  # a reference of the run's own has the run's seed
        if str(policy.get(name) or "").endswith(f"{FIRST}/adapter"):
            policy[name] = FIRST
    starts = [policy[name] for name in ("base", "adapter") if policy.get(name)]
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
    return "+".join(_short(str(start)) for start in starts) or "unnamed", digest


def _short(name: str) -> str:
    """Return the name of a model or adapter: its folder's, or its Hub id."""
    path = Path(name)
    if not path.is_dir():
        return name
    return path.parent.name if path.name == "adapter" else path.name
