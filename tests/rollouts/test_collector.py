"""Rollouts equal those of a plain loop, and go on alike after an interruption."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llm_agents.rollouts import PromptedWorld, RolloutCollector, TextWorlds
from llm_agents.rollouts.collector import RolloutPlan
from llm_agents.rollouts.seeds import Purpose, derived_seed
from llm_agents.types import Choice, Rollout
from tests.rollouts.worlds import Corridor, Drawer

STEPS, WORLDS = 13, 3
NUMBERS = (
    "index",
    "log_probs",
    "values",
    "rewards",
    "terminated",
    "truncated",
    "durations",
    "next_values",
)


def prompted() -> list[PromptedWorld]:
    return [PromptedWorld(Corridor(), number=e, seed=10 + e) for e in range(WORLDS)]


def collector(agent: Drawer, **options: Any) -> RolloutCollector:
    return RolloutCollector(
        agent,
        TextWorlds(prompted()),
        RolloutPlan(num_steps=STEPS, num_rollouts=9, seed=4, **options),
    )


def equal(one: Rollout, two: Rollout) -> bool:
    return all(
        torch.equal(value, getattr(two, name))
        if isinstance(value := getattr(one, name), torch.Tensor)
        else value == getattr(two, name)
        for name in Rollout.__dataclass_fields__
    )


def plain_loop(agent: Drawer, count: int, bootstrap: bool) -> list[dict[str, Any]]:
    """Collect with nothing but loops; numbers are lists ``[T][E]``."""
    worlds = prompted()
    choices = [world.reset() for world in worlds]
    rollouts = []
    for number in range(count):
        generator = torch.Generator().manual_seed(derived_seed(4, Purpose.DRAWS, 0, 0, number))
        columns: dict[str, list[Any]] = {name: [] for name in ("choices", "episodes", *NUMBERS)}
        for _ in range(STEPS):
            decisions = agent.act(choices, generator)
            columns["choices"] += choices
            row: dict[str, list[Any]] = {name: [] for name in NUMBERS}
            for e, world in enumerate(worlds):
                index = int(decisions.index[e])
                following, step = world.step(index)
                ended = step.terminated or (step.truncated and not bootstrap)
                row["index"].append(index)
                row["log_probs"].append(decisions.log_probs[e][decisions.mask[e]].tolist())
                row["values"].append(decisions.values[e][decisions.mask[e]].tolist())
                row["rewards"].append(step.reward)
                row["terminated"].append(step.terminated)
                row["truncated"].append(step.truncated)
                row["durations"].append(step.duration)
                row["next_values"].append(0.0 if ended else agent.value(following.prompt))
                if step.episode is not None:
                    columns["episodes"].append(step.episode)
                    following = world.reset()
                choices[e] = following
            for name in NUMBERS:
                columns[name].append(row[name])
        rollouts.append(columns)
    return rollouts


def units(values: torch.Tensor, mask: torch.Tensor) -> list[list[list[float]]]:
    return [
        [values[t, e][mask[t, e]].tolist() for e in range(mask.shape[1])]
        for t in range(mask.shape[0])
    ]


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("has_units", [True, False])
def test_rollouts_equal_a_plain_loop(has_units: bool, bootstrap: bool) -> None:
    agent = Drawer(units=has_units)
    ours = collector(agent, bootstrap_at_limit=bootstrap)
    truncated = terminated = 0
    for number, plain in enumerate(plain_loop(agent, 4, bootstrap)):
        rollout = ours.collect()
        assert (rollout.number, rollout.num_rollouts) == (number, 9)
        assert rollout.num_steps == STEPS * WORLDS
        assert list(rollout.choices) == plain["choices"]
        assert rollout.index.tolist() == plain["index"]
        assert units(rollout.log_probs, rollout.mask) == plain["log_probs"]
        assert units(rollout.values, rollout.mask) == plain["values"]
        assert rollout.terminated.tolist() == plain["terminated"]
        assert rollout.truncated.tolist() == plain["truncated"]
        assert rollout.durations.tolist() == plain["durations"]
        assert torch.equal(rollout.rewards, torch.tensor(plain["rewards"]))
        assert torch.equal(rollout.next_values, torch.tensor(plain["next_values"]))
        assert list(rollout.episodes) == plain["episodes"]
        truncated += int(rollout.truncated.sum())
        terminated += int(rollout.terminated.sum())
    assert truncated > 3
    assert terminated > 3


def test_no_step_is_a_reset_and_each_choice_admits_its_action() -> None:
    agent = Drawer()
    rollout = collector(agent).collect()
    assert len(rollout.choices) == STEPS * WORLDS == sum(map(len, agent.asked))
    for choice, index in zip(rollout.choices, rollout.index.flatten().tolist(), strict=True):
        assert index < len(choice.actions)
    steps = [episode.num_decisions for episode in rollout.episodes]
    assert len(steps) == int((rollout.terminated | rollout.truncated).sum())


def test_units_are_padded_on_the_right_with_the_mask_false() -> None:
    rollout = collector(Drawer(units=True)).collect()
    assert rollout.mask.shape == rollout.values.shape == rollout.log_probs.shape
    assert rollout.mask.shape[2] == 4
    assert rollout.mask[..., 0].all()
    assert not (rollout.mask[..., 1:] & ~rollout.mask[..., :-1]).any()
    assert not rollout.values[~rollout.mask].any()
    assert rollout.mask.sum(-1).unique().tolist() == [2, 4]


class Metronome(Corridor):
    """Pays 1 a step and never ends before its limit of 5."""

    def __init__(self) -> None:
        super().__init__(length=10**9, limit=5)

    def step(self, index: int) -> Any:
        return super().step(index)._replace(reward=1.0)


class Ten(Drawer):
    """Values everything at 10, and keeps what it was asked to value."""

    def __init__(self) -> None:
        super().__init__()
        self.valued: list[Choice] = []

    def value(self, prompt: str) -> float:
        return 10.0

    def state_values(self, choices: Any) -> torch.Tensor:
        self.valued += choices
        return super().state_values(choices)


@pytest.mark.parametrize(("bootstrap", "value"), [(True, 10.0), (False, 0.0)])
def test_a_time_limit_is_no_death(bootstrap: bool, value: float) -> None:
    agent = Ten()
    ours = RolloutCollector(
        agent,
        TextWorlds([PromptedWorld(Metronome())]),
        RolloutPlan(num_steps=5, num_rollouts=1, bootstrap_at_limit=bootstrap),
    )
    rollout = ours.collect()
    assert rollout.truncated.flatten().tolist() == [False] * 4 + [True]
    assert not rollout.terminated.any()
    assert rollout.next_values.flatten().tolist() == [10.0] * 4 + [value]
    # The value is that of the last observation before the reset, whose actions are gone.
    prompts = [choice.prompt for choice in agent.valued]
    assert ["after 5 steps" in prompt for prompt in prompts] == ([True] if bootstrap else [])
    assert [choice.actions for choice in agent.valued] == ([()] if bootstrap else [])


@pytest.mark.parametrize("has_units", [True, False])
def test_an_interrupted_collection_goes_on_alike(has_units: bool) -> None:
    whole = collector(Drawer(units=has_units))
    expected = [whole.collect() for _ in range(5)]
    first = collector(Drawer(units=has_units))
    for _ in range(2):
        first.collect()
    second = collector(Drawer(units=has_units))
    second.load_state_dict(first.state_dict())
    found = [second.collect() for _ in range(3)]
    assert all(map(equal, found, expected[2:]))


def test_a_state_saved_before_the_first_rollout_is_a_beginning() -> None:
    first, second = collector(Drawer()), collector(Drawer())
    second.load_state_dict(first.state_dict())
    assert equal(first.collect(), second.collect())


def test_a_state_comes_too_late_after_the_first_rollout() -> None:
    ours = collector(Drawer())
    ours.collect()
    with pytest.raises(ValueError, match="before the first rollout"):
        ours.load_state_dict(ours.state_dict())


def test_a_state_holds_plain_values_only() -> None:
    ours = collector(Drawer())
    ours.collect()
    waiting: list[Any] = [ours.state_dict()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        else:
            assert value is None or isinstance(value, bool | int | float | str | torch.Tensor)


def test_the_weights_of_each_rollout_are_those_of_the_moment() -> None:
    agent = Drawer()
    ours = collector(agent)
    ours.collect()
    torch.nn.init.zeros_(agent.scale)
    rollout = ours.collect()
    assert not rollout.values.any()
    assert not rollout.next_values.any()
