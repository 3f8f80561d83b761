from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from llm_agents.errors import UserError
from llm_agents.functional import value_loss
from llm_agents.policies.heads import RewardHead, ValueHead, load_head, save_head
from llm_agents.policies.state_value import StateValueHead
from tests.closeness import assert_rounding


@pytest.mark.parametrize(("hidden_size", "parameters"), [(4096, 4_719_104), (576, 1_114_624)])
def test_size_of_the_released_critic(hidden_size, parameters):
    with torch.device("meta"):
        head = StateValueHead(hidden_size)
    assert sum(p.numel() for p in head.parameters()) == parameters
    assert parameters == hidden_size * 1024 + 1024 * 512 + 512
    assert not [name for name, _ in head.named_parameters() if "bias" in name]


def test_worked_value():
    """relu(2 · 1 − 1 · 3) = 0 and relu(.5 · 1 + 1 · 3) = 3.5; then 4 · 0 − 2 · 3.5 = −7."""
    head = StateValueHead(2, widths=(2,))
    first, _, last = head.layers
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[2.0, -1.0], [0.5, 1.0]]))
        last.weight.copy_(torch.tensor([[4.0, -2.0]]))
    assert head(torch.tensor([[1.0, 3.0]])).tolist() == [-7.0]
    assert head(torch.zeros(2)).item() == 0  # no biases


def test_without_hidden_layers_it_is_linear():
    head = StateValueHead(3, widths=())
    with torch.no_grad():
        head.layers[0].weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
    assert head(torch.tensor([4.0, 1.0, 2.0])).item() == 3.0


def test_released_layers_start_as_the_framework_starts_them():
    """Uniform in ± 1/√inputs."""
    torch.manual_seed(0)
    for layer in StateValueHead(64, widths=(256, 128)).layers:
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            assert layer.weight.abs().max().item() == pytest.approx(bound, rel=0.1)
            assert layer.weight.abs().max().item() <= bound


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_value_for_each_state_in_single_precision(shape, dtype):
    states = torch.randn(*shape, 8).to(dtype)
    found = StateValueHead(8, widths=(4,))(states)
    assert found.shape == shape
    assert found.dtype == torch.float32


def test_a_value_does_not_depend_on_its_batch():
    torch.manual_seed(1)
    head, states = StateValueHead(16, widths=(32, 8)), torch.randn(4, 3, 16)
    alone = torch.stack([head(state) for state in states.flatten(0, 1)]).view(4, 3)
    assert_rounding(head(states), alone)


@pytest.mark.parametrize("filler", [7.0, math.nan, math.inf])
def test_padding_has_no_value_and_no_gradient(filler):
    torch.manual_seed(2)
    head = StateValueHead(16, widths=(32,))
    mask = torch.tensor([[True, True, False], [True, False, False]])
    clean = torch.randn(2, 3, 16)
    states = clean.masked_fill(~mask[..., None], filler)
    values = head(states, mask)
    assert not values[~mask].any()
    assert_rounding(values[mask], head(clean)[mask])
    values.sum().backward()
    found = [p.grad.clone() for p in head.parameters()]
    head.zero_grad()
    head(clean[mask]).sum().backward()
    for gradient, parameter in zip(found, head.parameters(), strict=True):
        assert_rounding(gradient, parameter.grad)


def test_no_gradient_reaches_the_language_model():
    head = StateValueHead(16, widths=(8,))
    states = torch.randn(2, 16, requires_grad=True)
    head(states).sum().backward()
    assert states.grad is None
    assert all(p.grad is not None for p in head.parameters())


def test_values_of_tokens_fit_their_targets():
    torch.manual_seed(3)
    head = StateValueHead(16, widths=(64, 32))
    states, targets = torch.randn(8, 5, 16), torch.randn(8, 5)
    mask = torch.arange(5) < torch.tensor([5, 3, 2, 5, 4, 1, 5, 5])[:, None]
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2, eps=1e-5)
    for _ in range(150):
        loss = value_loss(
            values=head(states, mask),
            old_values=targets,
            returns=targets,
            mask=mask,
            clip_epsilon=None,
            reduction="units",
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-3


def test_saved_head_comes_back_with_equal_values(tmp_path):
    head = StateValueHead(16, widths=(8, 4))
    save_head(head, tmp_path / "adapter", "value_head")
    loaded = load_head(tmp_path / "adapter", "value_head", hidden_size=16)
    assert isinstance(loaded, StateValueHead)
    assert not loaded.training
    assert loaded.config == head.config == {"hidden_size": 16, "widths": [8, 4]}
    states = torch.randn(3, 2, 16)
    assert torch.equal(loaded(states), head(states))
    described = json.loads((tmp_path / "adapter" / "value_head.json").read_text())
    assert described["class"] == "StateValueHead"


def test_heads_are_told_apart_when_loaded(tmp_path):
    for index, head in enumerate((ValueHead(16), RewardHead(16), StateValueHead(16))):
        save_head(head, tmp_path, f"head_{index}")
        assert type(load_head(tmp_path, f"head_{index}")) is type(head)
    with pytest.raises(UserError, match="states of size 16, the model gives 24"):
        load_head(tmp_path, "head_2", hidden_size=24)
    description = tmp_path / "head_2.json"
    described = json.loads(description.read_text()) | {"class": "Other"}
    description.write_text(json.dumps(described))
    with pytest.raises(
        UserError, match="reads ValueHead, RewardHead, StateMLP, StateValueHead, format 1"
    ):
        load_head(tmp_path, "head_2")


def test_shapes_are_checked():
    head = StateValueHead(16)
    with pytest.raises(ValueError, match=r"`states` of shape \(…, 16\), got \(2, 8\)"):
        head(torch.zeros(2, 8))
    mask = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"`mask` of shape \(2,\) like `states`, got \(3,\)"):
        head(torch.zeros(2, 16), mask)
    with pytest.raises(ValueError, match=r"of at least 1, got 16 and \(4, 0\)"):
        StateValueHead(16, widths=(4, 0))
