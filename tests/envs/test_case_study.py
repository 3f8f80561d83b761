"""The case study: its rules, and the values of the specification to six digits."""

from __future__ import annotations

import pytest

from llm_agents.envs.case_study import CaseState, CaseStudy
from llm_agents.envs.planning import random_prospects


def value(world: CaseStudy, stage: int, step: int = 0) -> float:
    return random_prospects(world, CaseState(stage, step)).discounted_return


def action_value(world: CaseStudy, stage: int, action: int) -> float:
    outcome = world.outcome(CaseState(stage), action)
    if outcome.terminated:
        return outcome.reward
    return outcome.reward + world.gamma * value(world, *outcome.state)


def test_the_right_way_takes_three_steps() -> None:
    world = CaseStudy()
    texts = []
    observation = world.reset()
    for index in (0, 0, 1):
        texts.append(observation.actions[index])
        step = world.step(index)
        observation = step.observation
    assert texts == [
        "open the microwave",
        "put the pancake in the microwave",
        "close the microwave",
    ]
    assert (step.reward, step.terminated, observation.actions) == (1.0, True, ())
    assert step.episode is not None
    assert step.episode.success
    assert step.episode.discounted_return == pytest.approx(0.9025) == world.optimal_return


def test_the_fifth_step_ends_with_a_penalty() -> None:
    world = CaseStudy()
    world.reset()
    rewards = [world.step(1).reward for _ in range(4)]
    step = world.step(0)
    assert [*rewards, step.reward] == [0, 0, 0, 0, -1]
    assert (step.terminated, step.truncated) == (True, False)
    assert step.episode is not None
    assert not step.episode.success


def test_the_successful_close_at_the_fifth_step_earns() -> None:
    world = CaseStudy()
    world.reset()
    for index in (1, 0, 0, 0):
        assert world.step(index).reward == 0.0
    step = world.step(1)
    assert (step.reward, step.terminated) == (1.0, True)


def test_wrong_actions_change_nothing_and_no_text_counts_steps() -> None:
    world = CaseStudy()
    first = world.reset()
    assert world.step(1).observation == first
    assert first.actions == ("open the microwave", "close the microwave")
    assert "hold the pancake" in first.text
    assert "not open" in first.text


def test_the_three_prompts_differ() -> None:
    world = CaseStudy()
    shown = [world.observe(CaseState(stage)) for stage in range(3)]
    assert len({each.text for each in shown}) == 3
    assert [each.vector for each in shown] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert [each.action_ids for each in shown] == [(0, 2), (1,), (0, 2)]


def test_values_without_a_limit() -> None:
    # V2 = ½·1 + ½·γ·V2, V1 = γ·V2, V0 = ½·γ·V1 + ½·γ·V0
    world = CaseStudy(limit=None)
    assert [value(world, stage) for stage in range(3)] == pytest.approx(
        [0.818594, 0.904762, 0.952381], abs=5e-7
    )
    for stage, action, advantage in ((0, 0, 0.040930), (0, 2, -0.040930)):
        assert action_value(world, stage, action) - value(world, stage) == pytest.approx(
            advantage, abs=1e-6
        )
    for action, advantage in ((2, 0.047619), (0, -0.047619)):
        assert action_value(world, 2, action) - value(world, 2) == pytest.approx(
            advantage, abs=5e-7
        )


def test_values_with_the_limit() -> None:
    world = CaseStudy()
    assert value(world, 0) == pytest.approx(0.338155, abs=5e-7)
    assert action_value(world, 0, 0) == pytest.approx(0.665594, abs=5e-7)
    assert action_value(world, 0, 2) == pytest.approx(0.010717, abs=5e-7)
    assert value(world, 2, 2) == pytest.approx(0.7375)


def test_a_flat_token_discount_spoils_the_values() -> None:
    # five tokens an action, all but the first shared, γ between tokens too: a step costs γ^5
    gamma, tokens = 0.95, 5
    last = 0.5 * gamma ** (tokens - 1) / (1 - 0.5 * gamma**tokens)
    assert last == pytest.approx(0.664242, abs=5e-7)
    before_second_token = [gamma ** (tokens - 1 - j) for j in range(1, tokens)]
    assert before_second_token == pytest.approx([0.857375, 0.9025, 0.95, 1.0])
    assert gamma * before_second_token[0] - last == pytest.approx(0.150264, abs=5e-7)


def test_a_limit_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a limit of at least 3 or None, got 2"):
        CaseStudy(limit=2)
