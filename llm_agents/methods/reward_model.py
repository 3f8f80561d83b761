"""Training of a reward model: a policy's trunk with a linear head on the response's last token.

Either on pairs, by the Bradley–Terry likelihood that the preferred response wins, or on stored
scores, as a regression of their logit. The result is a folder that
``llm_agents.rewards.PolicyReward`` loads; its score of a response is the sigmoid of the head.

Equation → function (``llm_agents.functional.preference``):

- −log σ(r₁ − r₂), with label ½ for a tie → `bradley_terry_loss`
- (σ(r) − s)² → `regression_loss`; the cross-entropy of σ(r) against s is `bradley_terry_loss`
  against 0

    lightning run recipes/reward_hha.yaml
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.preference import bradley_terry_loss, regression_loss
from llm_agents.methods.content_cache import tensors_digest
from llm_agents.methods.dpo import pairs
from llm_agents.methods.offline import OfflineModule
from llm_agents.methods.pieces import Pieces, rows_name
from llm_agents.methods.preparation import Reference, num_tokens, progress
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.heads import Pooling, RewardHead, save_head
from llm_agents.policies.modes import evaluation
from llm_agents.policies.response_states import response_states
from llm_agents.types import RankedBatch, TokenBatch
from llm_agents.whole_files import write_json

FORMAT_VERSION = "1"


class RewardLosses(NamedTuple):
    """Loss of a reward model and what it gets right.

    Args:
        loss: Scalar, mean over pairs or over responses.
        accuracy: Share of the pairs without ties that are ordered right; None if all are ties.
        mean_score: Mean score of the batch.
    """

    loss: Tensor
    accuracy: Tensor | None
    mean_score: Tensor


class TextFormat(Protocol):
    """How the data wrote prompts and responses; a reward model must be asked in the same way."""

    template: str
    max_prompt_tokens: int | None
    max_response_tokens: int


class RewardTraining(OfflineModule):
    """Trains a reward model on ranked responses and keeps the lowest validation loss's weights.

    Args:
        policy: The trunk, with adapters; a frozen one (`trainable: false`) trains the head alone.
        objective: ``scores`` regresses the stored scores, ``pairs`` learns that the first response
            of a prompt is better than each other.
        score_loss: Of ``scores``: cross-entropy against the score as a probability, or squared
            error.
        score_transform: What brings the stored scores into [0, 1]: ``sigmoid`` for logits.
        max_score: Highest stored score, of which the reward predicts the share: 4 for a sum of
            four.
        labels: Which of a pair is better, for ``pairs`` and for the accuracy: the first in the
            data's order, or the one with the higher stored score, equal ones being ties.
        pooling: What the head reads, see `RewardHead`.
        width: Hidden units of the head; None for a linear one.
        dropout: Of the head.
        name: The reward's name.
        optimizer: How parameters are updated.
        options: Settings that all offline methods share.
    """

    batch_layout = "ranked"
    has_reference_score = False

    def __init__(
        self,
        policy: LanguagePolicy,
        objective: Literal["pairs", "scores"] = "scores",
        score_loss: Literal["bce", "mse"] = "bce",
        score_transform: Literal["sigmoid", "none"] = "sigmoid",
        max_score: float = 1.0,
        labels: Literal["order", "scores"] = "order",
        pooling: Pooling = "last",
        width: int | None = None,
        dropout: float = 0.0,
        name: str = "reward",
        optimizer: OptimizerConfig | None = None,
        options: OfflineOptions | None = None,
    ) -> None:
        super().__init__(policy, None, optimizer, None, options)
        self.objective, self.score_loss = objective, score_loss
        self.score_transform, self.labels = score_transform, labels
        if not max_score > 0:
            raise UserError(f"expected `max_score` above 0, got {max_score}")
        self.max_score = max_score
        self.name = name
        self.head = RewardHead(policy.hidden_size, dropout, pooling, width)
        self._features: Tensor | None = None
        self._visited: dict[str, Tensor] = {}
        self._format: dict[str, str | int | None] = {}
        self.save_settings(
            objective=objective,
            score_loss=score_loss,
            score_transform=score_transform,
            max_score=max_score,
            labels=labels,
            pooling=pooling,
            width=width,
            dropout=dropout,
            name=name,
        )

    @property
    def validation_layout(self) -> Literal["prompts", "scored", "ranked"]:
        """Return what the data's validation batches are to be."""
        return "ranked"

    def prepare(self, reference: Reference) -> float:
        """Remember how the data write text: the reward model must be asked in the same way.

        What a frozen trunk says about the training responses is computed here, once.
        """
        source: Any = reference.source
        text = cast(TextFormat, source.limits)
        room = None
        if self.policy.context_length is not None:
            room = self.policy.context_length - text.max_response_tokens
        self._format = {
            "template": text.template,
            "max_prompt_tokens": text.max_prompt_tokens or room,
            "max_response_tokens": text.max_response_tokens,
        }
        if not any(parameter.requires_grad for parameter in self.policy.parameters()):
            self._features = self._trunk_features(reference)
            self.head.standardize(self._features)
        return 1.0

    def _trunk_features(self, reference: Reference) -> Tensor:
        """Return ``[N, F]`` float32: what the head reads of each training response."""
        source = reference.source

        def make() -> dict[str, Tensor]:
            found = torch.zeros(source.table_size(), self.head.num_features)
            with (
                Pieces.opened(reference.cache.pieces_folder("features", key), key) as pieces,
                evaluation(self),
                torch.no_grad(),
                reference.autocast(),
            ):
                for batch in progress(
                    "states of the frozen model · tokens",
                    lambda: source.table_batches(reference.tokens_per_batch),
                    num_tokens,
                ):
                    name = rows_name(batch.rows)
                    known = pieces.find(name)
                    if known is None:
                        states = response_states(self.policy, batch.to(self.device))
                        known = {"features": self.head.features(*states).float().cpu()}
                        pieces.keep(name, known)
                    found[batch.rows] = known["features"]
            return {"features": found}

        key = {**reference.key, "rows": source.fingerprint(), "pooling": self.head.pooling}
        return reference.cache.get("features", key, make)["features"].to(self.device)

    def logits(self, tokens: TokenBatch) -> Tensor:
        """Return ``[B]`` float32: the head's output for each response."""
        found: Tensor = self.head(*response_states(self.policy, tokens))
        return found.float()

    def losses(self, batch: RankedBatch) -> RewardLosses:
        """Return the loss on a batch of prompts with K responses each."""
        if self._features is None:
            return self._compare(self.logits(batch.tokens), batch.rewards)
        features = self._features[batch.tokens.rows]
        return self._compare(self.head.of_features(features), batch.rewards)

    def _compare(self, logits: Tensor, rewards: Tensor) -> RewardLosses:
        """Return the loss of ``[B · K]`` logits against ``[B, K]`` stored scores."""
        num_responses = rewards.shape[1]
        first, other = pairs(logits, num_responses)
        if self.objective == "scores" or self.labels == "scores":
            _check_scores(rewards)
        labels = self._labels(rewards)
        if self.objective == "pairs":
            if num_responses < 2:
                raise UserError(
                    "`objective: pairs` needs two responses a prompt, the data have one"
                )
            loss = bradley_terry_loss(first_scores=first, second_scores=other, labels=labels).loss
        else:
            loss = self._regression(logits, self._targets(rewards).flatten())
        decided = labels != 0.5
        right = (first > other) == (labels > 0.5)
        accuracy = right[decided].float().mean() if bool(decided.any()) else None
        return RewardLosses(loss, accuracy, logits.detach().sigmoid().mean())

    def _regression(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean error of scores against ``[N]`` targets in [0, 1]."""
        if self.score_loss == "mse":
            return regression_loss(predictions=logits.sigmoid(), targets=targets).loss
        zeros = torch.zeros_like(logits)
        return bradley_terry_loss(first_scores=logits, second_scores=zeros, labels=targets).loss

    def _labels(self, rewards: Tensor) -> Tensor:
        """Return 1 where the first of a pair is better, 0 where the other, ½ for a tie."""
        first, other = pairs(rewards.flatten(), rewards.shape[1])
        if self.labels == "order":
            return torch.ones_like(first)
        return torch.where(first == other, 0.5, (first > other).float())

    def _targets(self, rewards: Tensor) -> Tensor:
        """Return stored scores in [0, 1]."""
        targets = self._shares(rewards)
        if bool(((targets < 0) | (targets > 1)).any()):
            raise UserError(
                f"expected stored scores from 0 to 1, got {float(targets.min()):.4g} to "
                f"{float(targets.max()):.4g}: set `score_transform: sigmoid` if they are logits, "
                "`max_score` if they are sums"
            )
        return targets

    def _shares(self, rewards: Tensor) -> Tensor:
        """Return what the head's sigmoid is to be."""
        scores = rewards.sigmoid() if self.score_transform == "sigmoid" else rewards
        return scores / self.max_score

    def validate(self, batch: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return ``[B, K]`` logits and stored scores of a validation batch."""
        if self._features is None:
            logits = self.logits(batch.tokens)
        else:  # a frozen trunk says the same at every validation
            logits = self.head.of_features(self._validation_features(batch.tokens))
        return logits.view_as(batch.rewards).cpu(), batch.rewards.cpu()

    def _validation_features(self, tokens: TokenBatch) -> Tensor:
        """Return what the head reads of a validation batch, computed at its first visit."""
        fields = ("prompt_ids", "prompt_mask", "response_ids", "response_mask")
        key = tensors_digest((name, getattr(tokens, name)) for name in fields)
        if key not in self._visited:
            self._visited[key] = self.head.features(*response_states(self.policy, tokens))
        return self._visited[key]

    def summarize(self, parts: list[Any]) -> tuple[dict[str, float], float]:
        """Return loss, accuracy over pairs without ties, and agreement with the stored scores."""
        logits, rewards = (torch.cat(found) for found in zip(*parts, strict=True))
        found = self._compare(logits.flatten(), rewards)
        metrics = {"val/loss": float(found.loss), "val/mean_score": float(found.mean_score)}
        if found.accuracy is not None:
            metrics["val/accuracy"] = float(found.accuracy)
        if bool(rewards.isfinite().all()):
            targets, scores = self._shares(rewards), logits.sigmoid()
            metrics["val/mse"] = float((scores - targets).square().mean())
            if (correlation := _correlation(scores.flatten(), targets.flatten())) is not None:
                metrics["val/correlation"] = correlation
        return metrics, -metrics["val/loss"]

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the reward model to `folder`: adapter, head, and ``reward.json``."""
        if not self._format:
            raise ValueError("expected a trained reward model: call this after `trainer.fit`")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(parameter.requires_grad for parameter in self.policy.parameters()):
            super().save_pretrained(folder)
        save_head(self.head, folder, "reward_head")
        described = {
            "name": self.name,
            "version": FORMAT_VERSION,
            "low": 0.0,
            "high": 1.0,
            **self._format,
            "base": self.policy.base,
            "activation": "sigmoid",
            "revision": self.policy.revision,
        }
        write_json(folder / "reward.json", described)


def _check_scores(rewards: Tensor) -> None:
    """Refuse stored scores that are not numbers."""
    wrong = (~rewards.isfinite()).nonzero()
    if len(wrong):
        prompt, response = wrong[0].tolist()
        raise UserError(
            f"expected a stored score for every response, got {float(rewards[prompt, response])} "
            f"for response {response} of prompt {prompt} of a batch: take data with scores, or set "
            "`objective: pairs` and `labels: order`"
        )


def _correlation(scores: Tensor, targets: Tensor) -> float | None:
    """Return Pearson's correlation; None where one side is constant."""
    found = float(torch.corrcoef(torch.stack((scores, targets)).double())[0, 1])
    return found if math.isfinite(found) else None
