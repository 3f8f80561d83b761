"""What the offline methods share: budget, resume, checkpoints, the best weights, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from llm_agents.errors import UserError
from llm_agents.methods import DPO, ALoL, OfflineOptions, OptimizerConfig, ValueFitConfig
from llm_agents.methods.trainer_budget import TrainerBudget
from llm_agents.policies import LoraConfig

DROPOUT = LoraConfig(r=4, alpha=8, targets="all-linear", dropout=0.2)


def nll(toy: Any, policy: Any = None, **options: Any) -> ALoL:
    settings = {"algorithm": "nll", "optimizer": toy.fast(), "generation": toy.generation}
    return ALoL(policy or toy.policy(), **{**settings, **options})


def saver(toy: Any, name: str, every: int) -> ModelCheckpoint:
    return ModelCheckpoint(
        dirpath=toy.folder / name,
        filename="{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=every,
        save_top_k=-1,
    )


# --- gradient accumulation


@pytest.mark.parametrize("algorithm", ["nll", "wbc"])
def test_accumulated_gradients_are_those_of_one_batch(toy: Any, algorithm: str) -> None:
    """O8: the loss is a mean over sequences, whatever their lengths, split or not."""
    rows = toy.rows(repeats=1)
    for row, length in zip(rows, (1, 2, 4, 64), strict=True):
        row["responses"] = ["y" * length]
        row["rewards"] = [1 / length]
    path = toy.file(rows)
    found = []
    for batch_size, accumulated in ((4, 1), (1, 4)):
        data = toy.data(train=path, validation=None, batch_size=batch_size)
        module = nll(toy, algorithm=algorithm, sampling="uniform")
        log = toy.fit(module, data, max_steps=1, accumulate_grad_batches=accumulated)
        assert sorted(row for batch in log.rows for row in batch) == [0, 1, 2, 3]
        found.append(log.gradients[0])
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], atol=1e-5, rtol=1e-5), name
    assert max(float(gradient.abs().max()) for gradient in found[0].values()) > 0.01


def test_logged_loss_is_the_mean_over_the_accumulated_batches(toy: Any) -> None:
    log = toy.StepLog()
    trainer = toy.trainer(1, log, accumulate_grad_batches=4)
    trainer.fit(nll(toy), datamodule=toy.data(validation=None, batch_size=2))
    mean = sum(log.losses) / len(log.losses)  # Lightning reports each divided by the four
    logged = float(trainer.callback_metrics["train/loss"])
    assert len(log.losses) == 4
    assert logged == pytest.approx(mean, rel=1e-5) or logged == pytest.approx(4 * mean, rel=1e-5)


# --- schedule and optimizer


def test_linear_schedule_counts_optimizer_steps(toy: Any) -> None:
    """Trap 21: with accumulation the rate still falls to 0 at the end."""
    config = toy.fast(lr=1.0, schedule="linear", warmup_steps=2)
    module = nll(toy, optimizer=config)
    log = toy.fit(module, toy.data(validation=None), max_steps=6, accumulate_grad_batches=2)
    assert log.learning_rates == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25])


def test_weight_decay_is_the_one_asked_for(toy: Any) -> None:
    """Trap 20."""
    for decay in (0.0, 0.25):
        module = nll(toy, optimizer=OptimizerConfig(weight_decay=decay, betas=(0.8, 0.9), eps=1e-4))
        group = module.configure_optimizers()["optimizer"].param_groups[0]
        assert (group["weight_decay"], group["betas"], group["eps"]) == (decay, (0.8, 0.9), 1e-4)


def test_a_learning_rate_as_text_is_refused() -> None:
    """R4: PyYAML reads `1e-4` as a string."""
    with pytest.raises(UserError, match=r"`optimizer\.lr` to be a number from 0, got '1e-4'"):
        OptimizerConfig(lr="1e-4")  # type: ignore[arg-type]


def test_epochs_are_refused_as_a_budget(toy: Any) -> None:
    trainer = toy.trainer(-1, max_epochs=1)
    with pytest.raises(UserError, match=r"trainer\.max_steps"):
        trainer.fit(nll(toy), datamodule=toy.data())


def test_the_budget_may_be_rounds_of_the_data(toy: Any) -> None:
    """Eight preferred responses, two batches of two a step: 1.5 rounds are three steps."""
    module = nll(toy, options=OfflineOptions(epochs=1.5))
    log = toy.StepLog()
    trainer = toy.trainer(-1, log, accumulate_grad_batches=2, val_check_interval=1 / 3)
    trainer.fit(module, datamodule=toy.data(batch_size=2))
    assert (module.total_steps, len(log.losses)) == (3, 6)
    assert trainer.fit_loop.epoch_loop.max_steps == -1, "put back at the end"
    with pytest.raises(
        UserError, match=r"one of `trainer\.max_steps`.* and `options\.epochs`.*both"
    ):
        toy.fit(nll(toy, options=OfflineOptions(epochs=1)), max_steps=2)
    with pytest.raises(UserError, match=r"`options\.epochs` above 0"):
        OfflineOptions(epochs=0)


def test_a_fraction_between_validations_is_one_of_the_budget(toy: Any) -> None:
    trainer = toy.trainer(40, val_check_interval=0.1, accumulate_grad_batches=3)
    budget = TrainerBudget.of(trainer)
    assert budget.apply(trainer, 0.5) == 20
    assert trainer.val_check_interval == 2 * 3
    budget.restore(trainer)
    assert (trainer.max_steps, trainer.val_check_interval) == (40, 0.1)


# --- resume


def resumable(toy: Any, method: str) -> Any:
    """Return a module with dropout, a schedule and a reward."""
    shared = {
        "optimizer": toy.fast(schedule="linear", warmup_steps=1),
        "generation": toy.generation,
    }
    if method == "dpo":
        return DPO(toy.policy(lora=DROPOUT), toy.Reward(), **shared)
    policy = toy.policy(adapter=toy.sft_adapter(), lora=DROPOUT)
    value = ValueFitConfig(epochs=2, lr=1e-3)
    return ALoL(policy, toy.Reward(), algorithm=method, value=value, **shared)


@pytest.mark.parametrize("method", ["a_lol_seq", "r_lol", "dpo"])
@pytest.mark.parametrize("stop", [3, 4])  # 4 is followed by a validation, 3 is not
def test_a_resumed_run_is_the_unbroken_run(toy: Any, method: str, stop: int) -> None:
    """O9: the same rows, losses, validations and final weights, with dropout on."""
    path = toy.file(toy.rows())
    found = []
    for resume in (False, True):
        module = resumable(toy, method)
        log, keep = toy.StepLog(), saver(toy, f"checkpoints-{resume}", every=1)
        trainer = toy.trainer(
            8,
            log,
            keep,
            accumulate_grad_batches=2,
            val_check_interval=2,
            enable_checkpointing=True,
        )
        data = toy.data(train=path, validation=path, batch_size=2)
        checkpoint = None
        if resume:  # without the caches, so that the reference is asked again
            checkpoint = toy.folder / "checkpoints-False" / f"{stop}.ckpt"
            shutil.rmtree(toy.folder / "cache" / "reference")
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        found.append((log, module))
    (whole, first), (rest, second) = found
    assert len(rest.losses) == 2 * (8 - stop)
    assert rest.rows == whole.rows[2 * stop :]
    assert rest.losses == whole.losses[2 * stop :]
    assert [v for v in whole.validations if v[0] > stop] == rest.validations
    assert (first.best.step, first.best.score) == (second.best.step, second.best.score)
    assert first.outcome == second.outcome
    for (name, a), (_, b) in zip(first.trainable(), second.trainable(), strict=True):
        assert torch.equal(a, b), name


def test_a_validation_lost_to_a_kill_is_made_up_for(toy: Any) -> None:
    """The checkpoint of step 12 is written before the validation of step 12."""
    data = toy.data()
    keep = saver(toy, "all", every=12)
    whole = resumable(toy, "r_lol")
    toy.fit(
        whole,
        data,
        max_steps=12,
        val_check_interval=12,
        enable_checkpointing=True,
        callbacks=[keep],
    )
    assert whole.best.step == 12
    rest = resumable(toy, "r_lol")
    trainer = toy.trainer(13, val_check_interval=12)
    trainer.fit(rest, datamodule=data, ckpt_path=toy.folder / "all" / "12.ckpt")
    assert (rest.best.step, rest.best.score) == (12, whole.best.score)


class SaveAfterValidation(Callback):
    """Writes a checkpoint at the end of each validation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(self.path)


