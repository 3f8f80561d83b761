"""Rewards that are functions, and sums of rewards."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.evaluation.policy import score as evaluation_score
from llm_agents.methods.validation import Answers, expect_reward, score
from llm_agents.rewards import CallableReward, SumReward
from llm_agents.types import Prompt, Reward, Turn

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
        ([[1.0], [2.0]], r"returned \[1\.0\] for response 0"),
        (1.0, "returned a float for 2 responses"),
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


def learned() -> Any:
    return torch.nn.Parameter(torch.tensor([0.5, 2.0]))


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, "returned None for 2 responses: return one number for each"),
        ([0.5, None], "returned None for response 1: return a number"),
        ([math.nan, 1.0], "returned nan for response 0"),
        ("ab", "returned a str for 2 responses: return one number for each"),
        (["0.5", "1"], "returned '0.5' for response 0: return a number"),
        ([b"1", 1], "returned b'1' for response 0"),
        ({0: 1.0, 1: 2.0}, "returned a dict for 2 responses"),
        ({1.0, 2.0}, "returned a set for 2 responses"),
        (iter([1.0, 2.0]), "returned a list_iterator for 2 responses"),
        ([], r"returned the shape \(0,\) for 2 responses"),
        ([1.0, 2.0, 3.0], r"returned the shape \(3,\) for 2 responses"),
        ([[1.0], [2.0]], r"returned \[1.0\] for response 0: return a number"),
        ([1.0, 1j], "returned 1j for response 1"),
        ([1.0, 10**400], "returned inf for response 1"),
        (np.array(["a", "b"]), "returned .*'a'.* for response 0"),
        (np.array([[1.0], [2.0]]), r"returned the shape \(2, 1\)"),
        (np.array([1.0, None]), "returned None for response 1"),
        (torch.ones(2, 1), r"returned the shape \(2, 1\)"),
        (torch.ones(2, dtype=torch.complex64), "returned a Tensor for 2 responses"),
        ([torch.ones(1), torch.ones(1)], r"returned tensor\(\[1\.\]\) for response 0"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_score_gets_one_error(returned: Any, expected: str) -> None:
    reward = CallableReward(lambda prompts, responses: returned, 0.0, 5.0, "broken", "1")
    with pytest.raises(UserError, match=f"the reward `broken` {expected}"):
        reward(PROMPTS, ["x", "y"])


@pytest.mark.parametrize(
    "returned",
    [
        (0.5, 2),
        [torch.tensor(0.5, requires_grad=True), np.float64(2)],
        [Fraction(1, 2), Decimal(2)],
        learned(),
        learned() * 1.0,
        learned().double(),
        np.array([0.5, 2.0]),
        np.array([0.5, 2.0], dtype=object),
        np.array([[0.5, 2.0]])[0, ::1],
    ],
)
@pytest.mark.filterwarnings("error")
def test_numbers_of_any_kind_are_scores(returned: Any) -> None:
    scores = CallableReward(lambda p, r: returned, 0.0, 5.0, "fine", "1")(PROMPTS, ["x", "y"])
    assert scores.tolist() == [0.5, 2.0]
    assert scores.dtype == torch.float32
    assert not scores.requires_grad


class Silent(Reward):
    """A reward of a user's own that returns nothing."""

    name, version, low, high = "silent", "1", 0.0, 1.0

    def __call__(self, prompts: Any, responses: Any) -> Any:
        return None


def test_a_reward_class_that_returns_nothing_is_named_wherever_it_is_asked() -> None:
    answers = Answers([0, 1], PROMPTS, ["x", "y"])
    for ask in (
        lambda: score(answers, Silent()),
        lambda: evaluation_score(Silent(), PROMPTS, ["x", "y"]),
        lambda: SumReward({"a": Silent()})(PROMPTS, ["x", "y"]),
    ):
        with pytest.raises(UserError, match="returned None for 2 responses"):
            ask()


def test_a_bare_function_is_no_reward() -> None:
    expect_reward(None)
    expect_reward(Silent())
    with pytest.raises(UserError, match=r"got a function: wrap it, `CallableReward\(function"):
        expect_reward(lengths)
    with pytest.raises(UserError, match=r"got a float: see `llm_agents\.rewards`"):
        expect_reward(1.0)
