"""Results of NetHack agents as tables: one run, and several runs with their seeds together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import (
    BootstrapConfig,
    Interval,
    bootstrap_mean,
    format_interval,
)
from llm_agents.evaluation.nethack import MEASURES, GamesResult, GamesResults

SHOWN = (
    "score",
    "intrinsic_return",
    "max_depth",
    "experience_level",
    "num_messages",
    "gold",
    "num_steps",
)
_MOST_WIDE = 2  # columns whose means and intervals stand on one line
_DIGITS = {"num_steps": 0, "explored": 0, "turns": 0, "num_messages": 1, "score": 1, "gold": 1}


def games_table(results: GamesResults) -> Group:
    """Return a table a task: one column for each agent that played it."""
    tables = []
    for task in dict.fromkeys(entry.task for entry in results.results):
        entries = [entry for entry in results.results if entry.task == task]
        columns = {f"{entry.agent}\nn = {entry.num_games:,}": entry.means for entry in entries}
        tables.append(_table(f"{results.name}: {task}", columns))
    tables[-1].caption = _caption(results.bootstrap, "games")
    tables[-1].caption_justify = "left"
    return Group(*tables)


@dataclass(frozen=True)
class GroupResult:
    """Runs that differ in their seed only.

    Args:
        label: What they have in common.
        num_runs: How many there are.
        num_games: Games of all together.
        means: Of each of `MEASURES`, with intervals over games and runs.
        differences: Of each, minus the baseline's.
    """

    label: str
    num_runs: int
    num_games: int
    means: Mapping[str, Interval]
    differences: Mapping[str, Interval]


def compare_games(
    groups: Mapping[str, Sequence[GamesResults]], *, task: str, baseline: str = "random"
) -> list[GroupResult]:
    """Return the numbers of groups of runs in a task, and of the baseline that played beside them.

    Games and runs are resampled apart, so that few seeds make wide intervals. Runs of one group
    must have played equally many games; those of a difference are the same ones in both terms.

    Args:
        groups: Runs that differ in seed only, by what they have in common.
        task: What was played.
        baseline: Agent that others are compared with.

    Raises:
        UserError: A run has not played the task, or another number of games.
    """
    everything = [results for runs in groups.values() for results in runs]
    if not everything:
        raise UserError("expected at least one run to compare, got none")
    bootstrap = everything[0].bootstrap
    played: dict[str, list[GamesResults]] = {label: list(runs) for label, runs in groups.items()}
    found = []
    for label, runs in played.items():
        found.append(_group(label, runs, task, runs[0].overall.agent, baseline, bootstrap))
    with_baseline = [r for r in everything if r.values(task, baseline, "score")]
    if with_baseline:
        # Runs of one evaluation seed share the baseline's games: count those once.
        seeds = {results.seed: results for results in with_baseline}
        found.append(_group(baseline, list(seeds.values()), task, baseline, None, bootstrap))
    return found


def pair_differences(
    groups: Mapping[str, Sequence[GamesResults]], *, task: str
) -> dict[str, dict[str, Interval]]:
    """Return by how much each group of runs surpasses those before it, measure by measure.

    Runs are paired in their order, and games by their place: give seeds in one order. Groups with
    other numbers of runs or games are left out.

    Args:
        groups: Runs that differ in seed only, by what they have in common.
        task: What was played.
    """
    found: dict[str, dict[str, Interval]] = {}
    labels = list(groups)
    for place, label in enumerate(labels):
        for other in labels[:place]:
            pair = {}
            for measure in SHOWN:
                ours, theirs = (
                    _values(name, groups[name], task, measure) for name in (label, other)
                )
                if ours is not None and theirs is not None and ours.shape == theirs.shape:
                    bootstrap = groups[label][0].bootstrap
                    pair[measure] = bootstrap_mean(ours - theirs, bootstrap)
            if pair:
                found[f"{label} − {other}"] = pair
    return found


def _values(
    label: str, runs: Sequence[GamesResults], task: str, measure: str
) -> torch.Tensor | None:
    """Return ``[S, N]`` values of what runs are about; None where they lack the measure."""
    agent = runs[0].overall.agent
    if not all(measure in entry.means for entry in _entries(runs, task, agent)):
        return None
    return _matrix(label, runs, task, agent, measure)


def _group(
    label: str,
    runs: Sequence[GamesResults],
    task: str,
    agent: str,
    baseline: str | None,
    bootstrap: BootstrapConfig,
) -> GroupResult:
    """Return the numbers of one group."""
    means, differences = {}, {}
    num_games = 0
    for measure in MEASURES:
        if not all(measure in entry.means for entry in _entries(runs, task, agent)):
            continue
        values = _matrix(label, runs, task, agent, measure)
        num_games = values.numel()
        means[measure] = bootstrap_mean(values, bootstrap)
        if baseline is not None and all(run.values(task, baseline, measure) for run in runs):
            others = _matrix(label, runs, task, baseline, measure)
            if others.shape == values.shape:
                differences[measure] = bootstrap_mean(values - others, bootstrap)
    return GroupResult(label, len(runs), num_games, means, differences)


def _entries(runs: Sequence[GamesResults], task: str, agent: str) -> list[GamesResult]:
    """Return an agent's entry in each run."""
    found = []
    for run in runs:
        entry = next((e for e in run.results if (e.task, e.agent) == (task, agent)), None)
        if entry is None:
            raise UserError(f"the run `{run.name}` has not played `{task}` with `{agent}`")
        found.append(entry)
    return found


