"""Pictures of NetHack runs: curves, over published ones too, and what agents reached at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import BootstrapConfig, Interval
from llm_agents.evaluation.nethack import MEASURES
from llm_agents.evaluation.nethack_tables import SHOWN, GroupResult
from llm_agents.evaluation.pictures import (
    Curve,
    band,
    draw_runs,
    marker_of,
    new_figure,
    save_figure,
)
from llm_agents.rewards.motif_results import PublishedCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAPER_STYLE = (0, (4, 2))


def plot_game_curves(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    path: str | Path,
    *,
    title: str = "",
    published: Sequence[PublishedCurve] = (),
    bootstrap: BootstrapConfig | None = None,
) -> Path:
    """Draw learning curves, a panel a measure: the mean over runs with an interval over them.

    Args:
        panels: By what is drawn, runs that differ in their seed only, by what they have in common.
        path: Picture to write; its ending says the format.
        title: Above it.
        published: Curves of a paper, drawn dashed in the first panel, whose steps then are on a
            logarithmic scale.
        bootstrap: How intervals over runs are computed.

    Returns:
        `path`.

    Raises:
        UserError: There is nothing to draw.
    """
    with_points = {
        name: {label: [c for c in curves if c.steps] for label, curves in groups.items()}
        for name, groups in panels.items()
    }
    drawn = {name: groups for name, groups in with_points.items() if any(groups.values())}
    if not drawn:
        raise UserError("expected a run in which a game ended, got none: there is no curve")
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = new_figure(5.2 * len(drawn), 4.4)
    axes = figure.subplots(1, len(drawn), squeeze=False)[0]
    for axis, (name, groups) in zip(axes, drawn.items(), strict=True):
        for index, (label, curves) in enumerate(groups.items()):
            if curves:
                draw_runs(axis, label, curves, f"C{index % 10}", bootstrap or BootstrapConfig())
        axis.set_ylabel(name)
        axis.set_xlabel("frames")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.xaxis.set_major_formatter(EngFormatter())
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    if published:
        _draw_published(axes[0], published, bootstrap or BootstrapConfig())
    figure.suptitle(title, fontsize=11)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return save_figure(figure, path)


def _draw_published(
    axis: Axes, published: Sequence[PublishedCurve], bootstrap: BootstrapConfig
) -> None:
    """Draw a paper's curves, the mean over the seeds of each method."""
    names = dict.fromkeys((curve.task, curve.method) for curve in published)
    tasks = {task for task, _ in names}
    for index, (task, method) in enumerate(names):
        curves = [
            Curve(curve.timesteps, curve.returns, (1.0,) * len(curve.returns))
            for curve in published
            if (curve.task, curve.method) == (task, method)
        ]
        steps, means, lows, highs = band(curves, bootstrap)
        label = method if len(tasks) == 1 and method else f"{task} {method}".strip()
        shade = str(min(0.7, 0.15 + 0.12 * index))
        marker = marker_of(steps)
        name = f"published: {label}"
        axis.plot(steps, means, color=shade, linestyle=_PAPER_STYLE, marker=marker, label=name)
        axis.fill_between(steps, lows, highs, color=shade, alpha=0.12, linewidth=0)
    axis.set_xscale("log")


def plot_games(groups: Sequence[GroupResult], path: str | Path, *, title: str = "") -> Path:
    """Draw what agents reached, a panel a measure, with intervals.

    Args:
        groups: One a kind of agent.
        path: Picture to write.
        title: Above it.

    Returns:
        `path`.
    """
    measures = [m for m in SHOWN if any(m in group.means for group in groups)]
    if not measures:
        raise UserError("expected agents that have played to draw, got none")
    rows = -(-len(measures) // 3)
    figure = new_figure(11, (0.9 + 0.42 * len(groups)) * rows + 0.8)
    axes = figure.subplots(rows, 3, squeeze=False).flatten()
    for axis, measure in zip(axes, measures, strict=False):
        for row, group in enumerate(groups):
            _draw_mean(axis, row, group.means.get(measure))
        axis.set_yticks(range(len(groups)), [group.label for group in groups], fontsize=8)
        axis.set_ylim(len(groups) - 0.5, -0.5)
        axis.set_title(MEASURES[measure], fontsize=9)
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(measures) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def _draw_mean(axis: Axes, row: int, mean: Interval | None) -> None:
    """Draw a mean with its interval as a bar in a row."""
    if mean is None:
        return
    low = mean.mean if mean.low is None else mean.low
    high = mean.mean if mean.high is None else mean.high
    spread = [[max(0.0, mean.mean - low)], [max(0.0, high - mean.mean)]]
    axis.barh(row, mean.mean, height=0.6, color=f"C{row % 10}", alpha=0.75)
    axis.errorbar(mean.mean, row, xerr=spread, fmt="none", color="0.2", capsize=3)
