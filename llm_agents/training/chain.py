"""A run of two stages: the reference, then what starts from it."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llm_agents.errors import UserError
from llm_agents.training.past_runs import FOLDER_VARIABLE
from llm_agents.training.run_folder import RunFolder, open_run
from llm_agents.training.session import run_recipe

log = logging.getLogger(__name__)

FIRST = "reference"
"""Name of the first stage's folder in the run's."""

Values = Mapping[str, Any]


def run_chain(
    first: Values,
    second: Callable[[str], Values],
    text_of: Callable[[Values], str],
    name: str,
    resume: str | None,
) -> RunFolder:
    """Train the reference, unless that is done, and then what starts from it.

    Args:
        first: Recipe of the reference.
        second: From the folder of what the first stage has left to the recipe of the second.
        text_of: From a recipe to its text.
        name: Name of the recipe's runs.
        resume: ``auto``, the path of a checkpoint or of a run's folder, or None.

    Returns:
        The run's folder; that of the first stage is ``reference`` in it.

    Raises:
        UserError: Something that the user can cure.
        RunStoppedError: Ctrl-C or SIGTERM.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "a recipe with a `reference` runs two stages, one after the other, and processes that "
            "are started from outside (torchrun, SLURM) can't wait for each other between them: "
            "run each by itself, the second with `--reference null` and `--model.policy.adapter`"
        )
    own = Path(given) if given else None
    if own is not None and own.name == FIRST:  # a process that the first stage has started
        return run_recipe(first, text_of(first), name, resume)
    section = (first.get("run") or {}) if own is None else {}
    run = open_run(section.get("name") or name, section.get("folder"), resume)
    folder = run.path / FIRST
    start = _in_folder(first, folder)
    later = _in_folder(second(str(folder / "adapter")), run.path)
    if own is None:
        if not run.is_begun:
            run.write_start(text_of(later))
        _train_reference(start, text_of(start), folder, name, resume)
        gc.collect()
    return run_recipe(later, text_of(later), name, resume)


def _train_reference(start: Values, text: str, folder: Path, name: str, resume: str | None) -> None:
    """Run the first stage, or go on with it, unless what it leaves behind is there already."""
    trained = folder / "adapter" / "recipe.yaml"
    if trained.is_file() and trained.read_text(encoding="utf8") == text:
        log.info("the reference is trained: %s", trained.parent)
        return
    if resume is None and RunFolder(folder).is_begun:
        raise UserError(
            f"{folder} holds another reference, or an unfinished one: go on with it with "
            "`--resume auto`, or name another `run.folder`"
        )
    log.info("first stage: the reference")
    run_recipe(start, text, name, "auto")
    log.info("second stage: from %s", trained.parent)


def _in_folder(values: Values, folder: Path) -> dict[str, Any]:
    """Return a recipe whose run is kept in `folder`."""
    return {**values, "run": {**(values.get("run") or {}), "folder": str(folder)}}
