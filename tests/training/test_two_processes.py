"""The command with two processes: A-LoL prepares once, trains together and evaluates once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.mark.slow
def test_a_lol_runs_to_its_results_in_two_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "llm_agents", "run", str(RECIPES / "a_lol_hha.yaml")]
    command += ["--overlay", str(RECIPES / "overlays" / "tiny.yaml"), "--run.folder", str(folder)]
    command += ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.max_steps", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((folder / "results.json").read_text(encoding="utf8"))
    assert [test["name"] for test in results["tests"]] == ["sample"]
    assert (folder / "advantages.png").exists()
