from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from llm_agents.training.metrics import read_rows

Run = Callable[..., int]


def test_a_run_leaves_recipe_versions_numbers_and_checkpoints(toy: Run) -> None:
    assert toy("--run.folder", "out") == 0
    found = {path.name for path in Path("out").iterdir()}
    assert found == {"recipe.yaml", "versions.json", "metrics.csv", "tensorboard", "checkpoints"}
    rows = read_rows(Path("out/metrics.csv"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all("train/weight" in row for row in rows)
    assert [row["step"] for row in rows if "val/loss" in row] == [3, 6]
    names = sorted(path.name for path in Path("out/checkpoints").iterdir())
    assert names == ["step-00000004.ckpt", "step-00000006.ckpt"]


def test_a_checkpoint_is_read_without_pickle_and_lacks_the_base(toy: Run) -> None:
    toy("--run.folder", "out")
    saved = torch.load(Path("out/checkpoints/step-00000006.ckpt"), weights_only=True)
    assert set(saved["state_dict"]) == {"linear.weight", "linear.bias"}
    assert Path("out/checkpoints/step-00000006.ckpt").stat().st_size < 40_000


def test_seconds_of_training_are_kept_and_go_on_after_a_kill(toy: Run) -> None:
    def seconds() -> float:
        return float(json.loads(Path("out/versions.json").read_text())["training_seconds"])

    toy("--run.folder", "out", "--run.keep_checkpoints", "9")
    assert 0 < seconds() < 60
    path = Path("out/checkpoints/step-00000004.ckpt")
    saved = torch.load(path, weights_only=True)
    saved["callbacks"]["TrainingClock"]["seconds"] = 1000.0
    torch.save(saved, path)
    Path("out/checkpoints/step-00000006.ckpt").unlink()
    assert toy("--run.folder", "out", "--run.keep_checkpoints", "9", "--resume", "auto") == 0
    assert 1000 < seconds() < 1060


@pytest.mark.parametrize("step", [2, 4])
def test_a_resumed_run_equals_the_unbroken_one(toy: Run, step: int) -> None:
    toy("--run.folder", "whole", "--run.keep_checkpoints", "9")
    toy("--run.folder", "again", "--run.keep_checkpoints", "9")
    for path in Path("again/checkpoints").iterdir():
        if path.name > f"step-{step:08d}.ckpt":
            path.unlink()
    Path("again/checkpoints/.step-00000006.ckpt.77.tmp").write_bytes(b"torn")
    assert toy("--run.folder", "again", "--run.keep_checkpoints", "9", "--resume", "auto") == 0
    assert Path("again/metrics.csv").read_text() == Path("whole/metrics.csv").read_text()
    last = "checkpoints/step-00000006.ckpt"
    states = [torch.load(Path(run, last), weights_only=True) for run in ("whole", "again")]
    assert torch.equal(
        states[0]["state_dict"]["linear.weight"], states[1]["state_dict"]["linear.weight"]
    )
    assert not list(Path("again/checkpoints").glob(".*"))


def test_a_longer_budget_continues_a_run(toy: Run) -> None:
    toy("--run.folder", "out")
    assert toy("--run.folder", "out", "--trainer.max_steps", "8", "--resume", "auto") == 0
    toy("--run.folder", "long", "--trainer.max_steps", "8")
    assert Path("out/metrics.csv").read_text() == Path("long/metrics.csv").read_text()


@pytest.mark.parametrize(("signal", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize("batch", [2, 3, 5])
def test_a_signal_stops_between_steps_and_the_run_goes_on(
    toy: Run, capsys: pytest.CaptureFixture[str], signal: str, status: int, batch: int
) -> None:
    toy("--run.folder", "whole")
    callback = "{class_path: toy_method.SignalAt, init_args: "
    callback += f"{{batch: {batch}, name: {signal}, where: sent}}}}"
    words = ("--run.folder", "out", "--trainer.callbacks", f"[{callback}]")
    assert toy(*words) == status
    step = batch // 2 + 1
    said = capsys.readouterr().err
    assert f"stopped by {signal} after step {step}, with a checkpoint" in said
    assert "go on with: lightning run toy.yaml --run.folder out" in said
    assert f"step-{step:08d}.ckpt" in {path.name for path in Path("out/checkpoints").iterdir()}
    assert toy(*words, "--resume", "auto") == 0
    assert Path("out/metrics.csv").read_text() == Path("whole/metrics.csv").read_text()


def test_a_checkpoint_may_be_due_by_time(toy: Run) -> None:
    words = ("--run.checkpoint_every", "null", "--run.keep_checkpoints", "9")
    toy("--run.folder", "a", *words, "--run.checkpoint_minutes", "null")
    assert [path.name for path in Path("a/checkpoints").iterdir()] == ["step-00000006.ckpt"]
    toy("--run.folder", "b", *words, "--run.checkpoint_minutes", "1e-9")
    made = {path.name for path in Path("b/checkpoints").iterdir()}
    assert made >= {"step-00000001.ckpt", "step-00000006.ckpt"}  # those between wait for 20 times


def test_an_error_leaves_the_last_checkpoint(toy: Run) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        toy("--run.folder", "out", "--model.fail_at", "7")
    assert sorted(path.name for path in Path("out/checkpoints").iterdir()) == ["step-00000002.ckpt"]


def test_a_checkpoint_that_is_none_is_refused(toy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.ckpt").write_bytes(b"nothing")
    assert toy("--run.folder", "out", "--resume", "bad.ckpt") == 2
    assert "expected a checkpoint, bad.ckpt can't be read" in capsys.readouterr().err


def test_loggers_and_checkpoints_can_be_switched_off(toy: Run) -> None:
    words = ("--trainer.logger", "false", "--trainer.enable_checkpointing", "false")
    assert toy("--run.folder", "out", *words) == 0
    found = {path.name for path in Path("out").iterdir()}
    assert found == {"recipe.yaml", "versions.json", "metrics.csv"}
    assert toy("--run.folder", "dry", "--trainer.fast_dev_run", "true") == 0


def test_a_value_out_of_range_is_a_fault(toy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy("--run.keep_checkpoints", "0") == 2
    assert "expected `run.keep_checkpoints` above 0, got 0" in capsys.readouterr().err


def test_lines_of_progress_where_there_is_no_terminal(
    toy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    toy("--run.folder", "out")
    lines = capsys.readouterr().err.splitlines()
    steps = [line.split(" · ")[0] for line in lines if " · loss" in line]
    assert steps == ["step 1/6", "step 2/6", "step 4/6", "step 6/6"]
    assert [line for line in lines if "val/loss" in line]
    assert not [line for line in lines if "GPU available" in line]


@pytest.mark.slow
def test_two_processes_share_a_run(toy: Run) -> None:
    words = ["run", "toy.yaml", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    words += ["--run.folder", "two"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for more in ([], ["--trainer.max_steps", "8", "--resume", "auto"]):
        done = subprocess.run(
            [sys.executable, "-m", "llm_agents", *words, *more],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("run folder: two") == 1  # the other process is quiet
    assert toy("--run.folder", "one", "--trainer.max_steps", "8") == 0
    assert Path("two/metrics.csv").read_text() == Path("one/metrics.csv").read_text()
    names = sorted(path.name for path in Path("two/checkpoints").iterdir())
    assert names == ["step-00000006.ckpt", "step-00000008.ckpt"]


def test_what_the_trainer_refuses_is_no_traceback(
    toy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toy("--run.folder", "out", "--trainer.max_steps", "-5") == 2
    assert "the section `trainer` can't be used here: `max_steps`" in capsys.readouterr().err
    assert not Path("out/results.json").exists()
