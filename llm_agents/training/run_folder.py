"""The folder of a run: what lies in it, how a new one is named, how an old one is found.

==================  ==========================================================================
``recipe.yaml``     the resolved recipe
``versions.json``   packages, Python, commit, device, command; seconds of training at its end
``metrics.csv``     every logged number by optimizer step, or by decisions in the worlds
``data.json``       rows of each split that were dropped or changed, with the reason
``tensorboard/``    the same for TensorBoard
``checkpoints/``    ``step-00000100.ckpt``: adapters, heads, optimizer, random and data state
``adapter/``        the best weights, as the zoo keeps them
``results.json``    what the evaluation found, with texts or pictures; written last
==================  ==========================================================================
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path

import torch

from llm_agents import __version__
from llm_agents.errors import UserError
from llm_agents.training.checkpoints import newest_checkpoint
from llm_agents.training.past_runs import (
    FOLDER_VARIABLE,
    RECIPE_FILE,
    RESULTS_FILE,
    RUNS,
    is_begun,
)
from llm_agents.whole_files import write_text

log = logging.getLogger(__name__)

VERSIONS_FILE = "versions.json"
SECONDS = "training_seconds"  # among the versions
PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "torchrl",
    "tensordict",
    "huggingface_hub",
    "jsonargparse",
    "bitsandbytes",
    "numpy",
)


@dataclass(frozen=True)
class RunFolder:
    """A run's folder.

    Args:
        path: Where it is.
        checkpoint: What the run continues from; None if it starts.
    """

    path: Path
    checkpoint: Path | None = None

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """Return the folder of the best weights."""
        return self.path / "adapter"

    @property
    def is_finished(self) -> bool:
        """Return whether everything that the recipe asked for is there."""
        return (self.path / RESULTS_FILE).is_file()

    @property
    def is_begun(self) -> bool:
        """Return whether there is anything in it that another run would write over."""
        return is_begun(self.path)

    def holds(self, recipe: str) -> bool:
        """Return whether it is the run of this resolved recipe."""
        path = self.path / RECIPE_FILE
        return path.is_file() and path.read_text(encoding="utf8") == recipe

    def remove_if_empty(self) -> None:
        """Remove the folder that was made for a run which never began, and ``runs/`` around it."""
        around = [path for path in self.path.parents if RUNS in (path, *path.parents)]
        for path in (self.path, *around):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def write_start(self, recipe: str) -> None:
        """Write the recipe and what it runs on; say what changed since the run began."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / RECIPE_FILE
        if path.is_file() and path.read_text(encoding="utf8") != recipe:
            before = next(
                kept
                for kept in (path.with_name(f"recipe-{n}.yaml") for n in count(1))
                if not kept.exists()
            )
            path.rename(before)
            log.warning(
                "the recipe differs from the one that the run in %s began with, which is kept as "
                "%s",
                self.path,
                before.name,
            )
        write_text(path, recipe)
        earlier = self._versions()
        kept = {
            key: earlier[key] for key in (SECONDS,) if key in earlier
        }  # only a training sets it
        self._write_versions({**versions(), **kept})

    def write_seconds(self, seconds: float) -> None:
        """Write how long the training took beside what it ran on."""
        self._write_versions({**self._versions(), SECONDS: round(seconds, 3)})

    def _versions(self) -> dict[str, object]:
        """Return what is known of what the run depends on; nothing before its start."""
        path = self.path / VERSIONS_FILE
        found: dict[str, object] = {}
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf8"))
        return found

    def _write_versions(self, values: dict[str, object]) -> None:
        write_text(self.path / VERSIONS_FILE, json.dumps(values, indent=2) + "\n")


