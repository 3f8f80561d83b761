"""What a trainer may be asked for: budgets, checkpoints and precisions of every method."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from llm_agents.envs.toy import Lamp
from llm_agents.errors import UserError
from llm_agents.methods import (
    DPO,
    DRRN,
    POAD,
    PPO,
    TWOSOME,
    ALoL,
    PPOConfig,
    ResponsePPOConfig,
    TokenPPOConfig,
)
from llm_agents.methods.trainer_budget import check_checkpoints, check_precision
from llm_agents.policies import LanguagePolicy, LoraConfig
from tests.methods.online import Rollouts

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=2, alpha=4, targets="all-linear")


def trainer(folder: Path, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "default_root_dir": folder,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "max_epochs": 1,
    }
    return Trainer(**{**settings, **options})


def online(make_policy: MakePolicy, kind: str) -> Any:
    policy = make_policy(lora=LORA)
    if kind == "poad":
        return POAD(policy, ppo=TokenPPOConfig(), critic_widths=(8,))
    return TWOSOME(policy, ppo=PPOConfig(), critic_widths=(8,))


def rollouts(module: Any) -> Rollouts:
    return Rollouts(module, [Lamp(seed=place) for place in range(2)], 4, 2)


@pytest.mark.parametrize("max_steps", [1, 10])
def test_steps_of_two_optimizers_are_no_budget(
    make_policy: MakePolicy, tmp_path: Path, max_steps: int
) -> None:
    module = online(make_policy, "twosome")
    with pytest.raises(UserError, match=rf"no `max_steps` .*, got {max_steps}: TWOSOME collects"):
        trainer(tmp_path, max_steps=max_steps).fit(module, rollouts(module))
    drrn = DRRN()
    asked = trainer(tmp_path, max_steps=3)
    with pytest.raises(UserError, match="no `max_steps` of the trainer, got 3: DRRN collects"):
        asked.fit(drrn, rollouts(drrn))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every_n_train_steps": 3}, "every_n_train_steps=3"),
        ({"every_n_train_steps": 2}, "every_n_train_steps=2"),
        ({"train_time_interval": timedelta(seconds=1)}, "train_time_interval"),
    ],
)
def test_checkpoints_that_lightning_would_skip_are_refused(
    make_policy: MakePolicy, tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    module = online(make_policy, "twosome")
    callback = ModelCheckpoint(tmp_path, **options)
    asked = trainer(tmp_path, callbacks=[callback], enable_checkpointing=True)
    with pytest.raises(UserError, match=f"expected no `{expected}` of a `ModelCheckpoint`"):
        asked.fit(module, rollouts(module))


def test_checkpoints_of_epochs_and_of_whole_batches_are_taken(tmp_path: Path) -> None:
    for options in (
        {},
        {"every_n_epochs": 2},
        {"every_n_train_steps": 8},
        {"every_n_train_steps": 1},
    ):
        callback = ModelCheckpoint(tmp_path, **options)
        asked = trainer(tmp_path, callbacks=[callback], enable_checkpointing=True)
        check_checkpoints(asked, "PPO", steps=4)
    asked = trainer(
        tmp_path,
        callbacks=[ModelCheckpoint(tmp_path, every_n_train_steps=6)],
        enable_checkpointing=True,
    )
    with pytest.raises(
        UserError, match=r"after each batch .*, a multiple of 4, or `every_n_epochs`"
    ):
        check_checkpoints(asked, "PPO", steps=4)


def test_a_checkpoint_after_each_rollout_is_written(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    module = online(make_policy, "twosome")
    callback = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
    trainer(tmp_path, callbacks=[callback], enable_checkpointing=True).fit(module, rollouts(module))
    assert len(list(tmp_path.rglob("*.ckpt"))) == 2


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true"])
@pytest.mark.parametrize("kind", ["twosome", "poad", "drrn", "a_lol", "dpo", "ppo"])
def test_precisions_that_cast_what_trains_are_refused(
    make_policy: MakePolicy, toy: Any, tmp_path: Path, kind: str, precision: Any
) -> None:
    expected = f"32-true, bf16-mixed or 16-mixed, got {precision}"
    if kind in ("twosome", "poad", "drrn"):
        module = DRRN() if kind == "drrn" else online(make_policy, kind)
        asked = trainer(tmp_path, precision=precision)
        with pytest.raises(UserError, match=expected):
            asked.fit(module, rollouts(module))
        return
    makers = {"a_lol": lambda p: ALoL(p, None, "nll"), "dpo": DPO, "ppo": _ppo}
    method = makers[kind](toy.policy())
    with pytest.raises(UserError, match=expected):
        toy.fit(method, max_steps=4, precision=precision)


def _ppo(policy: LanguagePolicy) -> PPO:
    return PPO(policy, None, ppo=ResponsePPOConfig())


@pytest.mark.parametrize("kind", ["twosome", "poad", "a_lol"])
def test_mixed_precision_runs(make_policy: MakePolicy, toy: Any, tmp_path: Path, kind: str) -> None:
    if kind == "a_lol":
        module: Any = ALoL(toy.policy(), None, "nll")
        toy.fit(module, max_steps=2, precision="bf16-mixed")
    else:
        module = online(make_policy, kind)
        trainer(tmp_path, precision="bf16-mixed").fit(module, rollouts(module))
    trained = [p for _, p in module.trainable()]
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in trained)


def test_default_precisions_are_taken() -> None:
    for precision in ("32-true", None, 32, "bf16-mixed", "16-mixed"):
        check_precision(precision)
