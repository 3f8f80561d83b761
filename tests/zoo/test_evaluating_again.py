"""What was trained, evaluated again: where files are missing, and beside the numbers it has."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_agents.cli import main
from llm_agents.evaluation import (
    BootstrapConfig,
    EpisodeResults,
    Interval,
    WorldResult,
    read_any_results,
    read_results,
    write_results,
)
from llm_agents.training.earlier_results import keep_beside
from llm_agents.training.entry_checks import compare_numbers, verdict
from llm_agents.zoo.outside_files import OutsideFile, digest_of, write_files

ROWS = [
    {"prompt": f"Question {number}?", "responses": ["Yes.", "No."], "rewards": [1.0, 0.0]}
    for number in range(3)
]


def write_rows(path: Path, number: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**row, "prompt": f"{row['prompt']} {number}"} for row in ROWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def entry(
    adapter_folder: Path, reward_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """Make an entry of a zoo on another machine: its files lie nowhere, its judge is an entry."""
    monkeypatch.chdir(tmp_path)
    written = write_rows(tmp_path / "there" / "test.jsonl")
    files = [OutsideFile("data.test", "runs/there/test.jsonl", *digest_of(written))]
    files.append(replace(files[0], key="data.train", name="runs/there/train.jsonl"))
    shutil.copytree(reward_folder, "checkpoints/judge-tiny")
    folder = Path(shutil.copytree(adapter_folder, "checkpoints/writer-tiny"))
    judge = {
        "class_path": "llm_agents.rewards.PolicyReward.from_pretrained",
        "init_args": {"path": "zoo:judge-tiny"},
    }
    recipe = {
        "seed_everything": 7,
        "model": {
            "class_path": "llm_agents.methods.ALoL",
            "init_args": {
                "policy": {
                    "class_path": "llm_agents.policies.LanguagePolicy.from_pretrained",
                    "init_args": {"base": "tiny-random-llama"},
                },
                "generation": {"max_new_tokens": 3},
            },
        },
        "data": {
            "class_path": "llm_agents.data.HHAData",
            "init_args": {
                "train": "runs/there/train.jsonl",
                "validation": None,
                "test": ["sample", "runs/there/test.jsonl"],
            },
        },
        "evaluation": {"num_prompts": 2, "reward": judge, "bootstrap": {"samples": 20}},
        "publish": {"data_source": "a machine that is gone"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    write_files(folder, files)
    (folder / "results.json").unlink()
    return "writer-tiny"


def sets_in(folder: str) -> list[str]:
    return [test.name for test in read_results(folder).tests]


def test_an_entry_is_evaluated_where_its_files_are_not(
    entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The bundled dialogues are everywhere; what is not is named with its digest and origin."""
    assert main(["evaluate", entry, "--out", "out"]) == 0
    assert sets_in("out") == ["sample"]
    results = read_results("out")
    assert results.reward.name == "tiny reward"
    assert results.details["training_seed"] == 7
    assert results.details["method"] == "a_lol"
    assert "`runs/there/test.jsonl`, SHA-256" in caplog.text
    assert "not here (a machine that is gone): left out" in caplog.text


def test_a_file_of_the_right_content_is_taken_wherever_it_lies(entry: str) -> None:
    assert main(["evaluate", entry, "--data", "there/test.jsonl", "--out", "out"]) == 0
    assert sets_in("out") == ["test"]
    shutil.copytree("there", "runs/there")
    assert main(["evaluate", entry, "--out", "both"]) == 0
    assert sets_in("both") == ["sample", "test", "all"]


