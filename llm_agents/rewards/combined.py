"""A reward that is a weighted sum of named parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.rewards.scores import check_pairs, check_scores
from llm_agents.types import Prompt, Reward, as_scores


class SumReward(Reward):
    """A weighted sum of other rewards.

        score = Σ weight[part] · part(prompt, response)

    Args:
        parts: The rewards, by the names under which they are logged.
        weights: Weight of each part; 1 for a part that is not named.
        name: Name in logs and tables; by default the parts' names joined by ``+``.
    """

    def __init__(
        self,
        parts: Mapping[str, Reward],
        weights: Mapping[str, float] | None = None,
        name: str | None = None,
    ) -> None:
        weights = dict(weights or {})
        if not parts:
            raise UserError("expected at least one part of a sum of rewards, got none")
        if unknown := sorted(set(weights) - set(parts)):
            raise UserError(
                f"expected weights for {', '.join(parts)}, got one for {', '.join(unknown)}"
            )
        self.members = dict(parts)
        self.weights = {key: float(weights.get(key, 1.0)) for key in parts}
        self.name = name or "+".join(parts)
        self.version = ";".join(
            f"{self.weights[key]:g}*{key}={part.name}@{part.version}" for key, part in parts.items()
        )
        ends = [
            sorted((self.weights[key] * part.low, self.weights[key] * part.high))
            for key, part in parts.items()
            if self.weights[key]  # 0 times an unbounded end would not be a number
        ]
        self.low, self.high = sum(low for low, _ in ends), sum(high for _, high in ends)

    def parts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> dict[str, Tensor]:
        """Return each part's own ``[B]`` scores, without the weights."""
        check_pairs(prompts, responses)
        return {
            key: as_scores(part(prompts, responses), count=len(responses), name=part.name)
            for key, part in self.members.items()
        }

    def total(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the ``[B]`` weighted sum of scores that `parts` returned."""
        scores = torch.stack([self.weights[key] * values for key, values in parts.items()]).sum(0)
        return check_scores(
            scores, count=scores.shape[0], name=self.name, low=self.low, high=self.high
        )

    def scores_and_parts(
        self, prompts: Sequence[Prompt], responses: Sequence[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return ``[B]`` scores and each part's own ``[B]`` scores, computed once."""
        parts = self.parts(prompts, responses)
        return self.total(parts), parts

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` scores."""
        return self.total(self.parts(prompts, responses))
