"""Files are whole or not there, and others may read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from llm_agents.whole_files import write_tensors, write_text, write_whole


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "text.txt"
    write_text(path, "old")

    def fails(unfinished: Path) -> None:
        unfinished.write_text("ne")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_whole(path, fails)
    assert path.read_text() == "old"


def test_weights_may_be_read_by_whom_other_files_may(tmp_path: Path) -> None:
    plain, weights = tmp_path / "plain", tmp_path / "weights.safetensors"
    plain.write_text("")
    write_tensors(weights, {"a": torch.arange(3)}, metadata={"format": "pt"})
    assert weights.stat().st_mode == plain.stat().st_mode
    assert load_file(weights)["a"].tolist() == [0, 1, 2]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["plain", "weights.safetensors"]
