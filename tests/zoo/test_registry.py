"""What the zoo lists and shows."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from llm_agents.errors import UserError
from llm_agents.zoo import list_entries, load_pretrained, print_entries, show
from llm_agents.zoo.registry import PUBLISHED


def test_checkpoints_and_runs_are_found(
    adapter_folder: Path, reward_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    shutil.copytree(adapter_folder, root / "checkpoints" / "a_lol-hha-tiny")
    run = root / "runs" / "reward_hha" / "2026-01-01"
    shutil.copytree(reward_folder, run / "adapter")
    (run / "adapter" / "results.json").rename(run / "results.json")
    (root / "checkpoints" / "not-an-adapter").mkdir()
    entries = {entry.name: entry for entry in list_entries(root)}
    adapter = entries["a_lol-hha-tiny"]
    assert (adapter.source, adapter.kind, adapter.method) == ("checkpoints", "policy", "a_lol")
    assert adapter.base == "tiny-random-llama"
    assert adapter.results is not None
    reward = entries["runs/reward_hha/2026-01-01"]
    assert (reward.source, reward.kind) == ("runs", "reward")
    assert reward.results is not None
    assert "not-an-adapter" not in entries
    assert set(PUBLISHED) <= set(entries)


def test_a_run_is_shown_by_its_folder_and_one_damaged_run_hides_no_other(
    adapter_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "project"
    for name in ("good", "damaged"):
        shutil.copytree(adapter_folder, root / "runs" / name / "adapter")
    (root / "runs" / "damaged" / "adapter" / "results.json").write_text("{")
    names = [entry.name for entry in list_entries(root)]
    assert "runs/good" in names
    assert "runs/damaged" not in names
    assert "is not JSON" in caplog.text
    entry = show(str(root / "runs" / "good"))
    assert entry.folder == root / "runs" / "good" / "adapter"
    assert load_pretrained(str(root / "runs" / "good")).base == "tiny-random-llama"


def test_the_table_shows_names_and_numbers(adapter_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter_folder, tmp_path / "root" / "checkpoints" / "a_lol-hha-tiny")
    output = io.StringIO()
    print_entries(list_entries(tmp_path / "root"), Console(file=output, width=40))
    lines = output.getvalue().splitlines()
    below = lines[lines.index("a_lol-hha-tiny") + 1]
    assert below.startswith("    policy · reward ")
    assert below.endswith("(length) · checkpoints")
    assert set(PUBLISHED) <= set(lines)  # whole, however narrow the terminal
    assert "not measured here" in output.getvalue()  # those on the Hub


def test_show_takes_a_folder(adapter_folder: Path) -> None:
    assert show(str(adapter_folder)).folder == adapter_folder


def test_a_mistyped_name_gets_its_neighbors(adapter_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter_folder, tmp_path / "root" / "checkpoints" / "a_lol-hha-tiny")
    with pytest.raises(UserError, match=r"did you mean .*`a_lol-hha-tiny`"):
        show("a_lol-hha-tinny", tmp_path / "root")


def test_a_damaged_description_is_named(adapter_folder: Path) -> None:
    (adapter_folder / "llm_agents.json").write_text("{")
    with pytest.raises(UserError, match=r"llm_agents\.json` is not JSON"):
        show(str(adapter_folder))
    (adapter_folder / "llm_agents.json").write_text(json.dumps({"method": "dpo"}))
    with pytest.raises(UserError, match="expected a text under `base`"):
        show(str(adapter_folder))
