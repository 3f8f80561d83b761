"""PRO as a module."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.methods import PRO, OfflineOptions


def make(toy: Any, **options: Any) -> PRO:
    return PRO(toy.policy(), optimizer=toy.fast(), **options)


def test_loss_is_the_formula_on_the_responses_own_tokens(toy: Any) -> None:
    """Trap 13: each response's tokens are scored, not those one place to the right."""
    module, data = make(toy), toy.data(toy.rows(rewards=(1.5, -0.5)), batch_size=1)
    log = toy.fit(module, data, max_steps=1, limit_val_batches=0)
    row = log.rows[0]
    fresh = toy.policy()
    batch = next(b for b in data.table_batches(100_000) if set(row) <= set(b.rows.tolist()))
    own = batch.select(torch.tensor([batch.rows.tolist().index(r) for r in row]))
    with torch.no_grad():
        sums = fresh.log_probs(own).sum(1).double()
    better, worse = (sums / own.response_mask.sum(1)).tolist()
    temperature = 1.5 - -0.5
    rank = math.log(1e-10 + math.exp(better * temperature) + math.exp(worse * temperature))
    expected = rank - better * temperature - 0.05 * float(sums[0])
    assert log.losses[0] == pytest.approx(expected, rel=1e-5)


def test_first_responses_become_likeliest(toy: Any) -> None:
    trainer = toy.trainer(20, limit_val_batches=0)
    trainer.fit(make(toy), datamodule=toy.data(toy.rows(rewards=(1.5, -0.5))))
    assert float(trainer.callback_metrics["train/accuracy"]) == 1.0
    assert float(trainer.callback_metrics["train/rank_loss"]) < 0.1


def test_a_missing_reward_names_its_row(toy: Any) -> None:
    rows = toy.rows(repeats=1)
    del rows[1]["rewards"]
    with pytest.raises(UserError, match=r"nan for training response 2 \(prompt 1"):
        toy.fit(make(toy), toy.data(rows))


def test_options_without_effect_are_refused(toy: Any) -> None:
    with pytest.raises(UserError, match="training_rewards"):
        make(toy, options=OfflineOptions(training_rewards="scored"))
    with pytest.raises(UserError, match="`sft_weight` from 0"):
        make(toy, sft_weight=-1.0)
