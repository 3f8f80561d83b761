"""Log-probs and hidden states of batches, held against rows alone and plain computations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.bundled import resolve_base
from llm_agents.types import GenerationConfig, PromptBatch
from tests.closeness import assert_rounding
from tests.policies.policy_rows import CAUSAL, FAMILIES, PAIRS, rows_alone


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_in_a_batch_is_the_row_alone(make_policy, make_batch, family, attention):
    policy = make_policy(family, trainable=False)
    policy.causal_model.set_attn_implementation(attention)
    batch = make_batch(policy, PAIRS, pad=5)
    with torch.no_grad():
        log_probs = policy.log_probs(batch)
        alone = rows_alone(policy, batch)
    assert log_probs.dtype == torch.float32
    for row, expected in enumerate(alone):
        length = len(expected)
        torch.testing.assert_close(log_probs[row, :length].double(), expected, atol=1e-4, rtol=0)
        assert (log_probs[row, length:] == 0).all()


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "t5"])
def test_padding_side_and_filler_do_not_matter(make_policy, make_batch, family):
    policy = make_policy(family, trainable=False)
    batch = make_batch(policy, PAIRS)
    width = batch.prompt_ids.shape[1]
    right = replace(  # prompts padded on the right instead
        batch,
        prompt_ids=torch.stack(
            [
                ids.roll(int(mask.sum()) - width)
                for ids, mask in zip(batch.prompt_ids, batch.prompt_mask, strict=True)
            ]
        ),
        prompt_mask=batch.prompt_mask.flip(1),
    )
    other = replace(
        batch,
        prompt_ids=batch.prompt_ids.masked_fill(~batch.prompt_mask, 7),
        response_ids=batch.response_ids.masked_fill(~batch.response_mask, 7),
    )
    with torch.no_grad():
        expected = policy.log_probs(batch)
        for changed in (right, other):
            assert_rounding(policy.log_probs(changed), expected)
            for part in ("prompt", "response"):
                states, mask = policy.hidden_states(changed, part)
                theirs, their_mask = policy.hidden_states(batch, part)
                assert_rounding(states[mask], theirs[their_mask])


def test_the_end_token_is_scored_where_padding_has_the_same_id(make_policy, make_batch):
    """ids [21, 22, end | end]: three scored tokens, of which the first end token is one."""
    policy = make_policy("gpt2", trainable=False)
    end = policy.text.end_id
    batch = make_batch(policy, [([5, 6], [21, 22, end]), ([5, 6], [21, 22, 23, 24, end])])
    assert batch.response_ids[0].tolist() == [21, 22, end, end, end]
    log_probs = policy.log_probs(batch)
    assert (log_probs[0] != 0).tolist() == [True, True, True, False, False]
    assert (log_probs[1] != 0).all()


def test_the_end_token_is_learnt(make_policy, make_batch):
    policy = make_policy("gpt2", lora=LoraConfig(targets="all-linear"))
    batch = make_batch(policy, [("Hi", "I know."), ("Now?", "Yes, that is a good idea.")])
    optimizer = torch.optim.AdamW([p for _, p in policy.trainable_parameters()], lr=1e-2)
    for _ in range(60):
        loss = -policy.log_probs(batch).sum() / batch.response_mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    lengths = batch.response_mask.sum(1) - 1
    end = policy.log_probs(batch)[torch.arange(2), lengths]
    assert (end > -0.5).all()
    for row, length in enumerate(lengths.tolist()):
        prompt = batch.prompt_ids[row][batch.prompt_mask[row]].tolist()
        (answer,) = policy.generate([prompt], GenerationConfig(max_new_tokens=60))
        assert answer == batch.response_ids[row, : length + 1].tolist()
        assert answer[-1] == policy.text.end_id


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_tokenizer_without_a_padding_token_gets_none(make_policy, make_batch, family):
    """Padding is told by position: no token is added, and no embedding resized."""
    policy = make_policy(family, lora=LoraConfig())
    batch = make_batch(policy, PAIRS)
    policy.sequence_log_probs(batch).sum().backward()
    assert policy.tokenizer.pad_token_id is None
    assert len(policy.tokenizer) <= policy.vocab_size == 320
    assert policy.causal_model.get_input_embeddings().num_embeddings == 320


@pytest.mark.parametrize("family", FAMILIES)
def test_sequence_log_probs_are_sums(make_policy, make_batch, family):
    policy = make_policy(family, trainable=False)
    batch = make_batch(policy, PAIRS)
    torch.testing.assert_close(
        policy.sequence_log_probs(batch), policy.log_probs(batch).sum(1), atol=0, rtol=0
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_have_the_layout_they_promise(make_policy, make_batch, family):
    policy = make_policy(family, trainable=False)
    batch = make_batch(policy, PAIRS, pad=2)
    prompt, prompt_mask = policy.hidden_states(batch, "prompt")
    response, response_mask = policy.hidden_states(batch, "response")
    whole, whole_mask = policy.hidden_states(batch, "all")
    assert torch.equal(response_mask, batch.response_mask)
    assert torch.equal(prompt_mask.sum(1), batch.prompt_mask.sum(1))
    assert torch.equal(whole_mask.sum(1), prompt_mask.sum(1) + response_mask.sum(1))
    assert prompt.shape[-1] == policy.hidden_size
    for row in range(len(batch)):
        parts = torch.cat((prompt[row][prompt_mask[row]], response[row][response_mask[row]]))
        torch.testing.assert_close(whole[row][whole_mask[row]], parts, atol=1e-5, rtol=1e-4)
    prompts = PromptBatch((), batch.prompt_ids, batch.prompt_mask, batch.rows)
    alone, alone_mask = policy.hidden_states(prompts)
    torch.testing.assert_close(alone[alone_mask], prompt[prompt_mask])
    with pytest.raises(ValueError, match="no responses"):
        policy.hidden_states(prompts, "response")


@pytest.mark.parametrize("family", CAUSAL)
def test_hidden_states_are_what_the_output_head_reads(make_policy, make_batch, family):
    policy = make_policy(family, trainable=False)
    batch = make_batch(policy, PAIRS)
    states, mask = policy.hidden_states(batch, "all")
    logits = policy.causal_model.get_output_embeddings()(states)
    ids = torch.cat((batch.prompt_ids[0][batch.prompt_mask[0]], batch.response_ids[0]))[None]
    ids = ids[:, : int(mask[0].sum())]
    expected = policy.causal_model(input_ids=ids).logits[0]
    torch.testing.assert_close(logits[0][mask[0]], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_gives_log_probs_and_prompt_states(make_policy, make_batch, family):
    policy = make_policy(family, trainable=False)
    batch = make_batch(policy, PAIRS)
    both = policy.log_probs_and_prompt_states(batch)
    states, mask = policy.hidden_states(batch, "prompt")
    assert_rounding(both.log_probs, policy.log_probs(batch))
    torch.testing.assert_close(
        both.prompt_states[both.prompt_mask], states[mask], atol=1e-5, rtol=1e-4
    )
    assert torch.equal(both.prompt_mask.sum(1), batch.prompt_mask.sum(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_plain_computation(make_policy, make_batch, family):
    policy = make_policy(family, lora=LoraConfig(targets="all-linear"), weights=0.1)
    batch = make_batch(policy, PAIRS)
    names, parameters = zip(*policy.trainable_parameters(), strict=True)
    ours = torch.autograd.grad(policy.sequence_log_probs(batch).sum(), parameters)
    theirs = torch.autograd.grad(sum(x.sum() for x in rows_alone(policy, batch)), parameters)
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3, msg=name)


def test_a_family_that_caps_its_logits_is_computed_in_full(make_batch, tmp_path, caplog):
    config = Gemma2Config(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        final_logit_softcapping=0.5,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(resolve_base("tiny-random-qwen2").source).save_pretrained(
        tmp_path
    )
    policy = LanguagePolicy.from_pretrained(str(tmp_path), lora=LoraConfig())
    batch = make_batch(policy, PAIRS)
    log_probs = policy.log_probs(batch)
    assert "changes its logits after the output head" in caplog.text
    for row, expected in enumerate(rows_alone(policy, batch)):
        torch.testing.assert_close(
            log_probs[row, : len(expected)].double(), expected, atol=1e-4, rtol=0
        )
    log_probs.sum().backward()
    assert all(p.grad is not None for _, p in policy.trainable_parameters())
