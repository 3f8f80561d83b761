"""Two processes in one run's folder: the second is refused, and a killed one leaves no lock."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightning.pytorch.utilities import rank_zero_only

from llm_agents.cli import main
from llm_agents.errors import UserError
from llm_agents.training.claiming import LOCK_FILE, claimed
from tests import fresh

RECIPE = """\
seed_everything: 3
job:
  class_path: toy_job.Counting
  init_args: {output: counted.txt, stride: {length: 2}}
"""
HOLD = """
import sys, time
from pathlib import Path
from llm_agents.training.claiming import claimed
with claimed(Path(sys.argv[1])):
    print("at work", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fresh.Process]:
    """Let another process be at work in `out`."""
    monkeypatch.chdir(tmp_path)
    process = fresh.Process(["-c", HOLD, "out"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_process_is_refused_until_the_first_is_gone(
    other: fresh.Process,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    Path("count.yaml").write_text(RECIPE)
    words = ["run", "count.yaml", "--run.folder", "out", "--resume", "auto"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"another process ({other.pid}) is at work in out" in said
    assert "name another `run.folder`" in said
    assert not Path("out/recipe.yaml").exists()
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert main(words) == 0
    assert Path("out/results.json").exists()
    assert not Path("out", LOCK_FILE).exists()


def test_a_training_is_refused_alike(
    other: fresh.Process, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is loaded, and with nothing written."""
    del other
    recipes = Path(__file__).resolve().parents[2] / "recipes"
    words = ["run", str(recipes / "nll_hha.yaml"), "--run.folder", "out", "--resume", "auto"]
    assert main([*words, "--overlay", str(recipes / "overlays" / "tiny.yaml")]) == 2
    assert "is at work in out" in capsys.readouterr().err
    assert [path.name for path in Path("out").iterdir()] == [LOCK_FILE]


def test_a_killed_process_leaves_a_folder_that_is_no_run(
    other: fresh.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it is the lock's file, and a new run may begin there."""
    other.kill()
    other.wait()
    assert Path("out", LOCK_FILE).exists()
    monkeypatch.syspath_prepend(Path(__file__).parent)
    Path("count.yaml").write_text(RECIPE)
    assert main(["run", "count.yaml", "--run.folder", "out"]) == 0


def test_the_first_process_claims_for_all(
    other: fresh.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    del other
    with pytest.raises(UserError, match="is at work"), claimed(Path("out")):
        pass
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    with claimed(Path("out")):
        pass


def test_a_run_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    def fail() -> None:
        with claimed(tmp_path):
            assert (tmp_path / LOCK_FILE).exists()
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert not (tmp_path / LOCK_FILE).exists()