def test_a_validation_is_not_done_twice(toy: Any) -> None:
    data, path = toy.data(), toy.folder / "after.ckpt"
    toy.fit(
        resumable(toy, "r_lol"),
        data,
        max_steps=2,
        val_check_interval=2,
        callbacks=[SaveAfterValidation(path)],
    )
    rest = resumable(toy, "r_lol")
    log = toy.StepLog()
    toy.trainer(3, log, val_check_interval=2).fit(rest, datamodule=data, ckpt_path=path)
    assert len(log.losses) == 1
    assert rest.reward.calls == 0


def test_resume_refuses_another_start(toy: Any) -> None:
    data = toy.data(validation=None)
    toy.fit(
        nll(toy, toy.policy(adapter=toy.sft_adapter())),
        data,
        max_steps=1,
        enable_checkpointing=True,
        callbacks=[saver(toy, "all", every=1)],
    )
    checkpoint = toy.folder / "all" / "1.ckpt"
    trainer = toy.trainer(2)
    with pytest.raises(UserError, match="another base or adapter"):
        trainer.fit(nll(toy), datamodule=data, ckpt_path=checkpoint)
    wider = toy.policy(lora=LoraConfig(r=8, alpha=8, targets="all-linear"))
    with pytest.raises(UserError, match=r"does not fit the policy: .*lora_A.* is \(4, \d+\) there"):
        toy.trainer(2).fit(nll(toy, wider), datamodule=data, ckpt_path=checkpoint)


