"""What PPO on responses learns from: the answers to a batch of prompts and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_agents.functional.masked import masked_mean, masked_whiten
from llm_agents.functional.policy_gradient import explained_variance
from llm_agents.functional.response_rewards import response_advantages, response_token_rewards
from llm_agents.methods.response_settings import ResponsePPOConfig
from llm_agents.types import TokenBatch


@dataclass(frozen=True)
class ResponseRollout:
    """N answers, with what the policy, the reference and the value head said of their tokens.

    Args:
        tokens: Prompts, and responses as they were sampled.
        log_probs: ``[N, T]`` float32, under the collecting policy.
        ref_log_probs: ``[N, T]`` float32, under the reference.
        values: ``[N, T]`` float32, before each token.
        scores: ``[N]`` float32, as the reward gives them.
        words: ``[N]`` float32, words of each answer.
        is_ended: ``[N]`` bool, the answer came to an end of its own.
        advantages: ``[N, T]`` float32, as the loss is to use them.
        returns: ``[N, T]`` float32, what the values are to become.
    """

    tokens: TokenBatch
    log_probs: Tensor
    ref_log_probs: Tensor
    values: Tensor
    scores: Tensor
    words: Tensor
    is_ended: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        """Return N."""
        return len(self.tokens)

    @property
    def mask(self) -> Tensor:
        """Return ``[N, T]`` bool, True = token of the response."""
        return self.tokens.response_mask

    @property
    def divergences(self) -> Tensor:
        """Return ``[N]``: Σ_t (ln π − ln π_ref) of each response."""
        return (self.log_probs - self.ref_log_probs).masked_fill(~self.mask, 0).sum(1)

    def select(self, rows: Tensor) -> ResponseRollout:
        """Return the responses `rows` (``[M]`` int64), without columns of padding only."""
        on_device = rows.to(self.log_probs.device)
        tokens = self.tokens.select(on_device)
        width = tokens.response_ids.shape[1]
        columns = ("log_probs", "ref_log_probs", "values", "advantages", "returns")
        found = {name: getattr(self, name)[on_device, :width] for name in columns}
        rest = {name: getattr(self, name)[on_device] for name in ("scores", "words", "is_ended")}
        return ResponseRollout(tokens=tokens, **found, **rest)

    def judged(
        self, scores: Tensor, *, kl_coef: float, config: ResponsePPOConfig
    ) -> ResponseRollout:
        """Return the same with the advantages that follow from scores.

        Args:
            scores: ``[N]``, on the scale that training uses.
            kl_coef: Present weight of the penalty.
            config: Discount, trace, whitening.
        """
        rewards = response_token_rewards(
            log_probs=self.log_probs,
            ref_log_probs=self.ref_log_probs,
            scores=scores.to(self.log_probs.device),
            mask=self.mask,
            kl_coef=kl_coef,
        )
        advantages, returns = response_advantages(
            rewards=rewards,
            values=self.values,
            mask=self.mask,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        if config.whiten:
            advantages = masked_whiten(
                advantages, self.mask, shift_mean=True, unbiased=True, epsilon=1e-8
            )
        return replace(self, advantages=advantages, returns=returns)

    def metrics(self) -> dict[str, float]:
        """Return what a log says of it."""
        lengths = self.mask.sum(1).float()
        found = {
            "rollout/reward": float(self.scores.mean()),
            "rollout/reward_std": float(self.scores.std(correction=0)),
            "rollout/kl": float(self.divergences.mean()),
            "rollout/kl_per_token": float(self.divergences.sum() / lengths.sum()),
            "rollout/response_tokens": float(lengths.mean()),
            "rollout/words": float(self.words.mean()),
            "rollout/ended": float(self.is_ended.float().mean()),
            "train/value_mean": float(masked_mean(self.values, self.mask)),
        }
        explained = explained_variance(values=self.values, returns=self.returns, mask=self.mask)
        return (
            found
            if bool(explained.isnan())
            else {**found, "train/explained_variance": float(explained)}
        )


def chunk_weights(
    rollout: ResponseRollout, chunks: Sequence[Tensor], config: ResponsePPOConfig
) -> list[float]:
    """Return the weight of each chunk's mean loss in that of an optimizer step; they sum to 1.

    Args:
        rollout: What the chunks are of.
        chunks: Rows of each, int64.
        config: By their tokens, or all alike.
    """
    if config.chunk_weights == "equal":
        return [1 / len(chunks)] * len(chunks)
    lengths = rollout.mask.sum(1).cpu()
    sizes = torch.stack([lengths[rows].sum() for rows in chunks]).double()
    weights: list[float] = (sizes / sizes.sum()).tolist()
    return weights
