"""Generalized advantage estimation: over actions, and over the tokens inside them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_mask, check_rank, check_shape, full_precision


class Advantages(NamedTuple):
    """How much better than expected each unit turned out; neither carries a gradient.

    Args:
        advantages: Same shape as the values; 0 where there is no unit.
        returns: advantages + values, the targets of the values; 0 where there is no unit.
    """

    advantages: Tensor
    returns: Tensor


def macro_discounts(durations: Tensor, *, gamma: float) -> Tensor:
    """Compute what a step discounts the future by, where one action takes several primitive steps.

        gamma ^ durations

    Args:
        durations: ``[T, E]`` int64, primitive steps of each action, ≥ 1; all 1 where an action is
            one step, or where macros are to count as one.
        gamma: Discount of a primitive step, in [0, 1].

    Returns:
        ``[T, E]`` float.

    Raises:
        ValueError: A duration is below 1, or `gamma` is out of range.

    Example:
        >>> import torch
        >>> macro_discounts(torch.tensor([[1, 2]]), gamma=0.5)
        tensor([[0.5000, 0.2500]])

    References:
        TWOSOME (arXiv 2401.14151), as released: γ^k in Overcooked, while λ is not raised to k.
    """
    _check_share("gamma", gamma)
    if durations.numel() and int(durations.min()) < 1:
        raise ValueError(
            f"expected `durations` of at least 1, got {int(durations.min())}: an action takes a "
            "primitive step even where it fails"
        )
    return torch.pow(gamma, durations.to(torch.get_default_dtype()))


def gae(
    *,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discounts: Tensor,
    gae_lambda: float,
) -> Advantages:
    """Estimate the advantages of actions.

        δ_t = r_t + d_t · V(o_{t+1}) · (1 − terminated_t) − V(o_t)
        A_t = δ_t + d_t · λ · (1 − done_t) · A_{t+1},   done = terminated or truncated

    A time limit cuts the trace but bootstraps from the observation that it left; to count limits as
    ends, as the releases do, pass ``terminated | truncated`` as `terminated`.

    Args:
        rewards: ``[T, E]``, step by step in E worlds.
        values: ``[T, E]``, V(o_t).
        next_values: ``[T, E]``, V of the observation that followed, before any reset; what stands
            there after an end doesn't matter.
        terminated: ``[T, E]`` bool, the world ended after the step.
        truncated: ``[T, E]`` bool, a limit cut the episode after the step.
        discounts: ``[T, E]`` d_t, see `macro_discounts`.
        gae_lambda: λ in [0, 1]: 0 gives δ, 1 the return less the value.

    Returns:
        `Advantages`, ``[T, E]`` each.

    Raises:
        TypeError: `terminated` or `truncated` is not boolean.
        ValueError: The shapes differ, or λ is out of range.

    Example:
        >>> import torch
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> gae(rewards=one, values=0 * one, next_values=0 * one, terminated=no, truncated=no,
        ...     discounts=0.5 * one, gae_lambda=1.0).advantages.flatten()
        tensor([1.5000, 1.0000])

    References:
        Schulman et al. (arXiv 1506.02438), equations 11 to 16; TWOSOME for the macro discount.
    """
    check_rank("values", values, "[T, E]")
    values = full_precision(values.detach())
    steps = (rewards, next_values, terminated, truncated, discounts)
    targets, traces = _boundary(values, *steps, gae_lambda)
    advantages = _accumulate(targets - values, traces)
    return Advantages(advantages, advantages + values)


def token_level_gae(
    *,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    mask: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discounts: Tensor,
    gae_lambda: float,
    intra_action_gamma: float,
    intra_action_lambda: float,
) -> Advantages:
    """Estimate the advantages of the tokens of actions: rewards only after an action's last token.

        last token:   δ = r_t + d_t · V(o_{t+1}) − V(t, n),   g ← δ + d_t · λ · (1 − done_t) · g
        inner token:  δ = γ_w · V(t, j + 1) − V(t, j),        g ← δ + γ_w · λ_w · g
        A(t, j) = g

    POAD: γ_w = 1, and λ_w = λ as released, γ·λ in its first release, or 1, which gives the first
    token the action's own advantage. NTPO, the flat token process: γ_w = γ, λ_w = λ. ArCHer: NTPO
    with the `next_values` of `archer_next_values`. One-token actions: `gae`.

    Args:
        rewards: ``[T, E]``, of whole actions.
        values: ``[T, E, L]``, each read just **before** its token.
        next_values: ``[T, E]``, V of the observation that followed, before any reset.
        mask: ``[T, E, L]`` bool, True = token of the action; right-padded, at least one a row.
        terminated: ``[T, E]`` bool, the world ended after the step.
        truncated: ``[T, E]`` bool, a limit cut the episode after the step.
        discounts: ``[T, E]`` d_t between actions.
        gae_lambda: λ between actions, in [0, 1].
        intra_action_gamma: γ_w, discount from a token to the next, in [0, 1].
        intra_action_lambda: λ_w, trace from a token to the next, in [0, 1].

    Returns:
        `Advantages`, ``[T, E, L]`` each.

    Raises:
        TypeError: A mask is not boolean.
        ValueError: Shapes differ, a coefficient is out of range, or the mask has holes or no token.

    Example:
        >>> import torch
        >>> one, no = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool)
        >>> token_level_gae(rewards=one, values=torch.tensor([[[0.5, 0.75]]]), next_values=one,
        ...     mask=torch.tensor([[[True, True]]]), terminated=~no, truncated=no, discounts=one,
        ...     gae_lambda=1, intra_action_gamma=1, intra_action_lambda=0).advantages
        tensor([[[0.2500, 0.2500]]])

    References:
        POAD (arXiv 2405.15821), action decomposition; its release for the traces.
    """
    last = _last_token(values, mask)
    values = full_precision(values.detach()).masked_fill(~mask, 0)
    steps = (rewards, next_values, terminated, truncated, discounts)
    targets, traces = _boundary(values[..., 0], *steps, gae_lambda)
    deltas = _token_errors(values, targets, last, mask, intra_action_gamma)
    advantages = _chain_tokens(deltas, traces, mask, intra_action_gamma, intra_action_lambda)
    return Advantages(advantages, advantages + values)


def archer_next_values(
    *,
    values: Tensor,
    mask: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
) -> Tensor:
    """Choose what ArCHer bootstraps from: the value before the *last* token of the next action.

        V(t + 1, n_{t+1}) inside an episode; V(o_{t+1}) where it ended or the rollout did

    Args:
        values: ``[T, E, L]``, each read just before its token.
        mask: ``[T, E, L]`` bool, True = token; right-padded, at least one a row.
        next_values: ``[T, E]``, V of the observation that followed, before any reset.
        terminated: ``[T, E]`` bool.
        truncated: ``[T, E]`` bool.

    Returns:
        ``[T, E]``, to be the `next_values` of `token_level_gae`.

    Raises:
        TypeError: A mask is not boolean.
        ValueError: The shapes differ, or the mask has holes or an empty row.

    Example:
        >>> import torch
        >>> no = torch.zeros(2, 1, dtype=torch.bool)
        >>> archer_next_values(
        ...     values=torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]),
        ...     mask=torch.ones(2, 1, 2, dtype=torch.bool),
        ...     next_values=torch.tensor([[3.0], [5.0]]), terminated=no, truncated=no,
        ... ).flatten()
        tensor([4., 5.])

    References:
        POAD (arXiv 2405.15821), as released, for its ArCHer baseline.
    """
    last = _last_token(values, mask)
    _check_like_first("next_values", next_values, values[..., 0])
    done = _done(next_values, terminated, truncated)
    at_last = values.detach().masked_fill(~last, 0).sum(-1)
    following = torch.cat([at_last[1:], next_values.detach()[-1:].to(at_last.dtype)])
    return torch.where(done, next_values.detach().to(at_last.dtype), following)


def _boundary(
    values: Tensor,
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discounts: Tensor,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Return ``[T, E]`` r + d · V(o') and d · λ · (1 − done), in the dtype of `values`."""
    _check_share("gae_lambda", gae_lambda)
    given = {"rewards": rewards, "next_values": next_values, "discounts": discounts}
    for name, tensor in given.items():
        _check_like_first(name, tensor, values)
    done = _done(rewards, terminated, truncated)
    rewards, bootstrap, discounts = (t.detach().to(values.dtype) for t in given.values())
    targets = rewards + discounts * bootstrap.masked_fill(terminated, 0)
    return targets, (discounts * gae_lambda).masked_fill(done, 0)