# --- checkpoints


def test_a_checkpoint_holds_adapters_and_no_base(toy: Any) -> None:
    """R16: adapter, two moments of AdamW, and some kilobytes of counters and random numbers."""
    policy = toy.policy(lora=LoraConfig(r=64, alpha=8, targets="all-linear"))
    module = nll(toy, policy)
    toy.fit(
        module,
        toy.data(validation=None),
        max_steps=2,
        enable_checkpointing=True,
        callbacks=[saver(toy, "all", every=2)],
    )
    module.save_pretrained(toy.folder / "adapter")
    adapter = (toy.folder / "adapter" / "adapter_model.safetensors").stat().st_size
    path = toy.folder / "all" / "2.ckpt"
    assert path.stat().st_size < 3 * adapter + 100_000
    checkpoint = torch.load(path, weights_only=True)
    names = {name for name, _ in policy.trainable_parameters()}
    assert set(checkpoint["state_dict"]) == {f"policy.{name}" for name in names}
    assert checkpoint["hyper_parameters"]["algorithm"] == "nll"
    assert checkpoint["hyper_parameters"]["optimizer"]["lr"] == 1e-2


def test_the_best_weights_lie_beside_the_checkpoints(toy: Any) -> None:
    """R16: a checkpoint names the best weights; a run that can't find them says so."""
    settings = {"algorithm": "wbc", "sampling": "uniform", "generation": toy.generation}

    def module() -> ALoL:
        policy = toy.policy(lora=LoraConfig(r=64, alpha=8, targets="all-linear"))
        return ALoL(policy, toy.Reward(), optimizer=toy.fast(), **settings)

    whole = module()
    toy.fit(
        whole,
        max_steps=12,
        val_check_interval=2,
        enable_checkpointing=True,
        callbacks=[saver(toy, "all", every=1)],
    )
    assert 0 < whole.best.step < 12
    size = sum(weight.numel() * 4 for weight in whole.best.weights.values())
    path = toy.folder / "all" / "11.ckpt"
    assert path.stat().st_size < 3 * size + 100_000
    named = torch.load(path, weights_only=True)["llm_agents"]["best"]["file"]
    kept = sorted((toy.folder / "best_weights").iterdir())
    assert len(kept) <= 3
    assert named in {file.name for file in kept}

    file = toy.folder / "best_weights" / named
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\x00\x01\x02\x03")
    with pytest.raises(UserError, match="is damaged"):
        toy.trainer(12).fit(module(), datamodule=toy.data(), ckpt_path=path)
    file.unlink()
    with pytest.raises(UserError, match=r"put the run's folder best_weights back"):
        toy.trainer(12).fit(module(), datamodule=toy.data(), ckpt_path=path)


# --- the best weights


def test_the_best_weights_are_put_in_place(toy: Any) -> None:
    """A rate that destroys the policy after it was good."""
    module = ALoL(
        toy.policy(),
        toy.Reward(),
        algorithm="wbc",
        sampling="uniform",
        generation=toy.generation,
        optimizer=toy.fast(lr=0.03),
    )
    log = toy.fit(module, max_steps=30, val_check_interval=5)
    best = max(log.validations, key=lambda found: found[1])
    assert best[1] > 0.5
    assert (module.outcome["kept"], module.outcome["step"]) == ("best", best[0])
    assert module.outcome["best_score"] == pytest.approx(best[1])
    trainer = toy.trainer(1)
    trainer.validate(module, datamodule=toy.data(), verbose=False)
    assert float(trainer.callback_metrics["val/reward"]) == pytest.approx(best[1])


