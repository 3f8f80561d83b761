"""docs/bring_your_own.md: its example runs from a fresh folder, its other recipes are sound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests import fresh

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "bring_your_own.md").read_text(encoding="utf8")


def block(language: str, start: str) -> str:
    """Return the page's one block of a language that begins so."""
    found = [
        text
        for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        if text.startswith(start)
    ]
    assert len(found) == 1, (language, start)
    return str(found[0])


def test_the_example_runs_from_a_fresh_folder(cache_root: Path, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(block("jsonl", "{"), encoding="utf8")
    (tmp_path / "my_rewards.py").write_text(block("python", "def short"), encoding="utf8")
    (tmp_path / "recipe.yaml").write_text(block("yaml", "seed_everything: 1\nmodel"), "utf8")
    command = block("bash", "llm-agents run recipe.yaml").split()[1:]
    done = fresh.run("-m", "llm_agents", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    (test,) = results["tests"]
    assert set(test["parts"]) == {"short", "calm"}
    assert set(test["metrics"]) == {"meteor"}
    parts = {name: part["mean"] for name, part in test["parts"].items()}
    assert test["reward"]["mean"] == pytest.approx(parts["short"] + 0.5 * parts["calm"], abs=1e-5)
    gold = test["gold"]
    rows = [json.loads(line)["response"] for line in block("jsonl", "{").splitlines()]
    short = [1 / (1 + abs(len(text.split()) - 6)) for text in rows]
    assert gold["parts"]["short"]["mean"] == pytest.approx(sum(short) / 8)
    assert gold["parts"]["calm"]["mean"] == pytest.approx(7 / 8)
    means = results["details"]["val_gold"]
    assert means["final_reward"] == pytest.approx(gold["reward"]["mean"], abs=1e-5)
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]
    assert "val/parts/short" in header
    assert "val/parts/calm" in header


def test_the_other_yaml_of_the_page_parses() -> None:
    classes = []
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        values = yaml.safe_load(text)
        classes += re.findall(r"class_path: (\S+)", text)
        assert values
    import llm_agents.rewards as rewards

    for name in ("ClassifierReward.from_pretrained", "CometCriticConversion"):
        assert f"llm_agents.rewards.{name}" in classes
        assert hasattr(rewards, name.split(".")[0])
