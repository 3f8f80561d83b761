"""Log-probs and entropies at trie nodes against a plain log-softmax, and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_agents.policies import action_head
from llm_agents.policies.action_head import head_branch_log_probs, logits_branch_log_probs

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


@pytest.mark.parametrize("chunk", [10, 2**24], ids=["a row at a time", "all rows"])
@pytest.mark.parametrize("kind", ["plain", "bias", "trains", "wrapped"])
def test_it_is_log_softmax_and_its_gradient(kind, chunk, monkeypatch):
    monkeypatch.setattr(action_head, "_CHUNK_ELEMENTS", chunk)
    head = heads(kind)
    states = torch.randn(5, 6, requires_grad=True)
    found = head_branch_log_probs(head, states, NODES, TOKENS, entropies=True)
    expected = head(states).double().log_softmax(-1)
    entropies = -(expected.exp() * expected).sum(-1)
    torch.testing.assert_close(found.log_probs.double(), expected[NODES, TOKENS], atol=1e-6, rtol=0)
    torch.testing.assert_close(found.entropies.double(), entropies, atol=1e-6, rtol=0)
    assert found.log_probs.dtype == torch.float32
    inputs = [states, *(p for p in head.parameters() if p.requires_grad)]
    by_branch, by_node = torch.randn(7), torch.randn(5)
    ours = (found.log_probs * by_branch).sum() + (found.entropies * by_node).sum()
    theirs = (expected[NODES, TOKENS] * by_branch).sum() + (entropies * by_node).sum()
    for own, their in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True
    ):
        torch.testing.assert_close(own, their, atol=1e-5, rtol=1e-5)


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
