"""NetHack games: the tasks on the real engine, seeds, limits, saving, nothing left behind."""

from __future__ import annotations

import copy
import hashlib
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_agents.envs.nethack import (
    NetHackGame,
    NetHackStep,
    ReplayError,
    episode_seeds,
    make_nethack,
)
from llm_agents.envs.nethack_explorer import KEYS, Explorer
from llm_agents.envs.nethack_screen import Stat, message_text
from llm_agents.envs.nethack_tasks import ACTION_NAMES, ACTIONS, BLANK, ORACLE, NetHackRules
from llm_agents.envs.nethack_text import NetHackText
from llm_agents.errors import MissingExtraError

pytestmark = pytest.mark.nethack
nle = pytest.importorskip("nle", reason="needs the extra `nethack`")

NORTHWEST, EAT, SEARCH, DOWN, UP = (
    ACTION_NAMES.index(name)
    for name in ("go northwest", "eat", "search", "go down the stairs", "go up the stairs")
)
SHORT_WALKS = (9, 14, 16, 21, 23)
"""Seeds whose stairs are near: the script needs 20 to 60 steps."""


def walk_down(game: NetHackGame, seed: int) -> list[NetHackStep]:
    """Play by the script until the hero has left the first level."""
    observation, explorer = game.reset(seed), Explorer(seed)
    steps: list[NetHackStep] = []
    while not steps or (steps[-1].observation["blstats"][Stat.DEPTH] == 1 and len(steps) < 400):
        steps.append(game.step(explorer.act(observation)))
        observation = steps[-1].observation
    return steps


def text_of(step: NetHackStep) -> str:
    return message_text(step.observation["message"])


def test_the_engine_agrees_with_the_constants() -> None:
    from nle import nethack
    from nle.env.tasks import TASK_ACTIONS

    assert [int(action) for action in TASK_ACTIONS] == list(ACTIONS.values())
    assert nethack.permonst(nethack.glyph_to_mon(ORACLE)).mname == "Oracle"
    assert nethack.GLYPH_CMAP_OFF == BLANK
    assert nethack.BL_MASK_HALLU == 512
    assert len(Stat) == nethack.NLE_BLSTATS_SIZE
    assert (nethack.NLE_BL_DEPTH, nethack.NLE_BL_DLEVEL) == (Stat.DEPTH, Stat.LEVEL)


def test_the_score_task_is_the_engine_s_own() -> None:
    from nle.env.tasks import NetHackScore

    keys = ("message", "blstats", "glyphs", "tty_chars", "tty_colors", "tty_cursor")
    rules = NetHackRules(max_steps=150, eat_fix=False, carry_over=False)
    game = NetHackGame(seed=3, observation_keys=keys, rules=rules)
    peer = NetHackScore(observation_keys=keys, max_episode_steps=150, fix_moon_phase=True)
    generator = np.random.default_rng(0)
    for number in (12, 13, 14):  # the one in the middle ends in a death
        game._next_episode = number
        ours = game.reset()
        peer.seed(*episode_seeds(3, number), False)
        theirs, _ = peer.reset()
        ended = False
        while not ended:
            assert all((ours[key] == theirs[key]).all() for key in keys)
            action = int(generator.integers(23))
            step = game.step(action)
            theirs, reward, ended, _, info = peer.step(action)
            assert step.reward == pytest.approx(reward, abs=1e-12)
            assert (step.terminated or step.truncated) == ended
            assert step.truncated == (ended and info["end_status"] == -1)
            ours = step.observation
    peer.close()


@pytest.mark.parametrize("seed", SHORT_WALKS)
def test_the_staircase_is_solved_because_the_message_is_carried_over(seed: int) -> None:
    for carry_over in (True, False):
        game = make_nethack("NetHackStaircase-v1", observation_keys=KEYS, carry_over=carry_over)
        steps = walk_down(game, seed)
        last = steps[-1]
        assert last.observation["blstats"][Stat.LEVEL] == 2
        assert [step.reward for step in steps[:-1]] == [0.0] * (len(steps) - 1)
        if carry_over:
            assert "You descend the stairs." in text_of(last)
            assert (last.reward, last.terminated, last.truncated) == (50.0, True, False)
            assert last.episode is not None
            assert (last.episode.end, last.episode.success) == ("success", True)
        else:
            assert "descend" not in text_of(last)
            assert (last.reward, last.terminated, last.truncated) == (0.0, False, False)
        game.close()


def test_a_continual_task_pays_once_and_goes_on() -> None:
    task = "NetHackStaircaseContinual-v1"
    game = make_nethack(task, observation_keys=KEYS, max_steps=30)
    for _ in range(2):
        steps = walk_down(game, 21)
        assert [step.reward for step in steps[-2:]] == [0.0, 50.0]
        assert not steps[-1].terminated
        up, down = game.step(UP), game.step(DOWN)
        assert up.observation["blstats"][Stat.LEVEL] == 1
        assert "You descend the stairs." in text_of(down)
        assert down.observation["blstats"][Stat.LEVEL] == 2
        assert (up.reward, down.reward) == (0.0, 0.0)
    while not down.truncated:
        down = game.step(SEARCH)
    assert down.episode is not None
    assert (down.episode.success, down.episode.end) == (True, "limit")
    assert down.episode.episode_return == 50.0


