"""Results of every kind: as a table in the terminal, as a picture, and in their folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table

from llm_agents.errors import UserError
from llm_agents.evaluation.comparison import PairedDifference
from llm_agents.evaluation.episode_tables import episodes_table
from llm_agents.evaluation.episodes import (
    EpisodeResults,
    read_episode_results,
    write_episode_results,
)
from llm_agents.evaluation.intervals import Interval, format_interval
from llm_agents.evaluation.message_reward import (
    MessageRewardResults,
    message_reward_table,
    read_message_reward_results,
    write_message_reward_results,
)
from llm_agents.evaluation.nethack import GamesResults, read_games_results, write_games_results
from llm_agents.evaluation.nethack_tables import games_table
from llm_agents.evaluation.pictures import save_figure
from llm_agents.evaluation.results import (
    Results,
    TestSetResult,
    kind_of_results,
    read_results,
    results_path,
)
from llm_agents.evaluation.results import write_results as write_numbers
from llm_agents.evaluation.reward_model import (
    RewardResults,
    read_reward_results,
    write_reward_results,
)

AnyResults = Results | RewardResults | EpisodeResults | MessageRewardResults | GamesResults

__all__ = [
    "AnyResults",
    "comparison_table",
    "format_interval",
    "plot_results",
    "print_table",
    "read_any_results",
    "results_table",
    "write_results",
]


def print_table(
    results: AnyResults | Sequence[Results],
    console: Console | None = None,
) -> None:
    """Print one row a test set or world, for each of the results."""
    table: Table | Group
    if isinstance(results, EpisodeResults):
        table = episodes_table(results)
    elif isinstance(results, RewardResults):
        table = agreement_table(results)
    elif isinstance(results, MessageRewardResults):
        table = message_reward_table(results)
    elif isinstance(results, GamesResults):
        table = games_table(results)
    else:
        table = results_table(results)
    (console or Console()).print(table)


def agreement_table(results: RewardResults) -> Table:
    """Return a table of a reward's agreement with people and stored scores."""
    confidence = f"{100 * results.bootstrap.confidence:g}%"
    table = Table(
        title=f"reward: {results.reward.name}",
        title_justify="left",
        caption=f"[{confidence} bootstrap interval over n prompts]",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("test set")
    for column in ("n", "pairs right", "as stored", "correlation"):
        table.add_column(column, justify="right")
    for test in results.tests:
        numbers = (test.pair_accuracy, test.pair_agreement, test.correlation)
        cells = ("–" if entry is None else format_interval(entry, 3) for entry in numbers)
        table.add_row(test.name, f"{test.num_prompts:,}", *cells)
    return table


def results_table(results: Results | Sequence[Results]) -> Table:
    """Return a table of one row a test set, for each of the results."""
    entries = [results] if isinstance(results, Results) else list(results)
    if not entries:
        raise UserError("expected at least one evaluation to show, got none")
    kinds = {(entry.reward.name, entry.reward.version) for entry in entries}
    confidences = {f"{100 * entry.bootstrap.confidence:g}%" for entry in entries}
    caption = (
        f"mean [{'/'.join(sorted(confidences))} bootstrap interval over n prompts]; cut = met the "
    )
    caption += "limit of new tokens"
    if len(kinds) > 1:
        caption += "; rewards of different models may not be compared"
    title = f"reward: {', '.join(sorted(name for name, _ in kinds))}"
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
    )
    if len(entries) > 1:
        table.add_column("policy")
    table.add_column("test set")
    for column in ("n", "reward", "words", "distinct-1/2/3", "empty", "cut"):
        table.add_column(column, justify="right", no_wrap=True)
    for entry in entries:
        for test in entry.tests:
            cells = [
                test.name,
                f"{test.num_prompts:,}",
                format_interval(test.reward, 4),
                f"{test.words.mean:.1f}",
                _distinct_cell(test.distinct),
                str(test.num_empty),
                str(test.num_truncated),
            ]
            table.add_row(*([entry.name, *cells] if len(entries) > 1 else cells))
            for row in _rows_below(test):
                table.add_row(*(["", *row] if len(entries) > 1 else row), style="dim")
        table.add_section()
    return table


def _rows_below(test: TestSetResult) -> list[list[str]]:
    """Return what stands below a test set's row: parts, metrics, and the data's own answers."""
    numbers = {**test.parts, **test.metrics}
    rows = [
        [f"  {name}", "", format_interval(part, 4), "", "", "", ""]
        for name, part in numbers.items()
    ]
    gold = test.gold
    if gold is not None and gold.reward is not None:
        rows.append(["  the data's own", "", format_interval(gold.reward, 4)])
        rows[-1] += [f"{gold.words.mean:.1f}", _distinct_cell(gold.distinct), "", ""]
        rows += [
            [f"    {name}", "", format_interval(part, 4), "", "", "", ""]
            for name, part in {**gold.parts, **gold.metrics}.items()
        ]
    return rows


