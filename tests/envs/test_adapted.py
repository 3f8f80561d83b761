"""Worlds of others: found and given texts, limits and ends, seeds, replay, and what is refused."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from llm_agents.cli import main
from llm_agents.envs import AdaptedWorld, make_world
from llm_agents.envs.adapted import episode_seed
from llm_agents.envs.registry import check_world
from llm_agents.errors import UserError

MOVES = ["go left", "go down", "go right", "go up"]
HERE = __name__
ROOT = Path(__file__).resolve().parents[2]


class Rooms:
    """Counts to three in words, with commands in `info`: no Gymnasium, no seed."""

    def __init__(self, limit: int = 9, key: str = "admissible_commands") -> None:
        self.limit, self.key = limit, key
        self.buffer = {"text": "", "score": 0}

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.room, self.steps = 0, 0
        return self._answer()

    def _answer(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.buffer["text"] = f"You are in room {self.room}."
        commands = ["go on"] if self.room == 0 else ["go on", "go back"]
        return self.buffer, {self.key: commands, "won": self.room == 3, "room": self.room}

    def step(self, action: str) -> tuple[Any, ...]:
        assert action in ("go on", "go back")
        self.steps += 1
        self.room += 1 if action == "go on" else -1
        obs, info = self._answer()
        info["TimeLimit.truncated"] = self.steps == self.limit and self.room < 3
        done = self.room == 3 or self.steps == self.limit
        return obs, float(self.room == 3), done, info


class Dice(gymnasium.Env[int, int]):
    """Throws dice: with the generator that Gymnasium seeds, or with the whole process's."""

    observation_space = gymnasium.spaces.Discrete(1000)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seeded: bool = True) -> None:
        self.seeded = seeded

    def _throw(self) -> int:
        return int(self.np_random.integers(1000)) if self.seeded else random.randrange(1000)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return self._throw(), {"action_mask": np.array([1, 0])}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self._throw(), 0.0, False, False, {"action_mask": np.array([1, 1])}


def three(obs: Any, info: Mapping[str, Any]) -> list[str]:
    return [f"say {number}" for number in range(3)]


def dice(**options: Any) -> AdaptedWorld:
    settings = {"text": "You threw {obs}.", "actions": ["throw", "throw hard"]} | options
    return AdaptedWorld(f"{HERE}:Dice", **settings)


def lake(**options: Any) -> AdaptedWorld:
    settings = {"text": "You stand on field {obs}.", "actions": MOVES} | options
    return AdaptedWorld("FrozenLake-v1", options={"is_slippery": False}, **settings)


def play(world: AdaptedWorld, *texts: str) -> Any:
    shown = world.reset(seed=0)
    for text in texts:
        step = world.step(shown.actions.index(text))
        shown = step.observation
    return step


def test_frozen_lake_in_words() -> None:
    world = lake(goal="To cross the lake, you")
    shown = world.reset(seed=0)
    assert (shown.text, shown.goal) == ("You stand on field 0.", "To cross the lake, you")
    assert shown.actions == tuple(MOVES)
    assert shown.vector == (0,)
    step = play(world, *["go down"] * 2, "go right", "go down", "go right", "go right")
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    assert step.observation.actions == ()
    assert step.episode.success
    assert step.episode.discounted_return == pytest.approx(0.99**5)
    fell = play(world, "go down", "go right")
    assert (fell.reward, fell.terminated, fell.episode.success) == (0.0, True, False)


def test_taxi_shows_what_it_renders() -> None:
    moves = ["south", "north", "east", "west", "pick up", "drop"]
    world = AdaptedWorld("Taxi-v3", text="render", actions=moves, options={"render_mode": "ansi"})
    assert world.reset(seed=3).text.startswith("+---------+")
    assert world.step(0).reward == -1.0
    assert "+---------+" in world.render()


def test_a_limit_of_gymnasium_is_no_end() -> None:
    world = lake()
    world.reset(seed=0)
    for _ in range(99):
        assert not world.step(0).truncated
    step = world.step(0)
    assert (step.terminated, step.truncated) == (False, True)
    assert step.observation.actions == tuple(MOVES)  # it could go on
    assert not step.episode.success


def test_a_limit_of_ours() -> None:
    world = lake(max_steps=2)
    assert play(world, "go left", "go left").truncated


