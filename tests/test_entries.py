"""Names of what was trained: they mean the same in every folder, and cost no import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_agents.entries import absent, entry_called, entry_names, find_entry, near_names
from llm_agents.errors import UserError
from llm_agents.policies.adapter_files import locate_adapter
from llm_agents.rewards.folder import locate_folder

ADAPTER = "nll-hha-smollm2-135m-instruct"
REWARD = "reward-hha-smollm2-135m-instruct"


@pytest.mark.parametrize("form", ["{}", "zoo:{}", "checkpoints/{}", "somewhere/checkpoints/{}/"])
def test_a_name_means_the_zoos_entry_in_an_empty_folder(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    adapter = locate_adapter(form.format(ADAPTER))
    assert adapter.name == ADAPTER
    assert json.loads((adapter / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert locate_folder(form.format(REWARD), marker="reward.json").name == REWARD


def test_a_folder_here_comes_first_unless_the_zoo_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / REWARD
    mine.mkdir()
    (mine / "reward.json").write_text("{}")
    assert locate_folder(REWARD, marker="reward.json").resolve() == mine
    assert locate_folder(f"zoo:{REWARD}", marker="reward.json").resolve() != mine


def test_a_runs_folder_stands_for_what_it_has_trained(tmp_path: Path) -> None:
    inside = tmp_path / "run" / "adapter"
    inside.mkdir(parents=True)
    (inside / "reward.json").write_text("{}")
    assert find_entry(str(tmp_path / "run")) == inside
    assert locate_folder(tmp_path / "run", marker="reward.json") == inside


@pytest.mark.parametrize("name", ["", "zoo:", "..", "zoo:..", "owner/name", f"runs/{ADAPTER}", "/"])
def test_other_texts_are_no_names_of_the_zoo(name: str) -> None:
    assert entry_called(name) is None


def test_a_name_that_is_not_there_gets_its_neighbours() -> None:
    with pytest.raises(UserError, match=f"no entry of the zoo .* did you mean `{ADAPTER}`"):
        locate_adapter("nll-hha-smollm2")
    with pytest.raises(UserError, match=f"did you mean `{REWARD}`"):
        locate_folder("reward-hah-smollm2-135m-instruct", marker="reward.json")
    assert "`twosome-" in absent("twosome")
    assert near_names("qqqqqqqq", entry_names()) == []