def test_food_is_chosen_by_going_northwest() -> None:
    prompts = []
    for eat_fix in (True, False):
        game = make_nethack(eat_fix=eat_fix)
        game.reset(4)
        prompts.append(text_of(game.step(EAT)))
        assert prompts[-1] == "What do you want to eat? [fghi or ?*] "
        if eat_fix:
            assert text_of(game.step(SEARCH)) == "Never mind."
            game.step(EAT)
            assert text_of(game.step(NORTHWEST)) == "You're finally finished."
        else:
            assert text_of(game.step(NORTHWEST)).startswith("What do you want to eat?")
            assert text_of(game.step(SEARCH)).startswith("What do you want to eat?")
        game.close()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("constant", [0, -0.01, -0.01, -0.01, 0]),
        ("exp", [-0.01, -0.02, -0.04, -0.08, -0.01]),
        ("square", [0, -0.01, -0.04, -0.09, 0]),
        ("linear", [0, -0.01, -0.02, -0.03, 0]),
    ],
)
def test_frozen_turns_cost(mode: str, expected: list[float]) -> None:
    game = make_nethack(penalty_mode=mode)
    # A fast hero sometimes has a move within a turn, which costs as well: seed 0 has none here.
    game.reset(0)
    rewards = [game.step(action).reward for action in (SEARCH, DOWN, DOWN, DOWN, SEARCH)]
    assert rewards == pytest.approx(expected)
    game.close()


def test_a_fast_hero_pays_for_moves_within_a_turn() -> None:
    game = make_nethack()
    before = game.reset(0)["blstats"][Stat.TURN]
    for _ in range(12):
        step = game.step(SEARCH)
        now = step.observation["blstats"][Stat.TURN]
        assert step.reward == (-0.01 if now == before else 0.0)
        before = now


@pytest.mark.parametrize("terminates", [False, True])
def test_the_limit_truncates_a_running_game(terminates: bool) -> None:
    game = make_nethack(max_steps=5, limit_terminates=terminates)
    game.reset(1)
    steps = [game.step(SEARCH) for _ in range(5)]
    assert [step.episode is None for step in steps] == [True] * 4 + [False]
    last = steps[-1]
    assert (last.terminated, last.truncated) == (terminates, not terminates)
    assert last.observation["blstats"][Stat.HP] > 0  # not the screen of a game that was quit
    assert last.episode is not None
    assert (last.episode.end, last.episode.num_steps) == ("limit", 5)
    with pytest.raises(ValueError, match="no episode is under way"):
        game.step(SEARCH)
    game.reset()
    with pytest.raises(ValueError, match="can't take the action 23"):
        game.step(23)


def trace(game: NetHackGame, seed: int, num_steps: int = 60) -> list[bytes]:
    generator = np.random.default_rng(7)
    found = [game.reset(seed)["blstats"].tobytes()]
    for action in generator.integers(23, size=num_steps).tolist():
        if game.has_ended:
            game.reset()
        step = game.step(action)
        found += [step.observation[key].tobytes() for key in ("message", "blstats")]
    return found


def test_a_seed_is_a_sequence_of_games() -> None:
    one, two = make_nethack(max_steps=25), make_nethack(max_steps=25, seed=5)
    first = trace(one, 42)
    assert first == trace(two, 42)
    assert first == trace(one, 42)
    assert first != trace(one, 43)
    starts = [one.reset(42)["blstats"].tobytes(), one.reset()["blstats"].tobytes()]
    assert starts[0] == first[0] != starts[1]
    assert len({episode_seeds(seed, number) for seed in range(8) for number in range(8)}) == 64


@pytest.mark.skipif(nle.__version__ != "1.3.0", reason="another engine plays other games")
def test_games_are_the_same_in_every_process_and_on_every_day() -> None:
    game, digest = make_nethack(max_steps=100), hashlib.sha256()
    digest.update(game.reset(42)["blstats"].tobytes())
    for action in np.random.default_rng(7).integers(23, size=250).tolist():
        if game.has_ended:
            digest.update(game.reset()["blstats"].tobytes())
        digest.update(game.step(action).observation["blstats"].tobytes())
    assert digest.hexdigest()[:16] == "37dc4645180aecb7"


def test_observations_are_copies() -> None:
    game = make_nethack()
    first = game.reset(0)["message"]
    before = first.copy()
    step = game.step(DOWN)
    assert (first == before).all()
    assert text_of(step) == "You can't go down here."
    assert not np.shares_memory(step.observation["message"], game.observation()["message"])


def test_the_window_is_the_release_s_or_centered() -> None:
    keys = ("window_chars", "window_colors", "tty_chars", "blstats")
    for row, at in ((0, 7), (1, 6)):
        found = make_nethack(observation_keys=keys, window_row=row).reset(2)
        assert found["window_chars"][at, 6] == ord("@")
        x, y = found["blstats"][:2].tolist()
        assert found["tty_chars"][y + 1, x] == ord("@")
        assert found["window_colors"].max() < 16


