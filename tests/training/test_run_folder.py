from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.training import run_folder
from llm_agents.training.run_folder import (
    RunFolder,
    commit,
    open_run,
    versions,
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_run(path: str, *steps: int) -> Path:
    run = Path(path)
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.yaml").write_text("a: 1\n")
    for step in steps:
        torch.save({}, run / "checkpoints" / f"step-{step:08d}.ckpt")
    return run


def test_new_runs_are_named_by_recipe_and_time() -> None:
    first, second = open_run("hha", None, None), open_run("hha", None, None)
    assert first.path != second.path
    assert first.path.parent == second.path.parent == Path("runs/hha")
    assert first.checkpoint is None


def test_auto_takes_the_newest_run_of_the_recipe_and_its_newest_checkpoint() -> None:
    make_run("runs/hha/20260101-000000", 9)
    newest = make_run("runs/hha/20260102-000000", 2, 10)
    make_run("runs/other/20260103-000000", 99)
    run = open_run("hha", None, "auto")
    assert run.path == newest
    assert run.checkpoint == newest / "checkpoints" / "step-00000010.ckpt"


def test_auto_takes_the_run_that_began_with_this_recipe_then_one_that_is_not_finished() -> None:
    mine, other = make_run("runs/hha/20260101-000000", 9), make_run("runs/hha/20260102-000000", 2)
    finished = make_run("runs/hha/20260103-000000", 3)
    (mine / "recipe.yaml").write_text("mine")
    (finished / "results.json").write_text("{}")
    assert open_run("hha", None, "auto", "mine").path == mine
    assert open_run("hha", None, "auto", "unknown").path == other
    assert open_run("hha", None, "auto").path == other
    (finished / "recipe.yaml").write_text("done")
    assert open_run("hha", None, "auto", "done").path == finished


def test_a_recipe_that_differs_does_not_take_the_place_of_the_first() -> None:
    run = RunFolder(make_run("runs/hha/20260101-000000", 9))
    run.write_start("first")
    run.write_start("second")
    assert (run.path / "recipe-1.yaml").read_text() == "a: 1\n"
    assert (run.path / "recipe-2.yaml").read_text() == "first"
    assert (run.path / "recipe.yaml").read_text() == "second"


def test_auto_starts_a_run_where_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "llm_agents"):
        run = open_run("hha", "out", "auto")
    assert run == RunFolder(Path("out"))
    assert caplog.messages == ["no earlier run of hha: starting one"]


def test_auto_starts_again_where_no_checkpoint_was_finished() -> None:
    make_run("out")
    assert open_run("hha", "out", "auto") == RunFolder(Path("out"))


def test_a_folder_with_a_run_is_not_written_over() -> None:
    make_run("out", 3)
    with pytest.raises(UserError, match="out holds a run: continue it with `--resume auto`"):
        open_run("hha", "out", None)
    make_run("never-began")
    assert open_run("hha", "never-began", None) == RunFolder(Path("never-began"))


@pytest.mark.parametrize("named", ["out", "out/checkpoints", "out/checkpoints/step-00000003.ckpt"])
def test_a_run_or_a_checkpoint_may_be_named(named: str) -> None:
    make_run("out", 1, 3)
    run = open_run("hha", None, named)
    assert run.path.resolve() == Path("out").resolve()
    assert run.checkpoint is not None
    assert run.checkpoint.name == "step-00000003.ckpt"


def test_a_named_checkpoint_that_is_not_there_is_refused() -> None:
    make_run("out")
    with pytest.raises(UserError, match="there is no nowhere"):
        open_run("hha", None, "nowhere")
    with pytest.raises(UserError, match="expected a complete checkpoint in out"):
        open_run("hha", None, "out")


def test_processes_started_from_outside_must_agree_on_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"expected `run\.folder` where several processes"):
        open_run("hha", None, None)
    assert open_run("hha", "out", None).path == Path("out")


def test_recipe_and_versions_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    run = RunFolder(Path("out"))
    run.write_start("a: 1\n")
    assert (run.path / "recipe.yaml").read_text() == "a: 1\n"
    kept = json.loads((run.path / "versions.json").read_text())
    assert kept["packages"]["torch"] == versions()["packages"]["torch"]  # type: ignore[index]
    assert set(kept) >= {"python", "platform", "device", "commit", "command", "time"}
    with caplog.at_level(logging.WARNING, "llm_agents"):
        run.write_start("a: 2\n")
    (message,) = caplog.messages
    assert message.startswith("the recipe differs from the one that the run in out began with")
    found = sorted(path.name for path in run.path.iterdir())
    assert found == ["recipe-1.yaml", "recipe.yaml", "versions.json"]


def test_only_changes_of_what_trains_taint_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("llm_agents/training/run_folder.py", "docs/page.md", "pyproject.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a\n")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "x")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    source = tmp_path / "llm_agents" / "training" / "run_folder.py"
    monkeypatch.setattr(run_folder, "__file__", str(source))
    assert commit()["uncommitted_changes"] is False
    (tmp_path / "docs" / "page.md").write_text("b\n")
    assert commit()["uncommitted_changes"] is False
    source.write_text("b\n")
    assert commit()["uncommitted_changes"] is True


def test_a_later_evaluation_keeps_the_seconds_of_the_training() -> None:
    run = RunFolder(Path("out"))
    run.write_start("a: 1\n")
    run.write_seconds(12.34567)
    run.write_start("a: 1\n")
    found = json.loads(Path("out/versions.json").read_text())
    assert found["training_seconds"] == 12.346
    assert found["packages"]
