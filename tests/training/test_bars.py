"""Bars of what runs reached: answers of policies, agents in worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llm_agents.cli import main
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    Answer,
    BootstrapConfig,
    EpisodeResults,
    Results,
    RewardDescription,
    bootstrap_mean,
    write_results,
)
from llm_agents.evaluation.comparison_bars import plot_bars
from llm_agents.evaluation.episodes import PlayedEpisode, World, summarize_episodes
from llm_agents.training import bars
from llm_agents.types import Episode, GenerationConfig

BOOTSTRAP = BootstrapConfig(samples=100)


def answers(rewards: Sequence[float], version: str = "1") -> Results:
    import torch

    from llm_agents.evaluation import TestSetResult

    mean = bootstrap_mean(torch.tensor(rewards, dtype=torch.float64), BOOTSTRAP)
    test = TestSetResult("held-out", mean, mean, {1: 0.5}, 0, 0, 9, 1.0)
    rows = tuple(
        Answer("held-out", row, (), "", "", reward, 3, 3, is_truncated=False)
        for row, reward in enumerate(rewards)
    )
    described = RewardDescription("toy", version, 0.0, 1.0)
    return Results("x", described, GenerationConfig(), BOOTSTRAP, 0, (test,), rows)


def played(returns: Sequence[float]) -> EpisodeResults:
    def episodes(values: Sequence[float]) -> list[Episode]:
        return [
            Episode(
                discounted_return=value,
                undiscounted_return=value,
                num_decisions=3,
                num_primitive_steps=3,
                success=value > 0.5,
                world=0,
            )
            for value in values
        ]

    world = World("toy-lamp", lambda agent, count, generator: [])
    found = {"trained": episodes(returns), "random": episodes([0.1, 0.2])}
    return EpisodeResults(
        name="x",
        bootstrap=BOOTSTRAP,
        seed=0,
        worlds=tuple(
            summarize_episodes(world, who, each, BOOTSTRAP) for who, each in found.items()
        ),
        episodes=tuple(PlayedEpisode("toy-lamp", who, e) for who, x in found.items() for e in x),
    )


def test_answers_of_two_seeds_are_one_bar(tmp_path: Path) -> None:
    for name, rewards in {"a1": (0.2, 0.4), "a2": (0.4, 0.6), "b": (0.9, 0.7)}.items():
        write_results(tmp_path / name, answers(rewards))
    words = [f"a={tmp_path / 'a1'}", f"a={tmp_path / 'a2'}", f"b={tmp_path / 'b'}"]
    assert main(["plot", *words, "--out", str(tmp_path / "bars.png")]) == 0
    assert (tmp_path / "bars.png").stat().st_size > 3000
    groups = {"a": [tmp_path / "a1", tmp_path / "a2"], "b": [tmp_path / "b"]}
    drawn = bars.answer_panels(groups)
    assert drawn["held-out"]["a"].mean == pytest.approx(0.4)
    assert drawn["held-out"]["b"].mean == pytest.approx(0.8)
    low, high = drawn["held-out"]["a"].low, drawn["held-out"]["a"].high
    assert low is not None
    assert high is not None
    assert low < 0.4 < high


def test_answers_by_two_rewards_are_not_compared(tmp_path: Path) -> None:
    write_results(tmp_path / "a", answers([0.2, 0.4]))
    write_results(tmp_path / "b", answers([0.2, 0.4], version="2"))
    groups = {"a": [tmp_path / "a"], "b": [tmp_path / "b"]}
    with pytest.raises(UserError, match="one reward judged"):
        bars.draw_answers(groups, tmp_path / "bars.png")


def test_agents_stand_beside_those_they_were_compared_with(tmp_path: Path) -> None:
    write_results(tmp_path / "a", played([0.6, 0.8]))
    write_results(tmp_path / "b", played([1.0, 0.2]))
    words = [f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}", "--out", str(tmp_path / "bars.png")]
    assert main(["plot", *words]) == 0
    drawn = bars.play_panels({"a": [tmp_path / "a"], "b": [tmp_path / "b"]})
    returns = drawn["toy-lamp: discounted return"]
    assert {name: round(found.mean, 6) for name, found in returns.items()} == {
        "a": 0.7,
        "b": 0.6,
        "random": 0.15,
    }
    assert drawn["toy-lamp: success"]["b"].mean == 0.5


def test_agents_of_different_worlds_are_not_compared(tmp_path: Path) -> None:
    other = played([0.5])
    elsewhere = replace(
        other, worlds=tuple(replace(entry, world="toy-chest") for entry in other.worlds)
    )
    write_results(tmp_path / "a", other)
    write_results(tmp_path / "b", elsewhere)
    with pytest.raises(UserError, match="a common world"):
        bars.draw_play({"a": [tmp_path / "a"], "b": [tmp_path / "b"]}, tmp_path / "bars.png")


def test_nothing_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected results to draw"):
        plot_bars({}, tmp_path / "bars.png")
