"""What caches are keyed by: another model, other settings or other texts never find old numbers."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_agents.errors import UserError
from llm_agents.methods import ALoL, OfflineOptions
from llm_agents.methods.content_cache import ContentCache, reference_key
from llm_agents.methods.preparation import training_rewards
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.bundled import resolve_base
from llm_agents.policies.model_digest import model_digest, tensor_digest, tokenizer_digest
from llm_agents.policies.pickled_adapters import converted
from llm_agents.policies.trunk_cache import trunk_digest
from llm_agents.rewards import CallableReward
from llm_agents.types import GenerationConfig, Prompt, Turn

TOP = LoraConfig(r=2, alpha=4, targets=("q_proj",), top_layers=1)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a folder with a tiny base of one's own."""
    folder = tmp_path / "base"
    shutil.copytree(resolve_base("tiny-random-llama").source, folder)
    return folder


def write_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def write_settings(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**before, **values}))


def one_row(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.embed_tokens.weight"][101] += 0.5


def one_value(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"][3, 7] += 1e-3


def two_rows_exchanged(tensors: dict[str, torch.Tensor]) -> None:
    rows = tensors["model.embed_tokens.weight"]
    rows[[50, 60]] = rows[[60, 50]].clone()


def keys(folder: Path) -> tuple[dict[str, str], str, str]:
    policy = LanguagePolicy.from_pretrained(str(folder), lora=TOP)
    trunk = trunk_digest(policy.causal_model, policy.frozen_depth)
    return reference_key(policy), trunk, model_digest(policy.model)


@pytest.mark.parametrize("change", [one_row, one_value, two_rows_exchanged])
def test_any_value_of_the_base_is_in_every_key(base: Path, change: Any) -> None:
    torch.manual_seed(0)
    reference, trunk, model = keys(base)
    torch.manual_seed(0)
    assert keys(base) == (reference, trunk, model), "the same files give the same keys"
    write_weights(base, change)
    torch.manual_seed(0)
    after = keys(base)
    assert after[0] != reference
    assert after[1] != trunk
    assert after[2] != model


@pytest.mark.parametrize(
    "setting",
    [{"rms_norm_eps": 0.1}, {"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}}],
)
def test_settings_of_the_base_are_in_every_key(base: Path, setting: dict[str, Any]) -> None:
    torch.manual_seed(0)
    before = keys(base)
    write_settings(base, "config.json", **setting)
    torch.manual_seed(0)
    after = keys(base)
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_a_trunk_above_which_the_head_is_adapted_has_one_key(base: Path) -> None:
    """What trains above the trunk is no part of its key."""
    both = LoraConfig(r=2, alpha=4, targets=("q_proj", "lm_head"), top_layers=None)
    policy = LanguagePolicy.from_pretrained(str(base), lora=both)
    before = trunk_digest(policy.causal_model, 0)
    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter += 1
    assert trunk_digest(policy.causal_model, 0) == before


def test_how_an_adapter_is_scaled_is_in_the_key(toy: Any) -> None:
    """The same tensors, twice as strong."""
    folder = Path(toy.sft_adapter())
    before = reference_key(toy.policy(adapter=str(folder)))
    write_settings(folder, "adapter_config.json", lora_dropout=0.3)
    assert reference_key(toy.policy(adapter=str(folder))) == before, "a reference has no dropout"
    write_settings(folder, "adapter_config.json", lora_alpha=16)
    assert reference_key(toy.policy(adapter=str(folder))) != before


def test_a_digest_is_remembered_only_while_nothing_is_written() -> None:
    tensor = torch.arange(6.0)
    first = tensor_digest(tensor)
    assert tensor_digest(tensor) == first
    tensor[2] += 1
    assert tensor_digest(tensor) != first
    tensor[2] -= 1
    assert tensor_digest(tensor) == first
    moved = torch.nn.Parameter(torch.arange(6.0), requires_grad=False)
    before = tensor_digest(moved)
    moved.data = moved.data.double()
    assert tensor_digest(moved) != before


def test_a_tokenizers_digest_is_that_of_its_rules(base: Path) -> None:
    from transformers import AutoTokenizer

    first, second = (AutoTokenizer.from_pretrained(base) for _ in range(2))
    second("a text that is cut", truncation=True, max_length=3)
    assert tokenizer_digest(first) == tokenizer_digest(second), "using it changes nothing"
    second.chat_template = "{{ messages }}"
    assert tokenizer_digest(first) != tokenizer_digest(second)


# --- the reference's answers ------------------------------------------------------------------


def answered(toy: Any, base: Path, cache: str, **options: Any) -> list[float]:
    """Return the rewards of the reference's answers in a run of one step: their lengths."""

    def length(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        return [
            len(text) / 100 + len(prompt) / 10
            for prompt, text in zip(prompts, responses, strict=True)
        ]

    torch.manual_seed(0)
    module = ALoL(
        LanguagePolicy.from_pretrained(str(base), lora=LoraConfig(r=2)),
        options.pop("reward", None) or CallableReward(length, 0.0, 9.0, "length", "1"),
        "r_lol",
        optimizer=toy.fast(),
        generation=options.pop("generation", toy.generation),
        options=OfflineOptions(cache=str(base.parent / cache)),
    )
    toy.fit(module, data=options.pop("data", None) or toy.data(), max_steps=1)
    assert module.reference_scores is not None
    return module.reference_scores.rewards.tolist()


def test_other_end_tokens_are_other_answers(toy: Any, base: Path) -> None:
    before = answered(toy, base, "cache")
    assert answered(toy, base, "cache") == before
    policy = LanguagePolicy.from_pretrained(str(base), trainable=False)
    prompts = [policy.encode_prompt((Turn("user", "Is it warm? 0"),), template="plain")]
    said = policy.generate(prompts, toy.generation)
    ends = [policy.text.end_id, *{ids[2] for ids in said}]
    write_settings(base, "generation_config.json", eos_token_id=ends)
    fresh = answered(toy, base, "fresh")
    assert fresh != before
    assert answered(toy, base, "cache") == fresh


def exclaiming(data: Any) -> Any:
    """Let the data's rule for answers differ: what it makes of generated text is in the key."""
    data.clean_response = lambda text: text.strip() + "!"
    return data


def test_another_rule_for_answers_is_another_score(toy: Any, base: Path) -> None:
    before = answered(toy, base, "cache")
    after = answered(toy, base, "cache", data=exclaiming(toy.data()))
    assert after == pytest.approx([value + 0.01 for value in before])


def test_prompts_that_are_cut_to_equal_ids_are_other_prompts_to_the_reward(
    toy: Any, base: Path
) -> None:
    def rows(first: str) -> list[dict[str, Any]]:
        ending = " and tell me whether it is warm out there."
        return [{**row, "prompt": first + ending} for row in toy.rows()[:2]]

    def told(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        return [float("Birds" in prompt[-1].text) for prompt in prompts]

    reward = CallableReward(told, 0.0, 1.0, "birds", "1")
    found = [
        answered(
            toy,
            base,
            "cache",
            reward=reward,
            data=toy.data(rows(first), max_prompt_tokens=6),
        )
        for first in ("Look at the sky", "Birds sing today")
    ]
    assert found[0] != found[1]
    assert set(found[1]) == {1.0}


def test_sampling_and_stop_strings_are_other_answers(toy: Any, base: Path) -> None:
    before = answered(toy, base, "cache")
    for settings in ({"temperature": 1.0}, {"stop_strings": ("e",)}, {"repetition_penalty": 3.0}):
        generation = GenerationConfig(max_new_tokens=8, **settings)
        fresh = answered(toy, base, f"fresh-{next(iter(settings))}", generation=generation)
        assert fresh != before
        assert answered(toy, base, "cache", generation=generation) == fresh


def test_training_responses_are_scored_as_texts(tmp_path: Path) -> None:
    """Ids that were cut to one length may be equal where texts differ."""

    class Source:
        def __init__(self, text: str) -> None:
            self.text = text

        def fingerprint(self) -> str:
            return "the same ids"

        def table_size(self) -> int:
            return 1

        def table_rewards(self) -> torch.Tensor:
            return torch.full((1,), torch.nan)

        def table_texts(self) -> tuple[list[Prompt], list[str]]:
            return [(Turn("user", "a"),)], [self.text]

        def table_prompts(self) -> torch.Tensor:
            return torch.zeros(1, dtype=torch.int64)

    reward = CallableReward(lambda p, r: [float(len(x)) for x in r], name="length", version="1")
    found = [
        training_rewards(Source(text), reward, ContentCache(tmp_path), scored_by_model=True)  # type: ignore[arg-type]  # what is read of it
        for text in ("four", "sixsix", "four")
    ]
    assert [float(one) for one in found] == [4.0, 6.0, 4.0]


# --- versions of rewards ----------------------------------------------------------------------


def test_a_function_of_rewards_is_all_that_it_carries() -> None:
    def above(threshold: float, weights: dict[str, float] | None = None) -> Any:
        def function(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
            return [
                float(len(text) > threshold) * (weights or {}).get(text, 1.0) for text in responses
            ]

        return function

    class Judge:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
            return [self.scale for _ in responses]

        def method(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
            return [self.scale for _ in responses]

    def scaled(
        prompts: Sequence[Prompt], responses: Sequence[str], scale: float = 1.0
    ) -> list[float]:
        return [scale for _ in responses]

    functions = [
        above(1),
        above(2),
        above(1, {"a": 2.0}),
        Judge(1.0),
        Judge(2.0),
        Judge(1.0).method,
        Judge(2.0).method,
        partial(scaled, scale=2.0),
        partial(scaled, scale=3.0),
        lambda p, r: [1.0 for _ in r],
        lambda p, r: [2.0 for _ in r],
    ]
    versions = [CallableReward(function).version for function in functions]
    assert len(set(versions)) == len(functions)
    assert CallableReward(above(1)).version == versions[0]
    assert CallableReward(Judge(2.0)).version == versions[4]


def test_a_function_that_carries_what_cannot_be_compared_needs_a_version() -> None:
    lock = threading.Lock()

    def function(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        with lock:
            return [0.0 for _ in responses]

    with pytest.raises(UserError, match="give `version`"):
        CallableReward(function)
    assert CallableReward(function, version="1").version == "1"


# --- adapters that were pickles -----------------------------------------------------------------


def test_the_settings_of_a_pickled_adapter_are_not_taken_from_another(
    toy: Any, tmp_path: Path
) -> None:
    folder = Path(toy.sft_adapter())
    weights = load_file(folder / "adapter_model.safetensors")
    torch.save(weights, folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    first = converted(folder)
    assert converted(folder) == first
    write_settings(folder, "adapter_config.json", lora_alpha=77)
    second = converted(folder)
    assert json.loads((second / "adapter_config.json").read_text())["lora_alpha"] == 77
    assert json.loads((first / "adapter_config.json").read_text())["lora_alpha"] != 77
