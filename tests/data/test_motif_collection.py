"""Recorded episodes and the pairs drawn from them: what is kept, interruptions, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from llm_agents.data.motif_collection import MotifCollection
from llm_agents.data.motif_layout import MotifPairs, sample_pairs
from llm_agents.data.motif_players import make_player
from llm_agents.data.motif_recording import RecordedEpisodes, RecordingPlan
from llm_agents.envs.nethack import NetHackGame
from llm_agents.envs.nethack_screen import Stat
from llm_agents.envs.nethack_tasks import NetHackRules
from llm_agents.errors import UserError

pytestmark = pytest.mark.nethack
nle = pytest.importorskip("nle", reason="needs the extra `nethack`")

KEYS = ("message", "blstats", "tty_chars", "tty_colors")


def collect(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {"num_pairs": 90, "max_steps": 60, "num_workers": 0, "seed": 3, **changes}
    return dict(MotifCollection(str(folder), **settings).run(folder.parent))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for part in ("data", "info")
        for path in sorted((folder / part).rglob("*"))
    }


def test_the_layout_is_the_published_one(tmp_path: Path) -> None:
    found = collect(tmp_path / "pairs", keys=KEYS)
    keys = (*KEYS, "rewards", "score", "turns", "experience_level", "character", "steps")
    pairs = MotifPairs.open(tmp_path / "pairs", (*keys, "level_num"))
    assert {key: array.shape for key, array in pairs.data.items()} == {
        "message": (90, 2, 1, 256),
        "blstats": (90, 2, 1, 27),
        "tty_chars": (90, 2, 1, 24, 80),
        "tty_colors": (90, 2, 1, 24, 80),
        "rewards": (90, 2, 1),
    }
    assert pairs.data["tty_colors"].dtype == np.int8
    assert {array.shape for array in pairs.info.values()} == {(90, 2)}
    assert set(np.unique(pairs.info["character"])) == {"mon-hum-neu-mal"}
    assert pairs.data["blstats"][..., Stat.HP].min() > 0  # moments of running games only
    assert found["pairs"] == 90
    assert found["steps"] >= 180
    assert found["explorer"]["episodes"] - found["random"]["episodes"] in (0, 1)
    assert found["distinct_captions"] > 10
    assert 0 < found["empty_captions"] < 1


def test_an_episode_is_its_observations_in_order(tmp_path: Path) -> None:
    collect(tmp_path / "pairs", players=("random",), num_pairs=40)
    episodes = RecordedEpisodes.open(tmp_path / "pairs" / "episodes")
    facts, arrays = episodes.facts[0], episodes.load(0)
    plan = RecordingPlan(("random",), 3, ("message", "blstats"), "NetHackScore-v1", 60)
    assert facts["seed"] == plan.episode_seed(0)
    game = NetHackGame(observation_keys=plan.keys, rules=NetHackRules(max_steps=60))
    observation, player = game.reset(facts["seed"]), make_player("random")
    player.begin(facts["seed"])
    assert (arrays["message"][0] == observation["message"]).all()
    assert arrays["rewards"][0] == 0
    for t in range(1, facts["steps"]):
        step = game.step(player.act(observation))
        assert (arrays["message"][t] == step.observation["message"]).all()
        assert (arrays["blstats"][t] == step.observation["blstats"]).all()
        assert arrays["rewards"][t] == pytest.approx(step.reward)
    assert step.episode is not None
    assert facts["score"] == step.episode.score


def test_pairs_hold_the_stretches_that_were_drawn(tmp_path: Path) -> None:
    collect(tmp_path / "pairs", length=3, num_pairs=30)
    episodes = RecordedEpisodes.open(tmp_path / "pairs" / "episodes")
    pairs = MotifPairs.open(tmp_path / "pairs", ("message", "rewards", "score"))
    assert pairs.length == 3
    lengths = [facts["steps"] for facts in episodes.facts]
    drawn = sample_pairs(lengths, 3, 3)[:30]
    for number, pair in enumerate(drawn):
        for side, (episode, start) in enumerate(pair):
            arrays = episodes.load(episode)
            here = slice(start, start + 3)
            assert (pairs.data["message"][number, side] == arrays["message"][here]).all()
            assert (pairs.data["rewards"][number, side] == arrays["rewards"][here]).all()
            assert pairs.info["score"][number, side] == episodes.facts[episode]["score"]


def test_processes_and_interruptions_change_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    collect(one)
    expected = contents(one)
    collect(two, num_workers=2)
    assert contents(two) == expected
    # As if it had been killed while it played, and another time while it gave names.
    (two / "pairs.json").unlink()
    (two / "data" / "message.npy").unlink()
    (two / "info" / "score.npy").rename(two / "info" / ".score.npy.123")
    columns = json.loads((two / "episodes" / "info.json").read_text())
    (two / "episodes" / f"{columns['seed'][0]}.npz").unlink()
    shorter = {key: column[:-1] for key, column in columns.items()}
    (two / "episodes" / "info.json").write_text(json.dumps(shorter))
    collect(two)
    assert contents(two) == expected
    modified = (one / "data" / "message.npy").stat().st_mtime_ns
    again = collect(one)
    assert (one / "data" / "message.npy").stat().st_mtime_ns == modified
    assert again["pairs"] == 90


def test_recorded_episodes_of_others_are_pooled(tmp_path: Path) -> None:
    collect(tmp_path / "one", players=("random",), num_pairs=60)
    episodes = tmp_path / "one" / "episodes"
    own = RecordedEpisodes.open(episodes)
    found = collect(tmp_path / "two", sources=(str(episodes),), num_pairs=80)
    assert found["pairs"] == 80
    assert sum(facts["steps"] for facts in own.facts) + found["steps"] >= 160
    alone = collect(tmp_path / "three", sources=(str(episodes),), players=(), num_pairs=50)
    assert (alone["episodes"], alone["pairs"]) == (0, 50)
    # The authors' lists tell less than ours.
    columns = json.loads((episodes / "info.json").read_text())
    (episodes / "info.json").write_text(json.dumps({k: columns[k] for k in ("seed", "steps")}))
    collect(tmp_path / "four", sources=(str(episodes),), players=(), num_pairs=50)
    assert [path.name for path in (tmp_path / "four" / "info").iterdir()] == ["steps.npy"]
    with pytest.raises(UserError, match="tty_chars in the episodes of"):
        collect(
            tmp_path / "five",
            sources=(str(episodes),),
            players=(),
            keys=("message", "tty_chars"),
            num_pairs=50,
        )
    path = episodes / f"{own.facts[0]['seed']}.npz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"expected a whole episode in .*\.npz"):
        collect(tmp_path / "six", sources=(str(episodes),), players=(), num_pairs=50)
    (episodes / "info.json").write_text('{"seed": [1], "steps": [1, 2]}')
    with pytest.raises(UserError, match="lists of one length"):
        RecordedEpisodes.open(episodes)
    (episodes / "info.json").write_text('{"seed": [1]}')
    with pytest.raises(UserError, match="parallel lists"):
        RecordedEpisodes.open(episodes)


def test_a_folder_belongs_to_one_collection(tmp_path: Path) -> None:
    collect(tmp_path / "pairs", num_pairs=20)
    with pytest.raises(UserError, match=r"`seed`: 3 as it was begun, got 4"):
        collect(tmp_path / "pairs", num_pairs=20, seed=4)
    with (
        FileLock(tmp_path / "pairs" / ".lock"),
        pytest.raises(UserError, match="another process collects"),
    ):
        collect(tmp_path / "pairs", num_pairs=20)
    MotifPairs.create(tmp_path / "own", {"message": np.zeros((1, 2, 1, 256), np.uint8)})
    with pytest.raises(UserError, match="not collected here"):
        collect(tmp_path / "own")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_pairs": 0}, "at least 1"),
        ({"task": "Chess"}, "out of NetHackScore-v1, .* got `Chess`"),
        ({"keys": ("blstats",)}, "expected `message`"),
        ({"keys": ("message", "colour")}, "got message, colour"),
        ({"players": ()}, "got neither"),
        ({"players": ("human",)}, "a player `random`, `explorer` or the folder .* got `human`"),
    ],
)
def test_settings_are_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect(tmp_path / "pairs", **changes)


def test_a_trained_agent_may_play(tmp_path: Path) -> None:
    from llm_agents.policies.nethack import SmallNetwork
    from llm_agents.policies.nethack_files import save_nethack_network

    save_nethack_network(SmallNetwork(), tmp_path / "agent", {})
    agent = str(tmp_path / "agent")
    found = collect(tmp_path / "pairs", players=(agent,), num_pairs=20, max_steps=30)
    assert found[agent]["episodes"] == found["episodes"] >= 2
    again = collect(tmp_path / "again", players=(agent,), num_pairs=20, max_steps=30)
    assert contents(tmp_path / "pairs") == contents(tmp_path / "again")
    assert again["distinct_captions"] == found["distinct_captions"]


_RUN = """
import sys
from pathlib import Path
from llm_agents.data.motif_collection import MotifCollection
MotifCollection(sys.argv[1], num_pairs=500, max_steps=150, seed=3).run(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_killed_collection_goes_on(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([sys.executable, "-c", _RUN, str(whole)], check=True)
    process = subprocess.Popen([sys.executable, "-c", _RUN, str(killed)])
    deadline = time.monotonic() + 300
    while len(list((killed / "episodes").glob("*.npz"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "pairs.json").exists()
    subprocess.run([sys.executable, "-c", _RUN, str(killed)], check=True)
    assert contents(killed) == contents(whole)