@pytest.mark.parametrize("choice", ["last", "reference"])
def test_if_nothing_is_better_the_option_decides(toy: Any, choice: Any) -> None:
    """Trap 22."""
    module = ALoL(
        toy.policy(),
        toy.Constant(0.5),
        algorithm="wbc",
        sampling="uniform",
        generation=toy.generation,
        optimizer=toy.fast(),
        options=OfflineOptions(if_none_better=choice),
    )
    start = {name: p.detach().clone() for name, p in module.trainable()}
    toy.fit(module, max_steps=2, val_check_interval=1)
    same = all(torch.equal(p, start[name]) for name, p in module.trainable())
    assert same == (choice == "reference")
    assert module.outcome["kept"].startswith(choice)
    assert module.outcome["best_score"] == 0.5


def test_without_validation_the_last_weights_are_kept(toy: Any) -> None:
    module = nll(toy)
    toy.fit(module, toy.data(validation=None), max_steps=2)
    assert module.outcome["kept"] == "last, as nothing was validated"


def test_the_reference_is_scored_on_the_prompts_that_validation_answers(toy: Any) -> None:
    module = ALoL(
        toy.policy(),
        toy.Reward(),
        algorithm="wbc",
        sampling="uniform",
        generation=toy.generation,
        optimizer=toy.fast(lr=0.0),
    )
    log = toy.StepLog()
    trainer = toy.trainer(1, log, limit_val_batches=2, val_check_interval=1)
    trainer.fit(module, datamodule=toy.data(eval_batch_size=1))
    two = float(module.reference_scores.rewards[:2].mean())
    assert float(trainer.callback_metrics["val/reference_reward"]) == pytest.approx(two)
    assert log.validations == [(1, pytest.approx(two))], "nothing was learned, so nothing changed"
    assert module.best.weights is None


def test_without_a_reward_validation_is_by_likelihood(toy: Any) -> None:
    module = nll(toy)
    trainer = toy.trainer(20, val_check_interval=5)
    trainer.fit(module, datamodule=toy.data())
    assert module.validation_layout == "scored"
    assert float(trainer.callback_metrics["val/nll"]) < 10, "the reference has 20"
    assert module.outcome["kept"] == "best"
    assert module.outcome["best_score"] == pytest.approx(-trainer.callback_metrics["val/nll"])


def test_validation_prompts_without_a_reward_are_refused(toy: Any) -> None:
    module, data = nll(toy), toy.data()
    data.connect(module.policy)
    data.setup()
    with pytest.raises(UserError, match=r"name `model\.reward`"):
        module.validate(next(data.validation_batches(4)))


# --- what stops a run


def test_a_loss_that_is_not_finite_stops_and_names_its_rows(toy: Any) -> None:
    module = nll(toy, optimizer=toy.fast(lr=1e30))
    with pytest.raises(UserError, match=r"the loss is nan at step 1.*non_finite_batch\.json"):
        toy.fit(module, toy.data(validation=None), max_steps=4)
    found = json.loads((toy.folder / "non_finite_batch.json").read_text("utf8"))
    assert (found["what"], found["step"]) == ("loss", 1)
    assert len(found["rows"]) == 4
    assert set(found["rows"]) <= set(range(0, 16, 2)), "preferred responses have even rows"


def test_a_policy_with_nothing_to_train_is_refused(toy: Any) -> None:
    with pytest.raises(UserError, match="nothing of the policy trains"):
        toy.fit(nll(toy, toy.policy(trainable=False)))


def test_a_bare_loader_is_refused_where_the_reference_is_needed(toy: Any) -> None:
    module = DPO(toy.policy(), optimizer=toy.fast())
    with pytest.raises(UserError, match="data module"):
        toy.trainer(1).fit(module, train_dataloaders=[1])


def test_training_randomness_does_not_depend_on_the_cache(toy: Any) -> None:
    """The first run fills the cache, the second reads it: the same dropout in both."""
    path = toy.file(toy.rows())
    losses = []
    for _ in range(2):
        module = resumable(toy, "a_lol")
        torch.manual_seed(7)
        log = toy.fit(module, toy.data(train=path, validation=path), val_check_interval=2)
        losses.append(log.losses)
    assert losses[0] == losses[1]


def test_trunk_cache_gives_the_same_losses(toy: Any, tmp_path: Path) -> None:
    lora = LoraConfig(r=4, alpha=8, targets="all-linear", top_layers=1)
    path = toy.file(toy.rows())
    losses = []
    for cache in (False, str(tmp_path / "trunk")):
        module = resumable(toy, "a_lol")
        module.policy = toy.policy(lora=lora, trunk_cache=cache)
        log = toy.fit(module, toy.data(train=path, validation=path), limit_val_batches=0)
        losses.append(log.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert any((tmp_path / "trunk").rglob("*"))
