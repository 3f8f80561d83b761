from __future__ import annotations

import pytest
import torch

from llm_agents.policies import action_encoder_decoder, action_expand
from llm_agents.policies.action_encoder_decoder import (
    encoder_decoder_node_states,
    encoder_end_states,
)
from llm_agents.policies.action_types import EncodedChoice
from tests.closeness import assert_rounding, rounding
from tests.policies.action_models import (
    ENCODER_DECODER,
    build,
    gradients_of,
    largest_difference,
    one_by_one,
    random_choices,
    relative_difference,
    scores_of,
    tries_of,
)


def _input_shapes(module, calls):
    """Append the shapes of `input_ids` of all calls of a module."""
    return module.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )


@pytest.mark.parametrize("family", ENCODER_DECODER)
@pytest.mark.parametrize("number", [1, 8])
def test_scores_are_those_of_single_sequences(family, number):
    """Eight prompts of several lengths are padded, one is not."""
    model, choices = build(family, torch.float64), random_choices(1, number)
    with torch.no_grad():
        found = encoder_decoder_node_states(model, choices, tries_of(choices))
        scores = scores_of(model, found, choices)
        expected = one_by_one(model, choices)
    assert largest_difference(scores, expected) < rounding(expected)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_eager_attention_gives_the_same(family):
    model, choices = build(family, torch.float64), random_choices(1, 3)
    with torch.no_grad():
        expected = encoder_decoder_node_states(model, choices, tries_of(choices))
        model.set_attn_implementation("eager")
        found = encoder_decoder_node_states(model, choices, tries_of(choices))
    assert_rounding(found.states, expected.states)


@pytest.mark.parametrize("family", ["t5", "umt5", "bart"])
def test_gradients_are_those_of_single_sequences(family):
    model, choices = build(family, torch.float64), random_choices(4, 3)
    found = encoder_decoder_node_states(model, choices, tries_of(choices))
    expected = gradients_of(model, one_by_one(model, choices))
    own = gradients_of(model, scores_of(model, found, choices))
    assert relative_difference(own, expected) < rounding(1.0)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_the_number_of_passes_does_not_matter(family, monkeypatch):
    model, choices = build(family, torch.float64), random_choices(2, 6)
    with torch.no_grad():
        whole = encoder_decoder_node_states(model, choices, tries_of(choices))
        monkeypatch.setattr(action_encoder_decoder, "_TOKENS_PER_PASS", 60)
        monkeypatch.setattr(action_expand, "_CACHED_TOKENS", 90)
        parts = encoder_decoder_node_states(model, choices, tries_of(choices))
    assert_rounding(parts.states, whole.states)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_equal_prompts_are_encoded_once(family):
    model, prompt = build(family, torch.float64), (5, 6, 7, 8)
    lists = (((3, 4, 5), (3, 6)), ((7, 8),), ((3, 4, 9),))
    choices = [EncodedChoice(prompt, actions, (1,) * len(actions)) for actions in lists]
    shapes: list[tuple[int, ...]] = []
    with torch.no_grad():
        expected = one_by_one(model, choices)
        hook = _input_shapes(model.get_encoder(), shapes)
        found = encoder_decoder_node_states(model, choices, tries_of(choices))
        hook.remove()
        scores = scores_of(model, found, choices)
    assert shapes[-1] == (1, 4)
    assert largest_difference(scores, expected) < rounding(expected)


def test_a_choice_is_one_row_of_a_decoder_whose_biases_can_be_rebuilt():
    model, actions = build("t5"), ((3, 4, 5), (3, 4, 6), (7, 8))
    choices = [EncodedChoice((5, 6, 7), actions, (1, 1, 1))]
    with torch.no_grad():
        encoder_decoder_node_states(model, choices, tries_of(choices))  # looks at the head first
        shapes: list[tuple[int, ...]] = []
        hook = _input_shapes(model.get_decoder(), shapes)
        encoder_decoder_node_states(model, choices, tries_of(choices))
        hook.remove()
    assert shapes == [(1, 4)]  # the start token, 3 and 4 (once), 7


def test_the_model_is_as_before_even_after_an_error():
    model, choices = build("t5"), random_choices(1, 2)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        before = model(input_ids=ids, decoder_input_ids=ids).logits
        bad = [EncodedChoice(c.prompt_ids, ((9999, 1),), (1,)) for c in choices]
        with pytest.raises(IndexError):
            encoder_decoder_node_states(model, bad, tries_of(bad))
        encoder_decoder_node_states(model, choices, tries_of(choices))
        after = model(input_ids=ids, decoder_input_ids=ids).logits
    assert torch.equal(before, after)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_gradient_checkpointing_gives_the_same_gradients(family):
    model, choices = build(family, torch.float64), random_choices(4, 2)
    expected = gradients_of(model, one_by_one(model, choices))
    for module in model.modules():  # no dropout: only the mode that checkpoints
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    model.gradient_checkpointing_enable()
    model.train()
    found = encoder_decoder_node_states(model, choices, tries_of(choices))
    scores = scores_of(model, found, choices)
    loss = sum((part.softmax(0) ** 2).sum() + part.mean() for part in scores)
    loss.backward()
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    assert relative_difference(torch.cat([g.flatten() for g in own]), expected) < rounding(1.0)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_end_states_are_the_encoders_at_each_prompts_last_token(family):
    model = build(family, torch.float64)
    prompts = [(5, 6, 7), (8, 9), (5, 6, 7)]
    with torch.no_grad():
        found = encoder_end_states(model, prompts)
        for prompt, state in zip(prompts, found, strict=True):
            alone = model.get_encoder()(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
            assert_rounding(state, alone)


def test_a_trunk_is_refused():
    model, choices = build("t5"), random_choices(1, 1)
    with pytest.raises(ValueError, match="expected no trunk"):
        encoder_decoder_node_states(model, choices, tries_of(choices), object())  # type: ignore[arg-type]
