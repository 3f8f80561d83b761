"""Many games at once: equal to single ones, whatever the processes; saving, faults, clean ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from llm_agents.envs.nethack import NetHackGame
from llm_agents.envs.nethack_tasks import NetHackRules
from llm_agents.envs.nethack_vector import COUNT_KEY, NetHackVector, VectorStep, game_seeds

pytestmark = pytest.mark.nethack
nle = pytest.importorskip("nle", reason="needs the extra `nethack`")

KEYS = ("message", "blstats", "window_chars", "window_colors")
RULES = NetHackRules(max_steps=17)
ACTIONS = np.random.default_rng(0).integers(23, size=(40, 5))


def play(vector: NetHackVector, actions: np.ndarray) -> list[VectorStep]:
    return [vector.step(row) for row in actions]


def same(one: VectorStep, two: VectorStep) -> bool:
    arrays = [(one.observations[key], two.observations[key]) for key in one.observations]
    arrays += [(one.final_observations[k], two.final_observations[k]) for k in one.observations]
    arrays += [(one.rewards, two.rewards), (one.ended, two.ended)]
    arrays += [(one.terminated, two.terminated), (one.truncated, two.truncated)]
    return one.episodes == two.episodes and all(np.array_equal(a, b) for a, b in arrays)


def test_the_vector_is_its_games() -> None:
    vector = NetHackVector(5, 0, seed=3, keys=KEYS, rules=RULES)
    games = [
        NetHackGame(seed=seed, observation_keys=KEYS, rules=RULES) for seed in game_seeds(3, 5)
    ]
    shown = vector.reset()
    expected = [game.reset() for game in games]
    num_ended = 0
    for row in ACTIONS:
        for key in KEYS:
            assert (shown[key] == np.stack([one[key] for one in expected])).all()
        assert shown[COUNT_KEY].tolist() == [game.message_count for game in games]
        step = vector.step(row)
        single = [game.step(int(action)) for game, action in zip(games, row, strict=True)]
        assert step.rewards.tolist() == pytest.approx([one.reward for one in single])
        assert step.terminated.tolist() == [one.terminated for one in single]
        assert step.truncated.tolist() == [one.truncated for one in single]
        ended = [e for e, one in enumerate(single) if one.episode is not None]
        assert step.ended.tolist() == ended
        assert list(step.episodes) == [single[e].episode for e in ended]
        for place, e in enumerate(ended):
            for key in KEYS:
                assert (step.final_observations[key][place] == single[e].observation[key]).all()
            assert step.final_observations[COUNT_KEY][place] == games[e].message_count
        num_ended += len(ended)
        expected = [
            game.reset() if game.has_ended else one.observation
            for game, one in zip(games, single, strict=True)
        ]
        shown = step.observations
    assert num_ended >= 10
    vector.close()


def test_processes_change_nothing_and_states_are_exact() -> None:
    layouts = ((0, False), (2, False), (1, True))
    runs = []
    for num_workers, plays_along in layouts:
        with NetHackVector(
            5, num_workers, seed=3, keys=KEYS, rules=RULES, plays_along=plays_along
        ) as vector:
            vector.reset()
            first = play(vector, ACTIONS[:20])
            state, now = vector.state_dict(), vector.observations()
            runs.append(first + play(vector, ACTIONS[20:30]))
        with NetHackVector(5, num_workers, seed=99, keys=KEYS, rules=RULES) as other:
            found = other.load_state_dict(state)
            assert all((found[key] == now[key]).all() for key in now)
            again = play(other, ACTIONS[20:30])
        assert all(map(same, again, runs[-1][20:]))
    for run in runs[1:]:
        assert all(map(same, run, runs[0]))


def test_seeds_differ_between_games_vectors_and_shares() -> None:
    assert len({*game_seeds(0, 8), *game_seeds(1, 8)}) == 16
    assert game_seeds(0, 3, first=5) == game_seeds(0, 8)[5:]
    one = NetHackVector(4, seed=0).reset()["blstats"]
    two = NetHackVector(2, seed=0, first_game=2).reset()["blstats"]
    assert (one[2:] == two).all()
    assert len({row.tobytes() for row in one}) == 4


def test_a_step_is_a_copy_or_written_where_one_wishes() -> None:
    vector = NetHackVector(2, seed=1)
    shown = vector.reset()
    before = {key: array.copy() for key, array in shown.items()}
    row = {key: np.zeros_like(array) for key, array in shown.items()}
    step = vector.step(np.array([18, 18]), out=row)
    assert step.observations is row
    assert all((shown[key] == before[key]).all() for key in shown)
    assert all((row[key] == vector.observations()[key]).all() for key in row)
    assert not any(np.shares_memory(row[key], vector._table.now[key]) for key in row)


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="got 2 and 3 workers"):
        NetHackVector(2, 3)
    with pytest.raises(ValueError, match="expected a task"):
        NetHackVector(2, 1, task="Chess")
    vector = NetHackVector(2, seed=1)
    vector.reset()
    with pytest.raises(ValueError, match="expected 2 actions below 23"):
        vector.send(np.array([0, 23]))
    with pytest.raises(ValueError, match="expected 2 actions below 23"):
        vector.send(np.array([0]))
    with pytest.raises(ValueError, match="`send` before `receive`"):
        vector.receive()
    vector.send(np.array([0, 1]))
    with pytest.raises(ValueError, match="`receive` before the next `send`"):
        vector.send(np.array([0, 1]))
    with pytest.raises(ValueError, match="`receive` after `send`"):
        vector.state_dict()
    vector.receive()
    with pytest.raises(ValueError, match="states of 2 games, got 1"):
        vector.load_state_dict(vector.state_dict()[:1])


def test_a_game_that_comes_out_otherwise_begins_its_next_episode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vector = NetHackVector(2, seed=1)
    vector.reset()
    play(vector, ACTIONS[:4, :2])
    states = vector.state_dict()
    with caplog.at_level(logging.WARNING):
        vector.load_state_dict([{**states[0], "checksum": 0}, states[1]])
    assert "1 of 2 games could not be restored" in caplog.text
    after = vector.state_dict()
    assert (after[0]["number"], after[0]["actions"]) == (1, [])
    assert after[1] == states[1]


def test_a_killed_worker_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    vector = NetHackVector(2, 2, seed=1)
    vector.reset()
    assert len(list(tmp_path.iterdir())) == 1
    victim = vector.processes()[1]
    os.kill(victim.pid or 0, signal.SIGKILL)
    victim.join()
    with pytest.raises(RuntimeError, match="`nethack-1` has stopped with exit code -9"):
        vector.step(np.array([0, 1]))
    vector.close()
    vector.close()
    assert not list(tmp_path.iterdir())
    assert not any(process.is_alive() for process in vector.processes())


_OWNER = """
import sys, time, numpy as np
from llm_agents.envs.nethack_vector import NetHackVector
vectors = [NetHackVector(2, 2, seed=seed) for seed in range(2)]
for vector in vectors:
    vector.reset()
print(*(process.pid for vector in vectors for process in vector.processes()), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_workers_end_with_a_killed_owner(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert owner.stdout is not None
    workers = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(workers) == 4
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not list(tmp_path.iterdir())
