"""Motif's reward model: raw rewards of game messages, learned from an annotator's preferences.

Paper: arXiv 2310.00166. A small network gives every message a number so that, of two messages, the
one that the annotator preferred has the larger number; a tie is half a win for each. What the agent
is later paid is that number, normalized and cut below a quantile of the distinct messages, so mean,
variance and quantiles belong to the weights and are saved with them.

Equation → function (``llm_agents.functional``):

- equation 1, cross-entropy with ties → `preference.tied_preference_loss`
- normalization → `shaping.weighted_statistics`, or as released `shaping.merge_statistics`
- threshold ε → `shaping.reward_statistics`

Differs from the authors' code: a batch computes each distinct message once and gathers the pairs
from them; the weights of the lowest held-out loss are kept (``keep: last`` is theirs); accuracy and
loss are means over pairs, not over batches; quantiles keep their digits; nothing idle is trained.

    lightning run recipes/motif_reward_nethack.yaml
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.preference import tied_preference_loss
from llm_agents.functional.shaping import (
    RewardStatistics,
    RunningStatistics,
    merge_statistics,
    reward_statistics,
    weighted_statistics,
)
from llm_agents.methods.best_weights import BestWeights, copy_into
from llm_agents.methods.checkpoint_content import (
    STATE_KEY,
    expect_weights,
    keep_weights,
    own_state,
)
from llm_agents.methods.non_finite import expect_finite_rows
from llm_agents.methods.optimizer_steps import gradient_norm, log_step, scheduled_optimizer
from llm_agents.methods.random_state import RandomState
from llm_agents.methods.settings import OptimizerConfig
from llm_agents.methods.step_means import StepMeans
from llm_agents.methods.trainer_budget import check_precision
from llm_agents.policies.message_encoder import MessageEncoder
from llm_agents.policies.message_files import MessageRewardInfo, save_message_reward
from llm_agents.policies.message_scorer import MessageScorer
from llm_agents.policies.modes import evaluation
from llm_agents.types import MessageObservations, MessagePairs

_logger = logging.getLogger(__name__)

SNAPSHOTS = "reward_snapshots"


class PairSource(Protocol):
    """What the method asks of its data."""

    annotator: str
    batch_size: int

    def fingerprint(self) -> str:
        """Return a digest of pairs, preferences and split."""

    def training_counts(self) -> Tensor:
        """Return ``[M]`` int64: how often each distinct training observation occurs."""

    def training_observations(self, size: int) -> Iterator[MessageObservations]:
        """Yield the M distinct training observations, in the same order."""

    def training_index(self) -> Tensor:
        """Return ``[T, 2, L]`` int64: the training pairs as positions among them."""


class MotifReward(LightningModule):
    """Trains a reward of messages on pairs, and keeps it with its statistics.

    Args:
        scorer: The network; Motif's own if null.
        keep: Which weights: of the lowest held-out loss, or the last, as released.
        statistics: Mean and variance over all training messages at once, or batch by batch with
            the release's recurrence.
        snapshots: Also keep a reward folder for the weights at the start of each epoch and at the
            end, each with statistics of its own, in ``reward_snapshots/`` of the run.
        batch_size: Distinct observations a pass when there is nothing to learn.
        name: The reward's name.
        optimizer: How parameters are updated.

    Attributes:
        reward_statistics: Of the weights that were kept, after a run.
        outcome: Which weights were kept, of which step, and their held-out loss.
    """

    def __init__(
        self,
        scorer: MessageScorer | None = None,
        keep: Literal["best", "last"] = "best",
        statistics: Literal["exact", "running"] = "exact",
        snapshots: bool = False,
        batch_size: int = 512,
        name: str = "motif",
        optimizer: OptimizerConfig | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise UserError(f"expected `model.batch_size` of at least 1, got {batch_size}")
        self.strict_loading = False  # `on_load_checkpoint` checks what trains; no base is saved
        self.scorer = scorer or MessageEncoder()
        if not any(True for _ in self.scorer.trainable()):
            raise UserError("nothing of the reward model trains: give it a head or an adapter")
        self.keep, self.statistics, self.snapshots = keep, statistics, snapshots
        self.batch_size, self.name = batch_size, name
        self.optimizer = optimizer or OptimizerConfig(lr=1e-4, eps=1e-8)
        self.best = BestWeights()
        self.reward_statistics: RewardStatistics | None = None
        self.outcome: dict[str, float | int | str] = {}
        self._step = 0
        self._sizes = {"num_pairs": 0, "num_messages": 0}
        self._dataset = ""
        self._annotator = ""
        self._resumed: dict[str, Any] | None = None
        self._rng: RandomState | None = None
        self._rows: list[int] = []
        self._means = StepMeans()
        self._validated: list[Tensor] = []
        self.save_hyperparameters(
            {
                "scorer": self.scorer.describe(),
                "keep": keep,
                "statistics": statistics,
                "name": name,
                "optimizer": asdict(self.optimizer),
            }
        )

    # --- before the first step ------------------------------------------------------------------

    @property
    def source(self) -> PairSource:
        """Return the trainer's data module."""
        found = getattr(self.trainer, "datamodule", None)
        if found is None or not hasattr(found, "training_observations"):
            raise UserError(
                "MotifReward looks at all training messages: give the trainer a data module such "
                "as MotifData, not a bare loader"
            )
        return cast(PairSource, found)

    def configure_optimizers(self) -> Any:  # noqa: ANN401  (Lightning's own loose type)
        """Return the optimizer over everything trainable, and its schedule by optimizer steps."""
        parameters = (parameter for _, parameter in self.scorer.trainable())
        return scheduled_optimizer(
            self.optimizer, parameters, lambda: int(self.trainer.estimated_stepping_batches)
        )

    def on_fit_start(self) -> None:
        """Look at the training data; refuse to go on with another data set's checkpoint."""
        check_precision(self.trainer.precision)
        self._dataset, self._annotator = self.source.fingerprint(), self.source.annotator
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed["dataset"] != self._dataset:
            raise UserError(
                "the checkpoint's run learned from other pairs, preferences or another split: "
                "resume with the data, the annotator and the seed that the run started from"
            )
        self.scorer.prepare(self.source.training_observations(self.batch_size))
        self.trainer.num_sanity_val_steps = 0

    # --- training -------------------------------------------------------------------------------

    def rewards(self, batch: MessagePairs) -> Tensor:
        """Return ``[B, 2]`` raw rewards: each distinct observation is computed once."""
        raw: Tensor = self.scorer(batch.observations)
        return raw[batch.index].mean(-1)

    def on_train_batch_start(self, batch: MessagePairs, batch_idx: int) -> None:
        """Continue the random numbers after a resumption; keep the weights an epoch starts from."""
        if self._rng is not None:
            self._rng.restore(self.device)
        if self.snapshots and batch_idx == 0:
            self._save_snapshot()
        del batch

    def training_step(self, batch: MessagePairs, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        del batch_idx
        self._rows = batch.rows.tolist()
        found = tied_preference_loss(rewards=self.rewards(batch), preferences=batch.preferences)
        self._check_finite("loss", found.loss)
        self._means.add_number("loss", found.loss.detach())
        if (accuracy := found.accuracy) is not None:
            self._means.add_number("accuracy", found.loss.new_tensor(accuracy))
        share = len(batch.observations) / batch.index.numel()
        self._means.add_number("distinct_share", found.loss.new_tensor(share))
        self._rng = RandomState.capture(self.device)
        return found.loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the means over the batches of this optimizer step."""
        norm = gradient_norm(parameter for _, parameter in self.scorer.trainable())
        self._check_finite("norm of the gradients", norm)
        self._means.add_number("grad_norm", norm)
        log_step(self, self._means, optimizer)

    def _check_finite(self, what: str, value: Tensor) -> None:
        """Stop at a number that is not finite; the pairs of the last batch are kept."""
        expect_finite_rows(self, value, what=what, rows=self._rows)

    # --- validation -----------------------------------------------------------------------------

    def on_validation_start(self) -> None:
        """Begin a validation."""
        self._validated = []

    def validation_step(self, batch: MessagePairs, batch_idx: int) -> None:
        """Look at one batch of held-out pairs."""
        del batch_idx
        rewards = self.rewards(batch)
        found = tied_preference_loss(rewards=rewards, preferences=batch.preferences)
        sums = (found.per_pair.sum(), len(batch), found.num_right, found.num_decided)
        numbers = (*sums, *_score_agreement(rewards, batch.scores))
        self._validated.append(torch.tensor([float(n) for n in numbers], dtype=torch.float64))

    def on_validation_epoch_end(self) -> None:
        """Log sums over all held-out pairs, and keep the weights if they are the best so far."""
        if not self._validated:
            return
        sums = torch.stack(self._validated).sum(0)
        self._validated = []
        total, pairs, right, decided, agreed, scored = self._over_processes(sums)
        metrics = {"val/loss": total / pairs}
        if decided:
            metrics["val/accuracy"] = right / decided
        if scored:
            metrics["val/score_agreement"] = agreed / scored
        self.log_dict(metrics, batch_size=1)
        if self.trainer.state.fn == "fit" and self.keep == "best":
            step = self.trainer.global_step
            self.best.offer(-metrics["val/loss"], step, self.scorer.trainable())

    def _over_processes(self, sums: Tensor) -> list[float]:
        """Return sums over all processes."""
        total = self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum")
        found: list[float] = cast(Tensor, total).tolist()
        return found

    # --- statistics -----------------------------------------------------------------------------

    def compute_statistics(self) -> RewardStatistics:
        """Return mean, variance and quantiles of the present weights over the training messages.

        Raises:
            UserError: The reward says the same of every message, or not a number.
        """
        source = self.source
        with evaluation(self.scorer):
            parts = [
                self.scorer.score(observations, self.batch_size)
                for observations in source.training_observations(self.batch_size)
            ]
        raw, counts = torch.cat(parts), source.training_counts()
        self._sizes = {
            "num_pairs": len(source.training_index()),
            "num_messages": len(counts),
        }
        if self.statistics == "exact":
            mean, variance = weighted_statistics(raw, counts=counts)
        else:
            seen = RunningStatistics()
            for index in torch.split(source.training_index(), source.batch_size):
                seen = merge_statistics(seen, raw[index].flatten())
            mean, variance = seen.mean, seen.variance
        if not (math.isfinite(mean) and variance > 0):
            raise UserError(
                f"the reward of all {len(raw)} distinct training messages is {float(raw[0])}: "
                "train longer, with a smaller `optimizer.lr`, or on messages that differ"
            )
        return reward_statistics(raw, mean=mean, variance=variance)

    # --- after the last step --------------------------------------------------------------------

    def on_fit_end(self) -> None:
        """Put the kept weights in place and compute their statistics."""
        if self.snapshots:
            self._save_snapshot()
        kept, self._step = "last", self.trainer.global_step
        if self.best.weights is not None:
            kept, self._step = "best", self.best.step
            copy_into(self.scorer.trainable(), self.best.weights)
        elif self.keep == "best":
            kept = "last, as nothing was validated"
            _logger.warning("weights kept: %s", kept)
        self.reward_statistics = self.compute_statistics()
        self.outcome = {"kept": kept, "step": self._step}
        if math.isfinite(self.best.score):
            self.outcome["val_loss"] = -self.best.score

    def save_pretrained(self, folder: Path | str) -> None:
        """Write weights, statistics and what they are of, as safetensors and JSON."""
        if self.reward_statistics is None:
            raise ValueError("expected a trained reward model: call this after `trainer.fit`")
        self._save(Path(folder), self.reward_statistics, self._step)

    def _save(self, folder: Path, statistics: RewardStatistics, step: int) -> None:
        """Write a reward folder."""
        info = MessageRewardInfo(
            name=self.name,
            scorer={},
            statistics=statistics,
            step=step,
            annotator=self._annotator,
            dataset=self._dataset,
            **self._sizes,
            outcome=self.outcome,
        )
        save_message_reward(self.scorer, info, folder)

    def _save_snapshot(self) -> None:
        """Keep the present weights with their own statistics."""
        if not self.trainer.is_global_zero:
            return
        step = self.trainer.global_step
        folder = Path(self.trainer.default_root_dir) / SNAPSHOTS / f"step-{step:08d}"
        self._save(folder, self.compute_statistics(), step)

    # --- checkpoints ----------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what trains, drop the base; add what makes a resumed run continue alike."""
        keep_weights(checkpoint, self._kept())
        folder = Path(self.trainer.default_root_dir) / "best_weights"
        checkpoint[STATE_KEY] = {
            "dataset": self._dataset,
            "rng": None if self._rng is None else self._rng.state_dict(),
            "best": self.best.save(folder, writes=self.trainer.is_global_zero),
        }

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what checkpoints hold, by the names there."""
        for name, parameter in self.scorer.trainable():
            yield f"scorer.{name}", parameter

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of this network; restore what `on_save_checkpoint` added."""
        state = own_state(checkpoint, "dataset", writer="a run of MotifReward")
        expect_weights(checkpoint, self._kept(), owner="reward model")
        self._resumed = state
        self._rng = None if state["rng"] is None else RandomState(**state["rng"])
        folder = Path(self.trainer.default_root_dir) / "best_weights"
        self.best = BestWeights.load(state["best"], folder)


def _score_agreement(rewards: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many pairs are ordered as their episodes' scores, and how many scores differ.

    Args:
        rewards: ``[B, 2]``.
        scores: ``[B, 2]``; NaN where unknown.
    """
    decided = scores[:, 0] != scores[:, 1]
    decided &= scores.isfinite().all(1)
    same = (rewards[:, 1] > rewards[:, 0]) == (scores[:, 1] > scores[:, 0])
    return (same & decided).sum(), decided.sum()
