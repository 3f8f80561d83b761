"""Motif's recipes: each stage under the tiny overlay, on what the one before it left."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from llm_agents.cli import main
from llm_agents.evaluation import read_any_results, read_games_results
from llm_agents.policies.nethack_types import PlayedGame
from llm_agents.rewards import MessageReward

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
TINY = RECIPES / "overlays" / "tiny.yaml"
ANNOTATOR = "judge"
SCALES = ("", "paper/")

Stages = Mapping[str, Path]


def recipe(name: str) -> dict[str, Any]:
    found = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf8"))
    assert isinstance(found, dict)
    return found


def options(folders: Stages) -> dict[str, list[str]]:
    """Return the options that tell each stage where the one before it left its work."""
    return {
        "collect": ["--job.output", str(folders["pairs"])],
        "annotate": ["--job.directory", str(folders["pairs"]), "--job.name", ANNOTATOR],
        "reward": ["--data.folder", str(folders["pairs"]), "--data.annotator", ANNOTATOR],
        "agent": ["--data.reward.path", str(folders["reward"] / "adapter")],
    }


RECIPE_OF = {
    "collect": "motif_collect_nethack",
    "annotate": "motif_annotate_nethack",
    "reward": "motif_reward_nethack",
    "agent": "motif_nethack",
}


def run_stages(root: Path, prefix: str) -> Stages:
    folders = {stage: root / stage for stage in (*RECIPE_OF, "pairs")}
    for stage, name in RECIPE_OF.items():
        if stage == "reward" and prefix:  # a random model's replies are no verdicts
            preferences = np.load(folders["pairs"] / "preference" / f"{ANNOTATOR}.npy")
            assert set(preferences.tolist()) <= {2, 3}
            rng = np.random.default_rng(0)
            drawn = rng.integers(0, 3, len(preferences)).astype(np.int8)
            np.save(folders["pairs"] / "preference" / f"{ANNOTATOR}.npy", drawn)
        path = RECIPES / f"{prefix}{name}.yaml"
        words = ["run", str(path), "--overlay", str(TINY), "--run.folder", str(folders[stage])]
        assert main([*words, *options(folders)[stage]]) == 0, stage
    return folders


@pytest.fixture(scope="module", params=SCALES, ids=["default", "paper"])
def stages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    pytest.importorskip("nle")
    return run_stages(tmp_path_factory.mktemp("motif"), request.param)


@pytest.mark.nethack
def test_every_stage_ends_in_results(stages: Stages) -> None:
    collected = json.loads((stages["collect"] / "results.json").read_text())["numbers"]
    assert collected["pairs"] == 24
    annotated = json.loads((stages["annotate"] / "results.json").read_text())["numbers"]
    assert annotated["annotator"] == ANNOTATOR
    assert annotated["pairs"] == 24
    reward = read_any_results(stages["reward"])
    assert reward.name == "motif"
    assert (stages["reward"] / "adapter" / "message_reward.json").is_file()
    games = read_games_results(stages["agent"])
    assert [(e.task, e.agent) for e in games.results] == [
        ("NetHackScore-v1", agent) for agent in ("trained", "random")
    ]
    assert games.overall.num_games == 2
    assert "intrinsic_return" in games.overall.means
    assert (stages["agent"] / "adapter" / "nethack_agent.safetensors").is_file()
    rows = (stages["agent"] / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3  # two rollouts


@pytest.mark.nethack
@pytest.mark.slow
@pytest.mark.parametrize("task", ["NetHackStaircaseLvl3Continual-v1", "NetHackOracleSober-v1"])
def test_the_agents_recipe_takes_every_task_and_its_own_coefficients(
    task: str, stages: Stages, tmp_path: Path
) -> None:
    words = ["run", str(RECIPES / "motif_nethack.yaml"), "--overlay", str(TINY)]
    words += ["--run.folder", str(tmp_path / "run"), "--data.task", task]
    words += ["--model.ppo.extrinsic_coef", "10", *options(stages)["agent"]]
    assert main(words) == 0
    results = read_games_results(tmp_path / "run")
    assert results.overall.task == task
    assert results.details["extrinsic_coef"] == 10


@pytest.mark.nethack
def test_the_agent_is_watched_with_what_its_messages_pay(stages: Stages, tmp_path: Path) -> None:
    path = tmp_path / "watched.json"
    words = ["watch", str(stages["agent"]), "--episodes", "2", "--json", str(path)]
    assert main([*words, "--sort", "total"]) == 0  # the reward is the one of the agent's recipe
    reward = MessageReward.from_pretrained(str(stages["reward"] / "adapter"))
    episodes = json.loads(path.read_text())["episodes"]
    assert len(episodes) == 2
    for episode in episodes:
        rows = episode["messages"]
        assert episode["facts"]["end"] == "limit"  # after the overlay's twelve steps
        assert sum(row["times"] for row in rows) == 13
        for row in rows:
            z = (row["raw"] - reward.statistics.mean) / reward.statistics.variance**0.5
            assert row["normalized"] == pytest.approx(z, abs=1e-4)
            threshold = threshold_of(stages, reward)
            if abs(z - threshold) > 1e-3:  # the median message stands on it, but for rounding
                assert row["first"] == pytest.approx(z if z > threshold else 0.0, abs=1e-4)
            paid = sum(row["first"] / n**3 for n in range(1, row["times"] + 1))
            assert row["total"] == pytest.approx(paid, abs=1e-6)
        totals = [row["total"] for row in rows]
        assert totals == sorted(totals, reverse=True)
        assert episode["facts"]["intrinsic return"] == pytest.approx(sum(totals), abs=1e-4)


def threshold_of(stages: Stages, reward: MessageReward) -> float:
    """Return the threshold with the agent's own rounding."""
    text = (stages["agent"] / "recipe.yaml").read_text(encoding="utf8")
    options = yaml.safe_load(text)["data"]["init_args"]["reward"]["init_args"]
    rounded = options.get("round_threshold", False)
    return reward.statistics.threshold(options["threshold_quantile"], rounded=rounded)


