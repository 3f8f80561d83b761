"""The output head: log-probs of given tokens and their gradients, chunk by chunk."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from llm_agents.policies.output_head import (
    fused_token_log_probs,
    head_token_log_probs,
    logits_token_log_probs,
)


def plain(hidden, weight, bias, ids):
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]


def inputs(rows=7, vocabulary=11, hidden=5, *, dtype=torch.float64, bias=True):
    generator = torch.Generator().manual_seed(3)
    make = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    ids = torch.randint(vocabulary, (rows,), generator=generator)
    return make(rows, hidden), make(vocabulary, hidden), make(vocabulary) if bias else None, ids


def test_by_hand():
    """logits = (0, ln 2, ln 3): probabilities 1/6, 2/6, 3/6."""
    weight = torch.tensor([[0.0], [math.log(2)], [math.log(3)]])
    hidden = torch.ones(3, 1)
    log_probs = fused_token_log_probs(hidden, weight, None, torch.tensor([0, 1, 2]))
    expected = [math.log(1 / 6), math.log(2 / 6), math.log(3 / 6)]
    assert log_probs.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
@pytest.mark.parametrize("trains", ["hidden", "head", "both"])
def test_values_and_gradients_are_those_of_log_softmax(bias, chunk_rows, trains):
    hidden, weight, offset, ids = inputs(bias=bias)
    hidden.requires_grad_(trains != "head")
    for tensor in (weight, offset):
        if tensor is not None:
            tensor.requires_grad_(trains != "hidden")
    leaves = [t for t in (hidden, weight, offset) if t is not None and t.requires_grad]
    ours = fused_token_log_probs(hidden, weight, offset, ids, chunk_rows=chunk_rows)
    theirs = plain(hidden, weight, offset, ids)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn(len(ids), dtype=torch.float64)
    got = torch.autograd.grad((ours * upstream).sum(), leaves)
    expected = torch.autograd.grad((theirs * upstream).sum(), leaves)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("head_trains", [True, False])
def test_gradcheck(head_trains):
    hidden, weight, bias, ids = inputs(rows=4)
    hidden.requires_grad_()
    weight.requires_grad_(head_trains)
    bias.requires_grad_(head_trains)
    assert torch.autograd.gradcheck(
        lambda h, w, b: fused_token_log_probs(h, w, b, ids, chunk_rows=3), (hidden, weight, bias)
    )


def test_extreme_logits_stay_finite():
    hidden, weight, bias, ids = inputs(dtype=torch.float32)
    hidden = (1e4 * hidden).requires_grad_()
    log_probs = fused_token_log_probs(hidden, weight, bias, ids)
    log_probs.sum().backward()
    assert log_probs.isfinite().all()
    assert (log_probs <= 0).all()
    assert hidden.grad.isfinite().all()


def test_half_precision_logits_are_summed_in_float32():
    """bfloat16 sums over a large vocabulary err by more than a tenth of a nat."""
    hidden, weight, _, ids = inputs(rows=20, vocabulary=32000, hidden=16, dtype=torch.bfloat16)
    log_probs = fused_token_log_probs(hidden, weight, None, ids)
    logits = torch.nn.functional.linear(hidden, weight).double()
    exact = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), exact, atol=1e-4, rtol=0)


def test_no_rows_give_no_log_probs():
    hidden, weight, bias, ids = inputs()
    empty = hidden[:0].requires_grad_()
    log_probs = fused_token_log_probs(empty, weight, bias, ids[:0])
    assert log_probs.shape == (0,)
    log_probs.sum().backward()


def test_memory_of_the_graph_is_the_hidden_states_not_the_logits():
    hidden, weight, _, ids = inputs(rows=64, vocabulary=5000, bias=False)
    hidden.requires_grad_()
    saved = []

    def pack(tensor):
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused_token_log_probs(hidden, weight, None, ids)
    assert sum(saved) <= hidden.numel()


class ScaledHead(nn.Linear):
    """A head that is more than a linear layer."""

    def forward(self, hidden):
        return 2 * super().forward(hidden)


def test_any_other_head_is_called():
    hidden, weight, bias, ids = inputs()
    head = ScaledHead(5, 11, dtype=torch.float64)
    head.load_state_dict({"weight": weight, "bias": bias})
    hidden.requires_grad_()
    ours = head_token_log_probs(head, hidden, ids)
    theirs = logits_token_log_probs(head(hidden), ids)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(
        torch.autograd.grad(ours.sum(), (hidden, head.weight)),
        torch.autograd.grad(theirs.sum(), (hidden, head.weight)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_shapes_are_checked():
    hidden, weight, bias, ids = inputs()
    with pytest.raises(ValueError, match=r"expected `ids` of shape \(7,\)"):
        fused_token_log_probs(hidden, weight, bias, ids[:, None])
    with pytest.raises(ValueError, match="expected `hidden`"):
        fused_token_log_probs(hidden[:, :3], weight, bias, ids)
