"""The cache, the ragged table, and the checks of rewards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_agents.errors import UserError
from llm_agents.methods.content_cache import ContentCache, reference_key, tensors_digest
from llm_agents.methods.preparation import PerToken
from llm_agents.methods.validation import Scores, check_rewards


def test_a_result_is_made_once(tmp_path: Path) -> None:
    cache, made = ContentCache(tmp_path), []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"x": torch.arange(3)}

    for _ in range(2):
        assert cache.get("kind", {"a": "1"}, make)["x"].tolist() == [0, 1, 2]
    assert len(made) == 1
    cache.get("kind", {"a": "2"}, make)
    cache.get("other", {"a": "1"}, make)
    assert len(made) == 3
    assert not list(tmp_path.glob("*.tmp"))


def test_a_result_of_something_else_is_refused(tmp_path: Path) -> None:
    """Trap 25: the key is stored in the file and compared."""
    cache = ContentCache(tmp_path)
    cache.get("kind", {"a": "1"}, lambda: {"x": torch.zeros(1)})
    cache.path("kind", {"a": "1"}).rename(cache.path("kind", {"a": "2"}))
    with pytest.raises(UserError, match="was made from something else: delete"):
        cache.get("kind", {"a": "2"}, lambda: {"x": torch.zeros(1)})


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path)
    cache.path("kind", {"a": "1"}).write_bytes(b"\x00" * 20)
    with pytest.raises(UserError, match="can't be read"):
        cache.get("kind", {"a": "1"}, lambda: {"x": torch.zeros(1)})


def test_a_fault_while_making_leaves_nothing(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path)

    def fail() -> dict[str, torch.Tensor]:
        raise UserError("no")

    with pytest.raises(UserError):
        cache.get("kind", {"a": "1"}, fail)
    assert not cache.has("kind", {"a": "1"})
    assert cache.get("kind", {"a": "1"}, lambda: {"x": torch.ones(1)})["x"].tolist() == [1.0]


def test_digest_sees_names_shapes_types_and_values() -> None:
    base = torch.arange(6.0)
    digests = {
        tensors_digest([("a", base)]),
        tensors_digest([("b", base)]),
        tensors_digest([("a", base.view(2, 3))]),
        tensors_digest([("a", base.double())]),
        tensors_digest([("a", base.bfloat16())]),
        tensors_digest([("a", base + 1)]),
    }
    assert len(digests) == 6
    assert tensors_digest([("a", base)]) == tensors_digest([("a", base.clone())])


def test_reference_key_tells_adapters_apart_and_ignores_fresh_ones(toy: Any) -> None:
    fresh = reference_key(toy.policy())
    torch.manual_seed(99)
    from llm_agents.policies import LanguagePolicy, LoraConfig

    other = LanguagePolicy.from_pretrained("tiny-random-llama", lora=LoraConfig(r=2))
    assert reference_key(other) == fresh, "a fresh LoRA's reference is the base"
    started = toy.policy(adapter=toy.sft_adapter())
    key = reference_key(started)
    assert key != fresh
    for name, parameter in started.trainable_parameters():
        if "lora_B" in name:
            parameter.data += 1
    assert reference_key(started) == key, "training does not move the reference"
    assert reference_key(toy.policy("tiny-random-gpt2")) != fresh


def test_gather_puts_each_responses_numbers_under_its_mask() -> None:
    table = PerToken(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), torch.tensor([0, 2, 3, 6]))
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    found = table.gather(torch.tensor([2, 0, 1]), mask)
    assert found.tolist() == [[4.0, 5.0, 6.0], [1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]


def test_gather_refuses_other_responses() -> None:
    table = PerToken(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 3]))
    with pytest.raises(ValueError, match="expected 1 tokens in training response 1, got 2"):
        table.gather(torch.tensor([1]), torch.tensor([[True, True]]))
    with pytest.raises(ValueError, match="got -1"):
        table.gather(torch.tensor([-1]), torch.tensor([[True]]))


def test_scores_are_looked_up_by_position() -> None:
    """Trap 39: two prompts of one id or text keep their own targets."""
    scores = Scores(torch.tensor([1, 0]), torch.tensor([3.0, 1.0]), torch.tensor([9.0, 8.0]))
    assert scores.select(torch.tensor([0, 1])).rewards.tolist() == [1.0, 3.0]
    assert scores.select(torch.tensor([1])).words.tolist() == [9.0]
    with pytest.raises(UserError, match="prompt 2 was not among them"):
        scores.select(torch.tensor([2]))


def test_rewards_are_checked() -> None:
    check_rewards(torch.tensor([0.0, 1.0]), 0.0, 1.0)
    check_rewards(torch.tensor([-7.0, 7.0]), None, None)
    with pytest.raises(UserError, match="got nan for training response 1 and 0 others"):
        check_rewards(torch.tensor([0.0, math.nan]), 0.0, 1.0)
    with pytest.raises(UserError, match=r"from 0\.0 to 1\.0, got -0\.4 for training response 1"):
        check_rewards(torch.tensor([0.0, -0.4]), 0.0, 1.0)
