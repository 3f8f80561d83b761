"""What was measured, from the files of benchmarks and the zoo; the page that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_agents import tables
from llm_agents.measurements import Measurement, measurements


def write(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def interval(mean: float) -> dict[str, Any]:
    return {"mean": mean, "std": 0.1, "low": mean - 0.1, "high": mean + 0.1, "n": 9}


def test_benchmarks_and_entries_are_read(tmp_path: Path) -> None:
    results = tmp_path / "benchmarks" / "results"
    objectives = {"nll": {"seeds": [1, 2], "reward": {"mean": 0.5, "low": 0.4, "high": 0.6}}}
    write(results / "hha_learning.json", {"test_prompts": 9, "objectives": objectives})
    trained = {"return": {"mean": 0.7}, "by_seed": [0.7], "success": 1.0}
    food = {"optimum": 0.77, "poad": {"seeds": [1], "trained@virtualhome-food": trained}}
    write(results / "online_learning.json", {"commit": "abcdef12", "tasks": {"food": food}})
    row = {
        "method": "glam",
        "task": "babyai_go_to_local",
        "metric": "success rate",
        "value": 0.5,
        "low": None,
        "high": None,
        "seeds": 1,
        "minutes": 3.0,
        "commit": None,
    }
    write(results / "others.json", {"rows": [row]})
    write(results / "speed.json", {"ratios": {"a": 2.0}})
    games = {"task": "NetHackScore-v1", "means": {"score": interval(12.0)}}
    entry = tmp_path / "checkpoints" / "motif-nethack"
    write(entry / "results.json", {"kind": "games", "results": [games], "details": {}})
    write(entry / "provenance.json", {"commit": "1234567890"})
    found = {(each.method, each.task): each for each in measurements(tmp_path)}
    assert len(found) == 4
    assert found["nll", "hha"].interval == "[0.4, 0.6]"
    poad = found["poad", "virtualhome_food_preparation"]
    assert poad == Measurement(
        "poad",
        "virtualhome_food_preparation",
        "mean return, virtualhome-food",
        0.7,
        None,
        None,
        1,
        None,
        "abcdef12",
        "benchmarks/results/online_learning.json",
    )
    assert found["glam", "babyai_go_to_local"].minutes == 3.0
    motif = found["motif", "nethack"]
    assert (motif.value, motif.commit) == (12.0, "1234567890")
    assert motif.source == "checkpoints/motif-nethack/results.json"


def test_a_row_has_the_papers_number_beside_ours_or_says_that_nobody_has_run_it() -> None:
    entry = {"paper": "arXiv:1", "table": "t", "metric": "m", "paper_value": 0.9, "our_value": None}
    path = tables.ROOT / "recipes" / "poad_food.yaml"
    found = Measurement("poad", "food", "m", 0.71234, 0.7, 0.72, 3, 5.0, "abcdef123", "a/b.json")
    assert tables.match(path, entry, [found]) is found
    assert tables.match(path, {**entry, "metric": "other"}, [found]) is None
    assert tables.paper_row(path, entry, found) == (
        "| poad_food | m (arXiv:1, t) | 0.9 | 0.7123 | [0.7, 0.72] | 3 | 5 | `abcdef1` | "
        "[a](../a/b.json) |"
    )
    assert "| 0.9 | not yet run | – |" in tables.paper_row(path, entry, None)


def test_minutes_are_those_that_a_recipe_says_were_measured() -> None:
    recipes = tables.ROOT / "recipes"
    assert tables.measured_minutes(recipes / "a_lol_hha.yaml") == "7"
    assert tables.measured_minutes(recipes / "cloning_collect_babyai_go_to_local.yaml") == "–"
