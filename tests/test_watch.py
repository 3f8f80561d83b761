"""`lightning watch` through the command's own entry."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_agents.cli import main
from llm_agents.evaluation.replay_frames import EpisodeRecord

RECIPE = """\
seed_everything: 3
model:
  class_path: llm_agents.methods.{method}
  init_args:
    policy:
      class_path: llm_agents.policies.LanguagePolicy.from_pretrained
      init_args:
        base: tiny-random-llama
        lora: {{r: 4, alpha: 8, top_layers: 1}}
    critic_widths: [16]
data:
  class_path: llm_agents.rollouts.TextRollouts
  init_args: {{world: toy-chest, num_worlds: 2, num_steps: 8, total_frames: 16}}
trainer: {{accelerator: cpu, enable_progress_bar: false}}
run: {{folder: {folder}, checkpoint_every: 16}}
evaluation: {{episodes: 1, num_worlds: 1, baselines: [], pictures: false}}
"""

Agents = Callable[[str], str]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Agents:
    """Return a function from a method to the folder of an agent that was trained by it."""
    root = tmp_path_factory.mktemp("agents")

    def trained(method: str) -> str:
        folder = root / method
        if not folder.exists():
            recipe = root / f"{method}.yaml"
            recipe.write_text(RECIPE.format(method=method, folder=folder))
            assert main(["run", str(recipe)]) == 0
        return str(folder / "adapter")

    return trained


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def page_content(path: str) -> dict[str, Any]:
    found = re.search(r'type="application/json">(.*?)</script>', Path(path).read_text(), re.S)
    assert found is not None
    content = json.loads(found[1])
    assert isinstance(content, dict)
    return content


def frame_texts(content: dict[str, Any], half: str) -> list[str]:
    lines = ["".join(text for _, text in line) for line in content["lines"]]
    return ["\n".join(lines[number] for number in frame[half]) for frame in content["frames"]]


def test_a_poad_agent_is_watched_with_the_advantage_of_each_token(
    agents: Agents, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["watch", agents("POAD"), "--episodes", "2", "--html", "a.html", "--json", "a.json"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert len(re.findall(r"^episode \d · return ", said.out, re.M)) == 2
    assert "\x1b" not in said.out  # no terminal, no drawing
    assert "html: a.html" in said.err
    episodes = json.loads(Path("a.json").read_text())["episodes"]
    content = page_content("a.html")
    assert len(content["frames"]) == sum(e["facts"]["decisions"] + 1 for e in episodes)
    sides = [side for side in frame_texts(content, "side") if side]
    for side in sides:
        chances = [float(c) for c in re.findall(r"^(?:→ |  )(\d\.\d{3}) [█░]{10}", side, re.M)]
        assert len(chances) >= 2
        assert sum(chances) == pytest.approx(1.0, abs=0.002)
        assert side.count("→ ") == 1
        tokens = re.split("advantage of (?:each part|the action)\n", side)[1].splitlines()
        assert tokens
        values = [float(line.split()[0]) for line in tokens]
        assert any(values)
    rewards = [float(r) for r in re.findall(r"reward ([+-]\d\.\d{3})", "\n".join(sides))]
    assert sum(rewards) == pytest.approx(sum(e["facts"]["return"] for e in episodes), abs=1e-3)
    assert all("value" in frame["heading"] for frame in content["frames"][:1])


def test_the_same_seed_shows_the_same_episode(agents: Agents) -> None:
    pages = []
    for name, seed in (("a", "4"), ("b", "4")):
        main(["watch", agents("TWOSOME"), "--seed", seed, "--html", f"{name}.html"])
        pages.append(page_content(f"{name}.html"))
    assert pages[0] == pages[1]


def test_ppo_on_actions_shows_the_advantage_of_the_action_as_one(agents: Agents) -> None:
    main(["watch", agents("TWOSOME"), "--max-steps", "1", "--html", "a.html"])
    side = frame_texts(page_content("a.html"), "side")[0]
    (credit,) = side.partition("advantage of the action\n")[2].splitlines()
    (taken,) = re.findall(r"^→ \d\.\d{3} [█░]{10} (.*)$", side, re.M)
    assert credit.split(maxsplit=1)[1].strip() == taken.strip()
    assert "each part" not in side


def test_another_world_may_be_watched_and_an_episode_left(
    agents: Agents, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["watch", agents("POAD"), "--env", "toy-clock", "--max-steps", "1", "--cast", "a.cast"]
    assert main(words) == 0
    assert "episode 1 · return 0 · decisions 1 · end left" in capsys.readouterr().out
    header = json.loads(Path("a.cast").read_text().splitlines()[0])
    assert header["title"].endswith("in toy-clock")


def test_random_play_of_a_text_world_needs_no_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "random", "--env", "toy-chest"]) == 0
    assert capsys.readouterr().out.startswith("episode 1 · discounted return ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("random", "--episodes", "0"), "expected a whole number above 0, got '0'"),
        (("random", "--max-steps", "0"), "argument --max-steps: expected a whole number above 0"),
        (("random", "--env", "toy-chst"), "do you mean `toy-chest`?"),
        (("random", "--sort", "size"), "invalid choice: 'size'"),
        (("random", "--htm", "x"), "did you mean --html?"),
        (("explorer", "--env", "toy-chest"), "expected a task of NetHack for `explorer`"),
        (("random", "--env", "toy-chest", "--reward", "x"), "has no messages that one is for"),
        (("no-such-agent",), "no-such-agent"),
    ],
)
def test_what_is_wrong_is_said(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["watch", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nethack
def test_nethack_is_watched_with_its_messages(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nle")
    files = ["--html", "a.html", "--cast", "a.cast", "--gif", "a.gif", "--json", "a.json"]
    words = ["watch", "explorer", "--max-steps", "12", "--seed", "3", "--episodes", "2"]
    assert main([*words, *files]) == 0
    said = capsys.readouterr().out
    assert "welcome to NetHack!" in said
    content = page_content("a.html")
    assert len(content["frames"]) == 26
    screens = frame_texts(content, "screen")
    assert all("Dlvl:1" in screen for screen in screens)
    assert "welcome to NetHack" in screens[0]
    assert "welcome to NetHack" not in screens[1]  # a copy, not the engine's own buffer
    episodes = json.loads(Path("a.json").read_text())["episodes"]
    assert [sum(row["times"] for row in e["messages"]) for e in episodes] == [13, 13]
    assert all(e["facts"]["end"] == "left" for e in episodes)
    assert screens[0] != screens[13]  # another game
    assert len(Path("a.cast").read_text().splitlines()) == 27


@pytest.mark.nethack
def test_an_episode_that_ends_keeps_its_own_last_message() -> None:
    pytest.importorskip("nle")
    from llm_agents.envs.nethack import make_nethack
    from llm_agents.training.watching_nethack import SCREEN_KEYS, RandomPlayer, nethack_episodes

    game = make_nethack(seed=1, observation_keys=(*SCREEN_KEYS, "message"), max_steps=15)
    played = nethack_episodes(
        RandomPlayer(1), game, None, episodes=2, max_steps=None, order="times"
    )
    records = [item for item in played if isinstance(item, EpisodeRecord)]
    assert [record.facts["end"] for record in records] == ["limit", "limit"]
    for record in records:
        assert record.is_complete
        assert sum(row.times for row in record.messages) == record.facts["steps"] + 1 == 16
        greetings = [row for row in record.messages if "welcome to NetHack" in row.message]
        assert [row.times for row in greetings] == [1]  # not the next episode's
        assert len(record.messages) == record.facts["messages"]
        often = max((row for row in record.messages if row.message), key=lambda row: row.times)
        said = record.facts.get("most repeated")
        assert said == (f"{often.message} ×{often.times}" if often.times > 1 else None)
    game.close()


@pytest.mark.nethack
@pytest.mark.slow
def test_a_terminal_is_drawn_in_color_and_given_back() -> None:
    pytest.importorskip("nle")
    ours, theirs = pty.openpty()
    words = ["watch", "random", "--max-steps", "4", "--fps", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "llm_agents", *words], stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    assert process.wait() == 0
    assert said.count(b"\x1b[H") == 5
    assert b"\x1b[38;2;" in said
    assert said.index(b"\x1b[?25l") < said.index(b"\x1b[?25h")
    assert b"welcome to NetHack" in said