def _accumulate(deltas: Tensor, traces: Tensor) -> Tensor:
    """Return ``[T, E]`` A_t = deltas_t + traces_t · A_{t+1}, with nothing after the last step."""
    found = torch.empty_like(deltas)
    following = deltas.new_zeros(deltas.shape[1:])
    for step in reversed(range(len(deltas))):
        following = deltas[step] + traces[step] * following
        found[step] = following
    return found


def _token_errors(
    values: Tensor, targets: Tensor, last: Tensor, mask: Tensor, intra_action_gamma: float
) -> Tensor:
    """Return ``[T, E, L]`` δ: of each token towards the next one, of the last towards `targets`."""
    _check_share("intra_action_gamma", intra_action_gamma)
    following = torch.cat([values[..., 1:], torch.zeros_like(values[..., :1])], dim=-1)
    reached = torch.where(last, targets.unsqueeze(-1), intra_action_gamma * following)
    return (reached - values).masked_fill(~mask, 0)


def _chain_tokens(
    deltas: Tensor,
    traces: Tensor,
    mask: Tensor,
    intra_action_gamma: float,
    intra_action_lambda: float,
) -> Tensor:
    """Return ``[T, E, L]`` advantages: errors summed within actions, then from action to action.

    Token j sees δ of token k ≥ j of its action through trace^(k − j), and the advantage of the next
    action's first token through trace^(n − 1 − j) and the boundary. So only actions form a chain.
    """
    _check_share("intra_action_lambda", intra_action_lambda)
    trace = intra_action_gamma * intra_action_lambda
    within = deltas @ _powers(trace, deltas.shape[-1], like=deltas).T
    tokens_left = mask.flip(-1).cumsum(-1).flip(-1) - 1
    reach = torch.pow(trace, tokens_left.clamp(min=0).to(deltas.dtype)) * traces.unsqueeze(-1)
    first = _accumulate(within[..., 0], reach[..., 0])
    beyond = torch.cat([first[1:], torch.zeros_like(first[:1])])
    return (within + reach * beyond.unsqueeze(-1)).masked_fill(~mask, 0)


