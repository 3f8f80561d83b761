"""Annotating data sets with kills, in company of other workers, and after damage."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from llm_agents.data.motif_layout import MotifPairs
from llm_agents.data.motif_preferences import PreferenceFile, claimed
from llm_agents.errors import UserError
from llm_agents.rewards import (
    GeneratedAnnotator,
    PointwiseAnnotator,
    RandomAnnotator,
)
from llm_agents.rewards.annotator import Annotated, Pairs
from llm_agents.types import GenerationConfig, Prompt
from tests.data.toy_annotation import (
    annotate,
    expected,
    lead,
    pointwise,
    read,
    verdict,
    write_pairs,
)
from tests.rewards.annotation_backends import RuleBackend

# --- kills, company, damage


class SlowBackend(RuleBackend):
    """Takes its time, so that it can be killed in the middle."""

    replies_together = 2
    answers_together = 2

    def answer_log_probs(
        self, prompts: Sequence[Prompt], template: str, answers: Sequence[str]
    ) -> Tensor:
        time.sleep(0.03)
        return super().answer_log_probs(prompts, template, answers)

    def generate(
        self,
        prompts: Sequence[Prompt],
        template: str,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> list[str]:
        time.sleep(0.03)
        return super().generate(prompts, template, sampling, seeds)


def work(folder: Path, chunk: int, num_chunks: int, batch_size: int, *, both_orders: bool) -> None:
    """Annotate in a process of its own."""
    annotator = GeneratedAnnotator(SlowBackend(reply=verdict), both_orders=both_orders)
    annotate(folder, annotator, name="n", num_chunks=num_chunks, chunk=chunk, batch_size=batch_size)


def start(
    folder: Path,
    chunk: int = 0,
    num_chunks: int = 1,
    batch_size: int = 2,
    *,
    both_orders: bool = False,
) -> Any:
    process = multiprocessing.get_context("fork").Process(
        target=work,
        args=(folder, chunk, num_chunks, batch_size),
        kwargs={"both_orders": both_orders},
    )
    process.start()
    return process


@pytest.fixture(autouse=True)
def leave_no_process() -> Iterator[None]:
    """Kill what a failed test leaves behind, stopped processes too."""
    yield
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


def wait_for(path: Path, known: int) -> None:
    """Wait until so many pairs are known."""
    deadline = time.monotonic() + 120
    while not path.is_file() or int((np.load(path) != 3).sum()) < known:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path, number=60)
    process = start(tmp_path)
    path = tmp_path / "preference" / "n.npy"
    wait_for(path, 10)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    known = np.load(path)
    left = np.flatnonzero(known == 3)
    assert 0 < len(left) <= 50
    right = expected(texts)
    assert [v for v in known.tolist() if v != 3] == [right[i] for i in np.flatnonzero(known != 3)]
    backend = RuleBackend(reply=verdict)
    results = annotate(tmp_path, GeneratedAnnotator(backend), name="n")
    assert results["annotated"] == len(left)
    assert len(backend.asked) == sum(texts[i][0] != texts[i][1] for i in left)  # none twice
    assert read(tmp_path, "n") == right


@pytest.mark.parametrize("both_orders", [False, True])
def test_replies_are_kept_as_they_come(tmp_path: Path, both_orders: bool) -> None:
    """All pairs in one batch, killed three times: what was answered is never asked again."""
    texts = write_pairs(tmp_path, number=80)
    path = tmp_path / "preference" / "n.npy"
    known = 0
    for _ in range(3):
        process = start(tmp_path, batch_size=80, both_orders=both_orders)
        wait_for(path, known + 2)  # the first two are ties, perhaps
        wait_for(path, known + 10)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = np.load(path)
        assert int((found != 3).sum()) >= known + 10
        known = int((found != 3).sum())
    assert known < 80
    left = np.flatnonzero(np.load(path) == 3)
    backend = RuleBackend(reply=verdict)
    annotator = GeneratedAnnotator(backend, both_orders=both_orders)
    annotate(tmp_path, annotator, name="n")
    assert len(backend.asked) == len(left) * (2 if both_orders else 1)
    assert read(tmp_path, "n") == expected(texts)


def test_two_workers_at_once_equal_one(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path, number=60)
    workers = [start(tmp_path, chunk, 2) for chunk in (0, 1)]
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert read(tmp_path, "n") == expected(texts)
    left = {path.name for path in (tmp_path / "preference").iterdir()}
    assert {name for name in left if not name.endswith(".lock")} == {"n.json", "n.npy"}


def test_two_workers_share_their_answers(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    annotate(tmp_path, pointwise(), name="n", num_chunks=2, chunk=0)
    backend = RuleBackend(lead=lead)
    annotate(
        tmp_path, PointwiseAnnotator(backend, version="default"), name="n", num_chunks=2, chunk=1
    )
    assert backend.asked == []  # the five messages were known


def test_a_chunk_has_one_worker(tmp_path: Path) -> None:
    write_pairs(tmp_path, number=60)
    process = start(tmp_path)
    wait_for(tmp_path / "preference" / "n.npy", 2)
    with pytest.raises(UserError, match="is annotating the pairs 0 to 59 of"):
        annotate(tmp_path, GeneratedAnnotator(RuleBackend(reply=verdict)), name="n")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    annotate(tmp_path, GeneratedAnnotator(RuleBackend(reply=verdict)), name="n")  # no lock is left


@pytest.mark.parametrize(
    "other",
    [
        {"start_over": True},
        {"start_over": True, "goal": "gold"},
        {"start_over": True, "num_chunks": 2, "chunk": 1},
        {"num_chunks": 7, "chunk": 3},
        {"goal": "gold"},
    ],
    ids=["over", "over with another goal", "half of it over", "another cut", "another goal"],
)
def test_a_second_worker_touches_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    """F15: all was overwritten before the first worker's claim was found."""
    texts = write_pairs(tmp_path, number=60)
    process = start(tmp_path)
    folder = tmp_path / "preference"
    wait_for(folder / "n.npy", 10)
    os.kill(process.pid, signal.SIGSTOP)  # at work, though it writes nothing for now
    before = {name: (folder / name).read_bytes() for name in ("n.npy", "n.json")}
    options = {"goal": "defaultgoal", **other}
    annotator = GeneratedAnnotator(RuleBackend(reply=verdict), goal=options.pop("goal"))
    with pytest.raises(UserError, match="is annotating the pairs 0 to 59"):
        annotate(tmp_path, annotator, name="n", **options)
    assert {name: (folder / name).read_bytes() for name in before} == before
    os.kill(process.pid, signal.SIGCONT)
    process.join(120)
    assert process.exitcode == 0
    assert read(tmp_path, "n") == expected(texts)