def test_facts_of_an_episode_begin_anew() -> None:
    game = make_nethack(max_steps=40)
    episodes = []
    for seed in (9, 9):
        observation = game.reset(seed)
        messages = [observation["message"].tobytes()]
        while not game.has_ended:
            step = game.step(len(messages) % 23)
            messages.append(step.observation["message"].tobytes())
            assert game.message_count == messages.count(messages[-1])
        assert step.episode is not None
        assert step.episode.num_messages == len(set(messages))
        episodes.append(step.episode)
    assert episodes[0] == episodes[1]
    assert episodes[0].explored > 10
    assert episodes[0].depth == episodes[0].max_depth == 1


def test_a_saved_game_is_played_again() -> None:
    game = make_nethack(seed=11)
    with pytest.raises(ValueError, match="no episode yet"):
        game.state_dict()
    game.reset()
    game.reset()
    for action in (2, 2, 22, 18, 5, 1):
        game.step(action)
    state = copy.deepcopy(game.state_dict())
    other = make_nethack()
    other.load_state_dict(state)
    assert other.state_dict() == state
    for action in (22, 3, 3, 22):
        one, two = game.step(action), other.step(action)
        assert all((one.observation[key] == two.observation[key]).all() for key in one.observation)
        assert one.reward == two.reward
    assert (game.reset()["blstats"] == other.reset()["blstats"]).all()
    with pytest.raises(ReplayError, match="led elsewhere"):
        other.load_state_dict({**state, "checksum": 1})
    with pytest.raises(ReplayError, match="ended after 5 of its 6"):
        make_nethack(max_steps=5).load_state_dict(state)
    with pytest.raises(ValueError, match="expected a state of"):
        make_nethack("NetHackOracle-v1").load_state_dict(state)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, here = tmp_path / "temporary", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(here)
    game = make_nethack(max_steps=3)
    for _ in range(3):
        game.reset()
        for _ in range(3):
            game.step(SEARCH)
    assert Path.cwd() == here
    assert len(list(temporary.iterdir())) == 1
    game.close()
    game.close()
    assert not list(temporary.iterdir())
    make_nethack().reset()  # one that is forgotten is closed too
    assert not list(temporary.iterdir())
    assert not list(here.iterdir())


@pytest.mark.slow
def test_a_thousand_resets_cost_no_memory() -> None:
    game = make_nethack()
    sizes, files = [], []
    for number in range(1000):
        game.reset()
        game.step(SEARCH)
        if number % 200 == 199:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            sizes.append(pages * resource.getpagesize() / 2**20)
            files.append(len(os.listdir("/proc/self/fd")))
    assert sizes[-1] - sizes[0] < 8, sizes
    assert len(set(files)) == 1


def test_a_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nle.nethack", None)
    with pytest.raises(MissingExtraError, match=r"llm-agents\[nethack\]"):
        NetHackGame()


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="got `NetHackScore-v0`"):
        NetHackGame("NetHackScore-v0")


# --- as text


def test_the_text_world_tells_and_saves() -> None:
    world = NetHackText(with_map=True, max_steps=9, seed=4)
    first = world.reset()
    assert first.text.splitlines()[0].startswith(
        "You are lucky!  Full moon tonight. Your status is"
    )
    assert "HP:14 (14)" in first.text
    assert "Next to you: " in first.text
    assert first.actions == ACTION_NAMES
    assert len(first.vector) == world.vector_size
    shown = [world.step(action) for action in (EAT, NORTHWEST, SEARCH)]
    assert "What do you want to eat?" in shown[0].observation.text
    state: dict[str, Any] = world.state_dict()
    other = copy.deepcopy(world)
    third = NetHackText(with_map=True, max_steps=9)
    assert third.load_state_dict(state) == shown[-1].observation
    while shown[-1].episode is None:
        shown.append(world.step(SEARCH))
        assert other.step(SEARCH) == shown[-1]
    last = shown[-1]
    assert (last.terminated, last.truncated) == (False, True)
    assert last.observation.actions == ACTION_NAMES
    assert last.episode is not None
    assert last.episode.num_decisions == 9
    assert last.episode.undiscounted_return == pytest.approx(sum(step.reward for step in shown))
    assert "Dlvl:1" in world.render()
    assert other.load_state_dict(world.state_dict()) == last.observation


# --- the script


def test_the_script_repeats_itself_and_beats_random_play() -> None:
    game = make_nethack(observation_keys=KEYS, max_steps=250)
    scores: dict[str, list[int]] = {"script": [], "random": []}
    traces = []
    for seed in (9, 9):
        for name in scores:
            observation, explorer = game.reset(seed), Explorer(seed)
            generator = np.random.default_rng(seed)
            actions = []
            while not game.has_ended:
                scripted = explorer.act(observation)
                actions.append(scripted if name == "script" else int(generator.integers(23)))
                step = game.step(actions[-1])
                observation = step.observation
            assert step.episode is not None
            scores[name].append(step.episode.score)
            traces.append(actions)
    assert traces[:2] == traces[2:]
    assert np.mean(scores["script"]) > 3 * np.mean(scores["random"]) + 20, scores
