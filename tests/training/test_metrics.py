from __future__ import annotations

import math
from pathlib import Path

from llm_agents.training.metrics import MetricsFile, read_rows


def test_rows_grow_by_columns_and_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    metrics = MetricsFile(path)
    metrics.log_metrics({"a": 1.5}, step=0)
    metrics.log_metrics({"a": 2.0}, step=1)
    metrics.log_metrics({"b": 0.1}, step=1)
    metrics.log_metrics({"a": 3.0, "b": math.nan}, step=2)
    metrics.finalize("success")
    assert path.read_text() == "step,a,b\n0,1.5,\n1,2,0.1\n2,3,nan\n"


def test_numbers_are_written_exactly(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    values = [1 / 3, 1e-300, -(2.0**0.5), 1e17 + 2]
    for step, value in enumerate(values):
        metrics.log_metrics({"a": value}, step=step)
    metrics.save()
    assert [row["a"] for row in read_rows(metrics.path)] == values


def test_a_saved_row_may_still_grow(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    metrics.log_metrics({"a": 1.0, "b": 1.0}, step=0)
    metrics.log_metrics({"a": 12345.0}, step=1)
    metrics.save()
    metrics.log_metrics({"b": 2.0}, step=1)
    metrics.save()
    metrics.log_metrics({"c": 3.0}, step=1)
    metrics.save()
    assert metrics.path.read_text() == "step,a,b,c\n0,1,1,\n1,12345,2,3\n"


def test_a_resumed_file_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,a,val\n0,1,\n1,2,\n2,3,9\n3,4,\n4,5")
    metrics = MetricsFile(path)
    metrics.resume(2, {"step": 2.0, "a": 3.0})
    metrics.log_metrics({"prepared": 7.0}, step=0)
    metrics.log_metrics({"val": 9.0}, step=2)
    metrics.log_metrics({"a": 4.5}, step=3)
    metrics.finalize("success")
    assert path.read_text() == "step,a,val,prepared\n0,1,,7\n1,2,,\n2,3,9,\n3,4.5,,\n"


def test_the_checkpoint_brings_back_a_row_that_the_file_lost(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,a\n0,1\n1,")
    metrics = MetricsFile(path)
    metrics.resume(1, {"step": 1.0, "a": 2.0})
    metrics.log_metrics({"a": 3.0}, step=2)
    metrics.save()
    assert path.read_text() == "step,a\n0,1\n1,2\n2,3\n"


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,a,b\n0,1,2\n1,3\n2,4,")
    assert read_rows(path) == [{"step": 0, "a": 1, "b": 2}]
    assert read_rows(tmp_path / "none.csv") == []
