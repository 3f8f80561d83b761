"""Trajectories as files, and as batches to imitate."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.data import CloningData
from llm_agents.data.trajectories import TrajectoryStep, episodes_of, read_trajectories, to_line
from llm_agents.errors import UserError
from llm_agents.types import Choice

ACTIONS = ("turn left", "go on", "à gauche")


def steps(num_episodes: int, length: int = 3) -> list[TrajectoryStep]:
    return [
        TrajectoryStep(
            episode=episode,
            step=step,
            goal="go to the ball",
            prompt=f"episode {episode}, step {step}",
            actions=ACTIONS,
            action=ACTIONS[(episode + step) % 3],
            reward=float(step + 1 == length and episode % 2 == 0),
            done=step + 1 == length,
        )
        for episode in range(num_episodes)
        for step in range(length)
    ]


def write(path: Path, found: list[TrajectoryStep]) -> str:
    path.write_text("".join(map(to_line, found)), encoding="utf8")
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "bot.jsonl", steps(20))


# --- files


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = steps(3)
    path = write(tmp_path / "a.jsonl", found)
    assert list(read_trajectories(path)) == found
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    assert list(read_trajectories(packed)) == found
    assert found[2].choice == Choice("episode 0, step 2", ACTIONS)
    assert found[2].index == 2


def test_episodes_may_be_told_side_by_side() -> None:
    found = steps(2, 2)
    mixed = [found[0], found[2], found[1], found[3]]
    assert episodes_of(mixed) == [found[:2], found[2:]]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "a.jsonl:2: expected one JSON object a line"),
        ("[1]", "expected one JSON object a line, got list"),
        ({"prompt": 3}, "expected `prompt` to be a str, got 3"),
        ({"action": "fly"}, "expected `action` to be one of"),
        ({"actions": [1, 2]}, "expected `actions` to be texts"),
        ({"episode": None}, "expected `episode` to be a int"),
        ({"episode": True}, "expected `episode` to be a int, got True"),
        ({"episode": 1.5}, "expected `episode` to be a int, got 1.5"),
        ({"step": "two"}, "a.jsonl:2: expected `step` to be a int, got 'two'"),
        ({"step": [1]}, "expected `step` to be a int"),
        ({"reward": float("nan")}, "a.jsonl:2: expected a finite number in `reward`, got nan"),
        ({"reward": float("-inf")}, "expected a finite number in `reward`, got -inf"),
        ({"reward": "1"}, "expected a finite number in `reward`, got '1'"),
        ({"reward": 10**400}, "expected a finite number in `reward`"),
        ({"done": "no"}, "expected `done` to be true or false, got 'no'"),
        ({"goal": 3}, "expected `goal` to be a str, got 3"),
        ({"prompt": "\ud800 x"}, "a.jsonl:2: expected valid Unicode"),
        ('{"episode": 1, "episode": 2}', "expected every key once, got 'episode' twice"),
        ("[" * 100_000, "a.jsonl:2: expected one JSON object a line"),
        ("\u2003", "a.jsonl:2: expected one JSON object a line"),
        ("null", "expected one JSON object a line, got NoneType"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: Any, says: str) -> None:
    good = to_line(steps(1)[0])
    if isinstance(line, dict):
        line = json.dumps({**json.loads(good), **line})
    path = tmp_path / "a.jsonl"
    path.write_text(f"{good}{line}\n", encoding="utf8")
    with pytest.raises(UserError, match=says):
        list(read_trajectories(path))


@pytest.mark.parametrize("bad", [b"\xff\xfe", b'{"prompt": "caf\xe9"}'])
def test_bytes_that_are_no_utf8_are_named_by_their_line(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(to_line(steps(1)[0]).encode() * 2 + bad + b"\n")
    with pytest.raises(UserError, match=r"a\.jsonl:3: expected UTF-8 text"):
        list(read_trajectories(path))
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()[: -len(bad) - 1])[:-9])
    with pytest.raises(UserError, match=r"a\.jsonl\.gz:\d: expected a complete gzip file"):
        list(read_trajectories(packed))


def test_what_other_programs_write_of_a_step_is_read(tmp_path: Path) -> None:
    step = steps(1)[0]
    row = json.loads(to_line(step))
    loose = {**row, "episode": 0.0, "step": 0.0, "done": None, "reward": None, "goal": None}
    short = {key: row[key] for key in ("episode", "prompt", "actions", "action")}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([loose, short]))
    found = list(read_trajectories(path))
    assert [(s.episode, s.reward, s.done, s.goal) for s in found] == [(0, 0.0, False, "")] * 2
    assert [s.prompt for s in found] == [step.prompt] * 2


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        list(read_trajectories(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="got an empty file"):
        list(read_trajectories(tmp_path / "empty.jsonl"))


# --- batches


def seen(data: CloningData, rounds: int = 1) -> list[tuple[str, str]]:
    found = []
    for _ in range(rounds):
        for batch in data.train_dataloader():
            pairs = zip(batch.choices, batch.index.tolist(), strict=True)
            found += [(choice.prompt, choice.actions[index]) for choice, index in pairs]
    return found


def test_every_step_comes_once_a_round_in_an_order_of_the_seed(file: str) -> None:
    data = CloningData(file, validation=0.0, batch_size=6, seed=1)
    whole = {(step.prompt, step.action) for step in steps(20)}
    first, second = seen(data), seen(data)
    assert len(first) == len(second) == 60
    assert set(first) == set(second) == whole
    assert first != second
    assert seen(CloningData(file, validation=0.0, batch_size=6, seed=1)) == first
    assert seen(CloningData(file, validation=0.0, batch_size=6, seed=2)) != first


def test_whole_episodes_are_held_out(file: str) -> None:
    data = CloningData(file, validation=0.25, batch_size=5, seed=0)
    data.setup("fit")
    assert data.statistics == {
        "train": {"episodes": 15, "steps": 45},
        "validation": {"episodes": 5, "steps": 15},
    }
    held = [choice.prompt for batch in data.val_dataloader() for choice in batch.choices]
    trained = {prompt for prompt, _ in seen(data)}
    assert len(held) == 15
    assert {p.split(",")[0] for p in held}.isdisjoint({p.split(",")[0] for p in trained})


def test_episodes_of_two_files_with_one_number_are_two(tmp_path: Path) -> None:
    second = [replace(step, prompt=f"other {step.prompt}") for step in steps(2)]
    files = [write(tmp_path / "a.jsonl", steps(2)), write(tmp_path / "b.jsonl", second)]
    data = CloningData(files, validation=0.0)
    data.setup("fit")
    assert data.statistics["train"] == {"episodes": 4, "steps": 12}


def test_a_budget_takes_whole_episodes_from_the_first(file: str) -> None:
    data = CloningData(file, validation=0.0, max_steps=7)
    data.setup("fit")
    assert data.statistics["train"] == {"episodes": 3, "steps": 9}
    assert {prompt.split(",")[0] for prompt, _ in seen(data)} == {f"episode {n}" for n in range(3)}


def test_episodes_without_reward_can_be_left_out(file: str) -> None:
    data = CloningData(file, validation=0.0, only_successes=True)
    data.setup("fit")
    assert data.statistics["train"]["episodes"] == 10


def test_a_resumed_round_goes_on_where_it_stood(file: str) -> None:
    whole = seen(CloningData(file, validation=0.0, batch_size=6, seed=1))
    data = CloningData(file, validation=0.0, batch_size=6, seed=1)
    stream = iter(data.train_dataloader())
    head = [choice.prompt for _ in range(4) for choice in next(stream).choices]
    again = CloningData(file, validation=0.0, batch_size=6, seed=1)
    again.load_state_dict(data.state_dict())
    rest = [prompt for prompt, _ in seen(again)]
    assert (head + rest)[: len(whole)] == [prompt for prompt, _ in whole]


def test_other_files_are_refused_when_resuming(file: str, tmp_path: Path) -> None:
    data = CloningData(file, validation=0.0)
    data.train_dataloader()
    other = CloningData(write(tmp_path / "b.jsonl", steps(3)), validation=0.0)
    with pytest.raises(UserError, match="expected the 60 steps of the interrupted run"):
        other.load_state_dict(data.state_dict())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"validation": 1.0}, "validation"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_steps": 0}, "max_steps"),
        ({"train": []}, "at least one file"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        CloningData(**{"train": "a.jsonl", **options})


def test_the_index_is_that_of_the_action(file: str) -> None:
    batch = next(iter(CloningData(file, validation=0.0, seed=0).train_dataloader()))
    assert batch.index.dtype == torch.int64
    for choice, index in zip(batch.choices, batch.index.tolist(), strict=True):
        episode, step = (int(word.rstrip(",")) for word in choice.prompt.split()[1::2])
        assert index == (episode + step) % 3
