"""A recipe's `job`: refused like any other recipe, done, stopped, gone on with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from llm_agents.cli import main
from llm_agents.errors import UserError
from llm_agents.evaluation import read_episode_results
from tests import fresh

RECIPE = """\
seed_everything: 3
job:
  class_path: toy_job.Counting
  init_args: {output: counted.txt, stride: {length: 2}}
"""
TINY = Path(__file__).resolve().parents[2] / "recipes" / "overlays" / "tiny.yaml"

Do = Callable[..., int]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Do:
    """Return a function that runs the toy job in an empty folder, as the command would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    (tmp_path / "count.yaml").write_text(RECIPE)
    return lambda *words: main(["run", "count.yaml", *words])


def numbers_in(folder: str) -> dict[str, object]:
    values = json.loads(Path(folder, "results.json").read_text())
    assert values["kind"] == "job"
    found = values["numbers"]
    assert isinstance(found, dict)
    return found


def test_a_job_is_done_and_leaves_recipe_versions_and_results(
    job: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job("--run.folder", "out") == 0
    assert Path("counted.txt").read_text() == "2\n4\n6\n8\n10\n"
    assert {p.name for p in Path("out").iterdir()} == {
        "recipe.yaml",
        "versions.json",
        "results.json",
    }
    torch.manual_seed(3)
    draw = float(torch.rand(()))  # the recipe's seed was set before the job began
    expected = {"began_at": 0, "draw": draw, "lost": None}
    assert numbers_in("out") == {"steps": 5, "of_which": expected, "each": [1, 2]}
    values = json.loads(Path("out/results.json").read_text())
    assert (values["format"], values["job"]) == (1, "toy_job.Counting")
    said = capsys.readouterr().out
    assert "of_which.began_at" in said
    assert yaml.safe_load(Path("out/recipe.yaml").read_text()) == yaml.safe_load(RECIPE) | {
        "run": {"folder": "out"}
    }
    with pytest.raises(UserError, match="expected the results of a episodes"):
        read_episode_results("out")


def test_a_job_without_a_folder_gets_one_that_is_named_by_recipe_and_time(job: Do) -> None:
    assert job("--run.name", "sums") == 0
    (folder,) = Path("runs/sums").iterdir()
    assert numbers_in(str(folder))["steps"] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--job.lst", "3"),
            "--job.lst: expected a key of Counting, got `lst`; did you mean last?",
        ),
        (("--job.last", "many"), "--job.last: expected a whole number, got 'many'"),
        (("--job.stride.unit", "cows"), "expected sheep or goats, got 'cows'"),
        (("--job", "toy_job.NoJob"), "expected a Job, got `toy_job.NoJob`, which is a NoJob"),
        (("--job", "toy_job.Cuonting"), "did you mean toy_job.Counting?"),
        (("--run.stages", "[fit]"), "expected a key of JobRunConfig, got `stages`"),
        (("--trainer.max_steps", "3"), "expected no `trainer` beside `job`, which trains nothing"),
        (("--model", "llm_agents.methods.DPO"), "expected no `model` beside `job`"),
        (("--modl.x", "1"), "expected a section of a recipe, got `modl`"),
        (("--job.last", "0"), "expected `last` of at least 1, got 0"),
    ],
)
def test_what_is_wrong_with_a_job_is_said_before_anything_starts(
    job: Do, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job(*words) == 2
    assert message in capsys.readouterr().err
    assert not Path("counted.txt").exists()
    assert not list(Path().glob("runs/*/*"))


def test_a_missing_argument_is_named(job: Do, capsys: pytest.CaptureFixture[str]) -> None:
    Path("count.yaml").write_text("job: {class_path: toy_job.Counting}\n")
    assert job() == 2
    assert "job.output: expected a path; it is missing" in capsys.readouterr().err


def test_help_names_every_key_of_a_job_and_imports_nothing_heavy(job: Do) -> None:
    code = (
        "import sys\nfrom llm_agents.cli import main\n"
        "main(['run', 'count.yaml', '--help'])\n"
        "main(['run', 'count.yaml', '--job.lst', '3'])\n"
        "print([m for m in ('torch', 'lightning', 'numpy') if m in sys.modules], file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr.splitlines()[-1] == "[]"
    assert "job: toy_job.Counting\n  Counts to a number, one line of its output a step." in (
        done.stdout
    )
    for line in (
        "  --job.last\n      Number of steps. (a whole number; default 5)",
        "  --job.stride.length 2\n",
        "  --run.folder\n",
    ):
        assert line in done.stdout
    assert "--trainer" not in done.stdout
    assert "--run.stages" not in done.stdout


def test_the_tiny_overlay_may_be_laid_over_a_job(
    job: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job("--overlay", str(TINY), "--print_config") == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert set(values) == {"seed_everything", "job", "run"}
    assert values["run"] == {}
    assert job("--overlay", str(TINY), "--run.folder", "out") == 0


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_a_stopped_job_says_how_to_go_on_and_goes_on(
    job: Do, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--run.folder", "out", "--job.how", how, "--job.stop_at", "3"]
    assert job(*words) == 128 + {"SIGINT": 2, "SIGTERM": 15}[how]
    said = capsys.readouterr().err
    assert f"stopped by {how}" in said
    again = "--run.folder out --job.how " + how + " --job.stop_at 3 --resume auto"
    assert f"go on with: lightning run count.yaml {again}" in said
    assert not Path("out/results.json").exists()
    assert job("--run.folder", "out", "--resume", "auto") == 0
    assert Path("counted.txt").read_text() == "2\n4\n6\n8\n10\n"
    found = numbers_in("out")["of_which"]
    assert isinstance(found, dict)
    assert found["began_at"] == 3


def test_a_killed_job_goes_on_with_auto_or_with_its_folder(job: Do) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    words = ("run", "count.yaml", "--job.stop_at", "2")
    done = fresh.run("-m", "llm_agents", *words, env=environment)
    assert done.returncode == -9
    (folder,) = Path("runs/count").iterdir()
    assert not (folder / "results.json").exists()
    assert job("--resume", str(folder)) == 0
    assert list(Path("runs/count").iterdir()) == [folder]
    assert Path("counted.txt").read_text() == "2\n4\n6\n8\n10\n"


def test_a_finished_job_is_not_done_twice_unless_the_recipe_changed(
    job: Do, caplog: pytest.LogCaptureFixture
) -> None:
    assert job("--resume", "auto") == 0
    (folder,) = Path("runs/count").iterdir()
    before = (folder / "results.json").stat().st_mtime_ns
    with caplog.at_level("INFO"):
        assert job("--resume", "auto") == 0
    assert f"the job in {folder} is done" in caplog.text
    assert (folder / "results.json").stat().st_mtime_ns == before
    assert job("--resume", "auto", "--job.last", "7") == 0
    assert numbers_in(str(folder))["steps"] == 7
    assert Path("counted.txt").read_text().splitlines()[-1] == "14"


def test_a_folder_that_holds_a_run_is_not_written_over(
    job: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job("--run.folder", "out") == 0
    assert job("--run.folder", "out") == 2
    assert "expected a new folder, but out holds a run" in capsys.readouterr().err
    assert job("--resume", "nowhere") == 2
    assert "a run's folder to resume, but there is no nowhere" in capsys.readouterr().err


def test_a_fault_in_the_middle_of_a_job_leaves_no_results(
    job: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--run.folder", "out", "--job.stop_at", "1", "--job.how", "error"]
    assert job(*words) == 2
    assert "error: expected more sheep, got none: buy some" in capsys.readouterr().err
    assert not Path("out/results.json").exists()
    assert job("--run.folder", "out", "--resume", "auto") == 0