@pytest.mark.parametrize("where", ["runs/there", "elsewhere"])
def test_another_file_of_that_name_is_refused(
    entry: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the place that the recipe names, and given by its name."""
    other = write_rows(Path(where) / "test.jsonl", number=1)
    given = [] if where == "runs/there" else ["--data", str(other)]
    assert main(["evaluate", entry, *given, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert f"`{other}` is not the `runs/there/test.jsonl` that `data.test` names" in said
    assert digest_of(other)[0][:16] in said
    assert not Path("out/results.json").exists()


def test_own_data_under_another_name_are_evaluated(entry: str) -> None:
    write_rows(Path("mine.jsonl"), number=1)
    assert main(["evaluate", entry, "--data", "mine.jsonl", "--out", "out"]) == 0
    assert sets_in("out") == ["mine"]


def test_nothing_left_is_an_error_with_the_cure(
    entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("checkpoints/writer-tiny/recipe.yaml")
    recipe = yaml.safe_load(path.read_text())
    recipe["data"]["init_args"]["test"] = ["runs/there/test.jsonl"]
    path.write_text(yaml.safe_dump(recipe))
    assert main(["evaluate", entry, "--out", "out"]) == 2
    assert "give the file with `--data FILE`, or the bundled" in capsys.readouterr().err


def test_several_policies_stand_beside(entry: str) -> None:
    words = ["--against", "tiny-random-llama", "--against", entry, "--out", "out"]
    assert main(["evaluate", entry, *words]) == 0
    assert read_results("out/against").name == "tiny-random-llama"
    assert read_results("out/against-2").name == entry


def test_evaluating_again_keeps_what_it_does_not_measure(entry: str) -> None:
    """Test sets, training and texts stay; the set that was answered again has new numbers."""
    folder = Path("checkpoints/writer-tiny")
    shutil.copytree("there", "runs/there")
    assert main(["evaluate", str(folder)]) == 0
    before = read_results(folder)
    values = json.loads((folder / "results.json").read_text())
    values["details"]["kept"] = "best"
    (folder / "results.json").write_text(json.dumps(values))
    assert main(["evaluate", str(folder), "--data", "sample"]) == 0
    after = read_results(folder)
    assert {test.name for test in after.tests} == {"sample", "test"}
    assert after.details["kept"] == "best"
    assert after.details["training_seed"] == 7
    assert set(after.details["measured"]) == {"sample", "test"}
    texts = {(a.test, a.row): (a.prefix, a.response) for a in before.answers}
    assert {(a.test, a.row): (a.prefix, a.response) for a in after.answers} == texts
    assert not list(folder.glob("results-*.json"))


@pytest.mark.parametrize("words", [["--num-prompts", "1"], ["--max-new-tokens", "2"]])
def test_what_may_not_join_leaves_the_earlier_file(entry: str, words: list[str]) -> None:
    """Fewer prompts, or another way of answering: the earlier numbers stay beside, whole."""
    folder = Path("checkpoints/writer-tiny")
    assert main(["evaluate", str(folder)]) == 0
    before = (folder / "results.json").read_text()
    assert main(["evaluate", str(folder), *words]) == 0
    (kept,) = folder.glob("results-*.json")
    assert kept.read_text() == before
    assert read_results(folder).details["training_seed"] == 7


def interval(mean: float) -> Interval:
    return Interval(mean, 0.1, mean - 0.1, mean + 0.1, 5)


def played(*worlds: tuple[str, str, float], **details: Any) -> EpisodeResults:
    """Return results of five episodes in each world, whose mean return is given."""
    entries = [
        WorldResult(
            world=world,
            agent=agent,
            discounted_return=interval(value),
            undiscounted_return=interval(value),
            success=interval(0.5),
            decisions=interval(3),
            primitive_steps=interval(3),
            optimal_return=None,
            is_trained_on=True,
            seconds=1.0,
        )
        for world, agent, value in worlds
    ]
    return EpisodeResults("x", BootstrapConfig(), 0, tuple(entries), (), details=details)


HOME = ("home", "trained", 0.8), ("home", "random", 0.1)


def test_another_world_joins_those_that_were_played(tmp_path: Path) -> None:
    write_results(tmp_path, played(*HOME, training_seed=4))
    keep_beside(played(("away", "trained", 0.3), method="poad"), tmp_path)
    found = read_any_results(tmp_path)
    assert isinstance(found, EpisodeResults)
    means = {(e.world, e.agent): e.discounted_return.mean for e in found.worlds}
    assert means == {HOME[0][:2]: 0.8, HOME[1][:2]: 0.1, ("away", "trained"): 0.3}
    assert found.overall.world == "home"  # what the results are about stays first
    assert found.details["training_seed"] == 4
    assert found.details["method"] == "poad"


def test_a_world_that_was_played_again_has_its_new_number(tmp_path: Path) -> None:
    write_results(tmp_path, played(*HOME))
    keep_beside(played(("home", "trained", 0.7)), tmp_path)
    found = read_any_results(tmp_path)
    assert isinstance(found, EpisodeResults)
    assert [entry.discounted_return.mean for entry in found.worlds] == [0.7, 0.1]


def test_numbers_of_other_weights_do_not_mix(tmp_path: Path) -> None:
    """Trained again in the same folder: nothing of the former training is taken over."""
    write_results(tmp_path, played(*HOME, weights="a", training_seed=4))
    keep_beside(played(("away", "trained", 0.3), weights="b"), tmp_path)
    found = read_any_results(tmp_path)
    assert isinstance(found, EpisodeResults)
    assert [entry.world for entry in found.worlds] == ["away"]
    assert "training_seed" not in found.details
    assert len(list(tmp_path.glob("results-*.json"))) == 1


@pytest.mark.parametrize(
    ("remade", "said"),
    [(0.80004, "same"), (0.79997, "same"), (0.8002, "within"), (0.71, "within"), (0.69, "other")],
)
def test_what_counts_as_the_same_number(remade: float, said: str) -> None:
    """Four digits are shown; the kept interval is 0.7 to 0.9."""
    assert verdict(interval(0.8), interval(remade)) == said


def test_numbers_are_compared_by_part_and_metric() -> None:
    found = list(compare_numbers("x", played(*HOME), played(HOME[0], ("away", "trained", 1.0))))
    assert {(c.part, c.metric) for c in found} == {
        ("home · trained", metric) for metric in ("discounted return", "success", "decisions")
    }
    assert {c.verdict for c in found} == {"same"}


def test_a_check_says_what_agrees(entry: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The number that was measured is the same again; one that was tampered with is another."""
    folder = Path("checkpoints/writer-tiny")
    assert main(["evaluate", entry, "--out", "made"]) == 0
    shutil.copy("made/results.json", folder)
    words = ["zoo", "check", entry, "--out", "checked", "--csv", "checked.csv"]
    assert main(words) == 0
    assert "2 numbers of 1 entries: 2 the same" in capsys.readouterr().out
    assert main([*words, "--data", "there/test.jsonl"]) == 0  # which the entry has no number of
    values = json.loads((folder / "results.json").read_text())
    for key in ("mean", "low", "high"):
        values["tests"][0]["words"][key] += 40
    (folder / "results.json").write_text(json.dumps(values))
    assert main(words) == 1
    assert "1 other" in capsys.readouterr().out
    assert Path("checked.csv").read_text().count("other") == 1
