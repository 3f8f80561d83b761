"""From states at the nodes of action tries to log-probs: logits only where a token is asked for.

A part of a node's row of logits is held for a moment only. The logarithm of the sum of exponentials
is shared by all tokens that leave the node, and its gradient is taken while the part is at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CHUNK_ELEMENTS = 2**24  # logits held at a time: 64 MB in float32
_PART_ELEMENTS, _SHORTEST_PART, _LONGEST_PART = 2**19, 2**10, 2**11  # of the vocabulary at a time


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
    is_hooked = head._forward_hooks or head._forward_pre_hooks
    is_frozen = not any(parameter.requires_grad for parameter in head.parameters())
    if type(head) is nn.Linear and is_frozen and not is_hooked:
        arguments = (states.to(head.weight.dtype), head.weight, head.bias, nodes, tokens)
        if torch.is_grad_enabled() and states.requires_grad:
            log_probs, entropy = _Fused.apply(*arguments, entropies)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
            return BranchLogProbs(log_probs, entropy if entropies else None)
        log_probs, found = _forward(*arguments, entropies)
        return BranchLogProbs(log_probs, found.entropy if entropies else None)
    rows = max(1, _CHUNK_ELEMENTS // _out_features(head))
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


def restricted_log_probs(
    log_probs: Tensor, nodes: Tensor, counts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return branches' log-probs ``[U]`` among their node's, and entropies ``[N]``."""
    size = sum(counts)
    peaks = log_probs.new_full((size,), -torch.inf)
    peaks = peaks.scatter_reduce(0, nodes, log_probs.detach(), "amax")
    exponentials = (log_probs - peaks[nodes]).exp()
    totals = log_probs.new_zeros(size).index_add(0, nodes, exponentials)
    restricted = log_probs - (peaks[nodes] + totals[nodes].log())
    terms = restricted.exp() * restricted
    return restricted, log_probs.new_zeros(size).index_add(0, nodes, -terms)


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


class _RunningSoftmax:
    """Sums over a vocabulary that comes part by part, of N rows of logits x.

    With the largest x so far as m:  s = Σ exp(x − m),  t = Σ exp(x − m)(x − m), and the same sums
    of the head's rows, S and T. No logits outlive their part. Parts are short, which keeps them in
    the processor's cache, and float32 exact: one sum over 2^16 terms would be off by 1e-4.

    Args:
        states: ``[N, H]``; gives precision and device.
        entropies: Whether t and T are wanted.
        gradients: Whether S and T are wanted.
    """

    def __init__(self, states: Tensor, *, entropies: bool, gradients: bool) -> None:
        self.entropies, self.gradients = entropies, gradients
        dtype = torch.promote_types(states.dtype, torch.float32)
        self.peak = states.new_full((len(states), 1), -torch.inf, dtype=dtype)
        self.s, self.t = torch.zeros_like(self.peak), torch.zeros_like(self.peak)
        self.rows = torch.zeros_like(states, dtype=dtype)  # S
        self.weighted = torch.zeros_like(self.rows)  # T

    def add(self, logits: Tensor, weight: Tensor) -> None:
        """Add a part's ``[N, V']`` logits, which are overwritten, and ``[V', H]`` rows."""
        peak = torch.maximum(self.peak, logits.amax(-1, keepdim=True))
        shift = (self.peak - peak).nan_to_num(neginf=0.0)  # of the first part: from nothing
        scale, self.peak = shift.exp(), peak
        logits -= peak
        terms = logits.exp() if self.entropies else logits.exp_()
        if self.entropies:
            logits *= terms
            self.t = scale * (self.t + shift * self.s) + logits.sum(-1, keepdim=True)
        self.s = scale * self.s + terms.sum(-1, keepdim=True)
        if self.gradients and self.entropies:
            moved = scale * (self.weighted + shift * self.rows)
            self.weighted = moved + logits.to(weight.dtype) @ weight
        if self.gradients:
            self.rows = scale * self.rows + terms.to(weight.dtype) @ weight

    @property
    def log_sum(self) -> Tensor:
        """Return ``[N, 1]``: the logarithm of Σ exp(x)."""
        return self.peak + self.s.log()

    @property
    def entropy(self) -> Tensor:
        """Return ``[N]``: −Σ p log p, with p = exp(x) / Σ exp(x)."""
        return (self.s.log() - self.t / self.s)[:, 0]

    @property
    def mean_row(self) -> Tensor:
        """Return ``[N, H]``: Σ p w, the gradient of `log_sum` by the states."""
        return self.rows / self.s

    @property
    def entropy_row(self) -> Tensor:
        """Return ``[N, H]``: −Σ p (log p + entropy) w, the gradient of `entropy`."""
        return (self.t / self.s * self.rows - self.weighted) / self.s


def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    nodes: Tensor,
    tokens: Tensor,
    entropies: bool,
    *,
    gradients: bool = False,
) -> tuple[Tensor, _RunningSoftmax]:
    """Return log-probs, and what else is known of the nodes."""
    softmax = _RunningSoftmax(hidden, entropies=entropies, gradients=gradients)
    taken = softmax.peak.new_empty(len(nodes))
    length = min(_LONGEST_PART, max(_SHORTEST_PART, _PART_ELEMENTS // len(hidden)))
    starts = torch.arange(0, len(weight), length, device=tokens.device)
    order = tokens.argsort()
    bounds = torch.searchsorted(tokens[order], starts).tolist()
    with torch.no_grad():
        for start, first, last in zip(starts.tolist(), bounds, [*bounds[1:], None], strict=True):
            part, own = slice(start, start + length), order[first:last]
            logits = functional.linear(hidden, weight[part], None if bias is None else bias[part])
            logits = logits.to(taken.dtype)
            taken[own] = logits[nodes[own], tokens[own] - start]
            softmax.add(logits, weight[part])
        return taken - softmax.log_sum[nodes, 0], softmax


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
        entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        log_probs, found = _forward(hidden, weight, bias, nodes, tokens, entropies, gradients=True)
        ctx.entropies = entropies
        rows = [found.mean_row, found.entropy_row if entropies else found.t]
        ctx.save_for_backward(weight, nodes, tokens, *(row.to(hidden.dtype) for row in rows))
        return log_probs, found.entropy if entropies else log_probs.new_zeros(0)

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
        return grad_hidden, None, None, None, None, None
