from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_agents.errors import UserError
from llm_agents.policies.heads import RewardHead, ValueHead, load_head, save_head
from tests.closeness import assert_rounding


def worked_head(max_value: float = 1.0, num_heads: int = 8) -> ValueHead:
    """The head of spec 2.1's check: H = 8, identity projections, zero biases, query of ones."""
    head = ValueHead(8, num_heads=num_heads, max_value=max_value).eval()
    with torch.no_grad():
        head.query.fill_(1)
        head.attention.in_proj_weight.copy_(torch.eye(8).repeat(3, 1))
        head.attention.in_proj_bias.zero_()
        head.attention.out_proj.weight.copy_(torch.eye(8))
        head.attention.out_proj.bias.zero_()
        head.output.weight.fill_(0.5)
        head.output.bias.fill_(-1)
    return head


PROMPT = torch.stack([torch.zeros(8), torch.ones(8), torch.arange(8) / 4])


def real(*lengths: int) -> torch.Tensor:
    """Right-padding mask."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_worked_value():
    """With one unit a head, unit h attends by softmax over tokens of its own values.

    Tokens of unit h are (0, 1, h/4): z_h = Σ e^x·x / Σ e^x, V = σ(Σ_h z_h / 2 − 1) = 0.920928.
    """
    units = []
    for h in range(8):
        values = (0.0, 1.0, h / 4)
        total = sum(math.exp(x) for x in values)
        units.append(sum(math.exp(x) * x for x in values) / total)
    by_hand = 1 / (1 + math.exp(-(0.5 * sum(units) - 1)))
    assert by_hand == pytest.approx(0.920928, abs=5e-7)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert worked_head()(PROMPT[None], mask).tolist() == pytest.approx([0.920928], abs=1e-6)
    assert worked_head(4.0)(PROMPT[None], mask).tolist() == pytest.approx([3.683710], abs=4e-6)


def test_padding_with_twos_changes_nothing_unless_it_is_called_real():
    """Without a key mask, as in the authors' code, the value would be 0.996578 (trap 8)."""
    padded = torch.cat([torch.full((2, 8), 2.0), PROMPT])[None]
    mask = torch.tensor([[False, False, True, True, True]])
    assert worked_head()(padded, mask).tolist() == pytest.approx([0.920928], abs=1e-6)
    blind = worked_head()(padded, torch.ones_like(mask))
    assert blind.tolist() == pytest.approx([0.996578], abs=1e-6)


@pytest.mark.parametrize(
    ("hidden_size", "parameters"),
    [(576, 1_330_561), (768, 2_363_905), (1024, 4_200_449), (1600, 10_249_601)],
)
def test_value_head_size(hidden_size, parameters):
    with torch.device("meta"):
        head = ValueHead(hidden_size)
    assert sum(p.numel() for p in head.parameters()) == parameters
    assert parameters == 4 * hidden_size**2 + 6 * hidden_size + 1


