"""Pictures of online runs: learning curves, action probabilities, credit of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import BootstrapConfig, bootstrap_mean
from llm_agents.whole_files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_STYLES = ((0, (1, 1)), (0, (4, 2)), (0, (6, 2, 1, 2)), "solid")
_MAX_PANELS = 12
_GRID_POINTS = 120


@dataclass(frozen=True)
class Curve:
    """What one run reached, by steps taken.

    Args:
        steps: Ascending.
        values: One a step, such as the mean return of the episodes that ended.
        weights: Episodes behind each value.
    """

    steps: tuple[float, ...]
    values: tuple[float, ...]
    weights: tuple[float, ...]

    def smoothed(self, window: float) -> Curve:
        """Return the weighted mean over the last `window` steps at each step."""
        values, totals = [], []
        start = 0
        for index, step in enumerate(self.steps):
            while self.steps[start] <= step - window:
                start += 1
            weights = self.weights[start : index + 1]
            total = sum(weights)
            pairs = zip(weights, self.values[start : index + 1], strict=True)
            values.append(sum(weight * value for weight, value in pairs) / total)
            totals.append(total)
        return Curve(self.steps, tuple(values), tuple(totals))


def read_curve(
    rows: Sequence[Mapping[str, float]],
    *,
    value: str = "rollout/return_mean",
    weight: str = "rollout/episodes",
    step: str = "step",
) -> Curve:
    """Return the curve of a run from the rows of its ``metrics.csv``; rows without it are skipped.

    Args:
        rows: One a step, as `llm_agents.training.metrics.read_rows` gives them.
        value: Name of what is drawn.
        weight: Name of the number of episodes behind it; 1 where it is not logged.
        step: Name of the steps.
    """
    found = [row for row in rows if value in row and row.get(weight, 1.0) > 0]
    return Curve(
        steps=tuple(row[step] for row in found),
        values=tuple(row[value] for row in found),
        weights=tuple(row.get(weight, 1.0) for row in found),
    )


@dataclass(frozen=True)
class DecisionPicture:
    """What agents think of the actions at one step of an episode.

    Args:
        title: Names the situation.
        actions: Texts of the admissible actions.
        probabilities: By the agent's name, one a action.
        chosen: Position of the action that was taken.
    """

    title: str
    actions: tuple[str, ...]
    probabilities: Mapping[str, tuple[float, ...]]
    chosen: int


@dataclass(frozen=True)
class CreditPicture:
    """Which part of an action got which advantage.

    Args:
        title: Names the situation.
        tokens: The action's parts as text: tokens, or all of it where it is one unit.
        advantages: One a part.
    """

    title: str
    tokens: tuple[str, ...]
    advantages: tuple[float, ...]


def plot_curves(
    groups: Mapping[str, Sequence[Curve]],
    path: str | Path,
    *,
    lines: Mapping[str, float] | None = None,
    label: str = "discounted return",
    title: str = "",
    window: float = 1.0,
    bootstrap: BootstrapConfig | None = None,
) -> Path:
    """Draw learning curves: the mean over the runs of each group, with an interval over them.

    Args:
        groups: Runs that differ in their seed only, by what they have in common.
        path: Picture to write; its ending says the format.
        lines: Levels to compare with, such as those of the optimum and of a random agent.
        label: What is drawn.
        title: Above it.
        window: Steps over which each run is averaged.
        bootstrap: How intervals over runs are computed.

    Returns:
        `path`.
    """
    drawn = {name: [c for c in curves if c.steps] for name, curves in groups.items()}
    if not any(drawn.values()):
        raise UserError("expected a run in which an episode ended, got none: there is no curve")
    figure = new_figure(8, 4.6)
    axis = figure.subplots()
    for index, (name, curves) in enumerate(entry for entry in drawn.items() if entry[1]):
        smooth = [curve.smoothed(window) for curve in curves]
        draw_runs(axis, name, smooth, f"C{index % 10}", bootstrap or BootstrapConfig())
    for index, (name, level) in enumerate((lines or {}).items()):
        style = _LINE_STYLES[index % len(_LINE_STYLES)]
        axis.axhline(level, color="0.35", linewidth=1, linestyle=style, label=name)
    axis.set_xlabel("decisions in the world")
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return save_figure(figure, path)


def draw_runs(
    axis: Axes, name: str, curves: Sequence[Curve], color: str, bootstrap: BootstrapConfig
) -> None:
    """Draw runs that differ in seed only: each, and their mean with an interval if there are more.

    Args:
        axis: To draw on.
        name: Of the runs, in the legend.
        curves: At least one, each with a point.
        color: Of all of them.
        bootstrap: How intervals over runs are computed.
    """
    several = len(curves) > 1
    for curve in curves:
        width, alpha = (0.7, 0.35) if several else (1.8, 1.0)
        marker = marker_of(curve.steps)
        axis.plot(
            curve.steps, curve.values, color=color, linewidth=width, alpha=alpha, marker=marker
        )
    if several:
        steps, means, lows, highs = band(curves, bootstrap)
        axis.plot(steps, means, color=color, linewidth=1.8, marker=marker_of(steps))
        axis.fill_between(steps, lows, highs, color=color, alpha=0.2, linewidth=0)
    axis.plot([], [], color=color, label=f"{name} ({len(curves)} seeds)" if several else name)


def marker_of(steps: Sequence[float]) -> str | None:
    """Return the marker of a curve: a line through one place can't be seen."""
    return "o" if len(set(steps)) == 1 else None


