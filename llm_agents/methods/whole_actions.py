"""Actions as wholes: how one is drawn, and PPO whose units they are."""

from __future__ import annotations

import torch
from torch import Tensor

from llm_agents.functional.action_scores import list_entropy
from llm_agents.functional.gae import Advantages, gae, macro_discounts
from llm_agents.methods.ppo_losses import Units
from llm_agents.methods.ppo_settings import PPOConfig
from llm_agents.types import Decisions, Rollout


def draw(log_probs: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``[E]`` int64: an action of each list, on the device of `log_probs`.

    Args:
        log_probs: ``[E, A]``; −∞ where there is no action.
        generator: On the CPU; an action takes one draw.
    """
    shares = log_probs.double().exp().cpu()
    return torch.multinomial(shares, 1, generator=generator)[:, 0].to(log_probs.device)


def decide(log_probs: Tensor, values: Tensor, generator: torch.Generator) -> Decisions:
    """Draw an action of each list, each of them one unit.

    Args:
        log_probs: ``[E, A]``; −∞ where there is no action.
        values: ``[E]`` float32.
        generator: On the CPU; an action takes one draw.
    """
    index = draw(log_probs, generator)
    return Decisions(
        index=index,
        log_probs=log_probs.gather(1, index[:, None]),
        values=values[:, None],
        mask=torch.ones(len(index), 1, dtype=torch.bool, device=index.device),
    )


def action_units(log_probs: Tensor, mask: Tensor) -> Units:
    """Return the softmax over each list as units: an action is one.

    Args:
        log_probs: ``[B, A]``.
        mask: ``[B, A]`` bool, True = offered.
    """
    entropies = list_entropy(log_probs, mask)
    return Units(
        action_log_probs=log_probs,
        log_probs=log_probs[:, :, None],
        entropies=entropies[:, None, None].expand(*log_probs.shape, 1),
    )


def action_discounts(rollout: Rollout, config: PPOConfig) -> Tensor:
    """Return ``[T, E]``: the discount of what follows each action."""
    durations = rollout.durations
    if not config.macro_discount:
        durations = torch.ones_like(durations)
    return macro_discounts(durations, gamma=config.gamma)


def action_advantages(rollout: Rollout, config: PPOConfig) -> Advantages:
    """Return ``[T, E, 1]`` advantages and returns of whole actions."""
    found = gae(
        rewards=rollout.rewards,
        values=rollout.values[..., 0],
        next_values=rollout.next_values,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        discounts=action_discounts(rollout, config),
        gae_lambda=config.gae_lambda,
    )
    return Advantages(found.advantages[..., None], found.returns[..., None])
