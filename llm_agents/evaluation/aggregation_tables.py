"""The table of many runs as CSV, Markdown and a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_agents.evaluation.aggregation import SEGMENTS, Aggregate, AggregateRow
from llm_agents.evaluation.intervals import Interval, format_interval
from llm_agents.evaluation.pictures import new_figure, save_figure
from llm_agents.whole_files import write_text

MISSING = "NA"


def columns_of(metric: str, rewards: Sequence[str]) -> list[str]:
    """Return the columns of A-LoL's aggregation.

    Args:
        metric: Name of what the table is about.
        rewards: Names of the rewards.

    Example:
        >>> columns_of("faithdial", ["fluency"])[-5:]
        ['test_faithdial', 'val_gen fluency', 'test_gen fluency', 'val_gold fluency', \
'test_gold fluency']
    """
    return [
        "task_name",
        "baseline_model",
        "algorithm",
        *("best e", "best s", f"best V {metric}"),
        *("worst e", "worst s", f"worst V {metric}"),
        f"val_{metric}",
        f"test_{metric}",
        *(f"{segment} {reward}" for segment in SEGMENTS for reward in rewards),
    ]


def rewards_of(rows: Sequence[AggregateRow]) -> list[str]:
    """Return the names of all rewards in rows, in the order in which they come."""
    return list(
        dict.fromkeys(name for row in rows for segment in SEGMENTS for name in row.segment(segment))
    )


def values_of(row: AggregateRow, rewards: Sequence[str]) -> list[str]:
    """Return a row's cells under `columns_of`: means over its seeds, with three decimals."""
    numbers: list[float | None] = [
        *row.extreme("best"),
        *row.extreme("worst"),
        row.mean([run.val for run in row.runs]),
        row.mean([run.test for run in row.runs]),
    ]
    for segment in SEGMENTS:
        found = row.segment(segment)
        numbers += [found.get(name) for name in rewards]
    names = [row.task, row.baseline_model, row.algorithm]
    return [*names, *(MISSING if number is None else f"{number:.3f}" for number in numbers)]


def write_task_csv(path: Path, rows: Sequence[AggregateRow]) -> Path:
    """Write one task's table under the documented columns.

    Args:
        path: Replaced if it is there.
        rows: Of one task.
    """
    rewards = rewards_of(rows)
    lines = [columns_of(rows[0].metric, rewards), *(values_of(row, rewards) for row in rows)]
    return _write_csv(path, lines)


def write_csv(path: Path, found: Aggregate) -> Path:
    """Write the table of all tasks: the same columns, whose ``metric`` a column names.

    Behind them stand the seeds, and the interval of the metric on the test prompts.

    Args:
        path: Replaced if it is there.
        found: All rows.
    """
    rewards = rewards_of(found.rows)
    more = ["metric", "seeds", "test_metric low", "test_metric high"]
    lines = [[*columns_of("metric", rewards), *more]]
    for row in found.rows:
        ends = (None, None) if row.test is None else (row.test.low, row.test.high)
        seeds = " ".join(str(run.seed) for run in row.runs)
        cells = [MISSING if end is None else f"{end:.3f}" for end in ends]
        lines.append([*values_of(row, rewards), row.metric, seeds, *cells])
    return _write_csv(path, lines)


def write_runs_csv(path: Path, found: Aggregate) -> Path:
    """Write a line for each run, under the columns of `write_csv` without the interval.

    Args:
        path: Replaced if it is there.
        found: All rows.
    """
    rewards = rewards_of(found.rows)
    lines = [[*columns_of("metric", rewards), "metric", "seed"]]
    for row in found.rows:
        for run in row.runs:
            one = AggregateRow(
                row.task,
                row.metric,
                row.baseline_model,
                row.algorithm,
                (run,),
                row.test,
                row.reward,
            )
            lines.append([*values_of(one, rewards), row.metric, str(run.seed)])
    return _write_csv(path, lines)


