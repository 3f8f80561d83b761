"""From logits to log-probabilities of given tokens, and their sums over a response."""

from __future__ import annotations

from torch import Tensor

from llm_agents.functional.masked import masked_sum
from llm_agents.functional.shapes import check_mask, check_rank, check_shape, full_precision


def gather_log_probs(logits: Tensor, input_ids: Tensor) -> Tensor:
    """Compute the log-probability of each given token under its logits.

        log_probs = logits[input_ids] − logsumexp(logits)

    Computed in float32 whatever the logits' precision (float64 stays): over a vocabulary of
    32,000 a bfloat16 log-softmax errs by up to 0.12 a token. Nothing is shifted here: position t
    of the logits must be the one that predicts token t.

    Args:
        logits: ``[…, V]``.
        input_ids: ``[…]`` int64, each in ``[0, V)``; the leading axes of `logits`.

    Returns:
        ``[…]`` float32 or float64, each ≤ 0.

    Raises:
        ValueError: The leading axes differ.

    Example:
        >>> import torch
        >>> gather_log_probs(torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([0.2500])
    """
    if logits.dim() == 0:
        raise ValueError("expected `logits` of shape […, V], got (): give the axis of the words")
    cure = "give one token id for each row of logits, shifted beforehand"
    check_shape("input_ids", input_ids, logits.shape[:-1], "`logits` without its last axis", cure)
    exact = full_precision(logits)
    chosen = exact.gather(-1, input_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - exact.logsumexp(-1)


def response_log_probs(logits: Tensor, response_ids: Tensor, *, prompt_length: int) -> Tensor:
    """Compute the response's log-probs from the logits of prompt and response together.

        log_probs[b, t] = ln π(response_ids[b, t] | prompt, response_ids[b, :t])
                        = log_softmax(logits[b, prompt_length − 1 + t])[response_ids[b, t]]

    A position's logits predict the *next* token: the prompt's last position predicts the first
    response token, and the response's last position predicts nothing that is scored.

    Args:
        logits: ``[B, Q + T, V]``, prompt (left-padded to Q) followed by the response.
        response_ids: ``[B, T]`` int64, padding included (mask it afterwards).
        prompt_length: Q, at least 1, padding included.

    Returns:
        ``[B, T]`` float32 or float64.

    Raises:
        ValueError: The lengths don't add up, or there is no prompt position to predict from.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[[0.0, 0, 0], [1, 0, -1], [0, 2, 0], [9, 9, 9]]])
        >>> response_log_probs(rows, torch.tensor([[0, 1]]), prompt_length=2)
        tensor([[-0.4076, -0.2395]])

    References:
        A-LoL (arXiv 2305.14718), as released: no prompt token is scored, the end token is.
    """
    check_rank("logits", logits, "[B, Q + T, V]")
    check_rank("response_ids", response_ids, "[B, T]")
    if prompt_length < 1:
        raise ValueError(
            f"expected `prompt_length` of at least 1, got {prompt_length}: the first response "
            "token needs a position that predicts it, e.g. a begin token"
        )
    batch, length = response_ids.shape
    if logits.shape[:2] != (batch, prompt_length + length):
        raise ValueError(
            f"expected `logits` of shape ({batch}, {prompt_length + length}, V) = (B, "
            f"prompt_length + T, V), got {tuple(logits.shape)}: pass those of prompt and response"
        )
    return gather_log_probs(logits[:, prompt_length - 1 : -1], response_ids)


def sequence_log_probs(log_probs: Tensor, response_mask: Tensor) -> Tensor:
    """Sum the log-probs of each response: a sum, never a mean.

        sequence_log_probs[b] = Σ_t log_probs[b, t] · response_mask[b, t]

    Args:
        log_probs: ``[B, T]``.
        response_mask: ``[B, T]`` bool, True = token is scored.

    Returns:
        ``[B]``.

    Raises:
        TypeError: `response_mask` is not boolean.
        ValueError: The shapes differ.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[-1.0, -2.0], [-3.0, float("nan")]])
        >>> sequence_log_probs(log_probs, torch.tensor([[True, True], [True, False]]))
        tensor([-3., -3.])
    """
    check_rank("log_probs", log_probs, "[B, T]")
    check_mask("response_mask", response_mask, log_probs, "log_probs")
    return masked_sum(log_probs, response_mask, dim=-1)