def test_query_is_standard_normal():
    torch.manual_seed(0)
    query = ValueHead(4096).query.detach()
    assert float(query.mean()) == pytest.approx(0, abs=0.05)
    assert float(query.std()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("make", [ValueHead, lambda size: RewardHead(size, dropout=0.1)])
def test_dropout_acts_in_training_and_only_there(make):
    torch.manual_seed(1)
    head = make(16)
    hidden, mask = torch.randn(3, 5, 16), real(5, 2, 4)
    assert not torch.equal(head(hidden, mask), head(hidden, mask))
    head.eval()
    assert torch.equal(head(hidden, mask), head(hidden, mask))


@pytest.mark.parametrize("make", [ValueHead, RewardHead])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("filler", [7.0, math.nan, math.inf])
def test_alone_equals_in_a_batch(make, side, filler):
    torch.manual_seed(2)
    head = make(16).eval()
    rows = [torch.randn(length, 16) for length in (5, 1, 3)]
    hidden = torch.full((3, 6, 16), filler)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    for index, row in enumerate(rows):
        at = slice(6 - len(row), 6) if side == "left" else slice(0, len(row))
        hidden[index, at], mask[index, at] = row, True
    alone = torch.cat([head(row[None], torch.ones(1, len(row), dtype=torch.bool)) for row in rows])
    assert alone.shape == (3,)
    assert_rounding(head(hidden, mask), alone)


def test_no_gradient_reaches_the_language_model_through_the_value():
    head = ValueHead(16)
    hidden = torch.randn(2, 3, 16, requires_grad=True)
    head(hidden, real(3, 2)).sum().backward()
    assert hidden.grad is None
    assert all(p.grad is not None for p in head.parameters())


def test_gradients_reach_the_language_model_through_the_reward():
    """The reward reads the last real token only: w there, zero elsewhere."""
    head = RewardHead(4)
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    head(hidden, real(3, 2)).sum().backward()
    expected = torch.zeros(2, 3, 4)
    expected[0, 2] = expected[1, 1] = head.output.weight.detach()[0]
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, expected)


def test_worked_reward():
    """0.5·1 − 2·3 + 0.25 = −5.25 at the last of two tokens."""
    head = RewardHead(2)
    with torch.no_grad():
        head.output.weight.copy_(torch.tensor([[0.5, -2.0]]))
        head.output.bias.fill_(0.25)
    hidden = torch.tensor([[[9.0, 9.0], [1.0, 3.0], [8.0, 8.0]]])
    assert head(hidden, torch.tensor([[True, True, False]])).tolist() == [-5.25]


def test_a_summary_reads_prompt_end_mean_and_last():
    """Weights 1, 10, 100 over prompt end 7, mean (1 + 3) / 2 = 2, last 3: 7 + 20 + 300."""
    head = RewardHead(1, pooling="summary")
    with torch.no_grad():
        head.output.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
    hidden = torch.tensor([[[1.0], [3.0], [math.nan]]])
    mask = torch.tensor([[True, True, False]])
    assert head(hidden, mask, torch.tensor([[7.0]])).tolist() == [327.0]
    with pytest.raises(ValueError, match="expected `prompt_end` of shape"):
        head(hidden, mask)
    with pytest.raises(UserError, match="`pooling` last or summary, got 'first'"):
        RewardHead(1, pooling="first")


def test_worked_hidden_units():
    """Features 3 and 7, centre 1 and 5, spread 2: z = 1, 1; gelu(2·1 − 1·1) = 0.841345; ·3 + 1."""
    head = RewardHead(2, width=1)
    head.standardize(torch.tensor([[-1.0, 3.0], [3.0, 7.0]]))
    assert head.center.tolist() == [1.0, 5.0]
    assert head.spread.tolist() == [2.0, 2.0]
    with torch.no_grad():
        head.hidden.weight.copy_(torch.tensor([[2.0, -1.0]]))
        head.hidden.bias.zero_()
        head.output.weight.fill_(3.0)
        head.output.bias.fill_(1.0)
    found = head(torch.tensor([[[3.0, 7.0]]]), real(1))
    assert float(found) == pytest.approx(3 * 0.841345 + 1, abs=1e-5)


def test_a_constant_feature_keeps_its_scale():
    head = RewardHead(2)
    head.standardize(torch.tensor([[5.0, 1.0], [5.0, 3.0]]))
    assert head.spread.tolist() == [1.0, 1.0]
    with pytest.raises(UserError, match="`width` of at least 1"):
        RewardHead(2, width=0)


def test_a_file_from_before_standardizing_loads(tmp_path):
    head = RewardHead(4)
    save_head(head, tmp_path, "reward")
    weights = load_file(tmp_path / "reward.safetensors")
    save_file({k: v for k, v in weights.items() if "output" in k}, tmp_path / "reward.safetensors")
    loaded = load_head(tmp_path, "reward")
    hidden, mask = torch.randn(2, 3, 4), real(3, 1)
    assert torch.equal(loaded(hidden, mask), head.eval()(hidden, mask))