def _write_csv(path: Path, lines: Sequence[Sequence[str]]) -> Path:
    """Write lines of cells at once."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())
    return path


def markdown(found: Aggregate) -> str:
    """Return the tables as Markdown, one a task; the best metric of each is bold."""
    parts = []
    for task in found.tasks:
        rows = found.of_task(task)
        parts.append("\n".join([f"### {task}", "", *_task_lines(rows)]))
    confidence = f"{100 * found.bootstrap.confidence:g} %"
    note = (
        f"Means over seeds; in brackets {confidence} intervals: of the reward over seeds and "
        "prompts, of a part of it over seeds. Lengths in words; distinct-n of each run's answers."
    )
    return "\n\n".join([*parts, note]) + "\n"


def _task_lines(rows: Sequence[AggregateRow]) -> Iterator[str]:
    """Yield the lines of one task's table."""
    metric, rewards = rows[0].metric, rewards_of(rows)
    shown = [name for name in rewards if any(name in row.segment("test_gen") for row in rows)]
    parts = [name for name in shown if name != metric]
    measures = list(dict.fromkeys(name for row in rows for name in _measures(row)))
    head = ["from", "algorithm", "seeds", f"test {metric}", f"val {metric}", *parts, *measures]
    head += ["words", "distinct-1/2/3"]
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    known = [row.test.mean for row in rows if row.test is not None]
    for row in rows:
        test = MISSING if row.test is None else format_interval(row.test, 3)
        if row.test is not None and row.test.mean == max(known):
            test = f"**{test}**"
        means = row.segment("test_gen")
        cells = [
            row.baseline_model,
            row.algorithm,
            str(len(row.runs)),
            test,
            _shown(row.mean([run.val for run in row.runs])),
            *(_shown(means.get(name)) for name in parts),
            *(_shown(_measures(row).get(name)) for name in measures),
            f"{sum(run.results.overall.words.mean for run in row.runs) / len(row.runs):.1f}",
            _distinct(row),
        ]
        yield "| " + " | ".join(cells) + " |"


def _measures(row: AggregateRow) -> dict[str, float | None]:
    """Return the means of what needs no judge, such as coverage, over a row's runs."""
    tables = [run.results.overall.metrics for run in row.runs]
    return {
        name: row.mean([table[name].mean if name in table else None for table in tables])
        for name in tables[0]
    }


def _shown(number: float | None) -> str:
    """Return a number with three decimals."""
    return MISSING if number is None else f"{number:.3f}"


def _distinct(row: AggregateRow) -> str:
    """Return the mean distinct-1, -2 and -3 of a row's runs."""
    tables = [run.results.overall.distinct for run in row.runs]
    means = [row.mean([table.get(n) for table in tables]) for n in (1, 2, 3)]
    return "/".join("–" if mean is None else f"{mean:.2f}" for mean in means)


def draw(found: Aggregate, path: str | Path) -> Path:
    """Draw each task's metric on the test prompts with its interval, a panel a task.

    Args:
        found: All rows.
        path: Picture to write; its ending says the format.

    Returns:
        `path`.
    """
    tasks = found.tasks
    most = max(len(found.of_task(task)) for task in tasks)
    figure = new_figure(4.2 * len(tasks) + 1.2, 1.4 + 0.34 * most)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        rows = found.of_task(task)
        models = list(dict.fromkeys(row.baseline_model for row in rows))
        for place, row in enumerate(rows):
            if row.test is None:
                continue
            low, high = _ends(row.test)
            color = f"C{models.index(row.baseline_model) % 10}"
            panel.plot([low, high], [place, place], color=color, linewidth=2)
            panel.plot(row.test.mean, place, "o", color=color)
        labels = [f"{row.algorithm} ({len(row.runs)})" for row in rows]
        panel.set_yticks(range(len(rows)), labels)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.set_xlabel(f"test {rows[0].metric}")
        panel.set_title(task, fontsize=10)
        panel.grid(axis="x", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    confidence = f"{100 * found.bootstrap.confidence:g}%"
    figure.suptitle(f"Seeds in brackets; {confidence} intervals", fontsize=10)
    return save_figure(figure, path)


def _ends(interval: Interval) -> tuple[float, float]:
    """Return the ends of an interval around its mean; the mean itself where there is none."""
    low = interval.mean if interval.low is None else interval.low
    high = interval.mean if interval.high is None else interval.high
    return low, high
