from __future__ import annotations

import logging

import pytest
import torch

from llm_agents.policies.action_capability import attention_window, choose_method
from llm_agents.policies.tiny import tiny_model
from tests.policies.action_models import (
    ENCODER_DECODER,
    EXPAND,
    TREE,
    WINDOW,
    WINDOWED,
    build,
)

WIDE = 64  # a window that the start-up check fits into


def _messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("family", TREE)
def test_plain_causal_models_take_the_tree(family):
    assert choose_method(build(family), 400) == "tree"


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "neox", "opt"])
def test_bundled_families_take_the_tree_without_a_word(family, caplog):
    assert choose_method(tiny_model(family), 400) == "tree"
    assert not _messages(caplog)


@pytest.mark.parametrize("family", EXPAND)
def test_models_whose_attention_is_more_than_a_mask_expand(family, caplog):
    assert choose_method(build(family), 40) == "expand"
    assert any("`tree`" in message for message in _messages(caplog))


@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_encoder_decoders_have_a_way_of_their_own(family):
    assert choose_method(build(family), 40) == "encoder_decoder"


def test_states_along_the_sequence_leave_one_sequence_an_action(caplog):
    assert choose_method(build("mamba"), 40) == "plain"
    assert any("a state runs along the sequence" in message for message in _messages(caplog))


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_are_known(family):
    assert attention_window(build(family)) == WINDOW


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gpt_neo_global", "t5"])
def test_models_without_windows_have_none(family):
    assert attention_window(build(family)) is None


def test_a_window_matters_to_choices_that_are_longer_only():
    model = build("mistral")
    model.config.sliding_window = WIDE
    assert choose_method(model, WIDE) == "tree"
    assert choose_method(model, WIDE + 1) == "expand"
    assert choose_method(model, WIDE) == "tree"


def test_a_reason_is_given_once_a_model(caplog):
    model = build("mistral_window")
    for longest in (40, 50, 60):
        assert choose_method(model, longest) == "expand"
    (message,) = _messages(caplog)
    assert message == (
        "MistralForCausalLM: choices are longer than the window of 16 tokens that layers see: "
        "not scored by `tree`"
    )
    choose_method(build("mistral_window"), 40)
    assert len(_messages(caplog)) == 2


def test_the_check_finds_what_the_table_does_not_know(caplog):
    """Told that it can take any attention, GPT-Neo goes on with its own."""
    model = build("gpt_neo_global")
    model._supports_sdpa = True
    assert choose_method(model, 40) == "expand"
    (message,) = _messages(caplog)
    assert "`tree`" in message
    assert "not taken" in message


def test_a_model_that_refuses_the_tree_is_scored_another_way(caplog):
    """StableLM passes no arguments on to its attention."""
    assert choose_method(build("stablelm"), 40) == "expand"
    (message,) = _messages(caplog)
    assert "not taken" in message


@pytest.mark.parametrize("mode", [True, False])
def test_gradient_checkpointing_leaves_the_tree_and_takes_the_cache(caplog, mode):
    model = build("llama").train(mode)
    model.gradient_checkpointing_enable()
    assert choose_method(model, 40) == "tree"
    for family, method in (("bloom", "expand"), ("t5", "encoder_decoder")):
        model = build(family).train(mode)
        assert choose_method(model, 40) == method
        model.gradient_checkpointing_enable()
        caplog.clear()
        assert choose_method(model, 40) == "plain"
        messages = _messages(caplog)
        assert any(
            f"computes layers again after the pass: not scored by `{method}`" in m for m in messages
        )
        assert any("one sequence each, which is slow" in m for m in messages)
        with torch.no_grad():
            assert choose_method(model, 40) == method


def test_the_check_leaves_the_model_as_it_was():
    model = build("gpt2").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    choose_method(model, 40)
    assert model.training
    assert all(module.training for module in model.modules())
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_half_precision_passes_the_check():
    assert choose_method(build("llama").to(torch.bfloat16), 40) == "tree"
