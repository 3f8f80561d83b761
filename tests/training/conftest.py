from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_agents.cli import main

RECIPE = """\
seed_everything: 1
model:
  class_path: toy_method.ToyMethod
  init_args: {}
data:
  class_path: toy_method.ToyData
trainer: {max_steps: 6, accumulate_grad_batches: 2, val_check_interval: 6, accelerator: cpu}
run: {checkpoint_every: 2, log_every: 2}
"""

Run = Callable[..., int]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the toy recipe in an empty folder, as the command would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    (tmp_path / "toy.yaml").write_text(RECIPE)

    def run(*words: str) -> int:
        return main(["run", "toy.yaml", *words])

    return run
