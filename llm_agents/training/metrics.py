"""Where a run's numbers go: one CSV file that a resumed run continues, and TensorBoard.

Both count what the run counts, optimizer steps or decisions in the worlds: 0 is before the first.
"""

from __future__ import annotations

import csv
import io
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning_utilities.core.rank_zero import rank_zero_only
from typing_extensions import override

from llm_agents.whole_files import write_whole

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from llm_agents.training.counting import StepCounter

Row = dict[str, float]
STEP = "step"


class MetricsFile(Logger):
    """Writes ``metrics.csv``: one row a step, a column for each number's name.

    Lightning's CSV logger would delete the file of a run that is resumed. This one goes on with it,
    without the rows of steps that the killed run took after its last checkpoint.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.counter: StepCounter | None = None
        self.row: Row = {}
        self._columns: list[str] = []
        self._start = 0  # where the present row begins in the file

    @property
    @override
    def name(self) -> str:
        """Return the logger's name."""
        return "metrics"

    @property
    @override
    def version(self) -> str:
        """Return nothing: there is one file a run."""
        return ""

    @override
    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: object, **kwargs: object
    ) -> None:
        """Leave hyper-parameters to the recipe in the run's folder."""
        del params, args, kwargs

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add numbers to the row of the present step."""
        if self.counter is not None:
            step = self.counter.step
        numbers = {name: float(value) for name, value in metrics.items() if name != STEP}
        if self.row and (step or 0) < self.row[STEP]:
            self._amend(float(step or 0), numbers)
            return
        if self.row.get(STEP) != step:
            self._finish_row()
            self.row = {STEP: float(step or 0)}
        self.row.update(numbers)

    def note_step(self, trainer: Trainer) -> None:
        """Add what was logged in this step: Lightning hands it to loggers after the hooks only."""
        fresh = {k: float(v) for k, v in trainer._logger_connector.metrics["log"].items()}
        if fresh:
            self.log_metrics({"epoch": float(trainer.current_epoch), **fresh})

    @override
    @rank_zero_only
    def save(self) -> None:
        """Write the present row; it may still grow."""
        if not self.row:
            return
        if any(name not in self._columns for name in self.row):
            self._add_columns()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b") as file:
            file.seek(self._start)
            file.write(_line(self._columns, self.row))
            file.truncate()

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the last row."""
        del status
        self.save()

    def _finish_row(self) -> None:
        """Write the row of the step before and go on behind it."""
        if self.row:
            self.save()
            self._start = self.path.stat().st_size

    def _amend(self, step: float, numbers: Row) -> None:
        """Add numbers to the row of an earlier step: a resumed run prepares itself again."""
        self.save()
        rows = {row[STEP]: row for row in read_rows(self.path)}
        rows[step] = {STEP: step, **rows.get(step, {}), **numbers}
        rows.pop(self.row[STEP])
        self._columns += [name for name in numbers if name not in self._columns]
        self._write([rows[key] for key in sorted(rows)])
        self.save()

    def _add_columns(self) -> None:
        """Write the file again with the columns of the present row, in place of the old one."""
        rows = read_rows(self.path)
        if rows and rows[-1][STEP] == self.row[STEP]:
            rows.pop()
        self._columns += [name for name in self.row if name not in self._columns]
        self._write(rows)

    def _write(self, rows: list[Row]) -> None:
        """Replace the file."""
        lines = [_line(self._columns, row) for row in rows]
        header = _line(self._columns, dict(zip(self._columns, self._columns, strict=True)))
        write_whole(self.path, lambda file: file.write_bytes(header + b"".join(lines)))
        self._start = self.path.stat().st_size

    def resume(self, step: int, row: Row) -> None:
        """Go on with the file as it was at a checkpoint.

        Args:
            step: Step of the checkpoint.
            row: Numbers of that step that the checkpoint holds.
        """
        rows = [old for old in read_rows(self.path) if old[STEP] < step]
        self._columns = list(dict.fromkeys([STEP, *read_columns(self.path), *row]))
        self._write(rows)
        self.row = {STEP: float(step), **row}
        self.save()


def _line(columns: list[str], row: Mapping[str, float | str]) -> bytes:
    """Return one line of CSV; whole numbers without a point, the others exactly."""
    text = io.StringIO()
    values = (row.get(name, "") for name in columns)
    csv.writer(text, lineterminator="\n").writerow(
        int(v) if isinstance(v, float) and v.is_integer() and abs(v) < 2**53 else v for v in values
    )
    return text.getvalue().encode()


def read_columns(path: Path) -> list[str]:
    """Return the names in a metrics file's first line; none if it is absent."""
    if not path.is_file():
        return []
    with path.open(encoding="utf8", newline="") as file:
        return next(csv.reader(file), [])


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a metrics file, without the numbers that a step has not.

    A last line that was cut off by a kill is left out; an absent file has no rows.
    """
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows: list[Row] = []
    for values in csv.DictReader(lines):
        if None in values.values() or None in values:
            continue
        rows.append({name: float(value) for name, value in values.items() if value})
    return rows


class StepTensorBoard(TensorBoardLogger):
    """TensorBoard, by the steps that the run counts."""

    counter: StepCounter | None = None

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers at the present step."""
        if self.counter is not None:
            step = self.counter.step
        super().log_metrics(metrics, step)
