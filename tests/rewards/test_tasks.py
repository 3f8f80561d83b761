"""The named rewards of A-LoL's tasks: one table, every name, sums with their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.evaluation.aggregation import metric_of
from llm_agents.rewards import TASKS, DiversityReward, TaskReward
from llm_agents.rewards.knowledge import with_knowledge
from llm_agents.rewards.tasks import Component, TaskName
from llm_agents.types import Turn


def test_every_task_has_parts_a_range_and_a_metric() -> None:
    assert set(TASKS) == set(get_args(TaskName))
    counts = {name: task.max_value for name, task in TASKS.items()}
    assert counts == {
        "comet": 1,
        "reddit_pos": 5,
        "reddit_neg": 5,
        "wow": 4,
        "faithdial": 4,
        "faithdial_wow": 4,
    }
    for name, task in TASKS.items():
        assert set(task.components) <= set(get_args(Component))
        assert task.selected_by in (*task.components, "final_reward")
        parts = [*task.components, "final_reward"]
        assert metric_of(name, parts) == task.selected_by  # the tables are about what chooses


def test_a_sum_is_loaded_with_its_parts(tmp_path: Path) -> None:
    DiversityReward.fit(["birds fly", "a dog sat"]).save(tmp_path / "tfidf.json")
    models = {"tfidf": str(tmp_path / "tfidf.json")}
    reward = TaskReward.from_pretrained("wow", models, components=["tfidf"])
    prompt = with_knowledge("Birds fly.", [Turn("user", "Hi")])
    scores, parts = reward.scores_and_parts([prompt], ["birds"])
    assert reward.name == "wow"
    assert list(parts) == ["tfidf"]
    torch.testing.assert_close(scores, torch.tensor([0.1]))
    torch.testing.assert_close(parts["tfidf"], scores)
    assert (reward.low, reward.high) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"task": "WOW"}, "expected a task of comet, .* got 'WOW'"),
        ({"task": "wow", "components": ["fluent"]}, "expected parts of .* got fluent"),
        ({"task": "wow", "models": {"safe": "x"}}, "has no part safe"),
        ({"task": "comet"}, "`p_valid_model` is not on the Hub: give the folder"),
        ({"task": "reddit_pos", "models": {"tfidf": "x"}}, "`safe` is not on the Hub"),
        ({"task": "wow"}, "`tfidf` is not on the Hub: give the tfidf.json"),
    ],
)
def test_wrong_names_are_told(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        TaskReward.from_pretrained(**options)
