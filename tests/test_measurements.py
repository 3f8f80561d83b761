"""What was measured, from the files of benchmarks and the zoo; the page that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_agents import tables
from llm_agents.learning_tables import (
    generalisation_table,
    glam_table,
    learning_table,
    rare_table,
    reskins_table,
)
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
    poad_entry = {"seeds": [1], "trained@virtualhome-food": trained, "minutes": 2.5}
    food = {"optimum": 0.77, "poad": poad_entry}
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
    write(entry / "provenance.json", {"commit": "1234567890", "training_seconds": 252.0})
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
        2.5,
        "abcdef12",
        "benchmarks/results/online_learning.json",
    )
    assert found["glam", "babyai_go_to_local"].minutes == 3.0
    motif = found["motif", "nethack"]
    assert (motif.value, motif.commit, motif.minutes) == (12.0, "1234567890", 4.2)
    assert motif.source == "checkpoints/motif-nethack/results.json"


def test_a_row_has_the_papers_number_beside_ours() -> None:
    entry = {"paper": "arXiv:1", "table": "t", "metric": "m", "paper_value": 0.9, "our_value": None}
    path = tables.ROOT / "recipes" / "poad_food.yaml"
    found = Measurement("poad", "food", "m", 0.71234, 0.7, 0.72, 3, 5.0, "abcdef123", "a/b.json")
    assert tables.match(path, entry, [found]) is found
    assert tables.match(path, {**entry, "metric": "other"}, [found]) is None
    assert tables.paper_row(path, entry, found) == (
        "| poad_food | m (arXiv:1, t) | 0.9 | 0.7123 | [0.7, 0.72] | 3 | 5 | `abcdef1` | "
        "[a](../a/b.json) |"
    )
    path = path.with_name("a_lol_hha.yaml")
    own = tables.paper_row(path, {**entry, "our_value": 0.5}, None)
    assert own.startswith("| a_lol_hha | m (arXiv:1, t) | 0.9 | 0.5 | – | – | 7 | – |")


def test_what_nobody_has_run_is_a_count_below_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        {"paper": "p", "table": "t", "metric": "a", "paper_value": None, "our_value": None},
        {"paper": "p", "table": "t", "metric": "b", "paper_value": 0.9, "our_value": None},
        {"paper": "p", "table": "t", "metric": "c", "paper_value": None, "our_value": 0.3},
    ]
    recipes = [tables.ROOT / "recipes" / name for name in ("x.yaml", "paper/x.yaml")]
    monkeypatch.setattr(tables, "recipe_files", lambda: recipes)
    monkeypatch.setattr(tables, "load_recipe", lambda path: {"reproduces": entries})
    monkeypatch.setattr(tables, "measurements", lambda root: [])
    monkeypatch.setattr(tables, "measured_minutes", lambda path: "–")
    head, _, first, second, empty, last = tables.all_results().splitlines()
    assert head.startswith("| method, task |")
    assert "| c (p, t) | not established | 0.3 |" in first
    assert "| c (p, t) | not established | 0.3 |" in second
    assert empty == ""
    assert last.startswith(
        "Not yet run: 4 more numbers of papers that recipes are after, 2 of them"
    )
    of_paper = tables.results_table("p").splitlines()[2:]
    ours = [row.split(" | ")[-1] for row in of_paper[:4]]
    assert ours == ["0.3 |", "0.3 |", "not yet run |", "not yet run |"]  # the paper's 0.9 stays
    assert of_paper[-1].startswith("2 more numbers that recipes are after are neither")
    monkeypatch.setattr(tables, "load_recipe", lambda path: {"reproduces": entries[:1]})
    assert tables.results_table("p").startswith("None of the 2 numbers that recipes are after")


def test_minutes_are_those_that_a_recipe_says_were_measured() -> None:
    recipes = tables.ROOT / "recipes"
    assert tables.measured_minutes(recipes / "a_lol_hha.yaml") == "7"
    assert tables.measured_minutes(recipes / "cloning_collect_babyai_go_to_local.yaml") == "–"


def test_the_table_of_entries_has_sizes_digests_and_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / "checkpoints" / "motif-nethack"
    games = {"task": "NetHackScore-v1", "means": {"score": interval(12.0)}}
    write(entry / "results.json", {"kind": "games", "results": [games], "details": {}})
    write(entry / "provenance.json", {"commit": "1234567890", "training_seconds": 90})
    write(entry / "hashes.json", {"a.safetensors": "0123456789abcdef"})
    (entry / "a.safetensors").write_bytes(bytes(1_230_000))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.entries_table().splitlines()[-1] == (
        "| [`motif-nethack`](../checkpoints/motif-nethack/README.md) | 1.23 | `01234567` | "
        "score, NetHackScore-v1: 12 [11.9, 12.1] | 1.5 | `1234567` |"
    )


def test_the_table_of_rare_rewards_says_who_ever_learned(tmp_path: Path) -> None:
    first = {"critic_init": "random", "advantage_floor": 0.0, "entropy_coef": 0.01}
    second = {"critic_init": "zero", "advantage_floor": 0.05, "entropy_coef": 0.03}
    rows = [
        first | {"returns": [0.0, 0.0], "steps_to_90%": [None, None]},
        second | {"returns": [0.59, 0.02], "steps_to_90%": [18944, None]},
    ]
    write(tmp_path / "benchmarks" / "results" / "rare_rewards.json", {"settings": rows})
    assert rare_table(tmp_path).splitlines()[2:] == [
        "| random | none | 0.01 | 0 of 2 | never | 0.000, 0.000 |",
        "| zero | 0.05 | 0.03 | 1 of 2 | 18,944 | 0.020, 0.590 |",
    ]


def test_the_tables_of_learning_name_what_was_reached_and_when(tmp_path: Path) -> None:
    def found(*values: float) -> dict[str, Any]:
        ends = {"low": 0.6, "high": 0.8} if len(values) > 1 else {}
        return {"return": {"mean": sum(values) / len(values), **ends}, "by_seed": list(values)}

    poad = {
        "seeds": [1, 2, 3],
        "trained@virtualhome-food-preparation": found(0.7, 0.77, 0.63),
        "trained@virtualhome-pizza": found(0.3, 0.2, 0.1),
        "frames_to_90%": [4000, 9000, 2000],
        "frames_to_97%": [None, 5000, None],
        "frames": [6144, 6144, 6144],
        "minutes": 2.25,
    }
    ntpo = {
        "seeds": [1],
        "trained@virtualhome-food-preparation": found(0.5),
        "frames_to_90%": [3000],
        "frames_to_97%": [None],
        "frames": [6144],
        "minutes": None,
    }
    values = {"tasks": {"food": {"optimum": 1.0, "poad": poad, "ntpo": ntpo}}}
    write(tmp_path / "benchmarks" / "results" / "online_learning.json", values)
    assert learning_table(tmp_path).splitlines()[2:] == [
        "| food | `poad` | 3 | 0.700 [0.600, 0.800] | 70.0% | 0.700, 0.770, 0.630 | "
        "4,000 | 5,000 (1 of 3) | 6,144 | 2.25 |",
        "| food | `ntpo` | 1 | 0.500 | 50.0% | 0.500 | 3,000 | never | 6,144 | – |",
    ]
    rows = reskins_table(tmp_path).splitlines()
    assert rows[0] == "| world | POAD, paper | NTPO, paper | `poad` | `ntpo` |"
    assert "| pizza | 0.7625 | 0.7355 | 0.200 [0.600, 0.800] | – |" in rows
    assert len(rows) == 8


def test_the_table_of_babyai_has_chance_first_and_the_bots_steps(tmp_path: Path) -> None:
    success = {"mean": 0.95, "low": 0.9, "high": 1.0, "by_seed": [0.94, 0.96]}
    cloned = {"steps_of_the_bot": 3000, "seeds": [1, 2], "steps": 5.8, "minutes": 3.7}
    drrn = {"frames": 4096, "seeds": [1], "steps": 50.0, "minutes": None}
    chance = {"mean": 0.3, "low": 0.22, "high": 0.4, "n": 100, "steps": 53.7}
    agents = {
        "drrn": {**drrn, "success": {"mean": 0.25, "by_seed": [0.25]}, "commit": "abc"},
        "cloned": {**cloned, "success": success, "commit": "abc"},
        "dagger_ppo": {**cloned, "frames": 1536, "success": success, "commit": "abc"},
        "random": chance,
    }
    path = tmp_path / "benchmarks" / "results" / "glam_learning.json"
    write(path, {"worlds": {"babyai-go-to-red-ball": agents}})
    assert glam_table(tmp_path).splitlines()[2:] == [
        "| go-to-red-ball | chance | 100 episodes | 0.300 [0.220, 0.400] | – | 53.7 | – | – | – |",
        "| go-to-red-ball | cloned from the bot | 2 | 0.950 [0.900, 1.000] | 0.94, 0.96 | 5.8 | "
        "3,000 | – | 3.7 |",
        "| go-to-red-ball | GLAM: cloned, corrected, then PPO | 2 | 0.950 [0.900, 1.000] | "
        "0.94, 0.96 | 5.8 | 3,000 | 1,536 | 3.7 |",
        "| go-to-red-ball | DRRN | 1 | 0.250 | 0.25 | 50 | – | 4,096 | – |",
    ]
    measured = {(each.method, each.metric): each for each in measurements(tmp_path)}
    assert set(measured) == {
        ("drrn", "success rate, GoToRedBall"),
        ("cloning", "success rate, GoToRedBall"),
        ("glam from a clone with dagger", "success rate, GoToRedBall"),
    }
    of_the_clone = measured["cloning", "success rate, GoToRedBall"]
    assert of_the_clone.task == "babyai_go_to_red_ball"
    assert (of_the_clone.value, of_the_clone.seeds, of_the_clone.minutes) == (0.95, 2, 3.7)


def test_the_table_of_the_tests_has_who_was_trained_then_the_base_and_chance(
    tmp_path: Path,
) -> None:
    def success(mean: float, low: float, high: float) -> dict[str, float]:
        return {"mean": mean, "low": low, "high": high, "n": 10}

    trained, chance = success(0.9, 0.596, 0.982), success(0.3, 0.108, 0.603)
    base = success(0.4, 0.168, 0.687)
    tests = {
        "no change": {"random": chance, "zero-shot": base, "glam": trained},
        "go to": {"glam": chance},
    }
    agents = {"some-agent": {"home": "babyai-go-to-local", "trained": "glam", "tests": tests}}
    path = tmp_path / "benchmarks" / "results" / "glam_generalisation.json"
    write(path, {"agents": agents})
    assert generalisation_table(tmp_path).splitlines() == [
        "| agent | test | success [95 %] | the model as it is | chance | episodes |",
        "|---|---|---|---|---|---|",
        "| `some-agent` | no change | 0.90 [0.60, 0.98] | 0.40 [0.17, 0.69] | 0.30 [0.11, 0.60] | "
        "10 |",
        "| `some-agent` | go to | 0.30 [0.11, 0.60] | – | – | 10 |",
    ]
    assert len(generalisation_table(tmp_path / "nothing").splitlines()) == 2