def facts(game: PlayedGame) -> PlayedGame:
    """Return a game without its intrinsic return, which rounds as its batches fall."""
    return replace(game, intrinsic_return=0.0)


@pytest.mark.nethack
def test_an_agent_is_evaluated_by_name_in_another_task(
    stages: Stages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, out = str(stages["agent"] / "adapter"), str(tmp_path / "out")
    words = ["evaluate", name, "--env", "NetHackStaircase-v1", "--episodes", "3", "--out", out]
    assert main(words) == 0
    results = read_games_results(out)
    assert results.overall.task == "NetHackStaircase-v1"
    assert results.overall.num_games == 3
    assert (results.details["method"], results.details["task"]) == ("motif", "NetHackScore-v1")
    again = read_games_results(stages["agent"])  # same seed, same first games in its own task
    own = str(tmp_path / "own")
    assert main(["evaluate", name, "--episodes", "2", "--out", own]) == 0
    assert [facts(entry.game) for entry in read_games_results(own).games] == [
        facts(entry.game) for entry in again.games
    ]
    capsys.readouterr()
    assert main(["evaluate", name, "--env", "toy-chest", "--out", out]) == 2
    assert "expected a task of NetHack for" in capsys.readouterr().err
    assert main(["evaluate", name, "--data", "sample", "--out", out]) == 2
    assert "plays NetHack: leave --data out" in capsys.readouterr().err


# What the release's published commands say (and its code, where they say nothing).
PAPER_PPO = {
    "extrinsic_coef": 0.1,
    "intrinsic_coef": 0.1,
    "reward_scale": 0.1,
    "reward_clip": 10.0,
    "gamma": 0.99,
    "advantages": "vtrace",
    "rho_clip": 1.0,
    "c_clip": 1.0,
    "rollout_end": "self",
    "recurrence": 32,
    "num_epochs": 1,
    "clip_epsilon": 0.1,
    "ratio_bounds": [0.05, 20.0],
    "value_clip": 1.0,
    "value_coef": 0.5,
    "exploration": "entropy",
    "exploration_coef": 0.003,
    "max_grad_norm": 4.0,
    "lr": 1e-4,
    "betas": [0.9, 0.999],
    "eps": 1e-6,
}


def test_the_paper_agent_has_the_published_numbers() -> None:
    found = recipe("paper/motif_nethack")
    ppo = dict(found["model"]["init_args"]["ppo"])
    minibatches = ppo.pop("num_minibatches")
    assert ppo == PAPER_PPO
    data = found["data"]["init_args"]
    assert (data["num_workers"], data["num_games"]) == (24, 24 * 20)
    assert (data["num_steps"], data["total_frames"]) == (32, 2 * 10**9)
    assert abs(data["num_games"] * data["num_steps"] / minibatches - 4096) < 300
    assert (data["observed"], data["window"]) == ("acting", 1000)
    assert data["reward"]["init_args"] | {"path": ""} == {
        "path": "",
        "threshold_quantile": 0.5,
        "round_threshold": True,
        "count_exponent": 3.0,
    }
    assert data["rules"] == {"max_steps": 5000, "limit_terminates": True, "sober_test": "word"}
    assert found["seed_everything"] == 777
    assert (found["run"]["checkpoint_every"], found["run"]["keep_checkpoints"]) == (10**7, 5)


def test_the_paper_reward_has_the_published_numbers() -> None:
    found = recipe("paper/motif_reward_nethack")
    model, data = found["model"]["init_args"], found["data"]["init_args"]
    assert model["optimizer"] == {
        "name": "adamw",
        "lr": 1e-5,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.0,  # so that it is Adam
        "schedule": "constant",
    }
    assert (model["keep"], model["statistics"]) == ("last", "running")
    assert (data["batch_size"], data["held_out"]) == (1024, 0.2)
    assert data["annotator"] == "llama70b_msg_defaultgoal_default"
    assert found["trainer"]["max_epochs"] == 10
    assert found["seed_everything"] == 777


def test_the_paper_annotation_has_the_published_numbers() -> None:
    job = recipe("paper/motif_annotate_nethack")["job"]["init_args"]
    annotator = job["annotator"]
    assert annotator["class_path"] == "llm_agents.rewards.GeneratedAnnotator"
    arguments = annotator["init_args"]
    assert arguments["sampling"] == {
        "max_new_tokens": 4096,
        "temperature": 0.1,
        "top_p": 0.95,
        "top_k": 50,
    }
    assert arguments["backend"]["init_args"] == {
        "model": "meta-llama/Llama-2-70b-chat-hf",
        "num_gpus": 8,
        "dtype": "float16",
    }
    assert (job["batch_size"], job["flush_every"]) == (2000, 1)
    assert recipe("paper/motif_collect_nethack")["job"]["init_args"]["num_pairs"] == 500_000


# --- make reproduce-motif -------------------------------------------------------------------------


def planned(*words: str) -> list[str]:
    """Return the commands that make would run from nothing, without running them."""
    done = subprocess.run(
        ["make", "-n", "reproduce-motif", "MOTIF=nowhere/motif", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    return [" ".join(line.split()) for line in lines if re.search(r"llm-agents (run|plot)", line)]


@pytest.mark.parametrize("scale", ["tiny", "default", "paper"])
def test_make_runs_the_stages_in_order(scale: str) -> None:
    commands = planned(f"SCALE={scale}")
    folders = [re.findall(r"--run\.folder nowhere/motif/(\w+)", line) for line in commands]
    agents = ["intrinsic", "extrinsic", "both"]
    stages = ["collect", "annotate", "reward", *agents]
    if scale == "paper":
        stages = ["collector", *stages]  # plays what the others' pairs are drawn from
    assert [name for found in folders for name in found] == stages
    assert all("--resume auto" in line for line in commands[:-1])
    assert all(("--overlay" in line) is (scale == "tiny") for line in commands[:-1])
    assert all(("recipes/paper/" in line) is (scale == "paper") for line in commands[:-1])
    for agent in agents:
        assert f" {agent}=nowhere/motif/{agent}" in commands[-1]
    by_agent = dict(zip(agents, commands[-4:-1], strict=True))
    assert by_agent["intrinsic"].endswith("--model.ppo.extrinsic_coef 0")
    assert by_agent["extrinsic"].endswith("--model.ppo.intrinsic_coef 0")
    assert by_agent["both"].endswith("--data.reward.path nowhere/motif/reward/adapter")


@pytest.mark.parametrize("scale", ["tiny", "default", "paper"])
def test_what_make_runs_is_sound(
    scale: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    for line in planned(f"SCALE={scale}")[:-1]:
        words = shlex.split(line)[1:]
        assert main([*words, "--print_config"]) == 0, capsys.readouterr().err


def test_make_begins_with_pairs_that_someone_has(tmp_path: Path) -> None:
    preference = tmp_path / "preference" / "llama70b_msg_defaultgoal_default.npy"
    preference.parent.mkdir()
    preference.touch()
    name = preference.stem
    commands = planned("SCALE=paper", f"MOTIF_PAIRS={tmp_path}", f"MOTIF_ANNOTATOR={name}")
    assert len(commands) == 5
    assert f"--data.folder {tmp_path} --data.annotator {name}" in commands[0]


def test_make_refuses_another_scale() -> None:
    done = subprocess.run(
        ["make", "-n", "reproduce-motif", "SCALE=huge"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "expected SCALE=tiny, default or paper, got huge" in done.stderr
