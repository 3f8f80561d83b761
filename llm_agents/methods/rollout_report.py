"""What a log says of a rollout and of the critic."""

from __future__ import annotations

import math
from statistics import fmean

from torch import Tensor

from llm_agents.functional.action_scores import list_log_mass
from llm_agents.functional.policy_gradient import explained_variance
from llm_agents.methods.minibatches import Samples
from llm_agents.policies.action_types import ActionScores
from llm_agents.types import Rollout, SymbolicRollout


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Return `episode_metrics`, and what only rollouts of text have."""
    metrics = episode_metrics(rollout)
    metrics["rollout/distinct_choices"] = float(len(set(rollout.choices)))
    if episodes := rollout.episodes:
        steps = fmean(e.num_primitive_steps for e in episodes)
        metrics["rollout/primitive_steps_mean"] = steps
    return metrics


def episode_metrics(rollout: Rollout | SymbolicRollout) -> dict[str, float]:
    """Return rewards, and what the episodes that ended were like; nothing of these if none did.

    ``return_mean`` is discounted as the world's paper has it, to be held against its optimum.
    """
    metrics = {
        "rollout/frames": float((rollout.number + 1) * rollout.num_steps),
        "rollout/reward_mean": float(rollout.rewards.mean()),
        "rollout/episodes": float(len(rollout.episodes)),
    }
    if episodes := rollout.episodes:
        metrics |= {
            "rollout/return_mean": fmean(e.discounted_return for e in episodes),
            "rollout/undiscounted_return_mean": fmean(e.undiscounted_return for e in episodes),
            "rollout/success_rate": fmean(e.success for e in episodes),
            "rollout/length_mean": fmean(e.num_decisions for e in episodes),
        }
    return metrics


def value_metrics(samples: Samples) -> dict[str, float]:
    """Return how well the collecting critic knew the returns; nothing where these are all equal."""
    found = float(
        explained_variance(values=samples.values, returns=samples.returns, mask=samples.mask)
    )
    values = {"train/value_mean": float(samples.values[samples.mask].mean())}
    return values if math.isnan(found) else {**values, "train/explained_variance": found}


def list_mass(scores: ActionScores) -> Tensor:
    """Return the mean probability that the model would say one of the offered actions at all."""
    return list_log_mass(scores.token_log_probs.detach(), scores.token_mask).exp().mean()
