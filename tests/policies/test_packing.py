"""Packed rows: the layout, and that results and gradients are those of the rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoTokenizer,
    BloomConfig,
    BloomForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.bundled import resolve_base
from llm_agents.policies.packing import ATTENTION, Segment, pack_rows
from llm_agents.policies.rows import CausalRows
from llm_agents.policies.trunk_cache import trunk_digest
from llm_agents.types import GenerationConfig

CAUSAL = ("llama", "qwen2", "gpt2", "neox", "opt")
SHARED = [  # two and three answers to a prompt, one prompt alone
    ("How can I help you today?", "I know a good book."),
    ("Now what?", "Yes, take the bread and put it in the oven for ten minutes."),
    ("How can I help you today?", ""),
    ("x", "y"),
    ("Now what?", "The ball"),
    ("Now what?", "The key"),
]


def rows_of(pairs):
    """Return the rows of (prompt ids, response ids)."""
    ids = [[*prompt, *response] for prompt, response in pairs]
    width = max(map(len, ids))
    lengths = torch.tensor([len(row) for row in ids])
    return CausalRows(
        torch.tensor([[*row, *[0] * (width - len(row))] for row in ids]),
        torch.arange(width) < lengths[:, None],
        torch.tensor([len(prompt) for prompt, _ in pairs]),
    )


def test_the_layout_of_a_small_batch():
    """Rows [1 2 | 3 4], [5 | 6], [1 2 | 7]: the prompt 1 2 once, its answers behind it."""
    packed = pack_rows(rows_of([([1, 2], [3, 4]), ([5], [6]), ([1, 2], [7])]))
    assert packed.ids.tolist() == [[1, 2, 3, 4, 7, 5, 6]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 2, 0, 1]]
    assert packed.segments == (
        Segment(0, 2),
        Segment(2, 4, (0, 2)),
        Segment(4, 5, (0, 2)),
        Segment(5, 7),
    )
    assert packed.places.tolist() == [[0, 1, 2, 3], [5, 6, 0, 0], [0, 1, 4, 0]]
    assert packed.mask(packed.segments[1], torch.device("cpu")).tolist() == [
        [[[True, True, True, False], [True, True, True, True]]]
    ]
    assert packed.mask(packed.segments[0], torch.device("cpu")) is None


def test_where_nothing_is_saved_nothing_is_packed():
    assert pack_rows(rows_of([([1, 2], [3]), ([4, 5], [6])])) is None


ids = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(ids, st.lists(st.integers(1, 5), max_size=5)), min_size=1, max_size=6))
def test_every_token_has_its_place(pairs):
    rows = rows_of(pairs)
    packed = pack_rows(rows)
    if packed is None:
        return
    assert torch.equal(
        packed.unpack(packed.ids[:, :, None])[..., 0][rows.mask], rows.ids[rows.mask]
    )
    assert torch.equal(rows.ids.reshape(-1)[packed.sources], packed.ids[0])
    expected = torch.arange(rows.ids.shape[1]).expand_as(rows.ids)[rows.mask]
    assert torch.equal(packed.unpack(packed.position_ids[:, :, None])[..., 0][rows.mask], expected)
    ends = [segment.end for segment in packed.segments]
    assert [segment.start for segment in packed.segments] == [0, *ends[:-1]]
    assert ends[-1] == packed.ids.shape[1]


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("checkpointing", [True, False])
def test_results_and_gradients_are_those_of_the_rows_alone(
    make_policy, make_batch, family, checkpointing
):
    policy = make_policy(
        family,
        lora=LoraConfig(targets="all-linear"),
        weights=0.1,
        gradient_checkpointing=checkpointing,
    )
    batch = make_batch(policy, SHARED, pad=4)
    log_probs = policy.log_probs(batch)
    assert policy.causal_model.config._attn_implementation == ATTENTION
    parameters = [p for _, p in policy.trainable_parameters()]
    weights = torch.rand(len(batch))
    got = torch.autograd.grad((log_probs.sum(1) * weights).sum(), parameters)
    alone = [batch.select(torch.tensor([row])) for row in range(len(batch))]
    expected = [policy.log_probs(one)[0] for one in alone]
    for row, one in enumerate(expected):
        torch.testing.assert_close(log_probs[row, : len(one)], one, atol=1e-4, rtol=0)
    loss = sum(weight * one.sum() for weight, one in zip(weights, expected, strict=True))
    for one, other in zip(got, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    for part in ("prompt", "response", "all"):
        states, mask = policy.hidden_states(batch, part)
        for row, one in enumerate(alone):
            theirs, their_mask = policy.hidden_states(one, part)
            torch.testing.assert_close(
                states[row][mask[row]], theirs[0][their_mask[0]], atol=1e-4, rtol=1e-4
            )


def test_a_shared_prompt_is_computed_once(make_policy, make_batch):
    policy = make_policy("llama", trainable=False)
    policy.log_probs(make_batch(policy, [("warm", "up")]))
    seen = []
    embeddings = policy.causal_model.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, args, output: seen.append(output.shape[1]))
    batch = make_batch(policy, [("the same long prompt", "a"), ("the same long prompt", "b")])
    policy.log_probs(batch)
    assert seen == [int(batch.prompt_mask[0].sum() + batch.response_mask.sum())]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_another_attention_chosen_later_is_respected(make_policy, make_batch, attention):
    policy = make_policy("llama", trainable=False)
    batch = make_batch(policy, SHARED)
    expected = policy.log_probs(batch)
    policy.causal_model.set_attn_implementation(attention)
    torch.testing.assert_close(policy.log_probs(batch), expected, atol=1e-4, rtol=0)
    assert policy.causal_model.config._attn_implementation == attention


def with_tokenizer(model, folder):
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_base("tiny-random-qwen2").source).save_pretrained(folder)
    return LanguagePolicy.from_pretrained(str(folder), trainable=False)


SMALL = {"vocab_size": 320, "hidden_size": 32, "num_attention_heads": 2}


def test_models_with_a_window_are_not_packed_and_right(make_batch, tmp_path):
    config = MistralConfig(
        **SMALL, num_hidden_layers=2, num_key_value_heads=1, intermediate_size=64, sliding_window=4
    )
    policy = with_tokenizer(MistralForCausalLM(config), tmp_path)
    batch = make_batch(policy, SHARED)
    with torch.no_grad():
        log_probs = policy.log_probs(batch)
        assert policy.causal_model.config._attn_implementation != ATTENTION
        for row in range(len(batch)):
            one = policy.log_probs(batch.select(torch.tensor([row])))[0]
            torch.testing.assert_close(log_probs[row, : len(one)], one, atol=1e-4, rtol=0)


def test_models_whose_attention_is_their_own_are_not_packed_and_right(make_batch, tmp_path):
    policy = with_tokenizer(BloomForCausalLM(BloomConfig(**SMALL, n_layer=2)), tmp_path)
    batch = make_batch(policy, SHARED)
    with torch.no_grad():
        log_probs = policy.log_probs(batch)
        assert policy.causal_model.config._attn_implementation != ATTENTION
        for row in range(len(batch)):
            one = policy.log_probs(batch.select(torch.tensor([row])))[0]
            torch.testing.assert_close(log_probs[row, : len(one)], one, atol=1e-4, rtol=0)


def test_nothing_of_it_is_written_or_part_of_a_key(make_policy, make_batch, tmp_path):
    policy = make_policy("llama")
    before = trunk_digest(policy.causal_model, 1)
    policy.log_probs(make_batch(policy, SHARED))
    assert policy.causal_model.config._attn_implementation == ATTENTION
    assert trunk_digest(policy.causal_model, 1) == before
    policy.save_adapter(tmp_path)
    assert ATTENTION not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("family", CAUSAL)
def test_generation_and_plain_passes_go_on_as_before(make_policy, make_batch, family):
    policy = make_policy(family, trainable=False)
    prompts, config = [[5, 6, 7], [8], [9, 10]], GenerationConfig(max_new_tokens=8)
    ids = torch.tensor([[5, 6, 7, 8]])
    responses, logits = policy.generate(prompts, config), policy.causal_model(input_ids=ids).logits
    beams = policy.generate(prompts, replace(config, num_beams=3))
    policy.log_probs(make_batch(policy, SHARED))
    assert policy.causal_model.config._attn_implementation == ATTENTION
    assert policy.generate(prompts, config) == responses
    assert policy.generate(prompts, replace(config, num_beams=3)) == beams
    assert torch.equal(policy.causal_model(input_ids=ids).logits, logits)


def test_rows_of_equal_length_take_plain_causality_without_a_mask(
    make_policy, make_batch, monkeypatch
):
    policy = make_policy("llama", trainable=False)
    policy.log_probs(make_batch(policy, SHARED))
    masks = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(*args, **kwargs):
        masks.append((kwargs["attn_mask"], kwargs["is_causal"]))
        return attend(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    policy.log_probs(make_batch(policy, [([5, 6, 7], [8, 9]), ([5, 6], [8, 9, 10])]))
    assert masks == [(None, True)] * 2