def _matrix(
    label: str, runs: Sequence[GamesResults], task: str, agent: str, measure: str
) -> torch.Tensor:
    """Return ``[S, N]`` values of N games of S runs."""
    rows = [run.values(task, agent, measure) for run in runs]
    if len({len(row) for row in rows}) != 1:
        raise UserError(
            f"expected runs of `{label}` with equally many games, got {[len(row) for row in rows]}"
        )
    return torch.tensor(rows, dtype=torch.float64)


def comparison_tables(
    groups: Sequence[GroupResult],
    pairs: Mapping[str, Mapping[str, Interval]],
    *,
    task: str,
    baseline: str,
    bootstrap: BootstrapConfig,
) -> Group:
    """Return the groups' numbers as a table, and differences from the baseline and from others.

    Args:
        groups: As `compare_games` gives them.
        pairs: As `pair_differences` gives them.
        task: What was played.
        baseline: Agent that played beside all of them.
        bootstrap: How the intervals were computed.
    """
    columns = {_heading(group): group.means for group in groups}
    numbers = _table(task, columns)
    numbers.caption = _caption(bootstrap, "games and runs")
    numbers.caption_justify = "left"
    compared = {_heading(group): group.differences for group in groups if group.differences}
    tables = [numbers]
    if compared:
        tables.append(_table(f"{task}: minus {baseline}", compared, signed=True))
    if pairs:
        tables.append(_table(f"{task}: differences", pairs, signed=True))
    if len(tables) > 1:
        tables[-1].caption = "bold: the interval excludes zero"
        tables[-1].caption_justify = "left"
    return Group(*tables)


def _heading(group: GroupResult) -> str:
    """Return the heading of a group's column."""
    runs = f", {group.num_runs} runs" if group.num_runs > 1 else ""
    return f"{group.label}\nn = {group.num_games:,}{runs}"


def _table(
    title: str, columns: Mapping[str, Mapping[str, Interval]], *, signed: bool = False
) -> Table:
    """Return a table with a row for each measure that is shown."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for heading in columns:
        table.add_column(heading, justify="right")
    for measure in SHOWN:
        if any(measure in means for means in columns.values()):
            found = (means.get(measure) for means in columns.values())
            separator = "\n" if len(columns) > _MOST_WIDE else " "  # else it breaks anywhere
            cells = (_cell(measure, mean, separator, signed=signed) for mean in found)
            table.add_row(MEASURES[measure], *cells)
    return table


def _cell(measure: str, mean: Interval | None, separator: str, *, signed: bool) -> Text:
    """Return a mean with its interval; a difference that is not zero stands out."""
    if mean is None:
        return Text("–")
    text = format_interval(mean, _DIGITS.get(measure, 2), signed=signed)
    text = text.replace(" ", separator, 1)
    return Text(text, style="bold" if signed and mean.excludes(0.0) else "")


def _caption(bootstrap: BootstrapConfig, over: str) -> str:
    """Say what the intervals are."""
    return f"mean \\[{100 * bootstrap.confidence:g}% interval over n {over}]"
