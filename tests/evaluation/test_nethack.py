"""Results of NetHack agents: numbers, tables, pictures, and runs compared."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from llm_agents.errors import UserError
from llm_agents.evaluation import (
    BootstrapConfig,
    Curve,
    GamesResults,
    compare_games,
    evaluate_games,
    print_table,
    read_any_results,
    read_games_results,
    write_results,
)
from llm_agents.evaluation.nethack import MEASURES
from llm_agents.evaluation.nethack_pictures import plot_game_curves, plot_games
from llm_agents.evaluation.nethack_tables import comparison_tables, pair_differences
from llm_agents.policies.nethack_types import PlayedGame
from llm_agents.rewards.motif_results import PublishedCurve

TASK = "NetHackScore-v1"
GAME = PlayedGame(
    score=10,
    episode_return=9.5,
    intrinsic_return=2.0,
    num_steps=100,
    turns=80,
    depth=1,
    max_depth=2,
    experience_level=1,
    gold=5,
    num_messages=20,
    explored=300,
    end="death",
    success=False,
    seed=1,
    number=0,
)


def games(scores: Sequence[int], **more: float) -> list[PlayedGame]:
    return [replace(GAME, score=score, number=n, **more) for n, score in enumerate(scores)]


def results(
    trained: Sequence[int], random: Sequence[int] = (0, 2, 4), *, seed: int = 0, name: str = "a"
) -> GamesResults:
    players = {"trained": lambda n: games(trained[:n]), "random": lambda n: games(random[:n])}
    return evaluate_games(
        {TASK: players}, 3, has_intrinsic=True, name=name, seed=seed, details={"method": "motif"}
    )


def test_means_are_those_of_the_games() -> None:
    found = results([10, 20, 30])
    overall = found.overall
    assert (overall.task, overall.agent, overall.num_games) == (TASK, "trained", 3)
    assert found.overall.means["score"].mean == 20
    assert found.overall.means["score"].std == 10
    assert found.results[1].means["score"].mean == 2
    assert set(found.overall.means) == set(MEASURES)
    assert found.overall.deaths.mean == 1
    assert found.overall.success.high is not None
    assert found.overall.success.high < 0.6  # Wilson's, of none in three
    assert found.values(TASK, "random", "score") == [0, 2, 4]


def test_without_a_reward_there_is_no_intrinsic_return() -> None:
    found = evaluate_games(
        {TASK: {"trained": lambda n: games([1] * n)}}, 2, has_intrinsic=False, name="a", seed=0
    )
    assert "intrinsic_return" not in found.overall.means


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = results([10, 20, 30])
    write_results(tmp_path, found)
    assert read_games_results(tmp_path) == found
    assert read_any_results(tmp_path) == found
    text = (tmp_path / "results.json").read_text()
    (tmp_path / "results.json").write_text(text.replace('"score"', '"scores"'))
    with pytest.raises(UserError, match="are damaged"):
        read_games_results(tmp_path)


def shown(what: object) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    if isinstance(what, GamesResults):
        print_table(what, console)
    else:
        console.print(what)
    return console.export_text()


def test_the_table_has_a_column_an_agent() -> None:
    text = shown(results([10, 20, 30]))
    assert "a: NetHackScore-v1" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("score"))
    assert row.split()[1] == "20.0"
    assert row.split()[4] == "2.0"


def test_runs_of_one_kind_are_resampled_over_games_and_runs() -> None:
    same = [results([10, 10, 10], seed=0), results([30, 30, 30], seed=0)]
    (group, baseline) = compare_games({"both": same}, task=TASK)
    assert (group.num_runs, group.num_games) == (2, 6)
    mean = group.means["score"]
    assert mean.mean == 20
    assert (mean.low, mean.high) == (10, 30)  # two seeds that differ: all the width is theirs
    difference = group.differences["score"]
    assert difference.mean == 18
    assert difference.excludes(0)
    assert (baseline.label, baseline.num_runs) == ("random", 1)  # the same games in both runs
    assert not baseline.differences
    options = {"task": TASK, "baseline": "random", "bootstrap": BootstrapConfig()}
    text = shown(comparison_tables([group, baseline], {}, **options))
    assert "minus random" in text
    assert "+18.0" in text


def test_groups_are_subtracted_game_by_game_and_seed_by_seed() -> None:
    found = pair_differences(
        {
            "score": [results([1, 2, 3]), results([5, 5, 5])],
            "both": [results([2, 3, 4]), results([8, 8, 8])],
            "one seed": [results([9, 9, 9])],
        },
        task=TASK,
    )
    assert set(found) == {"both − score"}  # the third has another number of runs
    difference = found["both − score"]["score"]
    assert difference.mean == 2
    assert (difference.low, difference.high) == (1, 3)
    assert found["both − score"]["intrinsic_return"].mean == 0


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(UserError, match="has not played `other`"):
        compare_games({"a": [results([1, 2, 3])]}, task="other")
    uneven = evaluate_games(
        {TASK: {"trained": lambda n: games([1] * n)}}, 2, has_intrinsic=True, name="b", seed=0
    )
    with pytest.raises(UserError, match=r"equally many games, got \[3, 2\]"):
        compare_games({"a": [results([1, 2, 3]), uneven]}, task=TASK)


def test_pictures_are_drawn_with_published_curves_below(tmp_path: Path) -> None:
    curve = Curve((100.0, 200.0), (1.0, 2.0), (1.0, 1.0))
    published = [
        PublishedCurve(TASK, method, seed, (1e6, 2e6), (10.0, 20.0 + seed))
        for method in ("motif", "extrinsic")
        for seed in (0, 1)
    ]
    panels = {"score": {"both": [curve, curve], "none": []}, "depth": {"both": [Curve((), (), ())]}}
    path = plot_game_curves(panels, tmp_path / "a.png", published=published)
    assert path.stat().st_size > 10_000
    group = compare_games({"both": [results([1, 2, 3])]}, task=TASK)
    assert plot_games(group, tmp_path / "b.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="there is no curve"):
        plot_game_curves({"score": {"a": []}}, tmp_path / "c.png")
