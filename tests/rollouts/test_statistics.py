"""Means over the last episodes."""

from __future__ import annotations

import pytest

from llm_agents.errors import UserError
from llm_agents.rollouts import EpisodeStatistics
from llm_agents.types import Episode

LONG = Episode(0.5, 1.0, 10, 20, success=True)
SHORT = Episode(0.1, 0.0, 4, 6, success=False, world=2)


def test_means_are_over_the_window_and_the_count_over_the_run() -> None:
    statistics = EpisodeStatistics(window=2)
    assert statistics.summary() == {}
    statistics.add([LONG, LONG, SHORT])
    assert statistics.summary() == pytest.approx(
        {
            "discounted_return_mean": 0.3,
            "return_mean": 0.5,
            "success_rate": 0.5,
            "length_mean": 7.0,
            "primitive_length_mean": 13.0,
            "num_episodes": 3.0,
        }
    )


def test_episodes_that_were_not_played_do_not_count() -> None:
    statistics = EpisodeStatistics(window=32)
    for _ in range(5):
        statistics.add([LONG, SHORT])
    found = statistics.summary()
    assert found["success_rate"] == 0.5, "of 10 episodes, where 5 of 32 would be 0.156"
    assert found["length_mean"] == 7
    statistics.add([])
    assert statistics.summary() == found


def test_a_saved_state_goes_on_alike() -> None:
    one, two = EpisodeStatistics(window=2), EpisodeStatistics(window=2)
    one.add([LONG, SHORT])
    two.load_state_dict(one.state_dict())
    for statistics in (one, two):
        statistics.add([LONG])
    assert one.summary() == two.summary()
    assert two.state_dict() == one.state_dict()


def test_a_window_has_room() -> None:
    with pytest.raises(UserError, match="at least 1, got 0"):
        EpisodeStatistics(window=0)
