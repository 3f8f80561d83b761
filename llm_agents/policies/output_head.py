"""Log-probs of given tokens from hidden states, without ever holding a row of logits a position.

With a vocabulary of 49,152 the output head is the dearest layer of a small model, in time and in
memory. Here it is computed in chunks of positions, and the gradient with respect to the hidden
states is taken while a chunk's probabilities are at hand, so that nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CHUNK_ELEMENTS = 2**24  # logits held at a time: 64 MB in float32


def fused_token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    *,
    chunk_rows: int | None = None,
) -> Tensor:
    """Return the log-prob of one token for each hidden state.

        log_prob[n] = logits[n, ids[n]] − log Σ_v exp(logits[n, v])
        logits = hidden · weightᵀ + bias

    The logits are taken in the weights' dtype and everything after them in float32 (float64
    stays). Since each output depends on its own row alone, the gradient of `hidden` is the output's
    gradient times ``weight[ids] − softmax · weight``, which is computed with the output. A
    trainable weight makes the backward pass compute the logits again.

    Args:
        hidden: ``[N, H]``.
        weight: ``[V, H]``.
        bias: ``[V]`` or None.
        ids: ``[N]`` int64, in [0, V).
        chunk_rows: Rows whose logits are held at a time.

    Returns:
        ``[N]`` float32 log-probs, each ≤ 0.
    """
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            "expected `hidden` (N, H) and `weight` (V, H), got "
            f"{tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if ids.shape != hidden.shape[:1]:
        raise ValueError(
            f"expected `ids` of shape ({len(hidden)},) like the rows of `hidden`, "
            f"got {tuple(ids.shape)}"
        )
    rows = chunk_rows or max(1, _CHUNK_ELEMENTS // len(weight))
    hidden = hidden.to(weight.dtype)
    tensors = (hidden, weight) if bias is None else (hidden, weight, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        log_probs: Tensor = _FusedTokenLogProbs.apply(hidden, weight, bias, ids, rows)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
        return log_probs
    return _forward(hidden, weight, bias, ids, rows, directions=None)


def head_token_log_probs(head: nn.Module, hidden: Tensor, ids: Tensor) -> Tensor:
    """Return the log-prob of one token for each hidden state, through any output head.

    A plain linear layer takes the fused path; anything else (an adapted head, a quantized one) is
    called chunk by chunk, and again in the backward pass.

    Args:
        head: From ``[N, H]`` to logits ``[N, V]``.
        hidden: ``[N, H]``.
        ids: ``[N]`` int64.

    Returns:
        ``[N]`` float32 log-probs.
    """
    if type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks:
        return fused_token_log_probs(hidden, head.weight, head.bias, ids)

    def chunk_log_probs(hidden: Tensor, ids: Tensor) -> Tensor:
        return logits_token_log_probs(head(hidden), ids)

    rows = max(1, _CHUNK_ELEMENTS // _out_features(head))
    parts: list[Tensor] = [
        checkpoint(
            chunk_log_probs,
            hidden[start : start + rows],
            ids[start : start + rows],
            use_reentrant=False,
        )
        for start in range(0, len(hidden), rows)
    ]
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=torch.float32)


def logits_token_log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return ``[N]`` float32 log-probs of tokens ``[N]`` under logits ``[N, V]``."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.gather(-1, ids[:, None])[:, 0] - logits.logsumexp(-1)


def _out_features(head: nn.Module) -> int:
    """Return the vocabulary size of an output head."""
    size = getattr(head, "out_features", None)
    return int(size) if size is not None else 2**16


def _chunk_exponentials(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probs ``[n]``, unnormalized probabilities ``[n, V]`` and their sums ``[n, 1]``."""
    logits = functional.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen = logits.gather(1, ids[:, None])
    peak = logits.amax(1, keepdim=True)
    exponentials = logits.sub_(peak).exp_()
    total = exponentials.sum(1, keepdim=True)
    return (chosen - peak - total.log())[:, 0], exponentials, total


def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    rows: int,
    directions: Tensor | None,
) -> Tensor:
    """Return the log-probs; fill `directions` with their gradients by row, unless it is None."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    log_probs = hidden.new_empty(len(hidden), dtype=dtype)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        chunk = ids[part]
        with torch.no_grad():
            log_probs[part], exponentials, total = _chunk_exponentials(
                hidden[part], weight, bias, chunk
            )
            if directions is not None:
                expected = exponentials.to(weight.dtype) @ weight
                directions[part] = weight[chunk] - expected / total.to(weight.dtype)
    return log_probs


class _FusedTokenLogProbs(torch.autograd.Function):
    """`fused_token_log_probs` where a gradient is needed."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch's context object has no type of its own
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        rows: int,
    ) -> Tensor:
        ctx.rows = rows
        ctx.trains_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        directions = None if ctx.trains_head else torch.empty_like(hidden)
        log_probs = _forward(hidden, weight, bias, ids, rows, directions)
        if ctx.trains_head:
            ctx.save_for_backward(hidden, weight, bias, ids)
        else:
            ctx.save_for_backward(directions)
        return log_probs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401  # torch's context object has no type of its own
        grad_output: Tensor,
    ) -> tuple[Tensor | None, ...]:
        if not ctx.trains_head:
            (directions,) = ctx.saved_tensors
            return grad_output[:, None].to(directions.dtype) * directions, None, None, None, None
        hidden, weight, bias, ids = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            _, exponentials, total = _chunk_exponentials(hidden[part], weight, bias, ids[part])
            grad = grad_output[part, None]
            grad_logits = exponentials.mul_(-grad / total)
            grad_logits.scatter_add_(1, ids[part, None], grad)
            grad_logits = grad_logits.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += grad_logits.T @ hidden[part]
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None