@pytest.mark.parametrize("key", ["admissible_commands", "valid_actions"])
def test_four_values_and_commands_in_info(key: str) -> None:
    world = AdaptedWorld(f"{HERE}:Rooms", options={"key": key})
    first = world.reset()
    assert (first.text, first.actions) == ("You are in room 0.", ("go on",))
    second = world.step(0).observation
    assert (first.text, second.text) == ("You are in room 0.", "You are in room 1.")
    assert second.actions == ("go on", "go back")
    step = play(world, "go on", "go on", "go on")
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    assert step.episode.success


def test_the_limit_of_four_values_is_told_by_info() -> None:
    step = play(AdaptedWorld(Rooms, options={"limit": 2}), "go on", "go back")
    assert (step.terminated, step.truncated) == (False, True)
    assert not step.episode.success


def test_a_mask_leaves_actions_out() -> None:
    world = dice()
    assert world.reset(seed=1).actions == ("throw",)
    shown = world.step(0).observation
    assert shown.actions == ("throw", "throw hard")
    assert shown.action_ids == (0, 1)


def test_functions_by_path_and_as_objects() -> None:
    settings = {"execute": "index", "text": "{obs}"}
    for actions in (three, f"{HERE}:three"):
        world = AdaptedWorld(Dice, actions=actions, **settings)
        assert world.reset().actions == ("say 0", "say 1", "say 2")
    world = lake(text=lambda obs, info: f"{obs}!", success=lambda reward, end, info: end)
    assert world.reset().text == "0!"
    assert play(world, "go down", "go right").episode.success


def test_an_episode_depends_on_its_number_and_the_seed_alone() -> None:
    first, second = dice(), dice()
    texts = [first.reset(seed=5).text, first.reset().text, first.reset().text]
    second.reset(seed=5)
    for _ in range(7):
        second.step(0)
    assert [second.reset().text, second.reset().text] == texts[1:]
    assert second.reset(seed=5).text == texts[0]
    assert len({episode_seed(s, e) for s in range(20) for e in range(20)}) == 400


def test_a_state_is_reached_again_by_replay() -> None:
    world = dice()
    world.reset(seed=2)
    world.reset()
    for _ in range(5):
        last = world.step(0)
    state = world.state_dict()
    after = [world.step(0).observation.text for _ in range(3)]
    other = dice()
    assert other.load_state_dict(state) == last.observation
    assert [other.step(0).observation.text for _ in range(3)] == after
    assert other.reset().text == world.reset().text


def test_a_state_after_an_episodes_end() -> None:
    world = lake()
    end = play(world, "go down", "go right")
    other = lake()
    assert other.load_state_dict(world.state_dict()) == end.observation
    with pytest.raises(ValueError, match="no episode is under way"):
        other.step(0)


def test_a_world_that_no_seed_reaches_is_not_resumed() -> None:
    world = dice(options={"seeded": False})
    world.reset(seed=1)
    for _ in range(4):
        world.step(0)
    with pytest.raises(UserError, match=r"can't be resumed.*within 4 steps.*`lightning env check`"):
        dice(options={"seeded": False}).load_state_dict(world.state_dict())


def test_a_state_of_another_world_is_refused() -> None:
    world = lake()
    world.reset()
    with pytest.raises(UserError, match="expected a state of `gym:test"):
        AdaptedWorld(Rooms, name="gym:test").load_state_dict(world.state_dict())


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("gym:NoSuchLake-v1", {}, "Gymnasium makes no world `NoSuchLake-v1`"),
        (f"gym:{HERE}:Nothing", {}, "expected `module:name`"),
        ("gym:nosuchmodule:Class", {}, "nosuchmodule"),
        (f"gym:{HERE}:three", {}, "refuses its options"),
        ("gym:builtins:dict", {}, "has no method `reset`"),
        (f"gym:{HERE}:Rooms", {"options": {"size": 3}}, "size"),
        ("gym:FrozenLake-v1", {"actions": MOVES[:3]}, "has 4 actions, and `actions` names 3"),
        ("gym:FrozenLake-v1", {"actions": ["go"] * 4}, "expected distinct texts"),
        ("gym:FrozenLake-v1", {"actions": MOVES, "gamma": 0}, "expected `gamma`"),
        ("gym:FrozenLake-v1", {"actions": MOVES, "max_steps": 0}, "expected `max_steps`"),
        ("gym:FrozenLake-v1", {"action": MOVES}, "do you mean `actions`"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as caught:
        make_world(name, **options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"text": None}, "shows no text but int: say what it means by the setting `text`"),
        ({"text": "On {field}."}, "known: obs"),
        ({"goal": "Go to {place}"}, "`goal` of the world"),
        ({"actions": None, "text": "{obs}"}, "give their texts by the setting `actions`"),
    ],
)
def test_what_is_not_said_is_asked_for(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as caught:
        lake(**settings).reset()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((0, float("nan"), False, False, {}), "no finite number"),
        ((0, "much", False, False, {}), "no finite number"),
        ((0, 1.0, False, {}, 3), "no `info`"),
        ((0, 1.0, {}), "no five"),
        (None, "no five"),
    ],
)
def test_a_step_that_is_none_is_refused(answer: Any, text: str) -> None:
    class Odd(Dice):
        def step(self, action: int) -> Any:
            return answer

    world = AdaptedWorld(Odd, text="{obs}", actions=["a", "b"])
    world.reset()
    with pytest.raises(UserError) as caught:
        world.step(0)
    assert text in str(caught.value)


