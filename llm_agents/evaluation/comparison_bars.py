"""Bars with intervals, a panel for each thing that is compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import Interval
from llm_agents.evaluation.pictures import new_figure, save_figure


def plot_bars(
    panels: Mapping[str, Mapping[str, Interval]], path: str | Path, *, title: str = ""
) -> Path:
    """Draw means as horizontal bars with their intervals.

    A name has the same color in every panel, and the number beside a bar is its mean.

    Args:
        panels: By heading, then by name.
        path: Picture to write; its ending says the format.
        title: Above all.

    Returns:
        `path`.

    Raises:
        UserError: There is nothing to draw.
    """
    names = list(dict.fromkeys(name for bars in panels.values() for name in bars))
    if not names:
        raise UserError("expected results to draw, got none")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(5.5 * columns, rows * (0.9 + 0.42 * len(names)) + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, (heading, bars) in zip(axes, panels.items(), strict=False):
        for row, (name, found) in enumerate(bars.items()):
            low = found.mean if found.low is None else min(found.low, found.mean)
            high = found.mean if found.high is None else max(found.high, found.mean)
            color = f"C{names.index(name) % 10}"
            axis.barh(row, found.mean, height=0.6, color=color, alpha=0.75)
            spread = [[found.mean - low], [high - found.mean]]
            axis.errorbar(found.mean, row, xerr=spread, fmt="none", color="0.2", capsize=3)
            axis.annotate(
                f"{found.mean:.3g} ",
                (0, row),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axis.set_yticks(range(len(bars)), [f"{name} (n={bars[name].n:,})" for name in bars])
        axis.tick_params(axis="y", labelsize=8)
        axis.set_ylim(len(bars) - 0.5, -0.5)
        axis.axvline(0, color="0.6", linewidth=0.8)
        axis.set_title(heading, fontsize=9)
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)
