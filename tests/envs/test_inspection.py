"""What is found in a world that spoils training: planted faults, and none where there is none."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from llm_agents.envs import make_world
from llm_agents.envs.base import Observation, Step
from llm_agents.envs.inspection import inspect_world
from llm_agents.envs.toy import Chest, Corridor, Lamp
from llm_agents.types import Episode

SOUND = (
    "overcooked-tomato-salad",
    "overcooked-tomato-lettuce-salad",
    "virtualhome-food-preparation",
    "virtualhome-entertainment",
    "case-study",
    "errands",
    "toy-lamp",
    "toy-corridor",
    "toy-chest",
    "toy-clock",
)


class Walk(Corridor):
    """A corridor of two steps a side; the base of worlds with a fault each."""

    def __init__(self) -> None:
        super().__init__(2, max_steps=6)


class Unseeded(Walk):
    def start(self, generator: random.Random) -> Any:
        return super().start(random.Random())


class GlobalDraws(Walk):
    def start(self, generator: random.Random) -> Any:
        return super().start(random)  # type: ignore[arg-type]  # the module has its functions


class SharedState(Walk):
    count: ClassVar[list[int]] = [0]

    def reset(self, seed: int | None = None) -> Observation:
        if seed is not None:
            self.count[0] = 0
        shown = super().reset(seed)
        self._at = 0
        return shown

    def step(self, index: int) -> Step:
        self.count[0] += 1
        step = super().step(index)
        text = f"{step.observation.text} Step {self.count[0]} of all."
        return step._replace(observation=replace(step.observation, text=text))


class ReusedBuffer(Walk):
    def __init__(self) -> None:
        super().__init__()
        self._numbers = [0, 0]

    def step(self, index: int) -> Step:
        step = super().step(index)
        self._numbers[:] = step.observation.vector
        return step._replace(observation=replace(step.observation, vector=self._numbers))


class LimitAsEnd(Walk):
    def step(self, index: int) -> Step:
        step = super().step(index)
        return step._replace(terminated=step.terminated or step.truncated, truncated=False)


class NeverPaidLimit(LimitAsEnd):
    def __init__(self) -> None:
        super().__init__()
        self.distance = 9


class EmptyList(Walk):
    def observe(self, state: Any) -> Observation:
        shown = super().observe(state)
        is_empty = state.position == -1
        return replace(shown, actions=(), action_ids=()) if is_empty else shown


class DoubleAction(Walk):
    def observe(self, state: Any) -> Observation:
        shown = super().observe(state)
        return replace(shown, actions=(shown.actions[0],) * 2)


class ForgetsSteps(Walk):
    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        return super().load_state_dict({**state, "decisions": 0})


class ForgetsReturn(Walk):
    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        return super().load_state_dict({**state, "decisions": state["decisions"] + 1})


class PickledState(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": random.Random(1)}


class LargeReward(Lamp):
    def outcome(self, state: Any, action: int) -> Any:
        found = super().outcome(state, action)
        return found._replace(reward=1000 * found.reward)


class ToldIndex(Lamp):
    def __init__(self) -> None:
        super().__init__(6)

    def observe(self, state: Any) -> Observation:
        shown = super().observe(state)
        return replace(shown, text=f"{shown.text} (Button {state.color + 1}.)")


class NegativeIndex(Walk):
    def step(self, index: int) -> Step:
        return super().step(index % self.num_actions)


class WrongReturn(Walk):
    def step(self, index: int) -> Step:
        step = super().step(index)
        if step.episode is None:
            return step
        return step._replace(episode=replace(step.episode, undiscounted_return=7.0))


class NoSummary(Walk):
    def step(self, index: int) -> Step:
        return super().step(index)._replace(episode=None)


class WrongVector(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.vector_size = 5


class Silent(Walk):
    def observe(self, state: Any) -> Observation:
        return replace(super().observe(state), text=" ")


class GoalWithDot(Walk):
    def observe(self, state: Any) -> Observation:
        return replace(super().observe(state), goal="Find the exit.")


class Nan(Lamp):
    def outcome(self, state: Any, action: int) -> Any:
        return super().outcome(state, action)._replace(reward=float("nan"))


class Padded(Walk):
    def observe(self, state: Any) -> Observation:
        shown = super().observe(state)
        return replace(shown, actions=tuple(f" {action}" for action in shown.actions))


@pytest.mark.parametrize(
    ("world", "subject"),
    [
        (Unseeded, "unseeded"),
        (GlobalDraws, "unseeded"),
        (SharedState, "shared state"),
        (ReusedBuffer, "reused buffer"),
        (NeverPaidLimit, "limit told as end"),
        (EmptyList, "empty list"),
        (DoubleAction, "double action"),
        (ForgetsSteps, "state"),
        (ForgetsReturn, "state"),
        (PickledState, "state"),
        (ToldIndex, "told index"),
        (NegativeIndex, "no refusal"),
        (WrongReturn, "summary"),
        (NoSummary, "summary"),
        (WrongVector, "vector"),
        (Silent, "empty text"),
        (GoalWithDot, "goal"),
        (Nan, "reward"),
        (Padded, "blank in action"),
    ],
)
def test_a_planted_fault_is_found(world: type, subject: str) -> None:
    faults = [remark for remark in inspect_world(world, episodes=12) if remark.weight == "fault"]
    assert subject in {remark.subject for remark in faults}, faults
    assert all(remark.cure for remark in faults)


def test_a_reward_out_of_scale_is_a_note() -> None:
    (remark,) = inspect_world(LargeReward, episodes=12)
    assert (remark.weight, remark.subject) == ("note", "reward")
    assert "1000" in remark.text


def test_a_world_without_an_end_is_a_note() -> None:
    found = inspect_world(lambda: make_world("toy-clock", max_steps=1000), max_steps=50)
    assert [(remark.weight, remark.subject) for remark in found] == [("note", "no end")]


@pytest.mark.parametrize("name", SOUND)
def test_our_worlds_have_no_fault(name: str) -> None:
    assert [r for r in inspect_world(lambda: make_world(name)) if r.weight == "fault"] == []


def test_short_episodes_of_one_length_are_no_limit() -> None:
    assert inspect_world(Lamp, episodes=12) == []
    assert inspect_world(Chest, episodes=12) == []


def test_a_summary_on_another_scale_is_none() -> None:
    class Scaled(Lamp):
        def step(self, index: int) -> Step:
            step = super().step(index)
            assert step.episode is not None
            paid = Episode(step.reward / 20, step.reward, 1, 1, step.reward > 0)
            return step._replace(episode=paid)

    assert inspect_world(Scaled, episodes=12) == []