def _distinct_cell(distinct: Mapping[int, float | None]) -> str:
    """Return distinct-1, -2 and -3 in one cell."""
    return "/".join("–" if value is None else f"{value:.2f}" for value in distinct.values())


def comparison_table(first: str, second: str, differences: Sequence[PairedDifference]) -> Table:
    """Return a table of paired differences, one row a test set."""
    table = Table(
        title=f"{first} − {second}",
        title_justify="left",
        caption="mean paired difference [bootstrap interval]",
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("test set")
    for column in ("prompts", "reward", "words", "win", "tie", "lose"):
        table.add_column(column, justify="right")
    for entry in differences:
        table.add_row(
            entry.name,
            f"{entry.reward.n:,}",
            format_interval(entry.reward, 4, signed=True),
            format_interval(entry.words, 1, signed=True),
            *(f"{count / entry.reward.n:.1%}" for count in (entry.wins, entry.ties, entry.losses)),
        )
    return table


def plot_results(results: Results | Sequence[Results], path: str | Path) -> Path:
    """Draw mean rewards with their intervals, and words an answer, one group a test set.

    Args:
        results: Evaluations with the same reward.
        path: Picture to write; its ending says the format.

    Returns:
        `path`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    entries = [results] if isinstance(results, Results) else list(results)
    if not entries:
        raise UserError("expected at least one evaluation to draw, got none")
    names = list(dict.fromkeys(test.name for entry in entries for test in entry.tests))
    height = 1.4 + 0.36 * len(names) * max(2, len(entries) + 1)
    figure = Figure(figsize=(9, height), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    step = 0.8 / len(entries)
    for index, entry in enumerate(entries):
        color = f"C{index % 10}"
        offset = (index - (len(entries) - 1) / 2) * step
        for axis, kind in ((left, "reward"), (right, "words")):
            points: list[tuple[float, Interval]] = [
                (names.index(test.name) + offset, getattr(test, kind)) for test in entry.tests
            ]
            means = [interval.mean for _, interval in points]
            ends = [_ends(interval) for _, interval in points]
            spread = [
                [mean - low for mean, (low, _) in zip(means, ends, strict=True)],
                [high - mean for mean, (_, high) in zip(means, ends, strict=True)],
            ]
            rows = [row for row, _ in points]
            axis.errorbar(
                means, rows, xerr=spread, fmt="o", color=color, capsize=3, label=entry.name
            )
    counts = {test.name: test.num_prompts for entry in entries for test in entry.tests}
    left.set_yticks(range(len(names)), [f"{name}\n{counts[name]:,} prompts" for name in names])
    left.set_ylim(len(names) - 0.4, -0.6)
    left.set_xlabel(f"mean reward ({entries[0].reward.name})")
    right.set_xlabel("mean words per answer")
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    confidence = f"{100 * entries[0].bootstrap.confidence:g}"
    figure.suptitle(f"Answers to test prompts, {confidence}% bootstrap intervals", fontsize=11)
    if len(entries) > 1:
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return save_figure(figure, path)


def _ends(interval: Interval) -> tuple[float, float]:
    """Return the ends of an interval around its mean; the mean itself where there is none."""
    low = interval.mean if interval.low is None else min(interval.low, interval.mean)
    high = interval.mean if interval.high is None else max(interval.high, interval.mean)
    return low, high


def write_results(folder: str | Path, results: AnyResults) -> Path:
    """Write `results` to a folder: numbers; of a policy that writes, texts and a picture too.

    Returns:
        The path of ``results.json``, which is written last.
    """
    if isinstance(results, EpisodeResults):
        return write_episode_results(folder, results)
    if isinstance(results, RewardResults):
        return write_reward_results(folder, results)
    if isinstance(results, MessageRewardResults):
        return write_message_reward_results(folder, results)
    if isinstance(results, GamesResults):
        return write_games_results(folder, results)
    plot_results(results, Path(folder) / "results.png")
    return write_numbers(folder, results)


def read_any_results(folder: str | Path) -> AnyResults:
    """Read what `write_results` wrote, without the texts of answers.

    Args:
        folder: Folder of ``results.json``, or that file.

    Raises:
        UserError: There are no results, or they are of an unknown kind or format.
    """
    path = results_path(folder)
    readers: dict[str, Callable[[Path], AnyResults]] = {
        "policy": partial(read_results, with_texts=False),
        "reward": read_reward_results,
        "episodes": read_episode_results,
        "games": read_games_results,
        "message_reward": read_message_reward_results,
    }
    kind = kind_of_results(path)
    if kind not in readers:
        raise UserError(f"expected results of a {', '.join(readers)} in `{path}`, got a {kind}'s")
    return readers[kind](path)
