from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from llm_agents.training.checkpoints import newest_checkpoint, put_in_place, step_of


def save(path: Path) -> Path:
    torch.save({"weight": torch.ones(100)}, path)
    return path


def test_the_newest_complete_checkpoint_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = save(tmp_path / "step-00000010.ckpt")
    save(tmp_path / "step-00000002.ckpt")
    (tmp_path / "step-00000020.ckpt").write_bytes(whole.read_bytes()[:-40])
    (tmp_path / ".step-00000030.ckpt.123.tmp").write_bytes(whole.read_bytes())
    save(tmp_path / "other.ckpt")
    with caplog.at_level(logging.WARNING, "llm_agents"):
        assert newest_checkpoint(tmp_path) == whole
    assert caplog.messages == [
        "unfinished checkpoints are ignored: .step-00000030.ckpt.123.tmp, step-00000020.ckpt"
    ]


@pytest.mark.parametrize("kept", [0, 1, 100, 1000])
def test_however_short_a_checkpoint_is_cut_it_is_not_taken(tmp_path: Path, kept: int) -> None:
    path = save(tmp_path / "step-00000001.ckpt")
    path.write_bytes(path.read_bytes()[:kept])
    assert newest_checkpoint(tmp_path) is None


def test_no_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") is None


def test_names_state_the_step() -> None:
    assert step_of(Path("a/step-00000012.ckpt")) == 12
    assert step_of(Path("a/last.ckpt")) == -1


def test_a_sharded_checkpoint_is_a_folder(tmp_path: Path) -> None:
    new, path = tmp_path / ".new", tmp_path / "step-00000001.ckpt"
    for folder, name in ((path, "old"), (new, "shard")):
        folder.mkdir()
        (folder / name).write_text("x")
    put_in_place(new, path)
    assert [file.name for file in path.iterdir()] == ["shard"]
    assert newest_checkpoint(tmp_path) == path
