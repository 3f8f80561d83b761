"""Running a recipe's `job`: a stage that trains nothing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning.pytorch import seed_everything
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from llm_agents.errors import UserError
from llm_agents.evaluation.results import only_finite, package_versions, write_object
from llm_agents.training.building import instantiate
from llm_agents.training.claiming import LOCK_FILE, claimed
from llm_agents.training.past_runs import RECIPE_FILE, RESULTS_FILE
from llm_agents.training.run_folder import (
    VERSIONS_FILE,
    RunFolder,
    new_folder,
    newest_run,
)
from llm_agents.training.stopping import StopSignals
from llm_agents.types import Job

log = logging.getLogger(__name__)

KIND = "job"


def run_job(values: Mapping[str, Any], recipe: str, name: str, resume: str | None) -> RunFolder:
    """Do the job of a recipe.

    A job goes on with what its folder and its own output hold, so that one that was stopped is
    run again with ``--resume auto``.

    Args:
        values: The recipe's content, checked.
        recipe: The same as text, for the run's folder.
        name: Name of its runs.
        resume: ``auto``, the path of a run's folder, or None.

    Returns:
        The run's folder, with ``results.json`` in it.

    Raises:
        UserError: Something that the user can cure.
        RunStoppedError: Ctrl-C or SIGTERM.
    """
    if (values.get("publish") or {}).get("repo_id"):
        raise UserError("expected no `publish.repo_id` in the recipe of a job: it trains nothing")
    section = values.get("run") or {}
    run = _open(section.get("name") or name, section.get("folder"), resume, recipe)
    if resume == "auto" and run.is_finished and run.holds(recipe):
        log.info("the job in %s is done: leave `--resume` out to do it again", run.path)
        return run
    try:
        with claimed(run.path), StopSignals():
            _do(values, recipe, run)
    except UserError:
        run.remove_if_empty()
        raise
    return run


def _open(name: str, folder: str | None, resume: str | None, recipe: str) -> RunFolder:
    """Return the folder of a new run, or of the one to go on with.

    Raises:
        UserError: The folder holds a run already, or there is none at `resume`.
    """
    if resume is not None and resume != "auto":
        if not (Path(resume) / RECIPE_FILE).is_file():
            raise UserError(
                f"expected the folder of a run to resume, but {resume} holds no {RECIPE_FILE}"
            )
        return RunFolder(Path(folder).expanduser() if folder else Path(resume))
    found = Path(folder).expanduser() if folder else None
    if found is None and resume == "auto":
        found = newest_run(name, recipe)
    if resume is None and found is not None and _is_begun(found):
        raise UserError(
            f"expected a new folder, but {found} holds a run: go on with it with `--resume auto`, "
            "or name another `run.folder`"
        )
    if resume == "auto" and (found is None or not found.is_dir()):
        log.info("no earlier run of %s: starting one", name)
    return RunFolder(found or new_folder(name))


def _is_begun(folder: Path) -> bool:
    """Return whether a folder holds a run that has got further than its start."""
    if not (folder / RECIPE_FILE).is_file():
        return False
    start = (RECIPE_FILE, VERSIONS_FILE, LOCK_FILE)
    return any(path.name not in start for path in folder.iterdir())


def _do(values: Mapping[str, Any], recipe: str, run: RunFolder) -> None:
    """Build the job, do it, and keep what it found; results of an earlier time are dropped."""
    seed_everything(int(values.get("seed_everything") or 0), workers=True, verbose=False)
    job = instantiate(Job, values["job"])  # type: ignore[type-abstract]  # a subclass is named
    run.write_start(recipe)
    (run.path / RESULTS_FILE).unlink(missing_ok=True)
    log.info("run folder: %s", run.path)
    start = time.perf_counter()
    numbers = dict(job.run(run.path))
    seconds = time.perf_counter() - start
    path = write_job_results(run.path, job, numbers, seconds)
    if os.environ.get("RANK", "0") == "0":
        Console().print(job_table(type(job).__name__, numbers))
    log.info("results: %s", path)


def write_job_results(
    folder: Path, job: Job, numbers: Mapping[str, object], seconds: float
) -> Path:
    """Write what a job found as ``results.json``.

    Args:
        folder: The run's folder.
        job: What was done.
        numbers: What its `run` returned.
        seconds: How long it took this time.
    """
    kind = type(job)
    values = {
        "name": kind.__name__,
        "job": f"{kind.__module__}.{kind.__qualname__}",
        "numbers": only_finite(dict(numbers)),
        "seconds": round(seconds, 3),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": package_versions(),
    }
    return write_object(folder, values, kind=KIND)


def job_table(name: str, numbers: Mapping[str, object]) -> Table:
    """Return a job's numbers, those of inner mappings after their key and a dot."""
    table = Table(title=name, title_justify="left", box=SIMPLE_HEAD, show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for key, value in _flat(numbers):
        table.add_row(key, _shown(value))
    return table


def _flat(numbers: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return the leaves of nested mappings with their keys; lists are left to the file."""
    found: list[tuple[str, object]] = []
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            found.append((f"{prefix}{key}", value))
    return found


def _shown(value: object) -> str:
    """Return a value as the table shows it."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
