"""Pictures of GLAM's experiments: success in each test of a suite, and a policy as it develops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_agents.errors import UserError
from llm_agents.evaluation.episodes import EpisodeResults
from llm_agents.evaluation.intervals import Interval
from llm_agents.evaluation.pictures import marker_of, new_figure, save_figure
from llm_agents.evaluation.suites import scores_by_column

_COLUMNS = 3


def plot_suite(
    groups: Mapping[str, Sequence[EpisodeResults]], path: str | Path, *, title: str
) -> Path:
    """Draw bars: success in each test, for each group or agent, with intervals.

    Args:
        groups: Runs that differ by seed only, by what they have in common.
        path: Picture to write; its ending says the format.
        title: Above it.

    Returns:
        `path`.
    """
    columns = scores_by_column(groups)
    names = list(dict.fromkeys(score.test for scores in columns.values() for score in scores))
    figure = new_figure(8, 1.2 + 0.24 * len(names) * len(columns))
    axis = figure.subplots()
    width = 0.8 / len(columns)
    for index, (label, scores) in enumerate(columns.items()):
        offset = (index - (len(columns) - 1) / 2) * width
        rows = [names.index(score.test) + offset for score in scores]
        ends = [_distances(score.success) for score in scores]
        axis.barh(
            rows,
            [score.success.mean for score in scores],
            height=width,
            xerr=[[low for low, _ in ends], [high for _, high in ends]],
            color=f"C{index % 10}",
            error_kw={"linewidth": 0.8, "capsize": 1.5},
            label=label,
        )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(0, 1)
    axis.set_xlabel("success rate")
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return save_figure(figure, path)


def _distances(interval: Interval) -> tuple[float, float]:
    """Return how far the ends of an interval are from its mean."""
    low = interval.mean if interval.low is None else min(interval.low, interval.mean)
    high = interval.mean if interval.high is None else max(interval.high, interval.mean)
    return interval.mean - low, high - interval.mean


@dataclass(frozen=True)
class ProbeCurves:
    """The action probabilities of a run in fixed situations.

    Args:
        steps: Decisions that the weights had learnt from, ascending.
        probabilities: One a step, for each situation and action: ``[situation][action][step]``.
    """

    steps: tuple[float, ...]
    probabilities: Mapping[str, Mapping[str, tuple[float, ...]]]


def read_probes(names: Sequence[str], rows: Sequence[Sequence[str]]) -> ProbeCurves:
    """Return the curves of a run from the columns and rows of its ``probes.csv``.

    Args:
        names: ``step``, then ``situation/action`` for each probability.
        rows: Numbers as text.
    """
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for column, name in enumerate(names[1:], start=1):
        situation, _, action = name.partition("/")
        found.setdefault(situation, {})[action] = tuple(float(row[column]) for row in rows)
    return ProbeCurves(tuple(float(row[0]) for row in rows), found)


def plot_probes(
    runs: Sequence[ProbeCurves], titles: Sequence[str], path: str | Path, *, title: str
) -> Path:
    """Draw how a policy develops: a panel a situation, a line an action, the mean over runs.

    Args:
        runs: Runs that differ by seed only; what all of them have reached is drawn.
        titles: What each situation asks, in order.
        path: Picture to write.
        title: Above it.

    Returns:
        `path`.

    Raises:
        UserError: There is nothing to draw, or the runs have other situations or steps.
    """
    if not runs or not all(run.steps for run in runs):
        raise UserError("expected runs with at least one row of probes, got none")
    count = min(len(run.steps) for run in runs)
    first = runs[0]
    for run in runs[1:]:
        if _layout(run) != _layout(first) or run.steps[:count] != first.steps[:count]:
            raise UserError(
                "expected runs with the same probes at the same steps: draw each by itself"
            )
    panels = len(first.probabilities)
    lines = -(-panels // _COLUMNS)
    figure = new_figure(3.4 * min(panels, _COLUMNS), 1.0 + 2.2 * lines)
    axes = figure.subplots(lines, min(panels, _COLUMNS), squeeze=False, sharex=True, sharey=True)
    for index, (situation, actions) in enumerate(first.probabilities.items()):
        axis = axes.flat[index]
        for color, action in enumerate(actions):
            curves = [run.probabilities[situation][action][:count] for run in runs]
            means = [sum(values) / len(runs) for values in zip(*curves, strict=True)]
            steps = first.steps[:count]
            style = {"color": f"C{color % 10}", "marker": marker_of(steps)}
            axis.plot(steps, means, label=action, **style)
        axis.set_title(titles[index] if index < len(titles) else situation, fontsize=8)
        axis.set_ylim(0, 1)
        if index + _COLUMNS >= panels:  # nothing is drawn below it
            axis.set_xlabel("decisions in the world", fontsize=8)
            axis.tick_params(labelbottom=True)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    figure.supylabel("probability", fontsize=9)
    figure.suptitle(title, fontsize=11)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return save_figure(figure, path)


def _layout(run: ProbeCurves) -> list[tuple[str, list[str]]]:
    """Return situations and actions."""
    return [(name, list(actions)) for name, actions in run.probabilities.items()]
