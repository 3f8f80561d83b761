"""Training of reward models, and the folder they leave."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from llm_agents.errors import UserError
from llm_agents.methods import OfflineOptions, RewardTraining
from llm_agents.rewards import PolicyReward
from llm_agents.types import RankedBatch, Turn
from tests.closeness import assert_rounding


def make(toy: Any, policy: Any = None, **options: Any) -> RewardTraining:
    torch.manual_seed(0)
    return RewardTraining(policy or toy.policy(), optimizer=toy.fast(3e-3), **options)


def varied(toy: Any) -> list[dict[str, Any]]:
    """Return rows whose two stored scores (logits) differ from row to row."""
    rows = toy.rows(repeats=3)
    for number, row in enumerate(rows):
        row["rewards"] = [1.0 + 0.1 * number, -1.0 - 0.1 * number]
    return rows


@pytest.mark.parametrize(
    ("objective", "score_loss"), [("pairs", "bce"), ("scores", "bce"), ("scores", "mse")]
)
def test_each_objective_learns_the_preference(toy: Any, objective: str, score_loss: str) -> None:
    module = make(toy, objective=objective, score_loss=score_loss)
    trainer = toy.trainer(20, val_check_interval=10)
    trainer.fit(module, datamodule=toy.data(varied(toy)))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert metrics["val/accuracy"] == 1.0
    assert metrics["val/correlation"] > 0.9
    if objective == "scores":
        assert metrics["val/mse"] < 0.02
    assert module.outcome["kept"] == "best"


def test_a_frozen_trunk_is_computed_once(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make(toy, toy.policy(trainable=False), pooling="summary", width=8)
    passes = []
    forward = module.policy.hidden_states

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(len(args[0]))
        return forward(*args, **options)

    monkeypatch.setattr(module.policy, "hidden_states", counted)
    data = toy.data(varied(toy))
    toy.fit(module, data, max_steps=12, val_check_interval=3)
    assert sum(passes) == 2 * data.table_size()  # training rows once, validation rows once
    features = module._features
    assert features is not None
    torch.testing.assert_close(module.head.center, features.mean(0))
    module.eval()
    with torch.no_grad():  # what is kept is what the model says
        batch = next(iter(data.table_batches(10**6)))
        torch.testing.assert_close(
            module.head.of_features(features[batch.rows]), module.logits(batch)
        )


def test_a_head_with_hidden_units_learns_and_comes_back(toy: Any) -> None:
    module = make(toy, toy.policy(trainable=False), pooling="summary", width=16, dropout=0.1)
    trainer = toy.trainer(40, val_check_interval=20)
    data = toy.data(varied(toy))
    trainer.fit(module, datamodule=data)
    assert float(trainer.callback_metrics["val/accuracy"]) == 1.0
    assert float(trainer.callback_metrics["val/correlation"]) > 0.9
    module.save_pretrained(toy.folder / "reward")
    reward = PolicyReward.from_pretrained(str(toy.folder / "reward"))
    prompts, texts = data.table_texts()
    batch = next(iter(data.table_batches(10**6)))
    with torch.no_grad():
        expected = torch.empty(len(texts))
        expected[batch.rows] = module.eval().logits(batch).sigmoid()
    assert_rounding(reward(prompts, texts), expected)


def test_a_resumed_run_on_a_frozen_trunk_goes_on_alike(toy: Any) -> None:
    def module() -> RewardTraining:
        return make(toy, toy.policy(trainable=False), pooling="summary", width=8, dropout=0.2)

    whole = module()
    keep = ModelCheckpoint(toy.folder / "kept", every_n_train_steps=3, save_top_k=-1)
    toy.fit(
        whole, toy.data(varied(toy)), 6, [keep], val_check_interval=3, enable_checkpointing=True
    )
    half = next((toy.folder / "kept").glob("*step=3.ckpt"))
    again = module()
    toy.trainer(6, val_check_interval=3).fit(
        again, datamodule=toy.data(varied(toy)), ckpt_path=half
    )
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(again.head.state_dict()[name], tensor), name


def test_the_folder_gives_the_same_scores(toy: Any) -> None:
    module = make(toy, name="toy-reward")
    data = toy.data(varied(toy))
    toy.fit(module, data, max_steps=5, val_check_interval=5)
    module.save_pretrained(toy.folder / "reward")
    described = json.loads((toy.folder / "reward" / "reward.json").read_text("utf8"))
    assert described["name"] == "toy-reward"
    assert (described["template"], described["max_response_tokens"]) == ("plain", 80)

    reward = PolicyReward.from_pretrained(str(toy.folder / "reward"))
    prompts, texts = data.table_texts()
    expected = torch.empty(len(texts))
    with torch.no_grad():
        for batch in data.table_batches(1000):
            expected[batch.rows] = module.eval().logits(batch).sigmoid()
    assert torch.allclose(reward(prompts, texts), expected, atol=1e-5)
    assert (reward.low, reward.high) == (0.0, 1.0)
    assert reward([(Turn("user", "Shall we go?"),)], ["yes yes"]).shape == (1,)


def test_a_frozen_trunk_trains_the_head_alone(toy: Any) -> None:
    policy = toy.policy(trainable=False)
    module = make(toy, policy)
    assert {name for name, _ in module.trainable()} == {"head.output.weight", "head.output.bias"}
    toy.fit(module, toy.data(varied(toy)), max_steps=3, val_check_interval=3)
    module.save_pretrained(toy.folder / "reward")
    assert not (toy.folder / "reward" / "adapter_config.json").exists()
    assert not list((toy.folder / "reward").glob("model*"))
    reward = PolicyReward.from_pretrained(str(toy.folder / "reward"))
    assert reward([(Turn("user", "Shall we go?"),)], ["yes"]).shape == (1,)


def compare(module: RewardTraining, logits: list[float], rewards: list[list[float]]) -> Any:
    return module._compare(torch.tensor(logits), torch.tensor(rewards))


def test_pairs_by_stored_scores_count_ties_as_half(toy: Any) -> None:
    """R19: pairs [2 beats −1], [tie], [first loses]; accuracy is over the two decided ones."""
    module = make(toy, objective="pairs", labels="scores")
    found = compare(module, [1.0, 0.0, 2.0, 0.0, 3.0, 0.0], [[2, -1], [1, 1], [0, 5]])
    log1p = [math.log1p(math.exp(-1)), math.log1p(math.exp(-2)), math.log1p(math.exp(-3))]
    expected = (log1p[0] + (log1p[1] + 1.0) + (log1p[2] + 3.0)) / 3
    assert float(found.loss) == pytest.approx(expected, rel=1e-6)
    assert float(found.accuracy) == 0.5


def test_accuracy_is_none_where_all_are_ties(toy: Any) -> None:
    """R19."""
    module = make(toy, objective="pairs", labels="scores")
    found = compare(module, [1.0, 0.0], [[1, 1]])
    assert found.accuracy is None
    assert float(found.loss) == pytest.approx(math.log1p(math.exp(-1)) + 0.5)


def test_ordered_pairs_need_no_scores(toy: Any) -> None:
    module = make(toy, objective="pairs")
    found = compare(module, [1.0, 0.0], [[math.nan, math.nan]])
    assert float(found.loss) == pytest.approx(math.log1p(math.exp(-1)))
    metrics, _ = module.summarize([(torch.tensor([[1.0, 0.0]]), torch.full((1, 2), math.nan))])
    assert "val/correlation" not in metrics
    assert metrics["val/accuracy"] == 1.0


def test_scores_that_are_missing_or_no_probabilities_are_refused(toy: Any) -> None:
    with pytest.raises(UserError, match="nan for response 1 of prompt 0"):
        compare(make(toy), [1.0, 0.0], [[1.0, math.nan]])
    with pytest.raises(UserError, match="score_transform: sigmoid"):
        compare(make(toy, score_transform="none"), [1.0, 0.0], [[1.5, 0.0]])


def test_the_reward_sits_on_the_last_real_token(toy: Any) -> None:
    """R1: padding behind a response changes nothing."""
    module, data = make(toy), toy.data(varied(toy))
    data.connect(module.policy, "ranked", "ranked")
    data.setup("fit")
    batch: RankedBatch = next(iter(data.train_dataloader()))
    with torch.no_grad():
        module.eval()
        together = module.logits(batch.tokens)
        alone = [module.logits(batch.tokens.select(torch.tensor([row]))) for row in range(8)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)


def test_options_without_effect_are_refused(toy: Any) -> None:
    with pytest.raises(UserError, match="training_rewards"):
        make(toy, options=OfflineOptions(training_rewards="scored"))
    with pytest.raises(UserError, match="if_none_better"):
        make(toy, options=OfflineOptions(if_none_better="reference"))
    with pytest.raises(ValueError, match=r"after `trainer\.fit`"):
        make(toy).save_pretrained(toy.folder / "none")
