"""OpenAssistant's GPT-NeoX reward models, on tiny random ones of the same configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from llm_agents.policies import LanguagePolicy
from llm_agents.rewards import GPTNeoXRewardConfig, GPTNeoXRewardModel, OpenAssistantReward
from llm_agents.rewards.hha import OASST_FORMAT, pool
from llm_agents.types import Turn
from tests.closeness import assert_rounding

PROMPTS = [
    (Turn("user", "Hi"),),
    (Turn("user", "What is a cat?"), Turn("assistant", "An animal."), Turn("user", "And a dog?")),
    (Turn("user", "Why is the sky blue, and why is it red in the evening?"),),
]
ANSWERS = ["Hello.", "", "Light scatters. " * 3]


def config(**options: Any) -> GPTNeoXRewardConfig:
    return GPTNeoXRewardConfig(
        vocab_size=330,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.3,
        **options,
    )


@pytest.fixture(scope="module")
def folder(cache_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model as OpenAssistant's repositories hold it, role tokens in its tokenizer."""
    folder = tmp_path_factory.mktemp("oasst")
    tokenizer = LanguagePolicy.from_pretrained("tiny-random-neox", trainable=False).tokenizer
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|prompter|>", "<|assistant|>", "<|system|>"]}
    )
    tokenizer.save_pretrained(folder)
    GPTNeoXRewardModel(config()).save_pretrained(folder)
    return folder


def test_the_auto_classes_know_the_model(folder: Path) -> None:
    assert isinstance(AutoConfig.from_pretrained(folder), GPTNeoXRewardConfig)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert isinstance(model, GPTNeoXRewardModel)
    assert model.config.num_labels == 1
    assert {"out_proj.weight", "out_proj.bias"} <= set(model.state_dict())
    assert "gpt_neox.embed_in.weight" in model.state_dict()


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_move_the_reward(pooling: str, side: str) -> None:
    model = GPTNeoXRewardModel(config(pooling=pooling)).eval()
    ids = torch.randint(3, 300, (1, 6))
    alone = model(ids).logits
    padding = torch.zeros(1, 5, dtype=torch.int64)
    ones = torch.ones_like(ids)
    parts = (
        [(padding, padding), (ids, ones)] if side == "left" else [(ids, ones), (padding, padding)]
    )
    padded, mask = (torch.cat(tensors, 1) for tensors in zip(*parts, strict=True))
    assert alone.shape == (1, 1)
    assert_rounding(model(padded, mask).logits, alone)


def test_last_pooling_reads_the_last_attended_token() -> None:
    hidden = torch.arange(24.0).reshape(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])
    expected = torch.stack([hidden[0, 1], hidden[1, 3]])
    torch.testing.assert_close(pool(hidden, mask, "last"), expected)


def test_mean_pooling_is_over_attended_tokens() -> None:
    hidden = torch.arange(24.0).reshape(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])
    expected = torch.stack([hidden[0, :2].mean(0), hidden[1, 1:].mean(0)])
    torch.testing.assert_close(pool(hidden, mask, "mean"), expected)


def test_the_pooling_is_checked() -> None:
    with pytest.raises(ValueError, match="expected pooling last or mean, got 'max'"):
        config(pooling="max")
    assert config(pooling=None).pooling == "last"


def test_the_text_is_role_tokens_texts_and_end_tokens(folder: Path) -> None:
    reward = OpenAssistantReward.from_pretrained(str(folder), device="cpu")
    text, pair = OASST_FORMAT.render(PROMPTS[1], "It barks.", reward.tokenizer)
    end = reward.tokenizer.eos_token
    assert text == (
        f"<|prompter|>What is a cat?{end}<|assistant|>An animal.{end}<|prompter|>And a dog?{end}"
        f"<|assistant|>It barks.{end}"
    )
    assert pair is None
    ids = reward.tokenizer(text).input_ids
    roles = reward.tokenizer.convert_tokens_to_ids(["<|prompter|>", "<|assistant|>"])
    assert [token for token in ids if token in roles] == [roles[0], roles[1]] * 2


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_scores_do_not_depend_on_the_batch(folder: Path, batch_size: int) -> None:
    reward = OpenAssistantReward.from_pretrained(str(folder), batch_size=batch_size, device="cpu")
    together = reward(PROMPTS, ANSWERS)
    alone = torch.cat([reward([p], [a]) for p, a in zip(PROMPTS, ANSWERS, strict=True)])
    assert_rounding(together, alone)
    assert len(set(together.tolist())) == 3
    assert (reward.low, reward.high) == (0.0, 1.0)


def test_the_score_is_the_sigmoid_of_the_logit(folder: Path) -> None:
    reward = OpenAssistantReward.from_pretrained(str(folder), device="cpu")
    raw = OpenAssistantReward.from_pretrained(str(folder), activation="none", device="cpu")
    text, _ = OASST_FORMAT.render(PROMPTS[0], ANSWERS[0], reward.tokenizer)
    logit = raw.model(torch.tensor([raw.tokenizer(text).input_ids])).logits[0, 0]
    assert_rounding(raw(PROMPTS[:1], ANSWERS[:1])[0], logit)
    torch.testing.assert_close(raw(PROMPTS, ANSWERS).sigmoid(), reward(PROMPTS, ANSWERS))


def test_long_dialogues_lose_their_beginning(folder: Path) -> None:
    reward = OpenAssistantReward.from_pretrained(str(folder), max_tokens=40, device="cpu")
    long = [
        (Turn("user", start * 90 + " and this is how the long question ends"),) for start in "xy"
    ]
    scores = reward(long, ["Yes, it ends here."] * 2)
    assert_rounding(scores[0], scores[1])  # equal but for rounding
    assert OpenAssistantReward.from_pretrained(str(folder)).max_tokens == 1024
