"""A reference that moves, and the part of a reward that decides which weights are best."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.methods import DPO, ALoL, OfflineOptions, ValueFitConfig
from llm_agents.methods.validation import Scores
from llm_agents.policies.modes import evaluation
from llm_agents.rewards import SumReward
from llm_agents.types import Prompt, Reward


class Brevity(Reward):
    """One for an empty answer, less for a longer one."""

    name, version, low, high = "brevity", "1", 0.0, 1.0

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        return torch.tensor([1 / (1 + len(text)) for text in responses])


def a_lol(toy: Any, algorithm: str = "a_lol", **options: Any) -> ALoL:
    settings = {
        "optimizer": toy.fast(),
        "generation": toy.generation,
        "value": ValueFitConfig(epochs=2, lr=1e-3),
        "options": OfflineOptions(move_reference=0.02),
    }
    policy = options.pop("policy", None) or toy.policy()
    reward = options.pop("reward", None) or toy.Reward()
    return ALoL(policy, reward, algorithm=algorithm, **{**settings, **options})


class Moves(Callback):
    """Keeps the steps at which the reference moved, what it said before and after, and weights."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.tables: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.own: list[Tensor] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if pl_module._moved.step != trainer.global_step:
            return
        self.steps.append(trainer.global_step)
        self.tables.append(pl_module.ref_log_probs.flat.clone())
        self.weights.append(trainer.datamodule._sampling[0].clone())
        (batch,) = trainer.datamodule.table_batches(100_000)
        with evaluation(pl_module.policy), torch.no_grad():
            log_probs = pl_module.policy.log_probs(batch)
        order = batch.rows.argsort()
        rows = [log_probs[row][batch.response_mask[row]] for row in order]
        self.own.append(torch.cat(rows))


def test_the_policy_becomes_the_reference_when_it_is_better(toy: Any) -> None:
    module, moves = a_lol(toy), Moves()
    toy.fit(module, max_steps=24, val_check_interval=4, callbacks=[moves])
    assert moves.steps
    for table, own in zip(moves.tables, moves.own, strict=True):
        assert torch.allclose(table, own, atol=1e-5), "ln π_ref is ln π where they are one"
    assert module.reference_scores is not None
    assert float(module.reference_scores.rewards.mean()) > 0.02
    assert not torch.equal(moves.weights[0], a_lol_weights(toy)), "advantages are over a new value"
    assert module.outcome["kept"] == "best"


def a_lol_weights(toy: Any) -> Tensor:
    """Return the sampling weights of the reference that the run started from."""
    module, data = a_lol(toy, options=OfflineOptions()), toy.data()
    toy.fit(module, data, max_steps=1)
    found: Tensor = data._sampling[0]
    return found


def test_without_the_option_it_stays(toy: Any) -> None:
    module, moves = a_lol(toy, "r_lol", options=OfflineOptions()), Moves()
    toy.fit(module, max_steps=16, val_check_interval=4, callbacks=[moves])
    assert module.best.step > 0
    assert not moves.steps


@pytest.mark.parametrize("whole", [False, True])
def test_a_resumed_run_knows_that_it_moved(toy: Any, whole: bool) -> None:
    path, found = toy.file(toy.rows()), []
    lr = 1e-3 if whole else 1e-2
    for resume in (False, True):
        policy = toy.policy(lora=None) if whole else toy.policy()
        module, log, moves = (
            a_lol(toy, policy=policy, optimizer=toy.fast(lr)),
            toy.StepLog(),
            Moves(),
        )
        keep = ModelCheckpoint(
            dirpath=toy.folder / f"checkpoints-{resume}",
            filename="{step}",
            auto_insert_metric_name=False,
            every_n_train_steps=1,
            save_top_k=-1,
        )
        checkpoint = None
        if resume:
            step = found[0][2].steps[0]
            checkpoint = toy.folder / "checkpoints-False" / f"{step + 2}.ckpt"
            shutil.rmtree(toy.folder / "cache" / "reference")  # so that it is asked again
        data = toy.data(train=path, validation=path)
        trainer = toy.trainer(20, log, moves, keep, val_check_interval=4, enable_checkpointing=True)
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        found.append((module, log, moves))
    (first, whole_log, whole_moves), (second, rest, rest_moves) = found
    assert len(rest.losses) > 2
    assert rest.rows == whole_log.rows[-len(rest.rows) :]
    assert rest.losses == pytest.approx(whole_log.losses[-len(rest.losses) :], rel=1e-6)
    assert rest_moves.steps == whole_moves.steps[1:]
    for (name, a), (_, b) in zip(first.trainable(), second.trainable(), strict=True):
        assert torch.allclose(a, b, atol=1e-7), name


def test_what_has_no_reference_to_move_is_refused(toy: Any) -> None:
    options = OfflineOptions(move_reference=0.1)
    with pytest.raises(UserError, match="DPO can't move its reference: leave"):
        DPO(toy.policy(), toy.Reward(), options=options)
    with pytest.raises(UserError, match="without a `reward`"):
        ALoL(toy.policy(), algorithm="r_lol", options=options)
    with pytest.raises(UserError, match="`algorithm: wbc` asks no reference"):
        a_lol(toy, "wbc")


# --- selection


def test_a_part_of_the_reward_may_decide(toy: Any) -> None:
    """Brevity is best at the start, "yes" later: the parts disagree about the best weights."""
    kept = {}
    for name in (None, "yes", "brevity"):
        reward = SumReward({"yes": toy.Reward(), "brevity": Brevity()})
        module = a_lol(toy, "wbc", reward=reward, options=OfflineOptions(select_by=name))
        log = toy.StepLog()
        trainer = toy.trainer(12, log, val_check_interval=4)
        trainer.fit(module, datamodule=toy.data())
        metrics = trainer.callback_metrics
        parts = float(metrics["val/parts/yes"]) + float(metrics["val/parts/brevity"])
        assert float(metrics["val/reward"]) == pytest.approx(parts, abs=1e-5)
        start = module.reference_scores
        assert start is not None
        assert set(start.parts) == {"yes", "brevity"}
        kept[name] = (module.outcome["kept"], module.outcome["best_score"], start.mean(name))
    assert kept["yes"][0] == "best"
    assert kept["yes"][1] > kept["yes"][2]
    assert kept["yes"][1] <= 1.0 < kept[None][1] + 1
    assert kept["brevity"] != kept["yes"]


def test_an_unknown_part_is_named() -> None:
    scores = Scores(torch.arange(2), torch.ones(2), torch.ones(2), {"fluency": torch.zeros(2)})
    assert (scores.mean(None), scores.mean("fluency")) == (1.0, 0.0)
    again = Scores.of_tensors(scores.tensors())
    assert again.parts["fluency"].tolist() == [0, 0]
    assert scores.select(torch.tensor([1])).parts["fluency"].tolist() == [0]
    with pytest.raises(UserError, match="got 'flow'; its parts: fluency"):
        scores.mean("flow")
    with pytest.raises(UserError, match="it is no sum"):
        scores._replace(parts={}).mean("flow")
