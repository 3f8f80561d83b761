"""From states at the nodes of action tries to log-probs: logits only where a token is asked for.

A node's row of logits is held for a moment only. Its logarithm of the sum of exponentials is
shared by all tokens that leave the node, and the gradient is taken while the row is at hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CHUNK_ELEMENTS = 2**24  # logits held at a time: 64 MB in float32


class BranchLogProbs(NamedTuple):
    """What the output head says at the nodes.

    Args:
        log_probs: ``[U]`` float32, log-prob of each branch's token at its node.
        entropies: ``[N]`` float32, entropy of each node's distribution; None if not asked for.
    """

    log_probs: Tensor
    entropies: Tensor | None


def head_branch_log_probs(
    head: nn.Module, states: Tensor, nodes: Tensor, tokens: Tensor, *, entropies: bool
) -> BranchLogProbs:
    """Return log-probs of given tokens at given nodes, through any output head.

        log_prob[u] = logits[nodes[u], tokens[u]] − log Σ_v exp(logits[nodes[u], v])

    The logits are taken in the head's precision and everything after them in float32 (float64
    stays). A frozen linear head gets the fused gradient; any other is called again in the
    backward pass.

    Args:
        head: From ``[N, H]`` to logits ``[N, V]``.
        states: ``[N, H]``.
        nodes: ``[U]`` int64, ascending.
        tokens: ``[U]`` int64.
        entropies: Whether entropies are wanted.
    """
    rows = max(1, _CHUNK_ELEMENTS // _out_features(head))
    is_hooked = head._forward_hooks or head._forward_pre_hooks
    is_frozen = not any(parameter.requires_grad for parameter in head.parameters())
    if type(head) is nn.Linear and is_frozen and not is_hooked:
        arguments = (states.to(head.weight.dtype), head.weight, head.bias, nodes, tokens)
        if torch.is_grad_enabled() and states.requires_grad:
            parts = _Fused.apply(*arguments, rows, entropies)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
        else:
            parts = _forward(*arguments, rows, entropies)[:2]
        return BranchLogProbs(parts[0], parts[1] if entropies else None)
    return _in_chunks(head, states, nodes, tokens, rows, entropies=entropies)


def logits_branch_log_probs(
    logits: Tensor, nodes: Tensor, tokens: Tensor, *, entropies: bool
) -> BranchLogProbs:
    """Return the same from logits ``[N, V]``."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = logits.logsumexp(-1)
    log_probs = logits[nodes, tokens] - total[nodes]
    if not entropies:
        return BranchLogProbs(log_probs, None)
    return BranchLogProbs(log_probs, total - (logits.softmax(-1) * logits).sum(-1))


def _in_chunks(
    head: nn.Module, states: Tensor, nodes: Tensor, tokens: Tensor, rows: int, *, entropies: bool
) -> BranchLogProbs:
    """Call the head chunk by chunk, and again in the backward pass."""

    def chunk(part: Tensor, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        return tuple(logits_branch_log_probs(head(part), nodes, tokens, entropies=entropies))  # type: ignore[return-value]  # the two fields

    results = []
    for start in range(0, len(states), rows):
        first, last = _span(nodes, start, start + rows)
        arguments = (states[start : start + rows], nodes[first:last] - start, tokens[first:last])
        results.append(checkpoint(chunk, *arguments, use_reentrant=False))
    log_probs = torch.cat([result[0] for result in results])
    return BranchLogProbs(log_probs, torch.cat([r[1] for r in results]) if entropies else None)


def _span(nodes: Tensor, start: int, end: int) -> tuple[int, int]:
    """Return the range of branches whose nodes lie in [start, end)."""
    bounds = nodes.new_tensor([start, end])
    first, last = torch.searchsorted(nodes, bounds).tolist()
    return first, last


def _out_features(head: nn.Module) -> int:
    """Return the vocabulary size of an output head."""
    size = getattr(head, "out_features", None)
    return int(size) if size is not None else 2**16


def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    nodes: Tensor,
    tokens: Tensor,
    rows: int,
    entropies: bool,
    *,
    gradients: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-probs, entropies, and the gradients by node of the log-sums and the entropies.

    What is not wanted is empty.
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    log_probs = hidden.new_empty(len(nodes), dtype=dtype)
    entropy = hidden.new_empty(len(hidden) if entropies else 0, dtype=dtype)
    expected = torch.empty_like(hidden if gradients else hidden[:0])
    surprise = torch.empty_like(hidden if gradients and entropies else hidden[:0])
    for start in range(0, len(hidden), rows):
        part = slice(start, min(start + rows, len(hidden)))
        with torch.no_grad():
            logits = functional.linear(hidden[part], weight, bias).to(dtype)
            total = logits.logsumexp(-1, keepdim=True)
            branches = slice(*_span(nodes, part.start, part.stop))
            own = nodes[branches] - start
            log_probs[branches] = logits[own, tokens[branches]] - total[own, 0]
            if not (gradients or entropies):
                continue
            logits -= total
            probabilities = logits.exp()
            if gradients:
                expected[part] = probabilities.to(weight.dtype) @ weight
            if entropies:
                entropy[part] = -(probabilities * logits).sum(-1)
            if gradients and entropies:
                weighted = probabilities * (logits + entropy[part, None])
                surprise[part] = -(weighted.to(weight.dtype) @ weight)
    return log_probs, entropy, expected, surprise


class _Fused(torch.autograd.Function):
    """`head_branch_log_probs` where the states need a gradient and the head does not."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch's context object has no type of its own
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        nodes: Tensor,
        tokens: Tensor,
        rows: int,
        entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        log_probs, entropy, expected, surprise = _forward(
            hidden, weight, bias, nodes, tokens, rows, entropies, gradients=True
        )
        ctx.entropies = entropies
        ctx.save_for_backward(weight, nodes, tokens, expected, surprise)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401  # torch's context object has no type of its own
        grad_log_probs: Tensor,
        grad_entropy: Tensor,
    ) -> tuple[Tensor | None, ...]:
        weight, nodes, tokens, expected, surprise = ctx.saved_tensors
        grad = grad_log_probs.to(weight.dtype)
        by_node = grad.new_zeros(len(expected)).index_add_(0, nodes, grad)
        grad_hidden = -by_node[:, None] * expected
        grad_hidden.index_add_(0, nodes, grad[:, None] * weight[tokens])
        if ctx.entropies:
            grad_hidden += grad_entropy[:, None].to(weight.dtype) * surprise
        return grad_hidden, None, None, None, None, None, None