def test_half_precision_states_give_float32_values():
    head = ValueHead(16).eval()
    hidden = torch.randn(2, 3, 16).bfloat16()
    mask = real(3, 2)
    value = head(hidden, mask)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, head(hidden.float(), mask))
    assert RewardHead(16)(hidden, mask).dtype == torch.float32


def test_value_fits_a_batch():
    torch.manual_seed(3)
    head = ValueHead(16, dropout=0.0, max_value=4.0)
    hidden, mask, target = torch.randn(8, 5, 16), real(5, 3, 2, 5, 4, 1, 5, 5), torch.rand(8) * 4
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    for _ in range(150):
        loss = torch.nn.functional.mse_loss(head(hidden, mask), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-3


@pytest.mark.parametrize(
    "head",
    [
        ValueHead(16, num_heads=4, max_value=5.0, dropout=0.2),
        RewardHead(16, dropout=0.3),
        RewardHead(16, pooling="summary", width=5),
    ],
    ids=["value", "reward", "summary"],
)
def test_saved_head_comes_back_with_equal_outputs(head, tmp_path):
    save_head(head, tmp_path / "adapter", "head")
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [
        "head.json",
        "head.safetensors",
    ]
    loaded = load_head(tmp_path / "adapter", "head", hidden_size=16)
    assert type(loaded) is type(head)
    assert loaded.config == head.config
    assert loaded.dropout.p == head.dropout.p
    assert not loaded.training
    hidden, mask = torch.randn(3, 4, 16), real(4, 2, 3)
    more = (torch.randn(3, 16),) if head.config.get("pooling") == "summary" else ()
    assert torch.equal(loaded(hidden, mask, *more), head.eval()(hidden, mask, *more))
    assert load_file(tmp_path / "adapter" / "head.safetensors").keys() == head.state_dict().keys()


def test_loading_reports_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match=r"no head 'value' in .*: value.json is missing"):
        load_head(tmp_path, "value")
    save_head(ValueHead(16), tmp_path, "value")
    with pytest.raises(UserError, match=r"states of size 16, the model gives 24: .*another base"):
        load_head(tmp_path, "value", hidden_size=24)
    description = tmp_path / "value.json"
    newer = {**json.loads(description.read_text()), "format_version": 2}
    description.write_text(json.dumps(newer))
    with pytest.raises(UserError, match=r"'ValueHead', format 2: this version reads .* format 1"):
        load_head(tmp_path, "value")
    description.write_text(json.dumps({**newer, "format_version": 1, "class": "Other"}))
    with pytest.raises(UserError, match="class 'Other'"):
        load_head(tmp_path, "value")
    description.write_text("{")
    with pytest.raises(UserError, match=r"value.json is not JSON"):
        load_head(tmp_path, "value")
    (tmp_path / "value.safetensors").unlink()
    with pytest.raises(UserError, match=r"value.safetensors is missing"):
        load_head(tmp_path, "value")


@pytest.mark.parametrize("make", [ValueHead, RewardHead])
def test_shapes_are_checked(make):
    head = make(16)
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"`hidden` of shape \(B, L, 16\), got \(2, 3, 8\)"):
        head(torch.zeros(2, 3, 8), mask)
    with pytest.raises(ValueError, match=r"`mask` of shape \(2, 4\) like `hidden`, got \(2, 3\)"):
        head(torch.zeros(2, 4, 16), mask)
    mask[1] = False
    with pytest.raises(ValueError, match="at least one True a row in `mask`, row 1 has none"):
        head(torch.zeros(2, 3, 16), mask)


def test_constructor_is_checked():
    with pytest.raises(ValueError, match="divisible by num_heads = 8, got 12"):
        ValueHead(12)
    with pytest.raises(ValueError, match="`max_value` above 0, got 0"):
        ValueHead(16, max_value=0)
