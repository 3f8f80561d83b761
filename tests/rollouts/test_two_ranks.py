"""Two processes that train: each has worlds of its own, and its own state in the checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_ranks_collect_apart_and_resume_each_where_it_stood(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("two_ranks.py")), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert len(first["whole"]) == len(second["whole"]) == 5
    assert first["whole"] != second["whole"]
    assert first["parts"] == first["whole"]
    assert second["parts"] == second["whole"]
