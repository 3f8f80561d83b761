"""The entries that come with the package: whole, small, unchanged, free of paths, and they load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_agents import load_pretrained, play_pretrained
from llm_agents.zoo.card import check_card
from llm_agents.zoo.integrity import HASHES_FILE, verify
from llm_agents.zoo.layout import kind_of
from llm_agents.zoo.privacy import refuse_private
from llm_agents.zoo.registry import measured, size_of

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"
ENTRIES = sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir())
AGENTS = [path for path in ENTRIES if kind_of(path) == "agent"]
names = {"ids": lambda path: path.name}


@pytest.mark.parametrize("entry", ENTRIES, **names)
def test_an_entry_is_whole_small_and_free_of_paths(entry: Path) -> None:
    found = {path.name for path in entry.iterdir()}
    assert {"README.md", "recipe.yaml", "results.json", "provenance.json", HASHES_FILE} <= found
    weights = {path.name for path in entry.glob("*.safetensors")}
    assert set(json.loads((entry / HASHES_FILE).read_text())) == weights
    verify(entry, where=entry.name)
    assert size_of(entry) <= 5_000_000
    check_card((entry / "README.md").read_text(encoding="utf8"))
    refuse_private(entry)
    assert measured(entry) is not None
    provenance = json.loads((entry / "provenance.json").read_text())
    assert provenance["commit"]
    assert provenance["uncommitted_changes"] is False
    assert provenance["training_seconds"] > 0


@pytest.mark.parametrize("entry", ENTRIES, **names)
def test_an_entry_loads_by_its_name(
    entry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # from anywhere
    load_pretrained(entry.name, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("entry", AGENTS, **names)
def test_an_agent_plays(entry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(play_pretrained(entry.name, episodes=1, seed=3)) == 1
