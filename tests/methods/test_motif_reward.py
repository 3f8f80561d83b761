"""Training of Motif's reward model: what it learns, its statistics, what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from llm_agents.data import MotifData
from llm_agents.errors import UserError
from llm_agents.functional import (
    QUANTILE_LEVELS,
    RunningStatistics,
    merge_statistics,
    tied_preference_loss,
    weighted_statistics,
)
from llm_agents.methods import MotifReward, OptimizerConfig
from llm_agents.policies import LanguageMessageScorer, MessageEncoder
from llm_agents.policies.message_files import MessageRewardInfo, load_message_scorer
from llm_agents.types import MessageObservations, MessagePairs
from tests.closeness import assert_rounding
from tests.data.toy_pairs import MESSAGES, VALUES, write_pairs


class Losses(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *rest: Any) -> None:
        self.found.append(float(outputs["loss"]))


def make(**options: Any) -> MotifReward:
    torch.manual_seed(0)
    scorer = options.pop("scorer", None) or MessageEncoder("lt_cnn_small")
    options.setdefault("optimizer", OptimizerConfig(lr=3e-3, eps=1e-8))
    return MotifReward(scorer, **options)


def trainer(folder: Path, callbacks: Any = (), **options: Any) -> Trainer:
    options.setdefault("max_epochs", 4)
    options.setdefault("enable_checkpointing", False)
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "pairs")


def source(folder: Path, **options: Any) -> MotifData:
    options.setdefault("batch_size", 32)
    return MotifData(str(folder), options.pop("annotator", "toy"), seed=0, **options)


def raw_of(module: MotifReward) -> torch.Tensor:
    with torch.no_grad():
        return module.scorer.eval()(MessageObservations(torch.from_numpy(MESSAGES)))


# --- learning -------------------------------------------------------------------------------------


def test_it_orders_messages_as_the_annotator_does(folder: Path, tmp_path: Path) -> None:
    module, run = make(), trainer(tmp_path, max_epochs=12)
    run.fit(module, datamodule=source(folder))
    assert float(run.callback_metrics["val/accuracy"]) == 1.0
    assert float(run.callback_metrics["val/score_agreement"]) > 0.8
    raw = raw_of(module)
    by_worth = {int(worth): raw[torch.from_numpy(worth == VALUES)] for worth in set(VALUES)}
    for better, worse in ((2, -1), (3, 0), (0, -3), (2, 0)):
        assert by_worth[better].min() > by_worth[worse].max()
    assert module.outcome["kept"] == "best"


def test_the_loss_over_distinct_messages_is_that_over_pairs(folder: Path) -> None:
    """Values and gradients are those of a batch in which every message is computed on its own."""
    data = source(folder, batch_size=24)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    assert len(batch.observations) < 2 * len(batch)
    module = make(scorer=MessageEncoder("lt_cnn_small").double())
    loss = tied_preference_loss(rewards=module.rewards(batch), preferences=batch.preferences).loss
    loss.backward()
    gradients = [p.grad.clone() for p in module.scorer.parameters() if p.grad is not None]
    module.zero_grad()
    every = batch.observations.message[batch.index.flatten()]
    raw = module.scorer(MessageObservations(every)).view(-1, 2)
    plain = tied_preference_loss(rewards=raw, preferences=batch.preferences).loss
    plain.backward()
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), abs=1e-12)
    for ours, parameter in zip(gradients, module.scorer.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=0, atol=1e-12)


def test_the_mean_over_the_steps_of_a_side_counts() -> None:
    module = make()
    observations = MessageObservations(torch.from_numpy(MESSAGES[:3]))
    batch = MessagePairs(
        observations,
        torch.tensor([[[0, 1], [2, 2]]]),
        torch.tensor([1]),
        torch.tensor([0]),
        torch.full((1, 2), float("nan")),
    )
    with torch.no_grad():
        raw = module.scorer(observations)
        found = module.rewards(batch)
    expected = torch.stack(((raw[0] + raw[1]) / 2, raw[2]))[None]
    assert_rounding(found, expected)


def test_validation_weighs_every_pair_alike(tmp_path: Path) -> None:
    """R19: a batch of ties alone counts in the loss and not in the accuracy; batches are uneven."""
    folder = write_pairs(tmp_path / "pairs", 50)
    whole, parts = (trainer(tmp_path, limit_train_batches=1, max_epochs=1) for _ in range(2))
    whole.fit(make(), datamodule=source(folder, held_out=0.3))
    parts.fit(make(), datamodule=source(folder, held_out=0.3, eval_batch_size=4))
    for name in ("val/loss", "val/accuracy", "val/score_agreement"):
        found = float(parts.callback_metrics[name])
        assert found == pytest.approx(float(whole.callback_metrics[name]), abs=1e-6)


def test_held_out_ties_alone_have_no_accuracy(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs", 20)
    data = source(folder)
    data.setup()
    labels = np.zeros(20, np.int8)
    labels[data.held_out_places.numpy()] = 2
    np.save(folder / "preference" / "ties.npy", labels)
    run = trainer(tmp_path, max_epochs=1)
    run.fit(make(), datamodule=source(folder, annotator="ties"))
    assert "val/accuracy" not in run.callback_metrics
    assert float(run.callback_metrics["val/loss"]) > 0


# --- which weights, and their statistics ----------------------------------------------------------


def test_the_best_weights_are_kept_with_statistics_of_their_own(
    folder: Path, tmp_path: Path
) -> None:
    """A learning rate that overshoots: the last weights are not the best."""

    class Validations(Callback):
        def __init__(self) -> None:
            self.found: list[tuple[float, int, torch.Tensor]] = []

        def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
            loss = float(trainer.callback_metrics["val/loss"])
            self.found.append((loss, trainer.global_step, raw_of(pl_module)))

    seen = Validations()
    config = OptimizerConfig(lr=0.08, eps=1e-8)
    module = make(optimizer=config)
    trainer(tmp_path, [seen], max_epochs=10).fit(module, datamodule=source(folder))
    loss, step, raw = min(seen.found, key=lambda entry: entry[0])
    assert step != seen.found[-1][1]
    assert module.outcome == {"kept": "best", "step": step, "val_loss": pytest.approx(loss)}
    assert torch.equal(raw_of(module), raw)
    last = make(optimizer=config, keep="last")
    trainer(tmp_path, max_epochs=10).fit(last, datamodule=source(folder))
    assert last.outcome == {"kept": "last", "step": seen.found[-1][1]}
    assert torch.equal(raw_of(last), seen.found[-1][2])
    assert last.reward_statistics != module.reward_statistics


@pytest.mark.parametrize("kind", ["exact", "running"])
def test_statistics_are_by_frequency_and_quantiles_by_message(
    folder: Path, tmp_path: Path, kind: Any
) -> None:
    module, data = make(statistics=kind), source(folder)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
    found = module.reward_statistics
    assert found is not None
    rows = torch.cat([o.message for o in data.training_observations(100)])
    with torch.no_grad():
        raw = module.scorer.eval()(MessageObservations(rows))
    every = raw[data.training_index()]
    if kind == "exact":
        mean, variance = weighted_statistics(raw, counts=data.training_counts())
        assert mean == pytest.approx(float(every.double().mean()))
        assert variance == pytest.approx(float(every.double().var()))
    else:
        seen = RunningStatistics()
        for start in range(0, len(every), 32):
            seen = merge_statistics(seen, every[start : start + 32].flatten())
        mean, variance = seen.mean, seen.variance
    assert (found.mean, found.variance) == pytest.approx((mean, variance), rel=1e-5)
    normalized = (raw.double() - mean) / variance**0.5
    expected = np.quantile(normalized.numpy(), QUANTILE_LEVELS)
    np.testing.assert_allclose(found.quantiles, expected, rtol=0, atol=1e-4)
    weighted = np.quantile(normalized[data.training_index()].numpy(), QUANTILE_LEVELS)
    assert np.abs(weighted - expected).max() > 0.05


def test_each_snapshot_has_the_statistics_of_its_weights(folder: Path, tmp_path: Path) -> None:
    """T15: E + 1 folders, at the steps 0, n, …, E·n; an older one keeps its own numbers."""
    module = make(snapshots=True)
    trainer(tmp_path, max_epochs=3).fit(module, datamodule=source(folder))
    names = sorted(path.name for path in (tmp_path / "reward_snapshots").iterdir())
    assert names == [f"step-{8 * epoch:08d}" for epoch in range(4)]
    statistics = set()
    for name in names:
        where = tmp_path / "reward_snapshots" / name
        info = MessageRewardInfo.read(where)
        scorer = load_message_scorer(where, info)
        data = source(folder)
        data.setup()
        rows = torch.cat([o.message for o in data.training_observations(100)])
        raw = scorer.score(MessageObservations(rows), 100)
        mean, variance = weighted_statistics(raw, counts=data.training_counts())
        assert (info.statistics.mean, info.statistics.variance) == pytest.approx((mean, variance))
        assert info.step == int(name.removeprefix("step-"))
        statistics.add(info.statistics)
    assert len(statistics) == 4


def test_a_reward_that_says_the_same_of_everything_is_refused(folder: Path, tmp_path: Path) -> None:
    module = make()
    with torch.no_grad():
        for parameter in module.scorer.parameters():
            parameter.zero_()
    run = trainer(tmp_path, max_epochs=1, limit_train_batches=0, limit_val_batches=0)
    with pytest.raises(UserError, match="the reward of all 12 distinct training messages is 0"):
        run.fit(module, datamodule=source(folder))


def test_without_held_out_pairs_the_last_weights_stay(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = make()
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=source(folder, held_out=0.0))
    assert module.outcome["kept"] == "last, as nothing was validated"
    assert "weights kept: last, as nothing was validated" in caplog.text


# --- what it leaves -------------------------------------------------------------------------------


def test_the_folder_gives_the_same_rewards(folder: Path, tmp_path: Path) -> None:
    module, data = make(name="toy"), source(folder)
    with pytest.raises(ValueError, match="call this after"):
        module.save_pretrained(tmp_path / "reward")
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=data)
    module.save_pretrained(tmp_path / "reward")
    info = MessageRewardInfo.read(tmp_path / "reward")
    scorer = load_message_scorer(tmp_path / "reward", info)
    rows = MessageObservations(torch.from_numpy(MESSAGES))
    with torch.no_grad():
        assert torch.equal(scorer(rows), raw_of(module))
    assert (info.name, info.annotator, info.dataset) == ("toy", "toy", data.fingerprint())
    assert (info.num_pairs, info.num_messages) == (240, 12)
    assert info.statistics == module.reward_statistics
    assert info.outcome == module.outcome
    assert not list(tmp_path.rglob("*.pkl"))


@pytest.mark.parametrize("step", [3, 8])
def test_a_resumed_run_goes_on_alike(folder: Path, tmp_path: Path, step: int) -> None:
    """In the middle of an epoch and at its end."""
    seen, again = Losses(), Losses()
    keep = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=step, save_top_k=-1)
    whole = make()
    trainer(tmp_path / "a", [seen, keep], max_epochs=3, enable_checkpointing=True).fit(
        whole, datamodule=source(folder)
    )
    path = next((tmp_path / "kept").glob(f"*step={step}.ckpt"))
    saved = torch.load(path, weights_only=True)  # no pickle of ours is in it
    assert all(name.startswith("scorer.") for name in saved["state_dict"])
    (tmp_path / "b").mkdir()
    if (tmp_path / "a" / "best_weights").is_dir():
        (tmp_path / "a" / "best_weights").rename(tmp_path / "b" / "best_weights")
    other = make()
    trainer(tmp_path / "b", [again], max_epochs=3).fit(
        other, datamodule=source(folder), ckpt_path=path
    )
    assert again.found == seen.found[step:]
    assert torch.equal(raw_of(whole), raw_of(other))
    assert whole.reward_statistics == other.reward_statistics
    assert whole.outcome == other.outcome
    with pytest.raises(UserError, match="learned from other pairs"):
        trainer(tmp_path / "c", max_epochs=3).fit(
            make(keep="last"), datamodule=source(folder, held_out=0.3), ckpt_path=path
        )
    with pytest.raises(UserError, match="does not fit the reward model"):
        trainer(tmp_path / "c", max_epochs=3).fit(
            make(scorer=MessageEncoder()), datamodule=source(folder), ckpt_path=path
        )


def test_same_seed_same_curve(folder: Path, tmp_path: Path) -> None:
    curves = []
    for _ in range(2):
        seen = Losses()
        trainer(tmp_path, [seen], max_epochs=1).fit(make(), datamodule=source(folder))
        curves.append(seen.found)
    assert curves[0] == curves[1]
    assert len(curves[0]) == 8


def test_numbers_that_are_not_finite_stop_the_run(folder: Path, tmp_path: Path) -> None:
    module = make()
    with torch.no_grad():
        next(iter(module.scorer.parameters()))[65] = float("nan")  # the letter A
        module.scorer.reward.bias.fill_(float("nan"))  # type: ignore[operator,union-attr]
    with pytest.raises(UserError, match="the loss is nan at step 0"):
        trainer(tmp_path).fit(module, datamodule=source(folder))
    assert (tmp_path / "non_finite_batch.json").is_file()


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing of the reward model trains"):
        make(scorer=MessageEncoder().requires_grad_(False))
    with pytest.raises(UserError, match="at least 1, got 0"):
        make(batch_size=0)
    data = source(folder)
    data.setup()
    with pytest.raises(UserError, match="give the trainer a data module"):
        trainer(tmp_path).fit(make(), data.train_dataloader())


# --- other networks -------------------------------------------------------------------------------


def test_bottom_line_and_map_can_be_learned_from(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs", 40, with_screen=True, length=2)
    scorer = MessageEncoder(
        "lt_cnn_small", use_blstats=True, use_crop=True, embedding_dim=4, crop_dim=4
    )
    seen = Losses()
    module = make(scorer=scorer)
    trainer(tmp_path, [seen], max_epochs=12).fit(module, datamodule=source(folder))
    assert seen.found[-1] < 0.35 < 0.6 < seen.found[0]
    module.save_pretrained(tmp_path / "reward")
    info = MessageRewardInfo.read(tmp_path / "reward")
    assert load_message_scorer(tmp_path / "reward", info).keys == scorer.keys


def test_a_frozen_language_model_is_asked_once_a_message(
    folder: Path, tmp_path: Path, make_policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy("llama", trainable=False)
    asked = []
    forward = policy.hidden_states
    monkeypatch.setattr(
        policy, "hidden_states", lambda *a, **k: asked.append(len(a[0])) or forward(*a, **k)
    )
    seen = Losses()
    module = make(
        scorer=LanguageMessageScorer(policy, width=16), optimizer=OptimizerConfig(lr=1e-2)
    )
    run = trainer(tmp_path, [seen], max_epochs=12)
    run.fit(module, datamodule=source(folder))
    assert sum(asked) == len(MESSAGES)
    assert float(run.callback_metrics["val/accuracy"]) == 1.0
    module.save_pretrained(tmp_path / "reward")
    info = MessageRewardInfo.read(tmp_path / "reward")
    loaded = load_message_scorer(tmp_path / "reward", info)
    rows = MessageObservations(torch.from_numpy(MESSAGES))
    with torch.no_grad():
        assert_rounding(loaded(rows), raw_of(module))


def test_an_adapter_trains_and_the_base_stays(
    folder: Path, tmp_path: Path, make_policy: Any
) -> None:
    from llm_agents.policies import LoraConfig

    policy = make_policy("llama", lora=LoraConfig(r=4, alpha=8, dropout=0.1))
    frozen = {n: p.clone() for n, p in policy.named_parameters() if not p.requires_grad}
    module = make(scorer=LanguageMessageScorer(policy), optimizer=OptimizerConfig(lr=5e-3))
    keep = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=2, save_top_k=-1)
    seen, again = Losses(), Losses()
    trainer(tmp_path, [seen, keep], max_steps=4, max_epochs=None, enable_checkpointing=True).fit(
        module, datamodule=source(folder)
    )
    assert all(torch.equal(p, frozen[n]) for n, p in policy.named_parameters() if n in frozen)
    saved = torch.load(next((tmp_path / "kept").glob("*step=2.ckpt")), weights_only=True)
    assert all("lora_" in name or ".head." in name for name in saved["state_dict"])
    policy = make_policy("llama", lora=LoraConfig(r=4, alpha=8, dropout=0.1))
    other = make(scorer=LanguageMessageScorer(policy), optimizer=OptimizerConfig(lr=5e-3))
    trainer(tmp_path, [again], max_steps=4, max_epochs=None).fit(
        other,
        datamodule=source(folder),
        ckpt_path=next((tmp_path / "kept").glob("*step=2.ckpt")),
    )
    assert again.found == seen.found[2:]  # the dropout's noise goes on too


@pytest.mark.slow
def test_two_processes_learn_what_one_does(folder: Path, tmp_path: Path) -> None:
    """Half a batch each: the same pairs a step, the same sums over the held-out pairs."""
    found = []
    for devices in (1, 2):
        torch.manual_seed(0)
        scorer = MessageEncoder("lt_cnn_small").double()  # Adam makes much of a last digit
        module = make(scorer=scorer, keep="last")
        run = trainer(
            tmp_path / str(devices),
            max_epochs=2,
            devices=devices,
            strategy="auto" if devices == 1 else "ddp_fork",
        )
        run.fit(module, datamodule=source(folder, batch_size=32 // devices))
        found.append((raw_of(module), float(run.callback_metrics["val/loss"])))
    assert_rounding(found[0][0], found[1][0])
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-6)
