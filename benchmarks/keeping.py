"""Where a full run of a benchmark keeps its numbers, with what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llm_agents.whole_files import write_text

RESULTS = Path(__file__).resolve().parent / "results"


def keep(subject: str, packages: tuple[str, ...] = ("torch",), **numbers: Any) -> None:
    """Write ``results/<subject>.json``: date, commit, machine, versions of packages, numbers."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=RESULTS.parent,
        check=False,
    )
    content = {
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        **numbers,
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(content, indent=2) + "\n"
    write_text(RESULTS / f"{subject}.json", text)
