"""Runs of several seeds, algorithms and tasks as one table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from llm_agents.cli import main
from llm_agents.evaluation import (
    Answer,
    BootstrapConfig,
    GoldResult,
    Interval,
    Results,
    RewardDescription,
    TestSetResult,
    write_numbers,
)
from llm_agents.evaluation.aggregation import metric_of
from llm_agents.evaluation.aggregation_tables import columns_of
from llm_agents.rewards.tasks import TASKS
from llm_agents.training.aggregating import aggregate_runs, summarize_run
from llm_agents.types import GenerationConfig

BOOTSTRAP = BootstrapConfig(samples=200)


def make_run(
    folder: Path,
    *,
    task: str = "wow",
    algorithm: str = "a_lol",
    seed: int = 1,
    rewards: tuple[float, ...] = (1.0, 2.0),
    faithdial: float = 0.5,
    adapter: str | None = None,
    lr: float = 1e-4,
) -> Path:
    """Write what a run leaves behind, with validations at steps 0, 5, 10 and 15."""
    folder.mkdir(parents=True)
    policy = {"class_path": "P", "init_args": {"base": "tiny", "adapter": adapter}}
    recipe = {
        "seed_everything": seed,
        "model": {"init_args": {"policy": policy, "algorithm": algorithm, "lr": lr}},
        "run": {"folder": str(folder)},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf8")
    lines = ["step,epoch,val/reward,val/parts/faithdial,train/loss", "0,,9,0.9,"]
    lines += [f"5,0,1.5,0.{seed},3", "7,0,,,2", "10,1,1.25,0.7,1", "15,2,1,0.3,1"]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n", encoding="utf8")
    mean = sum(rewards) / len(rewards)

    def interval(value: float) -> Interval:
        return Interval(value, 0.1, value - 0.1, value + 0.1, len(rewards))

    test = TestSetResult(
        name="test",
        reward=interval(mean),
        words=interval(8.0),
        distinct={1: 0.5, 2: 0.75, 3: None},
        num_empty=0,
        num_truncated=0,
        num_tokens=10,
        seconds=1.0,
        parts={"fluency": interval(mean - faithdial), "faithdial": interval(faithdial)},
        metrics={"coverage": interval(0.4)},
        gold=GoldResult(interval(1.8), interval(9.0), {1: 0.5}, {"fluency": interval(0.9)}),
    )
    answers = tuple(
        Answer("test", row, (), "", "words", reward, 1, 1, False)
        for row, reward in enumerate(rewards)
    )
    results = Results(
        name=algorithm,
        reward=RewardDescription("sum", "1", 0.0, 4.0),
        generation=GenerationConfig(),
        bootstrap=BOOTSTRAP,
        seed=0,
        tests=(test,),
        answers=answers,
        details={"method": algorithm, "task": task, "step": 10, "kept": "best"},
    )
    write_numbers(folder, results)
    return folder


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_every_task_of_the_paper_has_a_metric() -> None:
    """Trap 40: one spelling, one table; ``wow`` is in it."""
    names = {"comet", "reddit_pos", "reddit_neg", "wow", "faithdial", "faithdial_wow"}
    assert names == set(TASKS)
    expected = {"comet": "p_valid_model", "wow": "faithdial", "faithdial_wow": "faithdial"}
    for name, rewards in TASKS.items():
        metric = metric_of(name, rewards.components)
        assert metric == expected.get(name, "final_reward")
    assert metric_of("hha", ()) == metric_of("anything", ("fluency",)) == "final_reward"
    assert metric_of("wow", ("fluency",)) == "final_reward", "of a reward without that part"


def test_the_columns_are_the_documented_ones() -> None:
    assert columns_of("faithdial", ["fluency", "faithdial"]) == [
        "task_name", "baseline_model", "algorithm",
        "best e", "best s", "best V faithdial",
        "worst e", "worst s", "worst V faithdial",
        "val_faithdial", "test_faithdial",
        "val_gen fluency", "val_gen faithdial", "test_gen fluency", "test_gen faithdial",
        "val_gold fluency", "val_gold faithdial", "test_gold fluency", "test_gold faithdial",
    ]  # fmt: skip


def test_a_run_is_summed_up(tmp_path: Path) -> None:
    found = summarize_run(make_run(tmp_path / "a", seed=4))
    assert (found.task, found.baseline_model, found.algorithm) == ("wow", "tiny", "a_lol")
    assert found.best is not None
    assert tuple(found.best) == (1, 10, 0.7)
    assert found.worst is not None
    assert tuple(found.worst) == (2, 15, 0.3)
    assert (found.val, found.test, found.seed) == (0.7, 0.5, 4)
    assert found.means["val_gen"] == {"faithdial": 0.7, "final_reward": 1.25}
    assert found.means["test_gen"] == {"fluency": 1.0, "faithdial": 0.5, "final_reward": 1.5}


def test_rows_are_means_over_seeds(tmp_path: Path) -> None:
    """Three tasks, four algorithms, two seeds: a row for each task and algorithm."""
    tasks, algorithms = ("wow", "hha", "reddit_pos"), ("nll", "wbc", "a_lol", "a_lol_seq")
    for task in tasks:
        for place, algorithm in enumerate(algorithms):
            for seed in (1, 2):
                rewards = (1.0 + place, 2.0 + place + 0.2 * seed)
                make_run(
                    tmp_path / "runs" / f"{task}-{algorithm}-{seed}",
                    task=task, algorithm=algorithm, seed=seed, rewards=rewards,
                    faithdial=0.25 * seed, adapter=f"x/{seed}/reference/adapter",
                )  # fmt: skip
    files = aggregate_runs([str(tmp_path / "runs")], tmp_path / "table.csv")
    names = {path.name for path in files}
    assert names == {
        "table.csv", "table_runs.csv", "table_wow.csv", "table_hha.csv", "table_reddit_pos.csv",
        "table.md", "table.png",
    }  # fmt: skip
    rows = read(tmp_path / "table.csv")
    assert len(rows) == 12
    assert len(read(tmp_path / "table_runs.csv")) == 24
    row = next(r for r in rows if (r["task_name"], r["algorithm"]) == ("wow", "a_lol"))
    assert row["baseline_model"] == "tiny+reference"
    assert (row["metric"], row["seeds"]) == ("faithdial", "1 2")
    assert (row["best e"], row["best s"], row["best V metric"]) == ("1.000", "10.000", "0.700")
    assert row["worst V metric"] == f"{(0.1 + 0.2) / 2:.3f}"
    assert (row["val_metric"], row["test_metric"]) == ("0.700", "0.375")
    assert float(row["test_metric low"]) <= 0.375 <= float(row["test_metric high"])
    assert row["test_gen final_reward"] == f"{(3.6 + 3.7) / 2:.3f}"
    assert row["test_gold fluency"] == "0.900"
    own = read(tmp_path / "table_wow.csv")
    assert len(own) == 4
    assert own[2]["test_faithdial"] == "0.375"
    assert own[2]["val_gold faithdial"] == "NA"
    assert own[2]["test_gold final_reward"] == "1.800"
    text = (tmp_path / "table.md").read_text(encoding="utf8")
    assert text.count("### ") == 3
    assert "| tiny+reference | a_lol | 2 | **0.375" in text
    assert "0.50/0.75/–" in text
    assert "| coverage |" in text
    assert (tmp_path / "table.png").stat().st_size > 10_000


def test_other_settings_are_another_row(tmp_path: Path) -> None:
    for seed in (1, 2):
        for lr in (1e-4, 1e-3):
            make_run(tmp_path / "runs" / f"{seed}-{lr}", seed=seed, lr=lr)
    aggregate_runs([str(tmp_path / "runs")], tmp_path / "table.csv")
    rows = read(tmp_path / "table.csv")
    assert [row["algorithm"] for row in rows] == ["a_lol", "a_lol (2)"]
    assert [row["seeds"] for row in rows] == ["1 2", "1 2"]


def test_a_label_puts_runs_together(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a", lr=1.0), make_run(tmp_path / "b", seed=2, lr=2.0)
    aggregate_runs([f"mine={one}", f"mine={two}"], tmp_path / "table.csv")
    (row,) = read(tmp_path / "table.csv")
    assert (row["algorithm"], row["seeds"]) == ("mine", "1 2")


def test_faults_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["aggregate", str(tmp_path / "empty")]) == 2
    assert "expected the folder of a finished run, but" in capsys.readouterr().err
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    assert main(["aggregate", str(one), str(two), "--out", str(tmp_path / "t.csv")]) == 2
    assert "two runs of a_lol on wow have one seed" in capsys.readouterr().err
    other = make_run(tmp_path / "c", seed=2, rewards=(1.0, 2.0, 3.0))
    assert main(["aggregate", str(one), str(other), "--out", str(tmp_path / "t.csv")]) == 2
    assert "answered other prompts" in capsys.readouterr().err
    assert main(["aggregate", str(one), "--out", str(tmp_path / "t.csv")]) == 0
    assert str(tmp_path / "t_wow.csv") in capsys.readouterr().out
