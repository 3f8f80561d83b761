"""Log-probs and entropies at trie nodes against a plain log-softmax, and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_agents.policies import action_head
from llm_agents.policies.action_head import head_branch_log_probs, logits_branch_log_probs
from tests.closeness import assert_rounding

NODES = torch.tensor([0, 0, 1, 3, 3, 3, 4])
TOKENS = torch.tensor([5, 1, 0, 2, 3, 9, 7])


class WrappedHead(nn.Module):
    """A head that is no plain linear layer."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, states):
        return self.linear(states)


def heads(kind):
    torch.manual_seed(1)
    linear = nn.Linear(6, 10, bias=kind == "bias")
    if kind != "trains":
        linear.requires_grad_(False)
    return WrappedHead(linear) if kind == "wrapped" else linear


@pytest.mark.parametrize("chunk", [10, 2**24], ids=["in parts", "at once"])
@pytest.mark.parametrize("kind", ["plain", "bias", "trains", "wrapped"])
def test_it_is_log_softmax_and_its_gradient(kind, chunk, monkeypatch):
    monkeypatch.setattr(action_head, "_CHUNK_ELEMENTS", chunk)  # a row at a time
    monkeypatch.setattr(action_head, "_LONGEST_PART", 3 if chunk == 10 else 2**11)
    head = heads(kind)
    states = torch.randn(5, 6, requires_grad=True)
    found = head_branch_log_probs(head, states, NODES, TOKENS, entropies=True)
    expected = head(states).double().log_softmax(-1)
    entropies = -(expected.exp() * expected).sum(-1)
    assert_rounding(found.log_probs.double(), expected[NODES, TOKENS])
    assert_rounding(found.entropies.double(), entropies)
    assert found.log_probs.dtype == torch.float32
    inputs = [states, *(p for p in head.parameters() if p.requires_grad)]
    by_branch, by_node = torch.randn(7), torch.randn(5)
    ours = (found.log_probs * by_branch).sum() + (found.entropies * by_node).sum()
    theirs = (expected[NODES, TOKENS] * by_branch).sum() + (entropies * by_node).sum()
    for own, their in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True
    ):
        assert_rounding(own, their)


def test_without_gradient_and_without_entropies():
    head = heads("plain")
    states = torch.randn(5, 6)
    with torch.no_grad():
        found = head_branch_log_probs(head, states, NODES, TOKENS, entropies=False)
    assert found.entropies is None
    again = logits_branch_log_probs(head(states), NODES, TOKENS, entropies=False)
    torch.testing.assert_close(found.log_probs, again.log_probs)


def test_large_logits_stay_finite():
    head = heads("plain")
    states = 1e4 * torch.randn(5, 6, requires_grad=True)
    found = head_branch_log_probs(head, states, NODES, TOKENS, entropies=True)
    (found.log_probs.sum() + found.entropies.sum()).backward()
    assert found.log_probs.isfinite().all()
    assert found.entropies.isfinite().all()


def test_a_large_vocabulary_in_parts_has_the_gradient_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(32, 2**16, bias=False).requires_grad_(False)
    head.weight.copy_(torch.rand(head.weight.shape, generator=generator))
    states = torch.randn(5, 32, generator=generator).requires_grad_()
    found = head_branch_log_probs(head, states, NODES, TOKENS, entropies=False)
    (own,) = torch.autograd.grad(found.log_probs.sum(), states)
    double = states.detach().double().requires_grad_()
    expected = (double @ head.weight.double().T).log_softmax(-1)[NODES, TOKENS].sum()
    (their,) = torch.autograd.grad(expected, double)
    assert float((own.double() - their).norm() / their.norm()) < 2e-6


def test_half_precision_heads_are_summed_up_in_single():
    head = nn.Linear(16, 300).requires_grad_(False).to(torch.bfloat16)
    states = (3 * torch.randn(5, 16)).requires_grad_()
    found = head_branch_log_probs(head, states, NODES, TOKENS, entropies=True)
    assert found.log_probs.dtype == found.entropies.dtype == torch.float32
    logits = head(states.to(torch.bfloat16)).float()
    torch.testing.assert_close(found.log_probs, logits.log_softmax(-1)[NODES, TOKENS])
    (own,) = torch.autograd.grad(found.log_probs.sum(), states)
    (their,) = torch.autograd.grad(logits.log_softmax(-1)[NODES, TOKENS].sum(), states)
    torch.testing.assert_close(own, their, atol=2e-2, rtol=2e-2)
