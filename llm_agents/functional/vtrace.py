"""V-trace: targets and advantages of a policy from another policy's rollouts."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from llm_agents.functional.shapes import check_mask, check_rank, check_shape, full_precision

RolloutEnd = Literal["bootstrap", "self"]
"""What follows the last step: the value of the next observation, or what makes its own advantage 0.
"""


class VTrace(NamedTuple):
    """V-trace's targets; neither carries a gradient.

    Args:
        targets: ``[T, B]``, what the values should be.
        advantages: ``[T, B]``, of the policy's actions.
    """

    targets: Tensor
    advantages: Tensor


def vtrace(
    *,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    importance_ratio: Tensor,
    gamma: float,
    rho_clip: float,
    c_clip: float,
    rollout_end: RolloutEnd,
) -> VTrace:
    """Correct the returns of a rollout for the policy having changed since.

        ρ_t = min(rho_clip, ratio_t),  c_t = min(c_clip, ratio_t),  d_t = γ · (1 − terminated_t)
        δ_t = ρ_t · (r_t + d_t · V_{t+1} − V_t)
        vs_t = V_t + δ_t + d_t · c_t · (vs_{t+1} − V_{t+1})
        A_t = ρ_t · (r_t + d_t · vs_{t+1} − V_t)

    After the last step, and at a limit, vs_{t+1} = V_{t+1} = `next_values`. The end ``self``, as in
    Motif's release, has V_T = (V_{T−1} − r_{T−1}) / γ: advantage 0 unless the world ended there.

    Args:
        rewards: ``[T, B]``.
        values: ``[T, B]``, V_t of the policy to be trained.
        next_values: ``[T, B]``, value of the observation that followed.
        terminated: ``[T, B]`` bool, the world ended after the step.
        truncated: ``[T, B]`` bool, a limit cut the episode after the step.
        importance_ratio: ``[T, B]``, of the policy to the collecting one.
        gamma: In [0, 1]; above 0 for ``self``.
        rho_clip: Bound on ρ, > 0.
        c_clip: Bound on c, > 0.
        rollout_end: See above.

    Returns:
        ``[T, B]`` targets and advantages.

    Raises:
        TypeError: A mask is not boolean.
        ValueError: The shapes differ or a number is out of its range.

    Example:
        >>> one, no = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool)
        >>> vtrace(rewards=one, values=one, next_values=4 * one, terminated=no, truncated=no,
        ...        importance_ratio=one, gamma=0.5, rho_clip=1, c_clip=1, rollout_end="bootstrap")
        VTrace(targets=tensor([[3.]]), advantages=tensor([[2.]]))

    References:
        IMPALA (arXiv 1802.01561), equation 1; Motif (arXiv 2310.00166), as released.
    """
    _check(gamma, rho_clip, c_clip, rollout_end)
    given = {"rewards": rewards, "importance_ratio": importance_ratio, "next_values": next_values}
    _check_shapes(values, given, {"terminated": terminated, "truncated": truncated})
    value = full_precision(values.detach())
    reward, ratio, beyond = (tensor.detach().to(value.dtype) for tensor in given.values())
    discounts = gamma * (~terminated).to(value.dtype)
    if rollout_end == "self":
        beyond = _with_own_end(beyond, (value[-1] - reward[-1]) / gamma, truncated)
    return _backwards(reward, value, beyond, truncated, discounts, ratio, (rho_clip, c_clip))


def _with_own_end(beyond: Tensor, own: Tensor, truncated: Tensor) -> Tensor:
    """Return ``[T, B]`` `beyond` with the last row's `own`, except where a limit cut there."""
    return torch.cat([beyond[:-1], own.where(~truncated[-1], beyond[-1])[None]])


def _backwards(
    reward: Tensor,
    value: Tensor,
    beyond: Tensor,
    truncated: Tensor,
    discounts: Tensor,
    ratio: Tensor,
    clips: tuple[float, float],
) -> VTrace:
    """Return the recursion's result, from the last of ``[T, B]`` steps to the first."""
    rho, c = (ratio.clamp(max=clip) for clip in clips)
    targets, advantages = torch.empty_like(value), torch.empty_like(value)
    next_value = next_target = beyond[-1]
    for step in reversed(range(len(value))):
        next_value = torch.where(truncated[step], beyond[step], next_value)
        next_target = torch.where(truncated[step], beyond[step], next_target)
        error = reward[step] - value[step]
        delta = rho[step] * (error + discounts[step] * next_value)
        advantages[step] = rho[step] * (error + discounts[step] * next_target)
        trace = discounts[step] * c[step] * (next_target - next_value)
        targets[step] = value[step] + delta + trace
        next_value, next_target = value[step], targets[step]
    return VTrace(targets, advantages)


def _check_shapes(values: Tensor, given: dict[str, Tensor], masks: dict[str, Tensor]) -> None:
    """Refuse what is not ``[T, B]`` like `values`, and masks that are not boolean."""
    check_rank("values", values, "[T, B]")
    for name, tensor in given.items():
        check_shape(name, tensor, values.shape, "`values`", "give one for each step")
    for name, mask in masks.items():
        check_mask(name, mask, values, "values")


def _check(gamma: float, rho_clip: float, c_clip: float, rollout_end: RolloutEnd) -> None:
    """Refuse numbers out of their range."""
    if not 0 <= gamma <= 1 or not rho_clip > 0 or not c_clip > 0:
        raise ValueError(
            f"expected `gamma` from 0 to 1, `rho_clip` and `c_clip` above 0, got {gamma}, "
            f"{rho_clip} and {c_clip}"
        )
    if rollout_end not in ("bootstrap", "self"):
        raise ValueError(f"expected `rollout_end` 'bootstrap' or 'self', got {rollout_end!r}")
    if rollout_end == "self" and gamma == 0:
        raise ValueError("expected `gamma` above 0 for `rollout_end` 'self', which divides by it")