def test_rewards_may_be_arrays_of_one() -> None:
    class Numpy(Dice):
        def step(self, action: int) -> Any:
            return 0, np.float32(0.5), np.bool_(True), np.bool_(False), {}

    world = AdaptedWorld(Numpy, text="{obs}", actions=["a", "b"])
    world.reset()
    step = world.step(0)
    assert (step.reward, step.terminated) == (0.5, True)
    assert isinstance(step.reward, float)


def test_a_vector_of_worlds_is_refused() -> None:
    with pytest.raises(UserError, match=r"vector of 2 worlds.*`data.num_worlds`"):
        AdaptedWorld(lambda: gymnasium.make_vec("FrozenLake-v1", num_envs=2))


def test_too_long_a_list_is_refused() -> None:
    world = AdaptedWorld(Rooms, max_actions=1)
    world.reset()
    with pytest.raises(UserError, match="offers 2 actions, `max_actions` is 1"):
        world.step(0)


def test_a_recipe_is_checked_without_making_the_world() -> None:
    check_world("gym:nosuchmodule:World", {"actions": ["a"]})
    with pytest.raises(UserError, match="do you mean `actions`"):
        check_world("gym:FrozenLake-v1", {"action": ["a"]})


def test_the_page_names_a_world_that_can_be_made() -> None:
    page = (ROOT / "docs" / "bring_your_own_environment.md").read_text(encoding="utf8")
    (block,) = re.findall(r"```yaml\n(data:.*?)```", page, re.DOTALL)
    settings = yaml.safe_load(block)["data"]["init_args"]
    world = make_world(settings["world"], **settings["world_options"])
    assert "field 0 of a frozen lake" in world.reset(seed=0).text


def test_an_agent_trains_in_it_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"text": "Field {obs}.", "actions": MOVES, "options": {"is_slippery": False}}
    words = ["run", "twosome_overcooked_tomato_salad", "--overlay", "tiny"]
    words += ["--data.world", "gym:FrozenLake-v1", "--data.world_options", json.dumps(settings)]
    assert main([*words, "--run.folder", "out", "--evaluation.worlds", "[]"]) == 0
    results = json.loads(Path("out/results.json").read_text())
    assert "gym:FrozenLake-v1" in json.dumps(results)


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["list"], 0, "gym:ID"),
        (["show", "errands", "--option", "words=2"], 0, "put the cup in the drawer with the tongs"),
        (["check", "toy-lamp"], 0, "toy-lamp: no faults, no notes"),
        (["check", f"gym:{HERE}:Dice", "--option", "text=On {obs}"], 2, "setting `actions`"),
        (["check", f"gym:{HERE}:Dice", "--option", "text={obs}"], 2, "function, got {'obs': None}"),
        (["check", "toy-lam"], 2, "do you mean `toy-lamp`"),
        (["check", "toy-lamp", "--option", "num_colors"], 2, "expected --option KEY=VALUE"),
        (["check", "toy-lamp", "--option", "num_colors=[1"], 2, "in YAML"),
    ],
)
def test_the_command(
    words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", *words]) == status
    shown = capsys.readouterr()
    assert text in shown.out + shown.err


def test_a_fault_is_the_commands_status(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--option", "options={seeded: false}", "--option", "text=On {obs}"]
    options += ["--option", "actions=[a, b]", "--max-steps", "5"]
    assert main(["env", "check", f"gym:{HERE}:Dice", *options]) == 1
    assert "fault unseeded" in capsys.readouterr().out
