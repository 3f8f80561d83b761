"""The entries that come with the package: whole, small, unchanged, free of paths, and they load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from llm_agents import load_pretrained, play_pretrained
from llm_agents.cli import main
from llm_agents.config.loading import load_recipe
from llm_agents.entries import find_entry
from llm_agents.evaluation import Results
from llm_agents.policies.bundled import resolve_base
from llm_agents.zoo import load_policy, publish, pull
from llm_agents.zoo.card import check_card
from llm_agents.zoo.integrity import HASHES_FILE, verify
from llm_agents.zoo.layout import kind_of
from llm_agents.zoo.outside_files import read_files
from llm_agents.zoo.privacy import refuse_private
from llm_agents.zoo.registry import measured, size_of

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"
ENTRIES = sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir())
AGENTS = [path for path in ENTRIES if kind_of(path) == "agent"]
ADAPTERS = [path for path in ENTRIES if (path / "adapter_config.json").is_file()]
REMADE = {"judge-hha-smollm2-135m-instruct"}
"""Trained again amid other work, and bit for bit what judged the HHA entries."""
names = {"ids": lambda path: path.name}


def one_of_each(entries: list[Path]) -> list[object]:
    """Return entries as parameters, of which all but the first of each method are slow."""
    methods = [path.name.split("-")[0] for path in entries]
    return [
        pytest.param(path, marks=pytest.mark.slow if method in methods[:index] else ())
        for index, (path, method) in enumerate(zip(entries, methods, strict=True))
    ]


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
    assert provenance["uncommitted_changes"] is (entry.name in REMADE)
    assert provenance["training_seconds"] > 0


@pytest.mark.parametrize("entry", ENTRIES, **names)
def test_the_evaluation_of_an_entry_needs_nothing_outside_the_package(
    entry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its judge or reward is an entry, and a test set is bundled or recorded with its digest."""
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(f"zoo:{entry.name}").values
    data = recipe["data"]["init_args"]
    rewards = (recipe.get("evaluation", {}).get("reward"), data.get("reward"))
    for reward in filter(None, rewards):
        assert find_entry(reward["init_args"]["path"]) in ENTRIES
    recorded = {file.name for file in read_files(entry)}
    tests = data.get("test") or []
    assert all(test == "sample" or test in recorded for test in tests)
    assert not tests or "sample" in tests
    assert data.get("folder", "sample") == "sample"


def test_the_judge_is_the_one_that_the_cards_name() -> None:
    judge = load_pretrained("judge-hha-smollm2-135m-instruct", device="cpu")
    judged = [e for e in ENTRIES if e.name.endswith("-hha-smollm2-135m-instruct")]
    found = [measured(entry) for entry in judged]
    versions = [results.reward.version for results in found if isinstance(results, Results)]
    assert len(versions) == 4
    (version,) = set(versions)
    assert judge.version.startswith(f"{version}+")  # a digest of the base was added since


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES, **names)
def test_an_entry_is_evaluated_from_an_empty_folder(
    entry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind_of(entry) == "agent":
        words = ["--episodes", "1"]
    else:
        words = [] if "motif" in entry.name else ["--num-prompts", "1"]
    assert main(["evaluate", entry.name, *words, "--out", "out"]) == 0
    assert measured(Path("out")) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "poad-overcooked-tomato-salad-smollm2-135m-instruct",
        "symbolic_ppo-babyai-go-to-red-ball",
        "motif_reward-nethack",
    ],
)
def test_an_entry_s_numbers_are_made_again(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["zoo", "check", name]) == 0


@pytest.mark.parametrize("entry", ENTRIES, **names)
def test_an_entry_loads_by_its_name(
    entry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # from anywhere
    load_pretrained(entry.name, device="cpu")


@pytest.mark.parametrize("entry", one_of_each(ENTRIES), **names)
def test_an_entry_goes_to_the_hub_and_loads_by_its_id(
    entry: Path, hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    copied = shutil.copytree(entry, tmp_path / entry.name)
    publish(copied, f"me/{entry.name}", allow_dirty=entry.name in REMADE)
    load_pretrained(f"me/{entry.name}", device="cpu")
    there = pull(f"me/{entry.name}", tmp_path / "pulled")
    for path in (*entry.glob("*.safetensors"), entry / "results.json"):
        assert (there / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("entry", one_of_each(ADAPTERS), **names)
def test_plain_peft_loads_an_adapter(entry: Path) -> None:
    """The same logits as here, of the same base, which PEFT is given: the Hub's is not rounded."""
    policy = load_policy(str(entry), device="cpu")
    model = AutoModelForCausalLM.from_pretrained(resolve_base(policy.base).source)
    plain = peft.PeftModel.from_pretrained(model, entry)
    ids = torch.tensor([policy.tokenizer.encode("To serve the dish, you should")])
    with torch.no_grad():
        expected, found = plain(ids).logits, policy.model(ids).logits
        bare = plain.get_base_model()
        with plain.disable_adapter():
            other = bare(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (expected - other).abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("entry", AGENTS, **names)
def test_an_agent_plays(entry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(play_pretrained(entry.name, episodes=1, seed=3)) == 1
