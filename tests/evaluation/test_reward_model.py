"""Agreement of a reward with people and with stored scores."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from llm_agents import evaluation
from llm_agents.data.base import Example
from llm_agents.errors import UserError
from llm_agents.evaluation import evaluate_reward, read_reward_results, write_results
from llm_agents.rewards import CallableReward
from llm_agents.types import Prompt, Turn

PROMPT = (Turn("user", "q"),)


def by_text(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    return [float(text) for text in responses]


REWARD = CallableReward(by_text, name="number", version="1")


def example(
    scores: tuple[float, ...], stored: tuple[float, ...] | None, preferred: int = 0
) -> Example:
    return Example(PROMPT, tuple(str(score) for score in scores), stored, preferred, {})


EXAMPLES = [
    example((1.0, 0.0), (2.0, 1.0)),  # right, and as stored
    example((0.0, 1.0), (2.0, 1.0)),  # wrong, and not as stored
    example((3.0, 3.0), (5.0, 4.0)),  # a tie: half
    example((0.0, 2.0), (1.0, 1.0), preferred=1),  # right; nothing stored to agree with
]


def test_accuracy_agreement_and_correlation_by_hand() -> None:
    (found,) = evaluate_reward(REWARD, {"test": EXAMPLES}).tests
    assert found.pair_accuracy is not None
    assert found.pair_accuracy.mean == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert found.pair_agreement is not None
    assert found.pair_agreement.mean == pytest.approx((1 + 0 + 0.5) / 3)
    ours = torch.tensor([1.0, 0, 0, 1, 3, 3, 0, 2])
    stored = torch.tensor([2.0, 1, 2, 1, 5, 4, 1, 1])
    expected = torch.corrcoef(torch.stack([ours, stored]))[0, 1]
    assert found.correlation is not None
    assert found.correlation.mean == pytest.approx(float(expected), rel=1e-6)
    assert (found.num_prompts, found.num_responses) == (4, 8)


def test_several_sets_are_pooled() -> None:
    results = evaluate_reward(REWARD, {"a": EXAMPLES[:1], "b": EXAMPLES[1:]})
    assert [test.name for test in results.tests] == ["a", "b", "all"]
    accuracy = results.overall.pair_accuracy
    assert accuracy is not None
    assert accuracy.mean == pytest.approx(2.5 / 4)


def test_without_stored_scores_there_is_no_agreement() -> None:
    (found,) = evaluate_reward(REWARD, {"test": [example((1.0, 0.0), None)]}).tests
    assert found.pair_agreement is None
    assert found.correlation is None
    assert found.pair_accuracy is not None
    assert found.pair_accuracy.low is None  # one prompt


def test_constant_scores_have_no_correlation() -> None:
    (found,) = evaluate_reward(REWARD, {"test": [example((1.0, 1.0), (0.0, 1.0))] * 3}).tests
    assert found.correlation is None
    assert found.pair_accuracy is not None
    assert found.pair_accuracy.mean == 0.5


def test_more_than_two_responses_are_all_compared() -> None:
    (found,) = evaluate_reward(REWARD, {"test": [example((1.0, 0.0, 2.0), (3.0, 2.0, 1.0))]}).tests
    assert found.pair_accuracy is not None
    assert found.pair_agreement is not None
    assert found.pair_accuracy.mean == pytest.approx(1 / 2)
    assert found.pair_agreement.mean == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("sets", "expected"), [({}, "at least one test set"), ({"x": []}, "`x` has no example")]
)
def test_test_sets_are_checked(sets: dict[str, list[Example]], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        evaluate_reward(REWARD, sets)


def test_results_come_back_and_print(tmp_path: Path) -> None:
    results = evaluate_reward(REWARD, {"test": EXAMPLES, "other": EXAMPLES[:1]}, name="mine")
    write_results(tmp_path, results)
    assert read_reward_results(tmp_path) == results
    with pytest.raises(UserError, match="expected the results of a policy"):
        evaluation.read_results(tmp_path)
    output = io.StringIO()
    evaluation.print_table(results, Console(file=output, width=80))
    assert "0.625" in output.getvalue()
    rows = [line for line in output.getvalue().splitlines() if "[" in line]
    assert rows[0].split()[:2] == ["test", "4"]
    assert rows[0].count("[") == rows[0].count("]") == 3  # intervals stand on one line
