"""With what something was trained: the commit above all, and whether it tells the whole truth."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from llm_agents.errors import UserError
from llm_agents.zoo.layout import read_json, write_json

PROVENANCE_FILE = "provenance.json"
VERSIONS_FILE = "versions.json"  # as a run keeps it


@dataclass(frozen=True)
class Provenance:
    """What a training stood on. It names no folder, user or machine.

    Args:
        commit: Commit of this package's source; None if it was no checkout.
        uncommitted_changes: Whether the source differed from the commit; None if nobody knows.
        python: Version of Python.
        device: Processor or accelerator.
        packages: Versions of the packages that matter.
        time: When the training began; that of its last attempt.
        training_seconds: How long it took, evaluation apart; None where it is not recorded.
        selection: How it was chosen among several trainings; None where it was the only one, or the
            one that was named beforehand.
    """

    commit: str | None = None
    uncommitted_changes: bool | None = None
    python: str | None = None
    device: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    time: str | None = None
    training_seconds: float | None = None
    selection: str | None = None

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return what is known of a folder: from itself, or from the run that it lies in."""
        for path in (folder / PROVENANCE_FILE, folder.parent / VERSIONS_FILE):
            if path.is_file() and (path.name == PROVENANCE_FILE or folder.name == "adapter"):
                values: dict[str, Any] = read_json(path)
                names = {entry.name for entry in fields(cls)}
                return cls(**{name: values[name] for name in names if name in values})
        return None

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        write_json(folder / PROVENANCE_FILE, asdict(self))


def refuse_uncommitted(folder: Path, provenance: Provenance | None) -> None:
    """Raise if what is published can't be made again from a commit.

    Args:
        folder: What is to be published.
        provenance: What is known of it.

    Raises:
        UserError: It was trained with changes that no commit holds, or lies in a repository with
            such changes.
    """
    faults = []
    if provenance is not None and provenance.uncommitted_changes:
        faults.append(
            f"it was trained with changes of llm_agents that the commit {provenance.commit} does "
            "not hold"
        )
    changed = uncommitted_files(folder)
    if changed:
        shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if changed[5:] else "")
        faults.append(f"the repository that it lies in has uncommitted changes: {shown}")
    if faults:
        raise UserError(
            f"`{folder}` is not fit to be published: {'; '.join(faults)}. Nobody could make it "
            "again: commit and train again, or publish with `--allow-dirty`, which the card tells"
        )


def uncommitted_files(folder: Path) -> list[str]:
    """Return the changed files of the repository around a folder; none if there is no repository.

    The folder itself does not count, nor what git does not know.
    """
    git = shutil.which("git")
    if git is None:
        return []
    where = folder.resolve()
    words = [git, "-C", str(where), "status", "--porcelain", "--untracked-files=no", "-z"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return []
    top = subprocess.run(
        [git, "-C", str(where), "rev-parse", "--show-toplevel"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    names = [entry[3:] for entry in done.stdout.split("\0") if entry[2:3] == " "]
    return [name for name in names if not (Path(top) / name).resolve().is_relative_to(where)]


def describe(provenance: Provenance | None) -> str:
    """Return what the card says of the commit and of the time that the training took."""
    if provenance is None:
        return "The commit that it was trained with is not recorded."
    dirty = ", with changes that it does not hold" if provenance.uncommitted_changes else ""
    said = (
        f"Trained at commit `{provenance.commit}` of llm_agents{dirty}"
        if provenance.commit
        else "The commit that it was trained with is not recorded"
    )
    if provenance.training_seconds is not None:
        minutes = provenance.training_seconds / 60
        said += f"; training took {minutes:.1f} minutes ({provenance.device or 'unnamed device'})"
    return f"{said}."
