"""Our own reward models: scores, text format, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.policies import LoraConfig
from llm_agents.policies.heads import RewardHead, ValueHead, save_head
from llm_agents.rewards import PolicyReward
from llm_agents.rewards.policy import PolicyRewardConfig
from llm_agents.types import TokenBatch, Turn
from tests.closeness import assert_rounding

PROMPTS = [
    (Turn("user", "Hi"),),
    (Turn("user", "What is a cat?"), Turn("assistant", "An animal."), Turn("user", "And a dog?")),
    (Turn("user", "Why is the sky blue, and why is it red in the evening?"),),
]
ANSWERS = ["Hello.", "Another animal, which barks", "Light scatters. " * 3]

CONFIG = PolicyRewardConfig(
    name="tiny",
    version="3",
    low=0.0,
    high=1.0,
    template="alol",
    max_prompt_tokens=80,
    max_response_tokens=20,
    base="tiny-random-llama",
    activation="sigmoid",
)


def write(folder: Path, policy: Any, config: PolicyRewardConfig = CONFIG) -> Path:
    policy.save_adapter(folder)
    save_head(RewardHead(policy.hidden_size), folder, "reward_head")
    config.write(folder / "reward.json")
    return folder


@pytest.fixture
def folder(make_policy: Callable[..., Any], tmp_path: Path) -> Path:
    return write(tmp_path / "reward", make_policy("llama", lora=LoraConfig(r=2), weights=0.3))


@pytest.mark.parametrize("family", ["llama", "gpt2", "neox", "opt", "qwen2", "t5"])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_scores_do_not_depend_on_the_batch(
    make_policy: Callable[..., Any], family: str, batch_size: int
) -> None:
    policy = make_policy(family, lora=LoraConfig(r=2), weights=0.3)
    head = RewardHead(policy.hidden_size)
    reward = PolicyReward(policy, head, CONFIG, batch_size=batch_size)
    together = reward(PROMPTS, ANSWERS)
    alone = torch.cat([reward([p], [a]) for p, a in zip(PROMPTS, ANSWERS, strict=True)])
    assert together.shape == (3,)
    assert together.dtype == torch.float32
    assert_rounding(together, alone)
    assert len(set(together.tolist())) == 3


def test_the_score_is_the_heads_output_at_the_responses_last_token(folder: Path) -> None:
    reward = PolicyReward.from_pretrained(str(folder), device="cpu")
    policy = reward.policy
    prompt = policy.encode_prompt(PROMPTS[1], template="alol", max_tokens=80)
    response = policy.encode_response(ANSWERS[1], template="alol", max_tokens=20)
    ids = torch.tensor([prompt + response])
    states = policy.causal_model.model(ids).last_hidden_state[:, -1]
    expected = torch.sigmoid(reward.head.output(states))[:, 0]
    assert len(response) < 20 or response[-1] != policy.text.end_id
    torch.testing.assert_close(reward([PROMPTS[1]], [ANSWERS[1]]), expected, rtol=1e-4, atol=1e-5)


def test_scoring_agrees_with_the_training_layout(folder: Path, make_batch: Any) -> None:
    values = json.loads((folder / "reward.json").read_text())
    values |= {"max_prompt_tokens": 900, "max_response_tokens": 90}
    (folder / "reward.json").write_text(json.dumps(values))
    reward = PolicyReward.from_pretrained(str(folder), device="cpu")
    policy = reward.policy
    batch: TokenBatch = make_batch(policy, list(zip(PROMPTS, ANSWERS, strict=True)), pad=3)
    states, mask = policy.hidden_states(batch.select(torch.tensor([0, 1])), part="response")
    expected = torch.sigmoid(reward.head(states, mask))
    assert_rounding(reward(PROMPTS[:2], ANSWERS[:2]), expected)


def test_an_empty_response_is_the_end_token(folder: Path) -> None:
    reward = PolicyReward.from_pretrained(str(folder), device="cpu")
    empty = reward([PROMPTS[0]] * 3, ["", "  ", "\n"])
    assert empty.isfinite().all()
    torch.testing.assert_close(empty, empty[:1].expand(3))


def test_a_long_prompt_keeps_its_end_and_a_long_response_its_beginning(folder: Path) -> None:
    reward = PolicyReward.from_pretrained(str(folder), device="cpu")
    long = (Turn("user", "x" * 400 + " and so on until the very last words of it are said" * 4),)
    other = (Turn("user", "y" * 400 + " and so on until the very last words of it are said" * 4),)
    torch.testing.assert_close(reward([long], ["Yes"]), reward([other], ["Yes"]))
    same = reward([PROMPTS[0]] * 2, ["a b c d " * 30 + "x", "a b c d " * 30 + "y"])
    torch.testing.assert_close(same[0], same[1])  # a row's place in a batch may move its last bit


def test_no_response_gives_no_score(folder: Path) -> None:
    assert PolicyReward.from_pretrained(str(folder))([], []).shape == (0,)


def test_without_an_activation_the_logit_is_the_score(folder: Path) -> None:
    bounded = PolicyReward.from_pretrained(str(folder))
    values = json.loads((folder / "reward.json").read_text())
    values |= {"activation": "none", "low": None, "high": None}
    (folder / "reward.json").write_text(json.dumps(values))
    raw = PolicyReward.from_pretrained(str(folder))
    assert (raw.low, raw.high) == (-float("inf"), float("inf"))
    torch.testing.assert_close(raw(PROMPTS, ANSWERS).sigmoid(), bounded(PROMPTS, ANSWERS))


def test_the_version_follows_weights_and_settings(folder: Path) -> None:
    versions = [PolicyReward.from_pretrained(str(folder)).version]
    assert versions[0].startswith("3+")
    save_head(RewardHead(64), folder, "reward_head")
    versions.append(PolicyReward.from_pretrained(str(folder)).version)
    values = json.loads((folder / "reward.json").read_text()) | {"max_prompt_tokens": 40}
    (folder / "reward.json").write_text(json.dumps(values))
    versions.append(PolicyReward.from_pretrained(str(folder)).version)
    assert len(set(versions)) == 3


def test_a_reward_model_whose_weights_all_trained_is_its_own_base(
    make_policy: Callable[..., Any], tmp_path: Path
) -> None:
    policy = make_policy("llama")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    folder = write(tmp_path / "whole", policy)
    assert (folder / "model.safetensors").is_file()
    head = PolicyReward.from_pretrained(str(folder)).head
    expected = PolicyReward(policy, head, CONFIG)(PROMPTS, ANSWERS)
    loaded = PolicyReward.from_pretrained(str(folder), device="cpu")
    torch.testing.assert_close(loaded(PROMPTS, ANSWERS), expected)


def test_nothing_in_it_trains(folder: Path) -> None:
    reward = PolicyReward.from_pretrained(str(folder))
    assert not list(reward.policy.trainable_parameters())
    assert not reward(PROMPTS, ANSWERS).requires_grad
    assert not reward.policy.training
    assert not reward.head.training


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"activation": "tanh"}, r"expected `activation` in .*, got 'tanh'"),
        ({"template": "vicuna"}, r"expected `template` in .*, got 'vicuna'"),
        ({"extra": 1}, r"unknown keys \['extra'\]"),
        ({"base": None}, r"missing keys \['base'\]"),
    ],
)
def test_settings_are_checked(folder: Path, change: dict[str, Any], expected: str) -> None:
    values = json.loads((folder / "reward.json").read_text()) | change
    values = {key: value for key, value in values.items() if value is not None or key != "base"}
    (folder / "reward.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=expected):
        PolicyReward.from_pretrained(str(folder))


def test_a_folder_without_settings_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected `reward\.json`"):
        PolicyReward.from_pretrained(str(tmp_path))
    with pytest.raises(UserError, match="expected a folder, a name of the zoo or a Hub id"):
        PolicyReward.from_pretrained(str(tmp_path / "nothing here"))


def test_a_value_head_is_no_reward_head(folder: Path) -> None:
    save_head(ValueHead(64), folder, "reward_head")
    with pytest.raises(UserError, match="expected a reward head"):
        PolicyReward.from_pretrained(str(folder))


def test_prompts_and_responses_must_match(folder: Path) -> None:
    with pytest.raises(ValueError, match="got 1 prompts and 2 responses"):
        PolicyReward.from_pretrained(str(folder))(PROMPTS[:1], ANSWERS[:2])


def test_a_reward_outside_its_range_is_refused(folder: Path) -> None:
    values = json.loads((folder / "reward.json").read_text()) | {"high": 0.01}
    (folder / "reward.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"promises scores from 0\.0 to 0\.01"):
        PolicyReward.from_pretrained(str(folder))(PROMPTS, ANSWERS)
