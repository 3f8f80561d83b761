"""NetHack's agents and rewards of messages through the zoo: published, loaded, watched, kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from llm_agents import load_pretrained, play_pretrained
from llm_agents.cli import main
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    BootstrapConfig,
    MessageRewardResults,
    evaluate_games,
    share,
    write_results,
)
from llm_agents.functional.shaping import RewardStatistics
from llm_agents.policies import MessageEncoder
from llm_agents.policies.message_files import MessageRewardInfo, save_message_reward
from llm_agents.policies.nethack import SmallNetwork
from llm_agents.policies.nethack_files import save_nethack_network
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.policies.nethack_types import PlayedGame
from llm_agents.rewards import MessageReward
from llm_agents.zoo import publish
from llm_agents.zoo.card import split_card
from tests.zoo.cards import python_of


def games(count: int, best: int) -> list[PlayedGame]:
    return [
        PlayedGame(
            score=best - number,
            episode_return=float(best - number),
            intrinsic_return=0.5,
            num_steps=30,
            turns=25,
            depth=1,
            max_depth=2,
            experience_level=1,
            gold=0,
            num_messages=4,
            explored=50,
            end="death",
            success=False,
            seed=1,
            number=number,
        )
        for number in range(count)
    ]


@pytest.fixture
def nethack_folder(tmp_path: Path) -> Path:
    """Return the folder of a NetHack agent that is worse than random play."""
    folder = tmp_path / "work" / "adapter"
    save_nethack_network(SmallNetwork(8), folder, {"task": "NetHackScore-v1"})
    players = {"trained": lambda n: games(n, 20), "random": lambda n: games(n, 60)}
    results = evaluate_games(
        {"NetHackScore-v1": players},
        8,
        has_intrinsic=True,
        name="motif",
        seed=0,
        bootstrap=BootstrapConfig(samples=50),
        details={
            "method": "motif",
            "task": "NetHackScore-v1",
            "reward": {"name": "toy", "version": "1"},
            "training_seed": 4,
        },
    )
    write_results(folder, results)
    recipe = {
        "model": {"class_path": "llm_agents.methods.MotifAgent"},
        "data": {
            "class_path": "llm_agents.rollouts.NetHackRollouts",
            "init_args": {
                "task": "NetHackScore-v1",
                "reward": {
                    "class_path": "llm_agents.rewards.MessageReward.from_pretrained",
                    "init_args": {"path": "runs/motif/reward/adapter"},
                },
            },
        },
        "evaluation": {"episodes": 1, "num_worlds": 1},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def test_a_nethack_agents_card_says_that_it_is_weaker(nethack_folder: Path, hub: Any) -> None:
    publish(nethack_folder, "me/motif")
    metadata, body = split_card(hub.repos["me/motif"][-1].files["README.md"].decode())
    found = metadata["model-index"][0]["results"][0]
    assert found["task"]["type"] == "reinforcement-learning"
    assert found["dataset"]["name"] == "NetHackScore-v1"
    values = {metric["type"]: metric["value"] for metric in found["metrics"]}
    assert values["score"] == values["mean_reward"] == 16.5
    assert "it does worse than the random agent: 16.5 [" in body
    assert "What paid it is not recorded." in body  # neither file nor recipe has the weights
    assert "one training seed (4)" in body
    assert isinstance(load_pretrained("me/motif", device="cpu"), NetworkPlayer)
    with pytest.raises(UserError, match="drop `base`"):
        load_pretrained("me/motif", base="x")


@pytest.mark.nethack
def test_a_nethack_agent_plays_where_its_reward_is_not(
    nethack_folder: Path, hub: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pytest.importorskip("nle")
    publish(nethack_folder, "me/motif")
    with caplog.at_level("WARNING"):
        (game,) = play_pretrained("me/motif", seed=1)
    assert game.num_steps > 0
    assert "is not here (runs/motif/reward/adapter): it plays without" in caplog.text
    page = tmp_path / "a.html"
    assert main(["watch", "me/motif", "--max-steps", "5", "--html", str(page)]) == 0
    assert page.stat().st_size < 1_000_000


@pytest.fixture
def message_folder(tmp_path: Path) -> Path:
    """Return the folder of a reward of messages."""
    torch.manual_seed(3)
    folder = tmp_path / "work" / "reward"
    statistics = RewardStatistics(0.1, 0.04, tuple(0.1 * i - 1 for i in range(19)))
    info = MessageRewardInfo("toy", {}, statistics, 4, "llm_default", "abc", 1900, 4, {})
    save_message_reward(MessageEncoder("lt_cnn_small"), info, folder)
    results = MessageRewardResults(
        name="toy",
        version="1",
        annotator="llm_default",
        accuracy=share([True] * 52 + [False] * 48, 0.95),
        accuracy_unseen=None,
        score_agreement=None,
        loss=0.68,
        num_pairs=120,
        num_ties=20,
        num_messages=90,
        mean=0.1,
        variance=0.04,
        median=0.0,
        highest=(),
        lowest=(),
        confidence=0.95,
        details={"method": "motif_reward", "task": "motif"},
    )
    write_results(folder, results)
    return folder


def test_a_reward_of_messages_goes_to_the_hub_and_its_card_is_honest(
    message_folder: Path, hub: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(message_folder, "me/messages")
    metadata, body = split_card(hub.repos["me/messages"][-1].files["README.md"].decode())
    assert metadata["pipeline_tag"] == "text-classification"
    metrics = metadata["model-index"][0]["results"][0]["metrics"]
    assert {m["type"]: m["value"] for m in metrics} == {"accuracy": 0.52, "loss": 0.68}
    assert "no better than chance within the interval" in body
    assert "1,900 pairs of NetHack messages" in body
    assert "CC-BY-NC-4.0" in body
    reward = load_pretrained("me/messages", device="cpu")
    assert isinstance(reward, MessageReward)
    capsys.readouterr()
    exec(compile(python_of(body), "card", "exec"), {})
    assert capsys.readouterr().out.startswith("[")


def test_results_of_another_kind_than_the_folder_are_refused(
    message_folder: Path, nethack_folder: Path
) -> None:
    shutil.copy(message_folder / "results.json", nethack_folder)
    with pytest.raises(UserError, match="expected results of games"):
        publish(nethack_folder, "me/x", dry_run=True)


@pytest.mark.nethack
def test_an_entry_names_its_reward_as_the_zoo_does(
    nethack_folder: Path,
    message_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("nle")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(message_folder, "runs/motif/reward/adapter")
    assert main(["zoo", "add", "runs/motif/reward/adapter", "--name", "toy"]) == 0
    assert main(["zoo", "add", str(nethack_folder), "--name", "player"]) == 0
    recipe = yaml.safe_load(Path("checkpoints/player/recipe.yaml").read_text())
    reward = recipe["data"]["init_args"]["reward"]
    assert reward["init_args"]["path"] == "zoo:toy"
    page = Path("checkpoints/player/replay.html").read_text()
    assert "<title>MotifAgent in NetHackScore-v1</title>" in page
    shutil.rmtree("runs")
    shutil.rmtree(nethack_folder.parent)
    for words in (["player"], ["random", "--env", "NetHackScore-v1", "--reward", "toy"]):
        watched = ["watch", *words, "--max-steps", "5", "--json", "a.json"]
        assert main(watched) == 0
        (episode,) = json.loads(Path("a.json").read_text())["episodes"]
        assert all(isinstance(row["normalized"], float) for row in episode["messages"])
    assert "is not here" not in caplog.text
