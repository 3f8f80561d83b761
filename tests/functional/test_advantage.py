from __future__ import annotations

import math
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional import (
    SAMPLING_STRATEGIES,
    SamplingStrategy,
    advantage_statistics,
    advantages,
    leftover_advantages,
    positive_share,
    sampling_weights,
)
from tests.functional.exact_text import exactly
from tests.reference import example_f1 as f1
from tests.reference import statistics as reference

A = [0.3, 0.3, 0.05, -0.25]  # of the worked example


def exact(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def weights(strategy: SamplingStrategy, **changed: Any) -> list[float]:
    """Two prompts, each with a good and a bad response: rows good, bad, good, bad."""
    given: dict[str, Any] = {
        "advantages": exact([0.3, -0.4, 0.2, 0.1]),
        "rewards": exact([0.9, 0.2, 0.8, 0.7]),
        "preferred": torch.tensor([True, False, True, False]),
        "by": "advantage",
        **changed,
    }
    found: list[float] = sampling_weights(strategy, **given).tolist()
    return found


def test_advantages_of_the_worked_example() -> None:
    rewards, values = exact(f1.REWARDS).requires_grad_(), exact(f1.VALUES).requires_grad_()
    found = advantages(rewards, values)
    torch.testing.assert_close(found, exact(A), rtol=0, atol=1e-12)
    kept = leftover_advantages(rewards, values)
    torch.testing.assert_close(kept, exact([0.3, 0.3, 0.05, 0]), rtol=0, atol=1e-12)
    assert kept[3] == 0
    assert not found.requires_grad
    assert not kept.requires_grad
    assert positive_share(found) == 0.75


def test_an_unknown_reward_is_not_mistaken_for_no_advantage() -> None:
    assert leftover_advantages(exact([math.nan]), exact([0.5])).isnan().all()
    text = exactly(
        "expected numbers in `advantages`, got NaN for 1 of 2: score these responses or drop them"
    )
    with pytest.raises(ValueError, match=text):
        positive_share(exact([math.nan, 1.0]))
    with pytest.raises(ValueError, match=text):
        advantage_statistics(exact([math.nan, 1.0]))


def test_an_advantage_of_zero_is_not_positive() -> None:
    assert positive_share(exact([0.0, 0.0, 1.0, -1.0])) == 0.25


def test_statistics_by_hand() -> None:
    """0, 1 … 20 out of order: the deciles are 0, 2 … 20, the variance (21² − 1) / 12."""
    found = advantage_statistics(torch.arange(20, -1, -1).double() - 4)
    assert found.num_advantages == 21
    assert found.share_kept == 16 / 21
    assert found.mean == 6
    assert found.median == 6
    assert found.std == pytest.approx(math.sqrt(440 / 12), rel=1e-12)
    assert (found.low, found.high) == (-4, 16)
    assert found.deciles == pytest.approx(range(-4, 17, 2))


def test_statistics_of_one_advantage() -> None:
    found = advantage_statistics(torch.tensor([0.5]))
    assert found.std == 0
    assert found.deciles == (0.5,) * 11


@settings(deadline=None)
@given(
    numbers=hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-5, 5)),
    seed=st.integers(0, 99),
)
def test_statistics_equal_the_definition_in_any_order(numbers: np.ndarray, seed: int) -> None:
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(seed))
    found = advantage_statistics(torch.from_numpy(numbers)[order])
    expected = [reference.quantile(numbers.tolist(), k / 10) for k in range(11)]
    assert found.deciles == pytest.approx(expected, abs=1e-12)
    assert found.median == pytest.approx(float(np.median(numbers)), abs=1e-12)
    assert found.std == pytest.approx(float(np.std(numbers)), abs=1e-9)
    assert found.share_kept == sum(x > 0 for x in numbers) / len(numbers)


def test_good_priority_draws_good_responses_by_advantage() -> None:
    assert weights("good_priority") == [0.3, 0, 0.2, 0]


def test_good_priority_by_reward() -> None:
    assert weights("good_priority", by="reward", advantages=None) == [0.9, 0, 0.8, 0]


def test_good_random_draws_evenly_among_the_positive() -> None:
    assert weights("good_random") == [1, 0, 1, 0]
    assert weights("good_random", advantages=exact([0.3, 0.4, 0.0, 0.1])) == [1, 0, 0, 0]


def test_all_priority_gives_each_response_its_own_advantage() -> None:
    """The release would give the bad response of row 1 (reward .7) the good one's reward of .8."""
    assert weights("all_priority") == [0.3, 0, 0.2, 0.1]


