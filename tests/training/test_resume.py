"""Kill −9 of the real command: what is continued equals the unbroken run, row by row."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "recipes" / "overlays" / "tiny.yaml"
STEPS = 8
pytestmark = pytest.mark.slow


def command(recipe: str, folder: str, *more: str) -> list[str]:
    recorder = f"[{{class_path: toy_method.RowRecorder, init_args: {{path: {folder}.rows}}}}]"
    return [
        *(sys.executable, "-m", "llm_agents", "run", str(ROOT / "recipes" / recipe)),
        *("--overlay", str(OVERLAY), "--run.folder", folder, "--run.checkpoint_every", "2"),
        *("--trainer.max_steps", str(STEPS), "--trainer.val_check_interval", "3"),
        *("--data.rules.max_train", "40", "--trainer.callbacks", recorder, *more),
    ]


def finish(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def kill_when(words: list[str], is_time: Callable[[], bool]) -> bool:
    """Start a run and kill it without warning as soon as `is_time`; tell whether it came to that.

    A run that gets to its end unnoticed, as on a crowded machine, has shown nothing.
    """
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not is_time():
        pass
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def rows_by_batch(folder: str) -> dict[str, list[int]]:
    """Return the rows of each batch; batches that were taken twice must have been the same."""
    found: dict[str, list[int]] = {}
    for line in Path(f"{folder}.rows").read_text().splitlines():
        step, batch, rows = json.loads(line)
        assert found.setdefault(f"{step} {batch}", rows) == rows
    return found


def assert_same(first: str, second: str) -> None:
    assert Path(second, "metrics.csv").read_text() == Path(first, "metrics.csv").read_text()
    assert rows_by_batch(second) == rows_by_batch(first)
    states = [
        load_file(Path(run, "adapter", "adapter_model.safetensors")) for run in (first, second)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    scores = [
        json.loads(Path(run, "results.json").read_text())["answers"] for run in (first, second)
    ]
    assert scores[0] == scores[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache_root: Path) -> Iterator[Path]:
    """Go to a folder with an unbroken run in it."""
    del cache_root
    folder = tmp_path_factory.mktemp("resume")
    shutil.copyfile(Path(__file__).with_name("toy_method.py"), folder / "toy_method.py")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    finish(command("a_lol_hha.yaml", "whole"))
    yield folder
    patch.undo()


def test_a_second_run_is_the_same(whole: Path) -> None:
    finish(command("a_lol_hha.yaml", "second"))
    assert_same("whole", "second")
    assert len(rows_by_batch("whole")) == 2 * (
        len(Path("whole/metrics.csv").read_text().splitlines()) - 2
    )
    del whole


@pytest.mark.parametrize(
    "moment", ["at a checkpoint", "while one is written", "later", "at the end", "at random"]
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(whole: Path, moment: str) -> None:
    del whole
    folder = moment.replace(" ", "-")
    checkpoints, rows = Path(folder, "checkpoints"), Path(f"{folder}.rows")
    num_batches = len(Path("whole.rows").read_text().splitlines())
    batch = random.SystemRandom().randrange(1, num_batches)
    print(f"at random: after batch {batch} of {num_batches}")  # noqa: T201 (for a failure's report)
    moments: dict[str, Callable[[], bool]] = {
        "at a checkpoint": lambda: any(checkpoints.glob("step-*.ckpt")),
        "while one is written": lambda: any(checkpoints.glob(".step-*.tmp")),
        "later": lambda: bool(list(checkpoints.glob("step-*.ckpt"))[1:]),
        "at the end": lambda: Path(folder, "adapter").is_dir(),
        "at random": lambda: rows.is_file() and rows.read_bytes().count(b"\n") >= batch,
    }
    words = command("a_lol_hha.yaml", folder)
    for _ in range(5):
        if kill_when(words, moments[moment]):
            break
        shutil.rmtree(folder)
        rows.unlink()
    assert not Path(folder, "results.json").exists(), "five runs ended before they were killed"
    newest = max(checkpoints.glob("step-*.ckpt"), default=None)
    if newest is not None:  # what a kill in the middle of writing leaves, made certain
        torn = newest.read_bytes()[: newest.stat().st_size // 2]
        Path(checkpoints, ".step-00000099.ckpt.1.tmp").write_bytes(torn)
        Path(checkpoints, "step-00000098.ckpt").write_bytes(torn)
    said = finish([*words, "--resume", "auto"])
    if newest is not None:
        assert (
            "unfinished checkpoints are ignored: .step-00000099.ckpt.1.tmp, step-00000098.ckpt"
            in said
        )
    assert_same("whole", folder)


@pytest.mark.parametrize("recipe", ["dpo_hha.yaml", "reward_hha.yaml"])
def test_other_methods_go_on_too(whole: Path, recipe: str) -> None:
    del whole
    name = recipe.partition("_")[0]
    finish(command(recipe, name))
    killed = f"{name}-killed"
    checkpoints = Path(killed, "checkpoints")
    kill_when(command(recipe, killed), lambda: any(checkpoints.glob("step-*.ckpt")))
    finish([*command(recipe, killed), "--resume", "auto"])
    assert Path(killed, "metrics.csv").read_text() == Path(name, "metrics.csv").read_text()
    assert rows_by_batch(killed) == rows_by_batch(name)


def test_a_checkpoint_is_at_most_three_times_the_adapter(whole: Path) -> None:
    del whole
    adapter = Path("whole/adapter/adapter_model.safetensors").stat().st_size
    newest = max(Path("whole/checkpoints").glob("step-*.ckpt"))
    saved = torch.load(newest, weights_only=True)
    trainable = sum(t.numel() * t.element_size() for t in saved["state_dict"].values())
    assert trainable <= adapter
    assert all("lora" in name for name in saved["state_dict"])
