"""DPO as a module."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.methods import DPO
from llm_agents.methods.dpo import pairs


def make(toy: Any, policy: Any = None, **options: Any) -> DPO:
    return DPO(policy or toy.policy(), optimizer=toy.fast(), **options)


def test_loss_is_log_2_at_the_start_from_an_sft_adapter(toy: Any) -> None:
    module = make(toy, toy.policy(adapter=toy.sft_adapter()))
    log = toy.fit(module, max_steps=1, limit_val_batches=0)
    assert log.losses[0] == pytest.approx(math.log(2), abs=1e-5)


def test_chosen_responses_become_likelier_than_rejected(toy: Any) -> None:
    module = make(toy)
    trainer = toy.trainer(20, limit_val_batches=0)
    trainer.fit(module, datamodule=toy.data())
    metrics = trainer.callback_metrics
    assert float(metrics["train/accuracy"]) == 1.0
    assert float(metrics["train/loss"]) < 0.1
    assert float(metrics["train/chosen_rewards"]) > float(metrics["train/rejected_rewards"])


def test_reference_free_asks_no_reference(toy: Any) -> None:
    module = make(toy, reference_free=True)
    log = toy.fit(module, max_steps=1, limit_val_batches=0)
    assert module.ref_log_probs is None
    assert log.losses[0] != pytest.approx(math.log(2), abs=1e-3)


def test_pairs_set_the_first_against_each_other() -> None:
    first, other = pairs(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 3)
    assert first.tolist() == [1.0, 1.0, 4.0, 4.0]
    assert other.tolist() == [2.0, 3.0, 5.0, 6.0]


def test_three_responses_are_two_pairs(toy: Any) -> None:
    rows = toy.rows(responses=("yes yes", "no no no", "what"), rewards=(0.9, 0.2, 0.1))
    log = toy.fit(make(toy), toy.data(rows, batch_size=2), max_steps=2, limit_val_batches=0)
    assert log.losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert [len(batch) for batch in log.rows] == [6, 6]


def test_a_beta_of_0_is_refused(toy: Any) -> None:
    with pytest.raises(UserError, match="`beta` above 0"):
        make(toy, beta=0.0)
