"""A rollout cut into sequences, which a recurrent update goes through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.policies.nethack_types import NetHackObservations, NetHackRollout


@dataclass(frozen=True)
class Sequences:
    """N sequences of L steps; the names are those of `NetHackRollout`.

    Args:
        observations: Of shape ``[L, N]``.
        starts: ``[L, N]`` bool.
        states: ``[N, S]``, before the first step.
        actions: ``[L, N]``.
        log_probs: ``[L, N]``.
        values: ``[L, N]``.
        rewards: ``[L, N]``, world's and intrinsic together.
        terminated: ``[L, N]`` bool.
        truncated: ``[L, N]`` bool.
        next_values: ``[L, N]``, after the last step and where a limit cut.
        advantages: ``[L, N]``; None where each minibatch computes its own.
        targets: ``[L, N]``, of the values; None likewise.
    """

    observations: NetHackObservations
    starts: Tensor
    states: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    next_values: Tensor
    advantages: Tensor | None = None
    targets: Tensor | None = None

    def __len__(self) -> int:
        """Return N."""
        return int(self.starts.shape[1])

    @classmethod
    def of(
        cls,
        rollout: NetHackRollout,
        *,
        length: int,
        rewards: Tensor,
        advantages: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Self:
        """Cut a rollout.

        A sequence that ends inside the rollout is followed by the value that the collecting policy
        gave the next step's observation.

        Args:
            rollout: T steps of E games.
            length: L, divides T; the core's states are kept this far apart.
            rewards: ``[T, E]``.
            advantages: ``[T, E]``, or None.
            targets: ``[T, E]``, or None.

        Raises:
            UserError: The rollout doesn't fall into such sequences.
        """
        steps = len(rollout.actions)
        if length < 1 or steps % length or rollout.states.shape[0] != steps // length:
            raise UserError(
                f"a rollout of {steps} steps with {rollout.states.shape[0]} states of the core "
                f"can't be cut into sequences of {length}: let `ppo.recurrence` divide "
                "`num_steps`"
            )

        def cut(part: Tensor) -> Tensor:
            """Return ``[L, K · E, …]``."""
            found = part.reshape(steps // length, length, *part.shape[1:]).transpose(0, 1)
            return found.reshape(length, -1, *part.shape[2:])

        is_inner = torch.zeros(steps, 1, dtype=torch.bool, device=rollout.values.device)
        is_inner[length - 1 : steps - 1 : length] = True
        following = torch.cat([rollout.values[1:], rollout.values[:1]])
        next_values = torch.where(is_inner & ~rollout.truncated, following, rollout.next_values)
        return cls(
            observations=rollout.observations.map(cut),
            starts=cut(rollout.starts),
            states=rollout.states.flatten(0, 1),
            actions=cut(rollout.actions),
            log_probs=cut(rollout.log_probs),
            values=cut(rollout.values),
            rewards=cut(rewards),
            terminated=cut(rollout.terminated),
            truncated=cut(rollout.truncated),
            next_values=cut(next_values),
            advantages=None if advantages is None else cut(advantages),
            targets=None if targets is None else cut(targets),
        )

    def select(self, rows: Tensor) -> Sequences:
        """Return the sequences `rows` (``[M]`` int64)."""
        index = rows.to(self.starts.device)
        if len(index) == len(self) and bool((rows == torch.arange(len(self))).all()):
            return self

        def chosen(part: Any) -> Any:  # noqa: ANN401  (a tensor, or observations)
            """Return the columns."""
            if isinstance(part, NetHackObservations):
                return part.map(chosen)
            return None if part is None else part.index_select(1, index)

        parts = {
            one.name: chosen(getattr(self, one.name))
            for one in fields(self)
            if one.name != "states"
        }
        return Sequences(**parts, states=self.states.index_select(0, index))


def minibatches(
    num_sequences: int, num_minibatches: int, num_epochs: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the rows of each minibatch: every sequence is in one of each epoch's.

    Args:
        num_sequences: N.
        num_minibatches: At most N; sizes differ by one at most. One minibatch is in order.
        num_epochs: Each has a permutation of its own.
        generator: Draws them.

    Raises:
        UserError: There are fewer sequences than minibatches.
    """
    if num_sequences < num_minibatches:
        raise UserError(
            f"{num_sequences} sequences can't be split into {num_minibatches} minibatches: lower "
            "`ppo.num_minibatches` or `ppo.recurrence`, or play more games"
        )
    for _ in range(num_epochs):
        if num_minibatches == 1:
            yield torch.arange(num_sequences)
            continue
        yield from torch.randperm(num_sequences, generator=generator).tensor_split(num_minibatches)
