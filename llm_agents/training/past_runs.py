"""Past runs by name: the newest complete run of a recipe, or of all, without typing its time.

=======================  =========================================================================
``runs/RECIPE/NEWEST``   the newest complete run of a recipe; any folder of runs will do
``RECIPE``               the same, where neither a folder nor an entry of the zoo is called so
``NEWEST``               the newest complete run of all below ``runs/``
=======================  =========================================================================

``NEWEST`` may be followed by more, as in ``runs/nll_hha/NEWEST/adapter``. A run is complete once
its ``results.json`` is there, which is written last; the newest is the one that was trained last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryFile

from llm_agents.entries import ZOO, find_entry
from llm_agents.errors import UserError

FOLDER_VARIABLE = "LLM_AGENTS_RUN_FOLDER"  # from the first process of a run to those it starts
NEWEST = "NEWEST"
RUNS = Path("runs")
RECIPE_FILE, RESULTS_FILE, VERSIONS_FILE = "recipe.yaml", "results.json", "versions.json"


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs below a folder; what a run keeps inside itself is no other run."""
    waiting = [folder]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if not path.is_dir():
                continue
            if (path / RECIPE_FILE).is_file():
                yield path
            elif not path.name.startswith("."):
                waiting.append(path)


def newest(folder: Path, *, complete: bool = True) -> Path:
    """Return the newest run below a folder.

    Args:
        folder: Of runs, such as ``runs`` or ``runs/a_lol_hha``.
        complete: Leave out runs that have no results yet.

    Raises:
        UserError: There is none.
    """
    found = list(runs_below(folder)) if folder.is_dir() else []
    done = [path for path in found if (path / RESULTS_FILE).is_file()]
    chosen = done if complete else found
    if chosen:
        return max(chosen, key=lambda path: (_trained_at(path), path.name))
    if found:
        raise UserError(
            f"expected a complete run in {folder}: none of the {len(found)} there has a "
            f"{RESULTS_FILE}; go on with one by `lightning run RECIPE --resume auto`, or name its "
            "folder"
        )
    raise UserError(f"expected a run in {folder}, found none{known_runs(folder.as_posix())}")


def _trained_at(run: Path) -> int:
    """Return when a run wrote last: evaluating one again makes it no newer."""
    mark = run / VERSIONS_FILE
    return (mark if mark.is_file() else run / RECIPE_FILE).stat().st_mtime_ns


def known_runs(wanted: str) -> str:
    """Return the end of a message about runs that are not there: near ones, or all there are.

    Args:
        wanted: What was looked for.
    """
    others = {path.parent.as_posix() for path in runs_below(RUNS)} if RUNS.is_dir() else set()
    near = get_close_matches(wanted, others, n=1, cutoff=0.6)
    if near:
        return f": did you mean {near[0]}/{NEWEST}?"
    if others:
        return f"; there are runs in {', '.join(sorted(others)[:8])}"
    return "; no run is below `runs/` here"


def with_newest(text: str, *, complete: bool = True) -> str:
    """Return a path in which ``NEWEST`` is replaced by the run that it stands for.

    Args:
        text: Any text; one without that word is returned as it is.
        complete: See `newest`.

    Raises:
        UserError: There is no such run.
    """
    parts = Path(text).parts
    if NEWEST not in parts or Path(text).exists():
        return text
    at = parts.index(NEWEST)
    folder = Path(*parts[:at]).expanduser() if at else RUNS
    return str(Path(newest(folder, complete=complete), *parts[at + 1 :]))


def run_called(name: str, *, complete: bool = True) -> str:
    """Return the folder of the run that a name stands for, or the name itself where it is no run's.

    Args:
        name: As in the table above, or anything else.
        complete: See `newest`.

    Raises:
        UserError: It stands for a run, and there is none.
    """
    found = with_newest(name, complete=complete)
    is_word = not found.startswith((ZOO, ".", "/", "~")) and ":" not in found
    folder = RUNS / found
    if found and is_word and find_entry(found) is None and folder.is_dir():
        if (folder / RECIPE_FILE).is_file():
            return str(folder)
        return str(newest(folder, complete=complete))
    return found


def is_begun(folder: Path) -> bool:
    """Return whether a folder holds a run that another one would write over."""
    return (folder / RESULTS_FILE).is_file() or any((folder / "checkpoints").glob("step-*.ckpt"))


def check_folder(folder: str | None, resume: str | None) -> str | None:
    """Refuse what a run can't be kept in, or continued from, before anything is loaded.

    Args:
        folder: The run's folder, if the user names it.
        resume: ``auto``, the path of a checkpoint or of a run's folder, or None.

    Returns:
        `resume`, with the folder that a name stands for.

    Raises:
        UserError: The folder holds a run already, can't be written, or there is nothing to resume.
    """
    if resume is not None and resume != "auto":
        resume = run_called(resume, complete=False)
        if not Path(resume).exists():
            raise UserError(
                f"expected a checkpoint or a run's folder to resume, but there is no {resume}"
            )
    own = RUNS if folder is None else Path(folder).expanduser()
    refuse_unwritable(own, "run.folder")
    is_first = FOLDER_VARIABLE not in os.environ  # of the processes of this run
    if folder is not None and resume is None and is_first and is_begun(own):
        raise UserError(
            f"expected a new folder, but {own} holds a run: continue it with `--resume auto`, or "
            "name another `run.folder`"
        )
    return resume


def refuse_unwritable(folder: Path, what: str) -> None:
    """Raise if nothing can be written into a folder, which need not be there yet.

    Args:
        folder: What is to be made or written into.
        what: What the user calls it.

    Raises:
        UserError: Names the place and the reason.
    """
    place = folder
    try:
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise UserError(f"expected a folder as {what}, got {folder}: {place} is a file")
        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(
            f"can't write into {folder} ({what}): {error.strerror} at {place}; name another folder"
        ) from error
