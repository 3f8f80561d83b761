"""A rollout as samples, and the order in which an update goes through them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.policy_gradient import normalize_advantages
from llm_agents.methods.ppo_settings import PPOConfig
from llm_agents.types import Choice, Rollout


@dataclass(frozen=True)
class Samples:
    """Steps of a rollout without their order: what a PPO update goes through.

    Args:
        choices: N choices.
        index: ``[N]`` int64, the action taken.
        mask: ``[N, L]`` bool, True = unit.
        log_probs: ``[N, L]`` float32, under the collecting policy.
        values: ``[N, L]`` float32, of the collecting critic.
        advantages: ``[N, L]`` float32.
        returns: ``[N, L]`` float32, the critic's targets.
        ref_log_probs: ``[N, L]`` float32, under the reference; None where nobody asks.
        choice_ids: ``[N]`` int64, equal for equal choices.
    """

    choices: tuple[Choice, ...]
    index: Tensor
    mask: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    ref_log_probs: Tensor | None
    choice_ids: Tensor

    def __len__(self) -> int:
        """Return N."""
        return len(self.choices)

    @classmethod
    def of(cls, rollout: Rollout, *, advantages: Tensor, returns: Tensor) -> Samples:
        """Lay out a rollout step by step.

        Args:
            rollout: T steps of E worlds.
            advantages: ``[T, E, L]``.
            returns: ``[T, E, L]``.
        """
        return cls(
            choices=rollout.choices,
            index=rollout.index.flatten(),
            mask=rollout.mask.flatten(0, 1),
            log_probs=rollout.log_probs.flatten(0, 1),
            values=rollout.values.flatten(0, 1),
            advantages=advantages.flatten(0, 1),
            returns=returns.flatten(0, 1),
            ref_log_probs=None,
            choice_ids=distinct(rollout.choices)[1],
        )

    def select(self, rows: Tensor) -> Samples:
        """Return the samples `rows` (``[M]`` int64)."""
        on_device = rows.to(self.index.device)
        reference = self.ref_log_probs
        return Samples(
            choices=tuple(self.choices[row] for row in rows.tolist()),
            index=self.index[on_device],
            mask=self.mask[on_device],
            log_probs=self.log_probs[on_device],
            values=self.values[on_device],
            advantages=self.advantages[on_device],
            returns=self.returns[on_device],
            ref_log_probs=None if reference is None else reference[on_device],
            choice_ids=self.choice_ids[rows],
        )

    def normalized(self, config: PPOConfig) -> Samples:
        """Return the same with the advantages of all units at mean 0 and deviation 1."""
        advantages = normalize_advantages(
            self.advantages,
            self.mask,
            unbiased=config.unbiased_deviation,
            epsilon=1e-8,
            floor=config.advantage_floor,
        )
        return replace(self, advantages=advantages)


class UpdateStep(NamedTuple):
    """The samples of one optimizer step.

    Args:
        network: Whose step it is.
        chunks: Rows, int64, whose gradients are added up.
    """

    network: Literal["policy", "critic"]
    chunks: tuple[Tensor, ...]


def update_steps(
    num_samples: int, config: PPOConfig, generator: torch.Generator
) -> Iterator[UpdateStep]:
    """Yield the steps of a whole update: epochs, and in them minibatches.

    Each epoch has one permutation. Every sample is in one minibatch of each network an epoch; sizes
    that don't divide differ by one at most, and nothing is dropped.

    Args:
        num_samples: Samples of the rollout.
        config: How many epochs, minibatches and chunks, and in what order.
        generator: Draws the permutations.

    Raises:
        UserError: There are fewer samples than chunks.
    """
    num_critic = config.critic_minibatches or config.num_minibatches
    _check_sizes(num_samples, config)
    for _ in range(config.num_epochs):
        order = torch.randperm(num_samples, generator=generator)
        policy = [
            UpdateStep("policy", rows.tensor_split(config.accumulate))
            for rows in order.tensor_split(config.num_minibatches)
        ]
        critic = [UpdateStep("critic", (rows,)) for rows in order.tensor_split(num_critic)]
        if config.order == "phases":
            yield from (*critic, *policy)
        else:
            for pair in zip(critic, policy, strict=True):
                yield from pair


def weighted_passes(
    samples: Samples, chunks: Sequence[Tensor], config: PPOConfig
) -> Iterator[tuple[Samples, float]]:
    """Yield what is scored together in one policy step, and its weight in the step's mean loss.

    Advantages come normalized if the group of `config` is the minibatch or the chunk.

    Args:
        samples: All of the rollout.
        chunks: Rows of the step.
        config: How chunks are weighted and advantages normalized.
    """
    parts = [samples.select(rows) for rows in chunks]
    if config.normalize_advantages == "minibatch":
        whole = samples.select(torch.cat(list(chunks))).normalized(config)
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)
        parts = [whole.select(rows) for rows in torch.arange(len(whole)).tensor_split(ends[:-1])]
    total = sum(_size(part, config) for part in parts)
    for part in parts:
        size = _size(part, config)
        share = size / total if config.chunk_weights == "size" else 1 / len(parts)
        if config.normalize_advantages == "chunk":
            part = part.normalized(config)
        for rows in passes(part.choice_ids, config.choices_per_pass):
            once = part.select(rows)
            yield once, share * _size(once, config) / size


def _size(samples: Samples, config: PPOConfig) -> int:
    """Return how many terms the mean loss has."""
    return int(samples.mask.sum()) if config.reduction == "units" else len(samples)


def _check_sizes(num_samples: int, config: PPOConfig) -> None:
    """Refuse more parts than a rollout has, or parts too small to normalize."""
    chunks = config.num_minibatches * config.accumulate
    parts = max(chunks, config.critic_minibatches or 1)
    groups = {"chunk": chunks, "minibatch": config.num_minibatches, "rollout": 1, "none": 0}
    needed = max(parts, 2 * groups[config.normalize_advantages])
    if num_samples < needed:
        raise UserError(
            f"a rollout of {num_samples} steps can't be split into {parts} parts, of two steps at "
            f"least where advantages are normalized ({config.normalize_advantages}): it needs "
            f"{needed}; lower `ppo.num_minibatches` or `ppo.accumulate`, or collect longer rollouts"
        )


def passes(choice_ids: Tensor, limit: int | None) -> list[Tensor]:
    """Split samples into passes of at most `limit` distinct choices, equal ones together.

    Args:
        choice_ids: ``[N]`` int64, equal for equal choices.
        limit: None makes one pass.

    Returns:
        Positions in ``0 … N − 1``, int64; each is in one of them.

    Example:
        >>> import torch
        >>> passes(torch.tensor([7, 3, 7, 5]), limit=2)
        [tensor([0, 1, 2]), tensor([3])]
    """
    if limit is None:
        return [torch.arange(len(choice_ids))]
    number = distinct(choice_ids.tolist())[1] // limit
    return [(number == part).nonzero()[:, 0] for part in range(int(number.max()) + 1)]


def distinct(items: Sequence[Hashable]) -> tuple[list[int], Tensor]:
    """Find equal items.

    Returns:
        The position of the first of each kind, and ``[N]`` int64: the kind of each item.

    Example:
        >>> distinct(["a", "b", "a"])
        ([0, 1], tensor([0, 1, 0]))
    """
    kinds: dict[Hashable, int] = {}
    first: list[int] = []
    of_item: list[int] = []
    for position, item in enumerate(items):
        if item not in kinds:
            kinds[item] = len(first)
            first.append(position)
        of_item.append(kinds[item])
    return first, torch.tensor(of_item, dtype=torch.int64)