def _powers(base: float, length: int, *, like: Tensor) -> Tensor:
    """Return ``[L, L]`` base^(k − j) in row j, column k ≥ j; 0 below the diagonal."""
    place = torch.arange(length, device=like.device)
    exponents = (place.unsqueeze(0) - place.unsqueeze(1)).clamp(min=0)
    return torch.pow(base, exponents.to(like.dtype)).triu()


def _last_token(values: Tensor, mask: Tensor) -> Tensor:
    """Check a right-padded mask and return ``[T, E, L]`` bool, True = last token of its action."""
    check_rank("values", values, "[T, E, L]")
    check_mask("mask", mask, values, "values")
    holes = bool((mask[..., 1:] & ~mask[..., :-1]).any())
    if holes or not bool(mask[..., :1].any(-1).all()):
        found = "holes" if holes else "an action without a token"
        raise ValueError(
            f"expected right-padded actions of at least one token in `mask`, got {found}: mask by "
            "the actions' lengths, not by what the ids or values are"
        )
    following = torch.cat([mask[..., 1:], torch.zeros_like(mask[..., :1])], dim=-1)
    return mask & ~following


def _done(like: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
    """Check both flags and return where either is set."""
    check_mask("terminated", terminated, like, "rewards")
    check_mask("truncated", truncated, like, "rewards")
    return terminated | truncated


def _check_like_first(name: str, tensor: Tensor, values: Tensor) -> None:
    """Raise unless `tensor` has one entry for each action."""
    check_shape(
        name, tensor, values.shape, "the steps and worlds of `values`", "give one for each action"
    )


def _check_share(name: str, value: float) -> None:
    """Raise unless a discount or a trace lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"expected `{name}` in [0, 1], got {value}")
