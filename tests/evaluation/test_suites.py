"""Suites: which tests there are, what their tables say, and their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist

import pytest
import torch

from llm_agents.envs.babyai import WORLDS
from llm_agents.envs.babyai_prompts import RELEASE_NAMES
from llm_agents.errors import UserError
from llm_agents.evaluation import EpisodeResults, World, evaluate_agent
from llm_agents.evaluation.episodes import RANDOM, TRAINED
from llm_agents.evaluation.suite_pictures import ProbeCurves, plot_probes, plot_suite, read_probes
from llm_agents.evaluation.suites import (
    GENERALISATION,
    HOME_KEY,
    NO_CHANGE,
    SUITE_KEY,
    glam_half_width,
    scores_by_column,
    suite_markdown,
    suite_scores,
    suite_tests,
)
from llm_agents.types import Agent, Episode

HOME = "babyai-go-to-local"
Outcomes = Mapping[str, Sequence[bool]]


class Named:
    """An agent that only has a name."""

    def __init__(self, name: str) -> None:
        self.name = name


def run(outcomes: Mapping[str, Outcomes], home: str = HOME) -> EpisodeResults:
    """Return results of a suite: of each test, of each agent, whether its episodes succeeded."""

    def world(test: str) -> World:
        def play(agent: Agent, count: int, generator: torch.Generator) -> list[Episode]:
            found = outcomes[test][agent.name]  # type: ignore[attr-defined]
            return [Episode(float(won), float(won), 5, 5, won) for won in found[:count]]

        return World(test, play, is_trained_on=test == NO_CHANGE)

    agents = {name: Named(name) for name in outcomes[NO_CHANGE]}
    return evaluate_agent(
        agents,  # type: ignore[arg-type]  # the worlds know what they do
        [world(test) for test in outcomes],
        1000,
        details={SUITE_KEY: "generalisation", HOME_KEY: home},
    )


def won(share: float, count: int = 10) -> list[bool]:
    return [number < round(share * count) for number in range(count)]


def test_the_suite_has_every_test_of_the_release_and_of_the_paper() -> None:
    changed = {test.modification for test in GENERALISATION}
    assert changed == {*RELEASE_NAMES, "other_words"}
    played = {test.world for test in GENERALISATION} - {None}
    assert played <= set(WORLDS)
    assert {
        "babyai-mixed-test-local",
        "babyai-pick-up-seq-pick-up-local",
        "babyai-pick-up-seq-go-to-local",
        "babyai-pick-up-then-go-to-local",
        "babyai-go-to-after-pick-up-local",
        "babyai-go-to-local-french",
    } <= played
    names = [test.name for test in GENERALISATION]
    assert len(set(names)) == len(names) == 19
    assert all(test.compared_with in (None, *names) for test in GENERALISATION)


def test_the_world_of_the_training_is_tested_once() -> None:
    names = [test.name for test in suite_tests("generalisation", HOME)]
    assert names[0] == NO_CHANGE
    assert "go to" not in names
    assert len(names) == 18
    assert len(suite_tests("generalisation", "babyai-go-to-red-ball")) == 19
    chosen = suite_tests("generalisation", HOME, ["invented words"])
    assert [test.name for test in chosen] == [NO_CHANGE, "invented words"]
    with pytest.raises(UserError, match="got 'go to'"):
        suite_tests("generalisation", HOME, ["go to"])


def test_the_releases_interval() -> None:  # T42
    factor = 2.575829303549
    assert NormalDist().inv_cdf(0.995) == pytest.approx(factor, abs=1e-12)
    assert glam_half_width([0.8, 0.9]) == pytest.approx(factor * (0.005**0.5) / 2**0.5)
    assert glam_half_width([0.8, 0.9]) == pytest.approx(0.1288, abs=5e-5)
    assert glam_half_width([0.8]) is None


def test_changes_are_relative_and_counted_from_the_right_test() -> None:
    shares = {
        NO_CHANGE: 0.8,
        "unseen nouns": 0.6,
        "mixed tasks": 0.5,
        "go to": 0.4,
        "go to, in French": 0.1,
    }
    results = run({test: {TRAINED: won(share)} for test, share in shares.items()}, home="another")
    found = {score.test: score for score in suite_scores([results], TRAINED)}
    assert found["unseen nouns"].change == pytest.approx(0.6 / 0.8 - 1)
    assert found["go to, in French"].change == pytest.approx(0.1 / 0.4 - 1)
    assert found[NO_CHANGE].change is None
    assert found["mixed tasks"].change is None  # another task is no change of this one
    del shares["go to"]
    results = run({test: {TRAINED: won(share)} for test, share in shares.items()})
    found = {score.test: score for score in suite_scores([results], TRAINED)}
    assert found["go to, in French"].change == pytest.approx(0.1 / 0.8 - 1)


def test_nothing_is_compared_with_a_success_of_zero() -> None:
    results = run({NO_CHANGE: {TRAINED: won(0.0)}, "unseen nouns": {TRAINED: won(0.5)}})
    assert [score.change for score in suite_scores([results], TRAINED)] == [None, None]


def test_runs_that_differ_by_seed_are_one_column() -> None:
    first = run({NO_CHANGE: {TRAINED: won(0.8), RANDOM: won(0.2)}})
    second = run({NO_CHANGE: {TRAINED: won(0.9), RANDOM: won(0.2)}})
    (score,) = suite_scores([first, second], TRAINED)
    assert score.success.mean == pytest.approx(0.85)
    assert score.half_width == pytest.approx(0.1288, abs=5e-5)
    assert (score.num_runs, score.success.n) == (2, 20)
    columns = scores_by_column({"glam": [first, second]})
    assert list(columns) == ["glam", RANDOM]
    text = suite_markdown({"glam": [first, second]})
    assert text.splitlines()[0] == "| test | glam | random |"
    assert "±13" in text
    shorter = run({NO_CHANGE: {TRAINED: won(0.5, 4)}})
    with pytest.raises(UserError, match="equally many episodes"):
        suite_scores([first, shorter], TRAINED)


def test_one_run_has_a_column_an_agent() -> None:
    results = run(
        {
            NO_CHANGE: {TRAINED: won(0.8), RANDOM: won(0.2)},
            "unseen nouns": {TRAINED: won(0.4), RANDOM: won(0.2)},
        }
    )
    assert [score.half_width for score in suite_scores([results], TRAINED)] == [None, None]  # T42
    text = suite_markdown({"a": [results]})
    assert text.splitlines()[:4] == [
        "| test | trained | random |",
        "|---|---|---|",
        "| no change | 80% [49, 94] | 20% [6, 51] |",
        "| unseen nouns | 40% [17, 69] (-50%) | 20% [6, 51] (+0%) |",
    ]
    with pytest.raises(UserError, match="has not played"):
        suite_scores([results, run({NO_CHANGE: {TRAINED: won(1.0)}})], RANDOM)
    with pytest.raises(UserError, match="at least one run"):
        suite_scores([], TRAINED)


def test_bars_and_probes_are_drawn(tmp_path: Path) -> None:
    results = run({NO_CHANGE: {TRAINED: won(1.0), RANDOM: won(0.0)}})
    assert plot_suite({"a": [results]}, tmp_path / "a.png", title="t").stat().st_size > 3000
    names = ["step", "1/left", "1/right", "2/left", "2/right"]
    curves = read_probes(names, [["0", "0.5", "0.5", "1", "0"], ["64", "0.25", "0.75", "1", "0"]])
    assert curves.steps == (0.0, 64.0)
    assert curves.probabilities["1"] == {"left": (0.5, 0.25), "right": (0.5, 0.75)}
    drawn = plot_probes([curves, curves], ["go left"], tmp_path / "p.png", title="t")
    assert drawn.stat().st_size > 3000
    other = ProbeCurves((0.0, 32.0), curves.probabilities)
    with pytest.raises(UserError, match="same probes at the same steps"):
        plot_probes([curves, other], [], tmp_path / "q.png", title="t")
    with pytest.raises(UserError, match="at least one row"):
        plot_probes([ProbeCurves((), {})], [], tmp_path / "q.png", title="t")
