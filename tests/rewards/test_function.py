"""Rewards that are functions, and sums of rewards."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.rewards import CallableReward, SumReward
from llm_agents.types import Prompt, Turn

PROMPTS = [(Turn("user", "a"),), (Turn("user", "bb"),)]


def lengths(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    return [
        float(len(prompt[-1].text) + len(text))
        for prompt, text in zip(prompts, responses, strict=True)
    ]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_reward_module.py"
    path.write_text(
        "def words(prompts, responses):\n    return [len(r.split()) for r in responses]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_reward_module", raising=False)
    return path


def test_a_function_is_found_by_its_path(module: Path) -> None:
    reward = CallableReward("my_reward_module:words", low=0.0, high=100.0)
    assert reward.name == "words"
    assert reward(PROMPTS, ["one two", "three"]).tolist() == [2.0, 1.0]


def test_the_version_follows_the_source(module: Path) -> None:
    before = CallableReward("my_reward_module:words").version
    module.write_text(module.read_text() + "\nBONUS = 1\n")
    del sys.modules["my_reward_module"]
    assert CallableReward("my_reward_module:words").version != before


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("my_reward_module.words", "expected `package.module:function`"),
        ("no_such_module:words", "cannot import `no_such_module`"),
        ("my_reward_module:nothing", "has no function `nothing`"),
    ],
)
def test_a_wrong_path_is_named(module: Path, path: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        CallableReward(path)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([[1.0], [2.0]], r"returned the shape \(2, 1\) for 2 responses"),
        (1.0, r"returned the shape \(\)"),
        ([1.0], r"returned the shape \(1,\)"),
        ([1.0, math.inf], r"returned inf for response 1"),
        ([math.nan, 1.0], r"returned nan for response 0"),
        ([0.0, 5.5], r"promises scores from 0\.0 to 5\.0 and returned 5\.5 for response 1"),
        ([-0.5, 1.0], r"returned -0\.5 for response 0"),
    ],
)
def test_what_a_function_returns_is_checked(returned: Any, expected: str) -> None:
    reward = CallableReward(lambda prompts, responses: returned, 0.0, 5.0, "broken", "1")
    with pytest.raises(UserError, match=expected):
        reward(PROMPTS, ["x", "y"])


def test_one_response_keeps_its_axis() -> None:
    assert CallableReward(lengths)(PROMPTS[:1], ["xx"]).shape == (1,)


def test_a_sum_weighs_its_parts() -> None:
    words = CallableReward(lambda p, r: [len(t.split()) for t in r], 0.0, 10.0, "words", "1")
    chars = CallableReward(lengths, 0.0, 100.0, "chars", "2")
    total = SumReward({"words": words, "chars": chars}, {"chars": -0.5})
    responses = ["one two", "three"]
    assert total(PROMPTS, responses).tolist() == [2 - 0.5 * 8, 1 - 0.5 * 7]
    parts = total.parts(PROMPTS, responses)
    assert {name: values.tolist() for name, values in parts.items()} == {
        "words": [2.0, 1.0],
        "chars": [8.0, 7.0],
    }
    torch.testing.assert_close(total.total(parts), total(PROMPTS, responses))
    assert (total.low, total.high) == (-50.0, 10.0)
    assert total.name == "words+chars"
    assert total.version == "1*words=words@1;-0.5*chars=chars@2"


def test_a_part_of_weight_zero_does_not_unbind_the_range() -> None:
    bounded = CallableReward(lengths, 0.0, 9.0, "a", "1")
    total = SumReward({"a": bounded, "b": CallableReward(lengths, name="b", version="1")}, {"b": 0})
    assert (total.low, total.high) == (0.0, 9.0)
    assert total(PROMPTS, ["x", "y"]).tolist() == [2.0, 3.0]


def test_weights_of_unknown_parts_are_refused() -> None:
    reward = CallableReward(lengths)
    with pytest.raises(UserError, match="expected weights for a, got one for b"):
        SumReward({"a": reward}, {"b": 1.0})
    with pytest.raises(UserError, match="at least one part"):
        SumReward({})
