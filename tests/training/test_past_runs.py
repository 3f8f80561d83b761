from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_agents.errors import UserError
from llm_agents.training.past_runs import check_folder, newest, run_called, with_newest


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of runs: `b` was finished last, though `c` began after it and is at work."""
    monkeypatch.chdir(tmp_path)
    for number, (name, is_done) in enumerate(
        [("poad/a", True), ("poad/b", True), ("poad/c", False), ("paper/hha/d", True)]
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text("model: 1\n")
        times = (100 + number, 100 + number) if name != "paper/hha/d" else (50, 50)
        os.utime(folder / "recipe.yaml", times)
        if is_done:
            (folder / "results.json").write_text("{}")
            os.utime(folder / "results.json", times)
    inside = tmp_path / "runs" / "poad" / "c" / "reference"  # the first stage of `c`
    inside.mkdir()
    (inside / "recipe.yaml").write_text("model: 1\n")
    (inside / "results.json").write_text("{}")
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NEWEST", "runs/poad/b"),
        ("runs/NEWEST", "runs/poad/b"),
        ("runs/poad/NEWEST", "runs/poad/b"),
        ("runs/poad/NEWEST/adapter", "runs/poad/b/adapter"),
        ("poad", "runs/poad/b"),
        ("paper/hha", "runs/paper/hha/d"),
        ("runs/poad/a", "runs/poad/a"),
        ("poad/a", "runs/poad/a"),
        ("nll-hha-smollm2-135m-instruct", "nll-hha-smollm2-135m-instruct"),
        ("owner/name", "owner/name"),
        ("random", "random"),
        ("", ""),
    ],
)
def test_a_name_stands_for_the_newest_complete_run(name: str, folder: str) -> None:
    assert run_called(name) == folder


def test_what_lies_here_comes_first(tmp_path: Path) -> None:
    (tmp_path / "poad").mkdir()
    assert run_called("poad") == "poad"
    (tmp_path / "NEWEST").mkdir()
    assert with_newest("NEWEST") == "NEWEST"


def test_to_resume_takes_unfinished_runs_too() -> None:
    assert run_called("poad", complete=False) == "runs/poad/c"
    assert check_folder(None, "runs/poad/NEWEST") == "runs/poad/c"


def test_where_there_is_none_the_others_are_named(runs: Path) -> None:
    with pytest.raises(UserError, match="found none: did you mean runs/poad/NEWEST"):
        newest(Path("runs/poda"))
    (runs / "poad/a/results.json").unlink()
    (runs / "poad/b/results.json").unlink()
    with pytest.raises(UserError, match="expected a complete run in runs/poad: none of the 3"):
        run_called("poad")


def test_a_folder_that_cannot_hold_a_run_is_refused_at_once(runs: Path) -> None:
    with pytest.raises(UserError, match="poad/a holds a run: continue it with"):
        check_folder("runs/poad/a", None)
    assert check_folder("runs/poad/a", "auto") == "auto"
    with pytest.raises(UserError, match="there is no runs/nothing"):
        check_folder(None, "runs/nothing")
    with pytest.raises(UserError, match="is a file"):
        check_folder("runs/poad/a/recipe.yaml/below", None)
    with pytest.raises(UserError, match=r"can't write into /proc/x \(run.folder\)"):
        check_folder("/proc/x", None)
    with pytest.raises(UserError, match=r"can't write into"):
        check_folder("x" * 300, None)
    assert sorted(path.name for path in runs.iterdir()) == ["paper", "poad"]