def open_run(
    name: str, folder: str | None, resume: str | None, recipe: str | None = None
) -> RunFolder:
    """Return the folder of a new run, or of the one to be continued.

    Args:
        name: Name of the recipe.
        folder: The run's folder, if the user names it.
        resume: ``auto``, the path of a checkpoint or of a run's folder, or None.
        recipe: The resolved recipe, for ``auto``: see `newest_run`.

    Raises:
        UserError: The folder holds a run already, or there is nothing at `resume`.
    """
    if given := os.environ.get(FOLDER_VARIABLE):
        checkpoint = newest_checkpoint(Path(given) / "checkpoints") if resume == "auto" else None
        if resume not in (None, "auto"):
            checkpoint = _named_checkpoint(Path(str(resume)))[1]
        return RunFolder(Path(given), checkpoint)
    if resume is not None and resume != "auto":
        owner, checkpoint = _named_checkpoint(Path(resume))
        return RunFolder(Path(folder).expanduser() if folder else owner, checkpoint)
    found = Path(folder).expanduser() if folder else None
    if found is None and resume == "auto":
        found = newest_run(name, recipe)
    if found is not None and (found / RECIPE_FILE).is_file():
        if resume is None:
            if not RunFolder(found).is_begun:
                return RunFolder(found)
            raise UserError(
                f"expected a new folder, but {found} holds a run: continue it with "
                "`--resume auto`, or name another `run.folder`"
            )
        checkpoint = newest_checkpoint(found / "checkpoints")
        if checkpoint is None:
            log.info("the run in %s has no checkpoint yet: starting it again", found)
        return RunFolder(found, checkpoint)
    if resume == "auto":
        log.info("no earlier run of %s: starting one", name)
    return RunFolder(found or new_folder(name))


def _named_checkpoint(path: Path) -> tuple[Path, Path]:
    """Return the run folder and the checkpoint that `path` names."""
    if path.is_file():
        return path.resolve().parent.parent, path
    if not path.is_dir():
        raise UserError(
            f"expected a checkpoint or a run's folder to resume, but there is no {path}"
        )
    for owner, folder in ((path, path / "checkpoints"), (path.parent, path)):
        checkpoint = newest_checkpoint(folder)
        if checkpoint is not None:
            return owner, checkpoint
    raise UserError(f"expected a complete checkpoint in {path}, found none")


def newest_run(name: str, recipe: str | None = None) -> Path | None:
    """Return the run of a recipe that `auto` goes on with; their folders' names are times.

    The newest that began with this very recipe; else the newest that isn't finished; else the
    newest. So a run of the same recipe with other settings is not taken for one that was stopped.

    Args:
        name: Name of the recipe.
        recipe: The resolved recipe, if it is known.
    """
    runs = [RunFolder(path.parent) for path in Path("runs", name).glob(f"*/{RECIPE_FILE}")]

    def rank(run: RunFolder) -> tuple[bool, bool, str]:
        return recipe is not None and run.holds(recipe), not run.is_finished, run.path.name

    return max(runs, key=rank).path if runs else None


def new_folder(name: str) -> Path:
    """Make a folder that is named by the time."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "expected `run.folder` where several processes are started from outside (torchrun, "
            "SLURM): they have to agree on a folder"
        )
    while True:
        path = Path("runs", name, time.strftime("%Y%m%d-%H%M%S"))
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # two runs in one second
            time.sleep(0.2)
            continue
        return path


def versions() -> dict[str, object]:
    """Return what a run depends on besides its recipe."""
    found: dict[str, str] = {"llm-agents": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "threads": torch.get_num_threads(),
        "packages": found,
        **commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def commit() -> dict[str, object]:
    """Return the commit that the package's source lies at; None if it is no checkout."""
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return {"commit": None, "uncommitted_changes": None}
    head = _git(git, root, "rev-parse", "HEAD")
    source = ("--", "llm_agents", "recipes", "pyproject.toml")  # notes and tables train nothing
    changed = _git(git, root, "status", "--porcelain", "--untracked-files=no", *source)
    return {"commit": head or None, "uncommitted_changes": None if head is None else bool(changed)}


def _git(git: str, root: Path, *arguments: str) -> str | None:
    """Return what git says; None if it fails."""
    done = subprocess.run(
        [git, "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None
