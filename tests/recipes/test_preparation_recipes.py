"""Recipes that prepare data: under the tiny overlay, and what the bundled samples come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from llm_agents.cli import main
from llm_agents.data.reading import SAMPLES, sample_file

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
TINY = RECIPES / "overlays" / "tiny.yaml"
TASKS = ("comet", "faithdial", "faithdial_wow", "reddit_neg", "reddit_pos", "wow")
FILES = [
    *(RECIPES / f"{task}_prepare.yaml" for task in TASKS),
    *(RECIPES / "paper" / f"{task}_prepare.yaml" for task in TASKS),
]
ENDINGS = {"train": "", "val": "_validation", "test": "_test"}
REDDIT_TRAIN = {"pos_train": "reddit", "neg_train": "reddit_neg"}


def run(path: Path, folder: Path, *more: str) -> dict[str, dict[str, dict[str, object]]]:
    assert main(["run", str(path), "--run.folder", str(folder), *more]) == 0
    results = json.loads((folder / "results.json").read_text(encoding="utf8"))
    assert results["kind"] == "job"
    numbers = results["numbers"]
    assert isinstance(numbers, dict)
    return numbers


def read_rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


def test_all_are_there() -> None:
    assert [path for path in FILES if not path.is_file()] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RECIPES)))
def test_a_recipe_prepares_the_samples_under_the_tiny_overlay(path: Path, tmp_path: Path) -> None:
    numbers = run(path, tmp_path, "--overlay", str(TINY))
    assert numbers["output_folder"] == str(tmp_path)
    train = next(name for name in numbers if name.endswith("train"))
    for name in (train, "val", "test"):
        lines = (tmp_path / f"{name}.jsonl").read_text(encoding="utf8").splitlines()
        assert len(lines) == numbers[name]["counts"]["kept"] > 0
        row = json.loads(lines[0])
        assert row["reward_components"]["final_reward"] == pytest.approx(
            sum(v for k, v in row["reward_components"].items() if k != "final_reward")
        )
        assert numbers[name]["rewards"]["final_reward"]["rows"] == len(lines)


@pytest.mark.parametrize("name", ["comet", "reddit_pos", "reddit_neg", "wow", "faithdial"])
def test_the_bundled_samples_are_what_the_default_recipe_makes(name: str, tmp_path: Path) -> None:
    recipe = RECIPES / f"{name}_prepare.yaml"
    tokens = "history" if name in ("wow", "faithdial") else "tokens"
    more = [] if name == "comet" else [f"--job.rules.{tokens}.tokenizer", "tiny-random-llama"]
    numbers = run(recipe, tmp_path, "--job.output_folder", str(tmp_path / "data"), *more)
    made = [key for key in numbers if isinstance(numbers[key], dict) and "counts" in numbers[key]]
    assert len(made) == 3
    for key in made:
        task = "reddit" if name.startswith("reddit") else name
        bundled = REDDIT_TRAIN.get(key) or task + ENDINGS[key]
        rows = read_rows(tmp_path / "data" / f"{key}.jsonl")
        for row, other in zip(rows, read_rows(sample_file(f"{bundled}.jsonl")), strict=True):
            scores, others = row.pop("reward_components"), other.pop("reward_components")
            assert row == other
            assert scores == pytest.approx(others, abs=1e-6)


def test_every_name_of_a_sample_has_training_rows() -> None:
    assert all(sample_file(f"{name}.jsonl").is_file() for name in SAMPLES)


PAPER_REWARDS = {
    "comet": 1,  # the critic alone
    "reddit_pos": 5,
    "reddit_neg": 5,
    "wow": 4,
    "faithdial": 4,
    "faithdial_wow": 4,
}


@pytest.mark.parametrize("name", sorted(PAPER_REWARDS))
def test_a_paper_recipe_has_the_releases_numbers(name: str) -> None:
    recipe = yaml.safe_load((RECIPES / "paper" / f"{name}_prepare.yaml").read_text("utf8"))
    job = recipe["job"]["init_args"]
    rules = job["rules"]
    assert recipe["seed_everything"] == 901
    parts = job["reward"]["init_args"].get("parts", {"critic": {}})
    assert len(parts) + bool(job.get("diversity")) == PAPER_REWARDS[name]
    if name == "comet":
        assert rules["max_validation"] == 10_000
        assert rules["best_test_tail"] is True
    elif name.startswith("reddit"):
        assert rules == {
            "num_sampled": 102_000,
            "max_words": 100,
            "tokens": {"max_tokens": 300, "tokenizer": "microsoft/DialoGPT-medium"},
            "num_test": 1000,
            "num_validation": 1000,
            "seed": 901,
        }
        assert job["train_on"] == name.removeprefix("reddit_")
    else:
        assert rules["history"] == {"max_tokens": 400, "tokenizer": "microsoft/DialoGPT-medium"}
        assert rules["require_history"] is True
        assert job["fit_on"] == "data/wow/train.json"
        assert job["test"] == "McGill-NLP/FaithDial:test"
        assert bool(rules.get("shuffle")) is (name == "faithdial_wow")
