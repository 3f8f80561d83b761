"""`LanguagePolicy` on stored states of frozen lower layers: equal numbers, less to compute."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from llm_agents.policies import LoraConfig
from llm_agents.policies.trunk_cache import layer_list
from llm_agents.types import GenerationConfig, PromptBatch
from tests.closeness import assert_rounding

CAUSAL = ("llama", "qwen2", "gpt2", "neox", "opt")
PAIRS = [
    ("How can I help you today?", "I know a good book."),
    ("Hi", "Yes, take the bread and put it in the oven for ten minutes."),
    ("The agent sees a red ball, and a blue key.", ""),
    ("x", "y"),
]
TOP = LoraConfig(top_layers=1)


class Counter:
    """Counts the passes of a layer's attention, and the tokens in them."""

    def __init__(self, policy, layer):
        self.tokens = self.passes = 0
        parts = layer_list(policy.causal_model)[layer].modules()
        part = next(m for m in parts if "Attention" in type(m).__name__)
        part.register_forward_hook(self.count, with_kwargs=True)

    def count(self, module, args, kwargs, output):
        self.tokens += output[0].shape[:2].numel()
        self.passes += 1


def both(make_policy, family, folder, **options):
    """Return a policy with a trunk cache and one without, of equal weights."""
    cached = make_policy(family, lora=TOP, weights=0.3, trunk_cache=str(folder), **options)
    plain = make_policy(family, lora=TOP, weights=0.3, **options)
    plain.load_adapter_weights(cached.adapter_state_dict())
    return cached, plain


@pytest.mark.parametrize("family", CAUSAL)
def test_all_results_are_those_of_the_full_pass(make_policy, make_batch, family, tmp_path):
    cached, plain = both(make_policy, family, tmp_path)
    batch = make_batch(plain, PAIRS, pad=3)
    for _ in range(2):  # the first pass fills the store, the second reads it
        assert_rounding(cached.log_probs(batch), plain.log_probs(batch))
        for part in ("prompt", "response", "all"):
            got, mask = cached.hidden_states(batch, part)
            expected, _ = plain.hidden_states(batch, part)
            assert_rounding(got[mask], expected[mask])
        ours, theirs = (p.log_probs_and_prompt_states(batch) for p in (cached, plain))
        mask = ours.prompt_mask
        assert_rounding(ours.log_probs, theirs.log_probs)
        assert_rounding(ours.prompt_states[mask], theirs.prompt_states[mask])
        for policy in (cached, plain):
            policy.zero_grad()
            policy.sequence_log_probs(batch).sum().backward()
        gradients = {name: p.grad for name, p in plain.trainable_parameters()}
        for name, parameter in cached.trainable_parameters():
            torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4, rtol=1e-4)
        with cached.reference(), plain.reference():
            assert_rounding(cached.log_probs(batch), plain.log_probs(batch))


def test_the_lower_layers_are_computed_once_a_row(make_policy, make_batch, tmp_path):
    cached, _ = both(make_policy, "llama", tmp_path)
    cached.log_probs(make_batch(cached, [("first", "pass")]))  # checks the head
    batch = make_batch(cached, PAIRS)
    lower, upper = Counter(cached, 0), Counter(cached, 1)
    cached.log_probs(batch.select(torch.tensor([0, 1])))
    tokens = (batch.prompt_mask.sum(1) + batch.response_mask.sum(1)).tolist()
    assert (lower.tokens, upper.passes) == (sum(tokens[:2]), 1)
    cached.log_probs(batch)  # two rows are stored, two are new
    assert (lower.tokens, upper.passes) == (sum(tokens), 2)
    for _ in range(3):
        cached.log_probs(batch)
    assert (lower.tokens, upper.passes) == (sum(tokens), 5)


def test_equal_prompts_are_computed_once_by_the_lower_layers(make_policy, make_batch, tmp_path):
    cached, plain = both(make_policy, "llama", tmp_path)
    cached.log_probs(make_batch(cached, [("first", "pass")]))
    batch = make_batch(cached, [("Do you see it?", text) for text in ("Yes.", "No.", "Not yet.")])
    lower = Counter(cached, 0)
    assert cached.fill_trunk_cache([batch]) == 3
    assert lower.tokens == int(batch.prompt_mask[0].sum() + batch.response_mask.sum())
    torch.testing.assert_close(cached.log_probs(batch), plain.log_probs(batch), atol=1e-5, rtol=0)


def test_a_frozen_model_shares_the_trunk_of_one_that_trains_its_top(
    make_policy, make_batch, tmp_path
):
    frozen = make_policy(
        "llama", trainable=False, trunk_cache=str(tmp_path), trunk_top_layers=TOP.top_layers
    )
    plain = make_policy("llama", trainable=False)
    batch = make_batch(frozen, PAIRS)
    torch.testing.assert_close(frozen.log_probs(batch), plain.log_probs(batch), atol=1e-5, rtol=0)
    training, _ = both(make_policy, "llama", tmp_path)
    assert training.fill_trunk_cache([batch]) == 0
    whole = make_policy("llama", trainable=False, trunk_cache=str(tmp_path))
    assert whole.fill_trunk_cache([batch]) == len(PAIRS)  # as deep as can be: another store


