from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from rich.console import Console

from llm_agents.errors import UserError
from llm_agents.training.counting import StepCounter
from llm_agents.training.progress import RunProgress


def test_a_terminal_sees_a_bar_with_loss_and_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from toy_method import ToyData, ToyMethod

    screen = io.StringIO()
    counter = StepCounter()
    progress = RunProgress(10, counter, Console(file=screen, force_terminal=True, width=120))
    trainer = Trainer(
        max_steps=4,
        val_check_interval=2,
        callbacks=[counter, progress],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=tmp_path,
    )
    trainer.fit(ToyMethod(), datamodule=ToyData())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "train" in shown
    assert "4/4" in shown
    assert re.search(r"loss \d", shown)
    assert re.search(r"val loss \d", shown)
    assert progress._bar is None  # the terminal was given back


def test_a_run_of_epochs_knows_how_many_steps_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from toy_method import BATCHES, ToyData, ToyMethod

    counter = StepCounter()
    progress = RunProgress(5, counter, Console(file=io.StringIO()))
    with caplog.at_level("INFO", logger="llm_agents.training.progress"):
        Trainer(
            max_epochs=2,
            accumulate_grad_batches=8,
            callbacks=[counter, progress],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=tmp_path,
        ).fit(ToyMethod(), datamodule=ToyData())
    total = 2 * BATCHES // 8
    assert counter.total == counter.step == total
    told = [line.split(" · ")[0] for line in caplog.messages]
    lines = [line for line in told if re.fullmatch(r"step \d+/\d+", line)]
    assert lines == [f"step {step}/{total}" for step in (1, 5, total)]


def test_the_bar_counts_by_itself_in_a_trainer_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from toy_method import ToyData, ToyMethod

    screen = io.StringIO()
    bars = [
        RunProgress(console=Console(file=screen, force_terminal=True, width=140)),
        RunProgress(3, console=Console(file=io.StringIO())),
    ]
    for bar in bars:
        with caplog.at_level("INFO", logger="llm_agents.training.progress"):
            Trainer(
                max_steps=4,
                limit_val_batches=0,
                callbacks=[bar],
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                accelerator="cpu",
                default_root_dir=tmp_path,
            ).fit(ToyMethod(), datamodule=ToyData())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "4/4 optimizer steps" in shown
    assert "Epoch" not in shown
    told = [line.split(" · ")[0] for line in caplog.messages if line.startswith("step")]
    assert told == ["step 1/4", "step 3/4", "step 4/4"]


def test_lines_every_no_steps_are_refused() -> None:
    with pytest.raises(UserError, match="expected `every` of at least 1 step, got 0"):
        RunProgress(0)
