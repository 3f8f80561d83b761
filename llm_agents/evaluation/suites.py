"""Suites: one agent in many tests, its success in each with an interval, side by side.

``generalisation`` are GLAM's tests of what an agent can do that it was not trained for (Carta et
al., arXiv 2302.02662, section 4.3): other words in the prompt, other names of the actions, other
tasks, another language. Nothing learns in them. A test is a world that is played, so that results
are those of any evaluation in worlds, with the tests' names in place of the worlds'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, stdev
from types import MappingProxyType
from typing import Final, Literal

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from llm_agents.envs.babyai_prompts import OTHER_SYNONYM_ACTIONS, SYNONYM_ACTIONS, Modification
from llm_agents.errors import UserError
from llm_agents.evaluation.episodes import EpisodeResults, WorldResult
from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean

NO_CHANGE: Final = "no change"
SUITE_KEY: Final = "suite"
"""Where the details of results keep the name of the suite that they are of."""

HOME_KEY: Final = "home"
"""Where they keep the name of the world that the agent was trained in."""

GLAM_CONFIDENCE: Final = 0.99
"""Of the release's intervals, which are normal ones over seeds."""

SuiteName = Literal["generalisation"]


@dataclass(frozen=True)
class SuiteTest:
    """One test of a suite.

    Args:
        name: As tables show it.
        world: What is played; None is the world that the agent was trained in.
        modification: Which words of the prompt are others.
        actions: The actions' other names, in the order of the engine's; none leaves them.
        compared_with: The test that a change is counted from; None for another task.
    """

    name: str
    world: str | None = None
    modification: Modification = "none"
    actions: tuple[str, ...] = ()
    compared_with: str | None = NO_CHANGE

    @property
    def is_another_world(self) -> bool:
        """Return whether an agent that reads nothing can tell the test from no change."""
        return self.modification == "none" and not self.actions


GENERALISATION: Final[tuple[SuiteTest, ...]] = (
    SuiteTest(NO_CHANGE),
    SuiteTest("unseen nouns", modification="other_nouns"),
    SuiteTest("unseen adjectives", modification="other_adjectives"),
    SuiteTest("unseen nouns and adjectives", modification="other_words"),
    SuiteTest("invented nouns", modification="invented_nouns"),
    SuiteTest("invented adjectives", modification="invented_adjectives"),
    SuiteTest("invented words", modification="invented_words"),
    SuiteTest("goal as a wish", modification="speaker_first_person"),
    SuiteTest("goal as an order", modification="agent_first_person"),
    SuiteTest("synonym actions", actions=SYNONYM_ACTIONS),
    SuiteTest("other synonym actions", actions=OTHER_SYNONYM_ACTIONS),
    SuiteTest("mixed tasks", "babyai-mixed-train-local", compared_with=None),
    SuiteTest("mixed tasks, unseen pairs", "babyai-mixed-test-local", compared_with=None),
    SuiteTest("go to", "babyai-go-to-local", compared_with=None),
    SuiteTest("two pick-ups", "babyai-pick-up-seq-pick-up-local", compared_with=None),
    SuiteTest("pick up and go to", "babyai-pick-up-seq-go-to-local", compared_with=None),
    SuiteTest("pick up, then go to", "babyai-pick-up-then-go-to-local", compared_with=None),
    SuiteTest("go to after pick up", "babyai-go-to-after-pick-up-local", compared_with=None),
    SuiteTest("go to, in French", "babyai-go-to-local-french", compared_with="go to"),
)
"""GLAM's tests after training."""

SUITES: Final[Mapping[SuiteName, tuple[SuiteTest, ...]]] = MappingProxyType(
    {"generalisation": GENERALISATION}
)


def suite_tests(suite: SuiteName, home: str, names: Sequence[str] = ()) -> list[SuiteTest]:
    """Return the tests of a suite for an agent that was trained in the world `home`.

    A test of that world itself is the first one, and is left out.

    Args:
        suite: Which suite.
        home: Name of the world.
        names: The tests that are wanted, beside the first; all if empty.

    Raises:
        UserError: There is no test of that name.
    """
    known = [test for test in SUITES[suite] if test.world != home]
    unknown = sorted(set(names) - {test.name for test in known})
    if unknown:
        raise UserError(
            f"expected tests out of {', '.join(test.name for test in known)}, got {unknown[0]!r}"
        )
    return [test for test in known if test.name in (NO_CHANGE, *(names or (test.name,)))]


@dataclass(frozen=True)
class SuiteScore:
    """Success in one test.

    Args:
        test: Name of the test.
        success: Over episodes; over runs as well, if there are several.
        change: Relative change from the test that it is compared with; None where that is 0.
        half_width: Half of GLAM's 99 % interval, a normal one over runs; None for a single run.
        num_runs: Runs that differ in their seed.
    """

    test: str
    success: Interval
    change: float | None
    half_width: float | None = None
    num_runs: int = 1


def suite_scores(runs: Sequence[EpisodeResults], agent: str) -> list[SuiteScore]:
    """Return the success of an agent in every test of a suite, over runs that differ by seed.

    Args:
        runs: Results of one suite, of equally many episodes.
        agent: One of the agents in them; tests that it has not played are left out.

    Raises:
        UserError: There are no runs, or they have played different tests or numbers of episodes.
    """
    if not runs:
        raise UserError("expected at least one run of a suite, got none")
    tests = [entry.world for entry in runs[0].worlds if entry.agent == agent]
    scores: dict[str, SuiteScore] = {}
    for test in tests:
        entries = [_entry(run, test, agent) for run in runs]
        success = entries[0].success
        if len(runs) > 1:
            success = bootstrap_mean(_table(runs, test, agent), runs[0].bootstrap)
        compared = scores.get(_compared_with(runs[0], test) or "")
        change = None
        if compared is not None and compared.success.mean > 0:
            change = success.mean / compared.success.mean - 1
        rates = [entry.success.mean for entry in entries]
        scores[test] = SuiteScore(test, success, change, glam_half_width(rates), len(runs))
    return list(scores.values())