def test_filling_leaves_nothing_to_compute_for_another_process(make_policy, make_batch, tmp_path):
    cached, plain = both(make_policy, "gpt2", tmp_path)
    batch = make_batch(cached, PAIRS)
    assert cached.fill_trunk_cache([batch, batch]) == len(PAIRS)
    assert cached.fill_trunk_cache([batch]) == 0
    assert plain.fill_trunk_cache([batch]) == 0
    again, _ = both(make_policy, "gpt2", tmp_path)
    again.load_adapter_weights(cached.adapter_state_dict())
    again.log_probs(make_batch(again, PAIRS[:1]))  # the head is checked with ids of its own
    lower = Counter(again, 0)
    assert_rounding(again.log_probs(batch), cached.log_probs(batch))
    assert lower.tokens == 0


def test_prompts_alone_and_training_go_through_the_store(make_policy, make_batch, tmp_path):
    cached, plain = both(make_policy, "llama", tmp_path)
    batch = make_batch(cached, PAIRS)
    prompts = PromptBatch((), batch.prompt_ids, batch.prompt_mask, batch.rows)
    for _ in range(2):
        got, mask = cached.hidden_states(prompts)
        assert_rounding(got[mask], plain.hidden_states(prompts)[0][mask])
    for policy in (cached, plain):
        optimizer = torch.optim.SGD([p for _, p in policy.trainable_parameters()], lr=1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            (-policy.sequence_log_probs(batch).mean()).backward()
            optimizer.step()
    torch.testing.assert_close(cached.log_probs(batch), plain.log_probs(batch), atol=1e-4, rtol=0)


def test_generation_needs_no_store(make_policy, tmp_path):
    cached, plain = both(make_policy, "llama", tmp_path)
    config = GenerationConfig(max_new_tokens=6)
    assert cached.generate([[5, 6], [7]], config) == plain.generate([[5, 6], [7]], config)


@pytest.mark.parametrize("checkpointing", [True, False])
def test_checkpointing_above_the_trunk_gives_the_same_gradients(
    make_policy, make_batch, tmp_path, checkpointing
):
    cached, plain = both(make_policy, "llama", tmp_path, gradient_checkpointing=checkpointing)
    batch = make_batch(plain, PAIRS)
    for policy in (cached, plain):
        policy.sequence_log_probs(batch).sum().backward()
    gradients = {name: p.grad for name, p in plain.trainable_parameters()}
    for name, parameter in cached.trainable_parameters():
        assert parameter.grad.abs().max() > 0 or "lora_A" in name
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"lora": LoraConfig()}),
        ("t5", {"lora": TOP}),
        ("llama", {}),
    ],
    ids=["adapters in all layers", "encoder and decoder", "all weights train"],
)
def test_where_nothing_is_frozen_the_cache_says_so(
    make_policy, make_batch, tmp_path, caplog, family, options
):
    policy = make_policy(family, trunk_cache=str(tmp_path), **options)
    assert "`trunk_cache` has no effect" in caplog.text
    policy.log_probs(make_batch(policy, PAIRS)).sum().backward()
    assert policy.fill_trunk_cache([make_batch(policy, PAIRS)]) == 0


def test_the_user_s_cache_is_the_default_folder(make_policy, make_batch, monkeypatch, tmp_path):
    policy = make_policy("llama", lora=TOP)
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path))
    policy.use_trunk_cache(None)
    assert policy.fill_trunk_cache([make_batch(policy, PAIRS)]) == len(PAIRS)
    assert list((tmp_path / "trunk").glob("*/store.json"))


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        pytest.param(
            {"quantization": "nf4"},
            marks=pytest.mark.skipif(
                find_spec("bitsandbytes") is None, reason="the extra `quantized` is missing"
            ),
        ),
    ],
    ids=["bfloat16", "nf4"],
)
def test_other_precisions_go_through_the_store_unchanged(
    make_policy, make_batch, tmp_path, options
):
    cached, plain = both(make_policy, "llama", tmp_path, **options)
    tolerance = 5e-2 if "dtype" in options else 1e-4
    batch = make_batch(plain, PAIRS)
    for _ in range(2):
        torch.testing.assert_close(
            cached.log_probs(batch), plain.log_probs(batch), atol=tolerance, rtol=0
        )
    cached.sequence_log_probs(batch).sum().backward()
    assert all(p.grad is not None for _, p in cached.trainable_parameters())
    assert cached.fill_trunk_cache([batch]) == 0
