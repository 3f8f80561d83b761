"""Many runs as one table: a row for each task, starting policy and algorithm, over their seeds.

The columns are those of A-LoL's aggregation: best and worst validation, validation and test numbers
of the weights that were kept, and the mean of each reward on generated and on gold responses.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from llm_agents.errors import UserError
from llm_agents.evaluation.comparison import combine_seeds
from llm_agents.evaluation.intervals import BootstrapConfig, Interval, bootstrap_mean
from llm_agents.evaluation.results import Results
from llm_agents.rewards.tasks import FINAL, TASKS

Segment = Literal["val_gen", "test_gen", "val_gold", "test_gold"]
SEGMENTS: tuple[Segment, ...] = ("val_gen", "test_gen", "val_gold", "test_gold")


def metric_of(task: str, parts: Container[str]) -> str:
    """Return what a task's table is about: what chooses its weights, or else the whole reward.

    Args:
        task: Name of the task; one that the paper doesn't have is about the whole reward.
        parts: Of the reward that scored it; where it lacks the metric, the whole reward counts.
    """
    wanted = next((rewards.selected_by for name, rewards in TASKS.items() if name == task), FINAL)
    return wanted if wanted in parts else FINAL


class Validation(NamedTuple):
    """What one validation found.

    Args:
        epoch: Rounds of the data before it; None where they are not counted.
        step: Optimizer steps before it.
        value: The metric.
    """

    epoch: int | None
    step: int
    value: float


@dataclass(frozen=True)
class RunSummary:
    """What is kept of one run.

    Args:
        task: Name of the task.
        metric: What its table is about.
        baseline_model: What the run started from.
        algorithm: Objective, or method.
        settings: Digest of everything else that runs of one row have in common.
        seed: Seed of the run.
        validations: All of the run's after its start, in order.
        val: The metric of the kept weights in validation; None if there was none.
        test: The metric on all test prompts.
        means: Means of each reward by segment, whose names include the whole reward's.
        results: The evaluation, for intervals and lengths.
    """

    task: str
    metric: str
    baseline_model: str
    algorithm: str
    settings: str
    seed: int
    validations: tuple[Validation, ...]
    val: float | None
    test: float | None
    means: Mapping[Segment, Mapping[str, float]]
    results: Results

    @property
    def best(self) -> Validation | None:
        """Return the best validation, the first of several."""
        return max(self.validations, key=lambda found: found.value, default=None)

    @property
    def worst(self) -> Validation | None:
        """Return the worst validation, the first of several."""
        return min(self.validations, key=lambda found: found.value, default=None)


@dataclass(frozen=True)
class AggregateRow:
    """Runs that differ by their seed only.

    Args:
        task: Name of the task.
        metric: What its table is about.
        baseline_model: What the runs started from.
        algorithm: Objective, or method.
        runs: One entry a seed.
        test: The metric on the test prompts, with its interval over the seeds.
        reward: The whole reward, with its interval over seeds and prompts.
    """

    task: str
    metric: str
    baseline_model: str
    algorithm: str
    runs: tuple[RunSummary, ...]
    test: Interval | None
    reward: Interval

    def mean(self, values: Sequence[float | None]) -> float | None:
        """Return the mean of one number a run; None unless all runs have it."""
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    def segment(self, segment: Segment) -> dict[str, float]:
        """Return the mean of each reward that all runs have in a segment."""
        tables = [run.means.get(segment, {}) for run in self.runs]
        shared = [name for name in tables[0] if all(name in table for table in tables)]
        return {name: sum(table[name] for table in tables) / len(tables) for name in shared}

    def extreme(self, which: Literal["best", "worst"]) -> tuple[float | None, ...]:
        """Return mean epoch, step and value of each run's best or worst validation."""
        found: list[Validation | None] = [getattr(run, which) for run in self.runs]
        columns: list[list[float | None]] = [
            [None if entry is None else getattr(entry, name) for entry in found]
            for name in Validation._fields
        ]
        return tuple(self.mean(column) for column in columns)


@dataclass(frozen=True)
class Aggregate:
    """All rows, and how their intervals were computed.

    Args:
        rows: Task by task.
        bootstrap: Resamples and confidence.
    """

    rows: tuple[AggregateRow, ...]
    bootstrap: BootstrapConfig = field(default_factory=BootstrapConfig)

    @property
    def tasks(self) -> list[str]:
        """Return the names of the tasks, in order."""
        return list(dict.fromkeys(row.task for row in self.rows))

    def of_task(self, task: str) -> list[AggregateRow]:
        """Return the rows of one task."""
        return [row for row in self.rows if row.task == task]


def aggregate(runs: Sequence[RunSummary], bootstrap: BootstrapConfig | None = None) -> Aggregate:
    """Put runs together that differ by their seed only.

    Args:
        runs: In any order.
        bootstrap: How intervals are computed.

    Returns:
        One row for each task, starting policy, algorithm and settings, in the order in which they
        first came.

    Raises:
        UserError: There is no run, two runs of a row have one seed, or their rewards differ.
    """
    if not runs:
        raise UserError("expected at least one finished run to aggregate, got none")
    bootstrap = bootstrap or BootstrapConfig()
    groups: dict[tuple[str, str, str, str], list[RunSummary]] = {}
    for run in runs:
        key = (run.task, run.baseline_model, run.algorithm, run.settings)
        groups.setdefault(key, []).append(run)
    found = [_row(members, bootstrap) for members in groups.values()]
    tasks = list(dict.fromkeys(row.task for row in found))
    return Aggregate(tuple(sorted(_named(found), key=lambda row: tasks.index(row.task))), bootstrap)


def _row(runs: Sequence[RunSummary], bootstrap: BootstrapConfig) -> AggregateRow:
    """Return the row of runs that belong together."""
    runs = sorted(runs, key=lambda run: run.seed)
    seeds = [run.seed for run in runs]
    if len(set(seeds)) < len(seeds):
        raise UserError(
            f"two runs of {runs[0].algorithm} on {runs[0].task} have one seed, of {seeds}: leave "
            "one of them out, or name their algorithms apart (LABEL=RUN)"
        )
    metrics = {run.metric for run in runs}
    metric = metrics.pop() if len(metrics) == 1 else FINAL
    tests = [run.test for run in runs if run.test is not None]
    whole = combine_seeds([run.results for run in runs], bootstrap=bootstrap)
    reward = list(whole.values())[-1]
    test: Interval | None = reward
    if metric != FINAL:
        values = torch.tensor(tests, dtype=torch.float64)
        test = bootstrap_mean(values, bootstrap) if len(tests) == len(runs) else None
    return AggregateRow(
        task=runs[0].task,
        metric=metric,
        baseline_model=runs[0].baseline_model,
        algorithm=runs[0].algorithm,
        runs=tuple(runs),
        test=test,
        reward=reward,
    )


def _named(rows: Sequence[AggregateRow]) -> Iterator[AggregateRow]:
    """Tell rows apart that have one name and other settings, by a number."""
    counts: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row.task, row.baseline_model, row.algorithm)
        counts[key] = counts.get(key, 0) + 1
        name = row.algorithm if counts[key] == 1 else f"{row.algorithm} ({counts[key]})"
        yield AggregateRow(
            row.task, row.metric, row.baseline_model, name, row.runs, row.test, row.reward
        )
