"""Parts of long computations: kept, verified, and of no influence on the result."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_agents.methods import ALoL, RewardTraining, ValueFitConfig
from llm_agents.methods import pieces as pieces_module
from llm_agents.methods.pieces import Pieces
from llm_agents.methods.value_fit import fit_value_head
from llm_agents.types import GenerationConfig

KEY = {"of": "test"}


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_parts_are_found_by_the_same_computation_alone(tmp_path: Path) -> None:
    with Pieces.opened(tmp_path, KEY) as pieces:
        pieces.keep("a", {"x": torch.arange(3), "y": torch.ones(1)})
        pieces.keep("b/c", {"x": torch.zeros(0)})
    found = Pieces(tmp_path, KEY)
    assert len(found) == 2
    part = found.find("a")
    assert part is not None
    assert {name: value.tolist() for name, value in part.items()} == {"x": [0, 1, 2], "y": [1.0]}
    assert found.find("b/c") is not None
    assert found.find("b") is None
    assert len(Pieces(tmp_path, {"of": "something else"})) == 0
    assert files(tmp_path) == []  # of no use to anybody


def test_parts_are_written_when_the_block_fails_and_after_some_time(tmp_path: Path) -> None:
    def fail() -> None:
        with Pieces.opened(tmp_path, KEY) as pieces:
            pieces.keep("a", {"x": torch.ones(1)})
            assert files(tmp_path) == []
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(Pieces(tmp_path, KEY)) == 1
    pieces = Pieces(tmp_path, KEY, seconds=0.0)
    pieces.keep("b", {"x": torch.ones(1)})
    assert len(files(tmp_path)) == 2
    pieces.keep("b", {"x": torch.zeros(1)})  # replaced: its file goes
    assert len(files(tmp_path)) == 2
    last = Pieces(tmp_path, KEY).find("b")
    assert last is not None
    assert float(last["x"]) == 0
    pieces.discard()
    assert not tmp_path.exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_damaged_parts_are_left_out(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        with Pieces.opened(tmp_path, KEY) as pieces:
            pieces.keep(name, {"x": torch.arange(8)})
    first, _ = files(tmp_path)
    content = first.read_bytes()
    flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    made = {"cut": content[:-9], "flipped": flipped, "empty": b"", "text": b"no tensors"}
    first.write_bytes(made[damage])
    found = Pieces(tmp_path, KEY)
    assert found.find("a") is None
    assert found.find("b") is not None
    assert "computed again" in caplog.text
    assert len(files(tmp_path)) == 1


def test_a_value_fit_goes_on_after_any_epoch(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(3 + row % 4, 16, generator=generator) for row in range(9)]
    targets = torch.rand(9, generator=generator)

    def fit(epochs: int, pieces: Pieces | None) -> Any:
        config = ValueFitConfig(epochs=epochs, lr=1e-2, num_heads=2, batch_size=4)
        return fit_value_head(states, targets, max_value=1.0, config=config, pieces=pieces)

    whole = fit(6, None)
    for cut in (1, 4, 6):
        with Pieces.opened(tmp_path / str(cut), KEY) as pieces:
            fit(cut, pieces)  # as if killed after these epochs
        again = fit(6, Pieces(tmp_path / str(cut), KEY))
        assert again.epoch_mse == whole.epoch_mse
        for one, two in zip(again.head.parameters(), whole.head.parameters(), strict=True):
            assert torch.equal(one, two)


# --- whole runs


def train(toy: Any, kind: str, sampled: bool) -> dict[str, Tensor]:
    """Run a method with the smallest parts there are, and return what it learned and knew."""
    data = toy.data(toy.rows(repeats=3), eval_batch_size=2)
    if kind == "reward":
        policy = toy.policy(trainable=False)
        module: Any = RewardTraining(policy, optimizer=toy.fast(), score_transform="none")
    else:
        generation = GenerationConfig(
            max_new_tokens=8, batch_size=2, temperature=1.0 if sampled else 0.0
        )
        module = ALoL(
            toy.policy(adapter=toy.sft_adapter()),
            toy.Reward(),
            "a_lol",
            generation=generation,
            optimizer=toy.fast(),
            value=ValueFitConfig(epochs=3, num_heads=2),
        )
    module.options = type(module.options)(tokens_per_batch=64)
    toy.fit(module, data, max_steps=4, val_check_interval=2)
    found = {name: parameter.detach().clone() for name, parameter in module.trainable()}
    for name in ("values", "_features"):
        if isinstance(getattr(module, name, None), Tensor):
            found[name] = getattr(module, name)
    if getattr(module, "ref_log_probs", None) is not None:
        found["ref_log_probs"] = module.ref_log_probs.flat
    if module.reference_scores is not None:
        found["answers"] = module.reference_scores.words
    return found


def train_apart(make: Callable[[Path], Any], folder: Path, kind: str, result: Path) -> None:
    """Train in a process of its own, slowly enough to be killed."""
    pieces_module.SECONDS = 0.0
    keep = Pieces.keep

    def slow(self: Pieces, name: str, part: Any) -> None:
        keep(self, name, part)
        time.sleep(0.02)

    Pieces.keep = slow  # type: ignore[method-assign]
    os.environ["LLM_AGENTS_CACHE"] = str(folder / "cache")
    found = train(make(folder), kind, sampled=True)
    torch.save(found, result.with_suffix(".part"))
    result.with_suffix(".part").replace(result)


def killed_until_done(make: Any, folder: Path, kind: str, draws: random.Random) -> tuple[Any, int]:
    """Start a run again and again, killed at random, until it ends; return its result."""
    result, kills = folder / "result.pt", 0
    folder.mkdir()
    while not result.exists():
        process = multiprocessing.get_context("fork").Process(
            target=train_apart, args=(make, folder, kind, result)
        )
        process.start()
        process.join(draws.uniform(0.3, 2.5) if kills < 6 else None)
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            kills += 1
        process.join()
    return torch.load(result), kills


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a_lol", "reward"])
def test_runs_killed_at_random_equal_the_unbroken_run(toy: Any, tmp_path: Path, kind: str) -> None:
    make = type(toy)
    whole = tmp_path / "whole"
    whole.mkdir()
    os.environ["LLM_AGENTS_CACHE"] = str(whole / "cache")
    expected = train(make(whole), kind, sampled=True)
    for seed in range(3):
        found, kills = killed_until_done(
            make, tmp_path / f"killed-{seed}", kind, random.Random(seed)
        )
        assert kills > 0
        assert sorted(found) == sorted(expected)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


class StopError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("sampled", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_was_prepared_is_not_prepared_again(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampled: bool
) -> None:
    """Stopped six times, no part is computed twice, and in the end nothing differs."""
    expected = train(toy, "a_lol", sampled)
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(pieces_module, "SECONDS", 0.0)
    keep, kept, stops = Pieces.keep, [], [1, 5, 8, 10, 13, 15]

    def stopping(self: Pieces, name: str, part: Any) -> None:
        keep(self, name, part)
        epochs = len(part["errors"]) if "errors" in part else 0
        kept.append((self.folder.name, name, epochs))
        if stops and len(kept) >= stops[0]:
            stops.pop(0)
            raise StopError

    monkeypatch.setattr(Pieces, "keep", stopping)
    found: dict[str, Tensor] = {}
    while not found:
        with suppress(StopError):
            found = train(toy, "a_lol", sampled)
    assert not stops
    prepared = [part for part in kept if not part[0].startswith(".unfinished")]
    assert len(set(prepared)) == len(prepared) > 12
    kinds = {name.split("-")[0] for name, *_ in kept}
    assert kinds == {"answers", "prompt", "value", "values", ".unfinished_validation"}
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