def test_workers_on_other_pairs_don_t_wait(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path, number=60)
    process = start(tmp_path, chunk=1, num_chunks=2)  # pairs 30 to 59
    wait_for(tmp_path / "preference" / "n.npy", 2)
    annotator = GeneratedAnnotator(RuleBackend(reply=verdict))
    annotate(tmp_path, annotator, name="n", num_chunks=6, chunk=2)  # 20 to 29
    assert read(tmp_path, "n")[20:30] == expected(texts)[20:30]
    with pytest.raises(UserError, match=r"the pairs 30 to 59 .* has 24 to 35"):
        annotate(tmp_path, annotator, name="n", num_chunks=5, chunk=2)
    process.join(120)
    assert process.exitcode == 0


def start_over_forever(path: Path) -> None:
    """Annotate everything as 0 under one record, then as 1 under another, and so on."""
    while True:
        for value in (0, 1):
            whole = range(64)
            with claimed(path, whole):
                file = PreferenceFile.open(path, 64, {"says": value}, start_over=whole)
                file.write(np.arange(64), np.full(64, value, dtype=np.int8))


def test_kills_leave_no_value_under_another_record(tmp_path: Path) -> None:
    path = tmp_path / "n.npy"
    for kill in range(12):
        process = multiprocessing.get_context("fork").Process(
            target=start_over_forever, args=(path,)
        )
        process.start()
        while not path.is_file() or not path.with_suffix(".json").is_file():
            time.sleep(0.002)
        time.sleep(0.01 + 0.003 * kill)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with claimed(path, range(64)):  # free again
            says = json.loads(path.with_suffix(".json").read_text())["says"]
            assert set(np.load(path).tolist()) <= {says, 3}


def test_a_cut_file_gets_its_end_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = write_pairs(tmp_path)
    annotate(tmp_path, pointwise(), name="n")
    path = tmp_path / "preference" / "n.npy"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 7)
    with pytest.raises(UserError, match=r"n\.npy"):
        MotifPairs.open(tmp_path, ("message",), ("n",))
    results = annotate(tmp_path, pointwise(), name="n")
    assert "7 pairs at its end are annotated again" in caplog.text
    assert results["annotated"] == 7
    assert read(tmp_path, "n") == expected(texts)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x93NUM", "is no NumPy array"),
        (b"nothing like it", "is no NumPy array"),
        (b"", "is no NumPy array"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, text: str) -> None:
    write_pairs(tmp_path)
    annotate(tmp_path, pointwise(), name="n")
    path = tmp_path / "preference" / "n.npy"
    path.write_bytes(content)
    with pytest.raises(UserError, match=text):
        annotate(tmp_path, pointwise(), name="n")


def test_other_numbers_and_sizes_are_named(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    annotate(tmp_path, pointwise(), name="n")
    path = tmp_path / "preference" / "n.npy"
    np.save(path, np.full(24, 9, dtype=np.int8))
    with pytest.raises(UserError, match="preferences from 0 to 3"):
        annotate(tmp_path, pointwise(), name="n")
    np.save(path, np.full(30, 3, dtype=np.int8))
    with pytest.raises(UserError, match=r"int8 of shape \(24,\).*got int8 of \(30,\)"):
        annotate(tmp_path, pointwise(), name="n")
    np.save(path, np.full(24, 3))
    with pytest.raises(UserError, match="got int64"):
        annotate(tmp_path, pointwise(), name="n")
    (tmp_path / "preference" / "n.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        annotate(tmp_path, pointwise(), name="n")


def test_a_failing_annotator_loses_no_finished_batch(tmp_path: Path) -> None:
    texts = write_pairs(tmp_path)

    class Failing(RandomAnnotator):
        def annotate(self, pairs: Pairs) -> Annotated:
            if pairs.index[0] >= 16:
                raise UserError("the server is gone")
            return super().annotate(pairs)

    with pytest.raises(UserError, match="gone"):
        annotate(tmp_path, Failing(), name="n", batch_size=8)
    assert [i for i, value in enumerate(read(tmp_path, "n")) if value == 3] == list(range(16, 24))
    annotate(tmp_path, RandomAnnotator(), name="n")
    ties = [pair[0] == pair[1] for pair in texts]
    assert [value == 2 for value in read(tmp_path, "n")] == ties
