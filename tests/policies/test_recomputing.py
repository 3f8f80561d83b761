"""Gradient checkpointing saves memory in eval mode too, and changes no gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from llm_agents.policies import LoraConfig
from llm_agents.policies.action_plain import plain_node_states
from llm_agents.policies.action_tree import tree_node_states
from llm_agents.policies.recomputing import recomputed_layers, recomputes_layers
from llm_agents.types import Choice
from tests.policies.action_models import build, random_choices, tries_of

ROOM = "You are in a long room with a table, two chairs and a lamp that is on. "
CHOICES = [
    Choice(f"{ROOM}You see {thing}. You should", ("take it", f"look at {thing}", "go on"))
    for thing in ("a red ball", "an old green key", "nothing at all")
]


def kept_bytes(call):
    """Return the bytes that autograd keeps for the backward pass of `call`, and its gradient's."""
    seen: dict[int, int] = {}

    def note(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = call()
    return sum(seen.values()), loss


def without_dropout(model):
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout", "attn_pdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("family", "way"),
    [
        ("llama", tree_node_states),
        ("gpt2", tree_node_states),
        ("gpt_neox", tree_node_states),
        ("opt", tree_node_states),
        ("bloom", plain_node_states),
        ("t5", plain_node_states),
    ],
)
def test_less_is_kept_and_gradients_are_the_same(family, way, training):
    model = without_dropout(build(family, torch.float64)).train(training)
    choices = random_choices(4, 3)
    parameters = list(model.parameters())

    def loss():
        states = way(model, choices, tries_of(choices)).states
        return functional.softplus(states).pow(2).sum()

    kept, value = kept_bytes(loss)
    expected = torch.autograd.grad(value, parameters, allow_unused=True)
    model.gradient_checkpointing_enable()
    assert recomputes_layers(model)
    less, again = kept_bytes(loss)
    assert less < 0.6 * kept
    torch.testing.assert_close(value, again, rtol=1e-12, atol=0)
    found = torch.autograd.grad(again, parameters, allow_unused=True)
    for mine, their in zip(found, expected, strict=True):
        assert (mine is None) == (their is None)
        if mine is not None:
            torch.testing.assert_close(mine, their, rtol=1e-9, atol=1e-12)
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert all(getattr(m, "gradient_checkpointing", True) for m in model.modules())


def test_a_policys_update_keeps_less_in_eval_mode_above_kept_states(make_policy):
    lora = LoraConfig(top_layers=1, targets="all-linear")
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        policy = make_policy(
            "llama", weights=0.1, lora=lora, gradient_checkpointing=checkpointing
        ).eval()
        policy.base_features(CHOICES)
        kept, scores = kept_bytes(lambda p=policy: p.score_actions(CHOICES, "sum").scores.sum())
        scores.backward()
        gradients = [p.grad for _, p in policy.trainable_parameters()]
        found.append((kept, torch.cat([g.flatten() for g in gradients])))
    assert found[1][0] < 0.7 * found[0][0]
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-5, atol=1e-7)


def test_nothing_is_covered_without_gradient():
    model = build("llama")
    model.gradient_checkpointing_enable()
    with torch.no_grad(), recomputed_layers(model):
        assert not recomputes_layers(model)
        assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_model_of_another_kind_says_that_it_is_not_helped(caplog):
    model = torch.nn.Linear(2, 2).eval()
    model.gradient_checkpointing = True
    for _ in range(2):
        with recomputed_layers(model):
            pass
    (message,) = [record.getMessage() for record in caplog.records]
    assert "gradient checkpointing has no effect in eval mode" in message
    assert "ppo.choices_per_pass" in message