@pytest.mark.parametrize("by", ["advantage", "reward"])
def test_uniform_draws_good_responses_evenly(by: str) -> None:
    assert weights("uniform", by=by, advantages=None) == [1, 0, 1, 0]


def test_what_cannot_be_drawn_may_be_unknown() -> None:
    rewards = exact([0.9, math.nan, 0.8, math.nan])
    assert weights("good_priority", by="reward", rewards=rewards) == [0.9, 0, 0.8, 0]
    unknown = exact([0.3, math.nan, 0.2, math.nan])
    assert weights("good_priority", advantages=unknown) == [0.3, 0, 0.2, 0]


@pytest.mark.parametrize("strategy", SAMPLING_STRATEGIES)
def test_weights_are_double_and_never_negative(strategy: SamplingStrategy) -> None:
    found = sampling_weights(
        strategy,
        advantages=torch.tensor(A),
        rewards=torch.tensor(f1.REWARDS),
        preferred=torch.tensor([True, False, True, True]),
        by="advantage",
    )
    assert found.dtype == torch.float64
    assert (found >= 0).all()
    assert found[3] == (1 if strategy == "uniform" else 0)


def test_nothing_left_to_draw_is_refused() -> None:
    text = exactly(
        "expected at least one response with a positive advantage, got none among 2: the reference "
        "already does better than the data, or rewards and values are on two scales"
    )
    for strategy in ("good_priority", "good_random"):
        with pytest.raises(ValueError, match=text):
            weights(strategy, advantages=exact([-0.3, 0.4, 0.0, 0.1]))
    text = exactly(
        "expected at least one preferred response for uniform, got none among 4: mark them, or "
        "choose all_priority"
    )
    with pytest.raises(ValueError, match=text):
        weights("uniform", preferred=torch.zeros(4).bool())


@pytest.mark.parametrize("strategy", ["good_random", "all_priority"])
def test_strategies_that_need_advantages_are_refused_without(strategy: SamplingStrategy) -> None:
    text = exactly(
        "expected `strategy` uniform or good_priority where responses are drawn by reward, got "
        f"{strategy!r}: it needs advantages, so choose an a_lol algorithm"
    )
    with pytest.raises(ValueError, match=text):
        weights(strategy, by="reward")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"advantages": None},
            "expected `advantages` to draw by them, got None: compute them first",
        ),
        (
            {"advantages": exact([math.nan, 1, 1, 1])},
            "expected numbers in `advantages`, got NaN for 1 of 2: score these responses or drop "
            "them",
        ),
        (
            {"by": "reward", "rewards": exact([-0.4, 1, 1, 1])},
            "expected `rewards` of at least 0 to draw by them, got 1 negative: apply the sigmoid "
            "to raw scores",
        ),
        (
            {"by": "reward", "rewards": exact([math.nan, 1, 1, 1])},
            "expected numbers in `rewards`, got NaN for 1 of 2: score these responses or drop them",
        ),
        (
            {"advantages": torch.zeros(4, 1)},
            "expected `advantages` of shape (4,) like the rows of `rewards`, got (4, 1): give one "
            "value for each row, call .squeeze(-1)",
        ),
        (
            {"preferred": torch.zeros(3).bool()},
            "expected `preferred` of shape (4,) like `rewards`, got (3,): give one mask entry for "
            "each value",
        ),
        ({"by": "value"}, "expected `by` to be advantage or reward, got 'value'"),
    ],
)
def test_wrong_tables_are_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        weights("good_priority", **changed)


def test_other_errors() -> None:
    text = exactly(
        "expected `strategy` to be one of uniform, good_priority, good_random, all_priority, got "
        "'good_prioirty'"
    )
    with pytest.raises(ValueError, match=text):
        weights("good_prioirty")  # type: ignore[arg-type]  # the authors' spelling on the Hub
    text = exactly("expected `preferred` of dtype torch.bool, got torch.int64: call .bool()")
    with pytest.raises(TypeError, match=text):
        weights("uniform", preferred=torch.tensor([1, 0, 1, 0]))
    text = exactly(
        "expected `values` of shape (2,) like the rows of `rewards`, got (2, 1): give one value "
        "for each row, call .squeeze(-1)"
    )
    with pytest.raises(ValueError, match=text):
        advantages(torch.zeros(2), torch.zeros(2, 1))
    with pytest.raises(
        ValueError, match=exactly("expected at least one of `advantages`, got none")
    ):
        positive_share(torch.zeros(0))