def glam_half_width(rates: Sequence[float]) -> float | None:
    """Return half of the release's interval over runs: z · s / √n at 99 %.

    Args:
        rates: Success of each run.

    Returns:
        None for a single run, whose spread is unknown.

    Example:
        >>> round(glam_half_width([0.8, 0.9]), 4)
        0.1288
    """
    if len(rates) < 2:
        return None
    factor = NormalDist().inv_cdf(0.5 + GLAM_CONFIDENCE / 2)
    return float(factor * stdev(rates) / len(rates) ** 0.5)


def _compared_with(run: EpisodeResults, name: str) -> str | None:
    """Return the test that one is compared with; the agent's own world stands for a test of it."""
    test = next((each for each in GENERALISATION if each.name == name), None)
    wanted = None if test is None else test.compared_with
    other = next((each for each in GENERALISATION if each.name == wanted), None)
    if other is not None and other.world == run.details.get(HOME_KEY):
        return NO_CHANGE
    return wanted


def _entry(run: EpisodeResults, test: str, agent: str) -> WorldResult:
    """Return the numbers of an agent in a test."""
    entry = run.of(test, agent)
    if entry is None:
        raise UserError(f"the suite of `{run.name}` has not played `{test}` with `{agent}`")
    return entry


def _table(runs: Sequence[EpisodeResults], test: str, agent: str) -> torch.Tensor:
    """Return ``[S, N]``: 1 for each success of N episodes of S runs."""
    rows = [
        [
            float(entry.episode.success)
            for entry in run.episodes
            if (entry.world, entry.agent) == (test, agent)
        ]
        for run in runs
    ]
    if len({len(row) for row in rows}) != 1:
        raise UserError(
            f"expected runs with equally many episodes of `{test}`, got {[len(r) for r in rows]}"
        )
    return torch.tensor(rows, dtype=torch.float64)


def suite_agents(results: EpisodeResults) -> list[str]:
    """Return who has played a suite, the agent that it is about first."""
    return list(dict.fromkeys(entry.agent for entry in results.worlds))


def is_suite(results: EpisodeResults) -> bool:
    """Return whether results are those of a suite."""
    return SUITE_KEY in results.details


def scores_by_column(
    groups: Mapping[str, Sequence[EpisodeResults]],
) -> dict[str, list[SuiteScore]]:
    """Return the columns of a table: what each group's agent reached, then those beside the first.

    Args:
        groups: Runs that differ by seed only, by what they have in common.
    """
    columns = {}
    for label, runs in groups.items():
        agent = runs[0].overall.agent
        columns[agent if len(groups) == 1 and len(runs) == 1 else label] = suite_scores(runs, agent)
    first = next(iter(groups.values()))
    for agent in suite_agents(first[0])[1:]:
        columns.setdefault(agent, suite_scores(first, agent))
    return columns


def suite_rows(columns: Mapping[str, Sequence[SuiteScore]]) -> list[list[str]]:
    """Return the rows of a table: a test, then success and change of each column."""
    names = list(dict.fromkeys(score.test for scores in columns.values() for score in scores))
    found = {label: {score.test: score for score in scores} for label, scores in columns.items()}
    return [[name, *(_cell(scores.get(name)) for scores in found.values())] for name in names]


def _cell(score: SuiteScore | None) -> str:
    """Write a success rate, its interval and its change, all in percent."""
    if score is None:
        return "–"
    low, high = (
        100 * (score.success.mean if end is None else end)
        for end in (score.success.low, score.success.high)
    )
    text = f"{100 * score.success.mean:.0f}% [{low:.0f}, {high:.0f}]"
    if score.half_width is not None:  # of several runs
        text += f" ±{100 * score.half_width:.0f}"
    return text if score.change is None else f"{text} ({100 * score.change:+.0f}%)"


def suite_caption(columns: Mapping[str, Sequence[SuiteScore]], bootstrap: BootstrapConfig) -> str:
    """Say what the numbers of a table are."""
    scores = [score for each in columns.values() for score in each]
    num_runs = max(score.num_runs for score in scores)
    over = f"episodes and {num_runs} runs" if num_runs > 1 else "episodes"
    text = f"success [{100 * bootstrap.confidence:g}% interval over {over}]"
    if num_runs > 1:
        text += f" ±half of GLAM's {100 * GLAM_CONFIDENCE:g}% interval over runs"
    return f"{text} (relative change)"


def suite_table(groups: Mapping[str, Sequence[EpisodeResults]], *, title: str) -> Table:
    """Return a table for the terminal: a row a test, a column a group or agent."""
    columns = scores_by_column(groups)
    bootstrap = next(iter(groups.values()))[0].bootstrap
    caption = suite_caption(columns, bootstrap).replace("[", r"\[")
    table = Table(title=title, title_justify="left", caption=caption, box=SIMPLE_HEAD)
    table.add_column("test")
    for label in columns:
        table.add_column(label, justify="right")
    for name, *cells in suite_rows(columns):
        table.add_row(name, *(cell.replace("[", r"\[") for cell in cells))
    return table


def suite_markdown(groups: Mapping[str, Sequence[EpisodeResults]]) -> str:
    """Return the same table in Markdown, with what it shows below it."""
    columns = scores_by_column(groups)
    bootstrap = next(iter(groups.values()))[0].bootstrap
    head = ["test", *columns]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in suite_rows(columns)]
    return "\n".join([*lines, "", suite_caption(columns, bootstrap) + ".", ""])