def band(
    curves: Sequence[Curve], bootstrap: BootstrapConfig
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return steps, means over runs, and both ends of their intervals, where all runs have data."""
    start = max(curve.steps[0] for curve in curves)
    end = min(curve.steps[-1] for curve in curves)
    steps = torch.linspace(start, max(start, end), _GRID_POINTS, dtype=torch.float64).tolist()
    means, lows, highs = [], [], []
    for step in steps:
        values = torch.tensor([_value_at(curve, step) for curve in curves], dtype=torch.float64)
        interval = bootstrap_mean(values, bootstrap)
        means.append(interval.mean)
        lows.append(interval.mean if interval.low is None else interval.low)
        highs.append(interval.mean if interval.high is None else interval.high)
    return steps, means, lows, highs


def _value_at(curve: Curve, step: float) -> float:
    """Return the last value that a run had reached at a step."""
    steps = torch.tensor(curve.steps, dtype=torch.float64)
    index = int(torch.searchsorted(steps, step, right=True)) - 1
    return curve.values[max(0, index)]


def plot_decisions(decisions: Sequence[DecisionPicture], path: str | Path) -> Path:
    """Draw the probability of every admissible action at the first steps of an episode.

    Args:
        decisions: One a step.
        path: Picture to write.

    Returns:
        `path`.
    """
    shown = list(decisions)[:_MAX_PANELS]
    if not shown:
        raise UserError("expected at least one decision to draw, got none")
    heights = [len(entry.actions) + 1.4 + 0.7 * entry.title.count("\n") for entry in shown]
    figure = new_figure(8, 0.26 * sum(heights) + 0.8)
    axes = figure.subplots(len(shown), 1, height_ratios=heights, squeeze=False)[:, 0]
    for entry, axis in zip(shown, axes, strict=True):
        _draw_decision(axis, entry)
    axes[-1].set_xlabel("probability")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return save_figure(figure, path)


def _draw_decision(axis: Axes, entry: DecisionPicture) -> None:
    """Draw the bars of one step."""
    width = 0.8 / len(entry.probabilities)
    for index, (name, values) in enumerate(entry.probabilities.items()):
        offset = (index - (len(entry.probabilities) - 1) / 2) * width
        rows = [row + offset for row in range(len(values))]
        axis.barh(rows, values, height=width, color=f"C{index % 10}", label=name)
    marked = [
        f"→ {action}" if index == entry.chosen else action
        for index, action in enumerate(entry.actions)
    ]
    axis.set_yticks(range(len(entry.actions)), marked, fontsize=8)
    axis.set_ylim(len(entry.actions) - 0.5, -0.5)
    axis.set_xlim(0, 1)
    axis.set_title(entry.title, fontsize=8, loc="left")
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def plot_credit(credits_: Sequence[CreditPicture], path: str | Path) -> Path:
    """Draw the advantage of each part of the actions of an episode, one action a row.

    Args:
        credits_: One an action.
        path: Picture to write.

    Returns:
        `path`.
    """
    shown = list(credits_)[:_MAX_PANELS]
    if not shown:
        raise UserError("expected at least one action to draw, got none")
    columns = max(len(entry.tokens) for entry in shown)
    limit = max(max(abs(v) for v in entry.advantages) for entry in shown) or 1.0
    width = max(4.5, 2.6 + 1.05 * columns)
    figure = new_figure(width, 1.3 + 0.55 * len(shown))
    axis = figure.subplots()
    table = torch.full((len(shown), columns), float("nan"))
    for row, entry in enumerate(shown):
        table[row, : len(entry.advantages)] = torch.tensor(entry.advantages)
        for column, (token, value) in enumerate(zip(entry.tokens, entry.advantages, strict=True)):
            color = "white" if abs(value) > 0.6 * limit else "black"
            text = f"{token.strip() or '␣'}\n{value:+.3f}"
            axis.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    image = axis.imshow(table.numpy(), cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    axis.set_xticks([])
    axis.set_yticks(range(len(shown)), [entry.title for entry in shown], fontsize=8)
    axis.set_frame_on(False)
    axis.set_title(f"advantage of each {'action' if columns == 1 else 'part'}", fontsize=9)
    figure.colorbar(image, ax=axis, label="advantage", shrink=0.8)
    return save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure under a temporary name and rename it."""
    path = Path(path)
    write_whole(path, lambda file: figure.savefig(file, dpi=150, format=path.suffix[1:] or "png"))
    return path
