"""The evaluation of a reward of messages: agreement on held-out pairs, the extremes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from llm_agents.data import MotifData
from llm_agents.evaluation import (
    evaluate_message_reward,
    message_reward_table,
    read_message_reward_results,
    share,
    write_results,
)
from llm_agents.functional import RewardStatistics
from llm_agents.policies import MessageScorer
from llm_agents.rewards import MessageReward
from llm_agents.types import MessageObservations
from tests.data.toy_pairs import MESSAGES, VALUES, WORTH, write_pairs

KEYS = {row.tobytes(): float(value) for row, value in zip(MESSAGES, VALUES, strict=True)}


class Worth(MessageScorer):
    """Says what the data's messages are worth; one of them it gets wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def hidden_states(self, observations: MessageObservations) -> torch.Tensor:
        return self.forward(observations)[:, None]

    def forward(self, observations: MessageObservations) -> torch.Tensor:
        found = [KEYS[row.numpy().tobytes()] for row in observations.message]
        wrong = KEYS[MESSAGES[2].tobytes()]
        return torch.tensor([-2.0 if value == wrong else value for value in found])

    def describe(self) -> dict[str, object]:
        return {}

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def worth() -> MessageReward:
    return MessageReward(Worth(), RewardStatistics(0.5, 4.0, (0.0,) * 19), name="worth")


@pytest.mark.parametrize("length", [1, 2])
def test_it_counts_pairs(tmp_path: Path, length: int) -> None:
    data = MotifData(str(write_pairs(tmp_path / "d", 200, length=length)), "toy", seed=3)
    found = evaluate_message_reward(worth(), data, num_messages=4, details={"seed": 3})
    table, right, decided, agreed, differ, loss = data.table, 0, 0, 0, 0, 0.0
    for place in data.held_out_places.tolist():
        pair = table.pairs.data["message"][table.pairs.visible[place]]
        first, second = (
            np.mean([-2.0 if (v := KEYS[m.tobytes()]) == 0 else v for m in side]) for side in pair
        )
        label, scores = int(table.preferences[place]), table.scores[place].tolist()
        gap = second - first if label == 0 else first - second
        if label == 2:
            loss += (math.log1p(math.exp(gap)) + math.log1p(math.exp(-gap))) / 2
        else:
            decided += 1
            right += (second > first) == (label == 1)
            loss += math.log1p(math.exp(gap))
        if scores[0] != scores[1]:
            differ += 1
            agreed += (second > first) == (scores[1] > scores[0])
    assert found.accuracy == share([True] * right + [False] * (decided - right), 0.95)
    assert found.score_agreement == share([True] * agreed + [False] * (differ - agreed), 0.95)
    assert found.loss == pytest.approx(loss / 40)
    assert (found.num_pairs, found.num_ties, found.num_messages) == (40, 40 - decided, len(WORTH))
    assert found.accuracy_unseen is None  # twelve messages, all of them in training


def test_the_extremes_are_ranked(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "d", 200)
    data = MotifData(str(folder), "toy", seed=3)
    found = evaluate_message_reward(worth(), data, num_messages=3)
    assert {entry.text for entry in found.highest[:2]} == {
        "You descend the stairs.",
        "Welcome to experience level 2.",
    }
    assert [entry.raw for entry in found.highest] == [3, 3, 2]
    assert [entry.raw for entry in found.lowest] == [-3, -2, -2]
    assert found.lowest[0].text == "You die..."
    assert found.highest[0].normalized == pytest.approx((3 - 0.5) / 2)
    messages = np.load(folder / "data" / "message.npy").reshape(-1, 256)
    for entry in (*found.highest, *found.lowest):
        raw = entry.text.encode().ljust(256, b"\0")
        assert entry.count == sum(row.tobytes() == raw for row in messages)


def test_pairs_with_an_unseen_message_count_for_themselves(tmp_path: Path) -> None:
    data = MotifData(str(write_pairs(tmp_path / "d", 14)), "toy", seed=1, held_out=0.6)
    found = evaluate_message_reward(worth(), data)
    table = data.table
    seen = set(table.distinct.steps[data.train_places].flatten().tolist())
    unseen = [
        place
        for place in data.held_out_places.tolist()
        if int(table.preferences[place]) != 2
        and not set(table.distinct.steps[place].flatten().tolist()) <= seen
    ]
    assert found.accuracy_unseen is not None
    assert 0 < found.accuracy_unseen.n == len(unseen)


def test_results_come_back_and_are_shown(tmp_path: Path) -> None:
    data = MotifData(str(write_pairs(tmp_path / "d", 60)), "toy", seed=3)
    found = evaluate_message_reward(worth(), data)
    write_results(tmp_path / "run", found)
    assert read_message_reward_results(tmp_path / "run") == found
    console = Console(width=100, record=True)
    console.print(message_reward_table(found))
    shown = console.export_text()
    assert "You descend the stairs." in shown
    assert "(empty)" in shown
    assert f"{found.accuracy.mean:.3f}" in shown  # type: ignore[union-attr]


def test_nothing_held_out_has_no_accuracy(tmp_path: Path) -> None:
    data = MotifData(str(write_pairs(tmp_path / "d", 30)), "toy", held_out=0.0)
    found = evaluate_message_reward(worth(), data)
    assert (found.accuracy, found.loss, found.num_pairs) == (None, None, 0)
