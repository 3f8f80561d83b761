"""A-LoL: advantage-based leftover-lunch reinforcement learning (Baheti et al., ICLR 2024).

Offline policy gradient with a whole response as one action. The reference policy answers the
validation prompts, and a small head learns what reward it gets from a prompt. Training responses
that are better than that, the leftover lunch, are learned in proportion to how much better they are
and how much likelier they have become.

Equation → function (``llm_agents.functional.lol``):

==================  ======================  ===================================================
option              function                per-sequence loss
==================  ======================  ===================================================
``nll``             `nll_loss`              −Σ log π
``wbc``             `wbc_loss`              −R · Σ log π
``r_gold``          `r_gold_loss`           −R · Σ max(π, u) log π
``r_lol``           `r_lol_loss`            −R · clip(π/π_ref) · Σ log π
``a_lol``           `a_lol_loss`            −A⁺ · clip(π/π_ref) · Σ log π
``a_lol_ref_free``  `a_lol_ref_free_loss`   −A⁺ · Σ log π
``a_lol_seq``       `a_lol_seq_loss`        −A⁺ · Σ_t clip(π_t/π_ref,t) log π_t
``a_lol_kl``        `a_lol_kl_loss`         −A⁺ · Σ log π + β (Σ log π − Σ log π_ref)
==================  ======================  ===================================================

Differs from the authors' code: log-probs and values of the reference are computed once, with
dropout off; padding never enters the value; negative advantages are clamped in every option unless
``clamp_advantages`` is off; ``all_priority`` pairs each response with its own reward; the weight
decay is the one asked for; losses are averaged, not summed, over accumulated batches (the authors'
gradient clip of 0.3 on sums over 4 is 0.075 on means); a run resumes.

    lightning run recipes/a_lol_hha.yaml
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.advantage import SamplingStrategy, advantages, sampling_weights
from llm_agents.functional.lol import (
    Algorithm,
    lol_loss,
    needs_reference,
    needs_value,
)
from llm_agents.functional.weighted_nll import LolLoss
from llm_agents.methods.advantage_report import AdvantageStats, advantage_stats, write_report
from llm_agents.methods.offline import OfflineModule
from llm_agents.methods.preparation import PerToken, Reference, training_rewards
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.methods.value_fit import ValueFit, ValueFitConfig
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.heads import save_head
from llm_agents.types import GenerationConfig, Reward, ScoredBatch

_logger = logging.getLogger(__name__)


class ALoL(OfflineModule):
    """The A-LoL family and its weighted-likelihood baselines on fixed data.

    Args:
        policy: What is trained. Its start, the adapter it was given or the bare base, is the
            reference.
        reward: Judges the reference's and the policy's answers to the validation prompts. The
            options with a value need it; without it, validation is by negative log-likelihood.
        algorithm: One of the eight objectives, see the module.
        clip_epsilon: Importance ratios are clamped to [1 − ε, 1 + ε]; None leaves them free.
        kl_coef: β of ``a_lol_kl``; above 0 with ``a_lol`` or ``r_lol`` it gives these the same term
            and a ratio of 1.
        gold_floor: u of ``r_gold``, the lowest weight of a token.
        sampling: ``uniform`` shuffles the preferred responses; ``good_priority`` draws them in
            proportion to their positive advantage (``wbc``, ``r_gold``, ``r_lol``: to their
            reward); ``good_random`` draws evenly among those of positive advantage;
            ``all_priority`` is ``good_priority`` over all responses; None is ``uniform`` for
            ``nll``, ``good_priority`` for the others. The options with a value take a share of the
            budget as large as the share of responses whose advantage is positive; see `budget` of
            the options.
        clamp_advantages: Count a negative advantage as 0; off, such responses are made less likely.
        value: How the reference's value is fitted.
        optimizer: How parameters are updated.
        generation: How validation answers are generated.
        options: Settings that all offline methods share.
    """

    batch_layout = "scored"
    takes_rewards = True
    can_move_reference = True

    def __init__(
        self,
        policy: LanguagePolicy,
        reward: Reward | None = None,
        algorithm: Algorithm = "a_lol_seq",
        clip_epsilon: float | None = 0.9,
        kl_coef: float = 0.0,
        gold_floor: float = 0.1,
        sampling: SamplingStrategy | None = None,
        clamp_advantages: bool = True,
        value: ValueFitConfig | None = None,
        optimizer: OptimizerConfig | None = None,
        generation: GenerationConfig | None = None,
        options: OfflineOptions | None = None,
    ) -> None:
        super().__init__(policy, reward, optimizer, generation, options)
        self.algorithm: Algorithm = algorithm
        self.clip_epsilon, self.kl_coef, self.gold_floor = clip_epsilon, kl_coef, gold_floor
        self.sampling: SamplingStrategy = sampling or (
            "uniform" if algorithm == "nll" else "good_priority"
        )
        self.clamp_advantages = clamp_advantages
        self.value = value or ValueFitConfig()
        self._check_options()
        self.rewards: Tensor | None = None
        self.values: Tensor | None = None
        self.ref_log_probs: PerToken | None = None
        self.value_fit: ValueFit | None = None
        self.advantage_stats: AdvantageStats | None = None
        self.save_settings(
            algorithm=algorithm,
            clip_epsilon=clip_epsilon,
            kl_coef=kl_coef,
            gold_floor=gold_floor,
            sampling=self.sampling,
            clamp_advantages=clamp_advantages,
            value=asdict(self.value),
        )

    def _check_options(self) -> None:
        """Refuse combinations that mean nothing."""
        name = self.algorithm
        if needs_value(name) and self.reward is None:
            raise UserError(
                f"`algorithm: {name}` subtracts a value fitted to a reward: name `model.reward`, "
                "or take an option without a value (nll, wbc, r_gold, r_lol)"
            )
        if name == "nll" and self.sampling != "uniform":
            raise UserError(
                "`algorithm: nll` has no weights to sample by: leave `sampling` out or set it to "
                f"uniform, not {self.sampling}"
            )
        if not needs_value(name) and self.sampling in ("good_random", "all_priority"):
            raise UserError(
                f"`sampling: {self.sampling}` needs advantages, which `algorithm: {name}` does not "
                "have: take good_priority or uniform"
            )
        if name == "a_lol_kl" and not self.kl_coef > 0:
            raise UserError("`algorithm: a_lol_kl` needs `kl_coef` above 0: the authors took 0.2")
        if self.kl_coef > 0 and name not in ("a_lol_kl", "a_lol", "r_lol"):
            raise UserError(
                f"`kl_coef` is for a_lol_kl, a_lol and r_lol: leave it 0 with `algorithm: {name}`"
            )
        if self.clip_epsilon is not None and not 0 <= self.clip_epsilon < 1:
            raise UserError(
                f"expected `clip_epsilon` from 0 to below 1, or null, got {self.clip_epsilon}"
            )
        asks_reference = needs_reference(name) or needs_value(name)
        if self.options.move_reference is not None and not asks_reference:
            raise UserError(
                f"`algorithm: {name}` asks no reference: leave `options.move_reference` out"
            )
        if name == "nll" and self.options.training_rewards == "scored":
            raise UserError(
                "`algorithm: nll` uses no rewards: leave `options.training_rewards` out"
            )

    def prepare(self, reference: Reference) -> float:
        """Compute advantages and reference log-probs, set the sampling, return the share."""
        if self.algorithm == "nll":
            return 1.0
        source = reference.source
        self.rewards = training_rewards(
            source,
            self.reward,
            reference.cache,
            scored_by_model=self.options.training_rewards == "scored",
        )
        wants_log_probs = needs_reference(self.algorithm)
        if needs_value(self.algorithm):
            self._fit_value(reference, wants_log_probs)
        elif wants_log_probs:
            self.ref_log_probs = reference.log_probs()
        if self.sampling == "uniform":
            return 1.0
        return self._set_sampling(reference)

    def _fit_value(self, reference: Reference, wants_log_probs: bool) -> None:
        """Fit the reference's value and report the advantages of the training responses."""
        reward, rewards = cast(Reward, self.reward), cast(Tensor, self.rewards)
        if not reward.low >= 0 or not torch.tensor(reward.high).isfinite():
            raise UserError(
                f"the value head predicts from 0 to the reward's `high`, and {reward.name} ranges "
                f"from {reward.low} to {reward.high}: scale the reward, for instance by a sigmoid"
            )
        targets = self.reference_scores or reference.validation_scores(
            reward, self.generation, self.clean
        )
        self.value_fit = reference.value_fit(targets, reward.high, self.value)
        self._warn_of_a_bad_fit(self.value_fit)
        self.values, self.ref_log_probs = reference.values(
            self.value_fit.head, wants_log_probs=wants_log_probs
        )
        preferred = reference.source.table_preferred()
        found = advantages(rewards, self.values)
        self.advantage_stats = advantage_stats(
            advantages=found, rewards=rewards, values=self.values, preferred=preferred
        )
        if self.trainer.is_global_zero:
            # Not `log_dir`: that is a broadcast, and processes prepare one after another.
            folder = Path(self.trainer.default_root_dir)
            write_report(folder, self.advantage_stats, advantages=found, preferred=preferred)
            self.log_now(self._value_metrics())
        _logger.info("advantages: %s", self.advantage_stats)

    def _warn_of_a_bad_fit(self, fit: ValueFit) -> None:
        """Say so if the value head is further from its targets than their mean is."""
        error = min(fit.epoch_mse)
        if error > 2 * fit.target_variance + 1e-4:
            _logger.warning(
                "the value fit has learned nothing: its error %.4f is above the targets' variance "
                "%.4f, so that advantages mean little. Lower `value.lr`, or raise `value.epochs`",
                error,
                fit.target_variance,
            )

    def _value_metrics(self) -> dict[str, float]:
        """Return what the logs keep of the value fit and the advantages."""
        stats, fit = cast(AdvantageStats, self.advantage_stats), cast(ValueFit, self.value_fit)
        return {
            "value/mse": min(fit.epoch_mse),
            "value/target_variance": fit.target_variance,
            "advantage/share_kept": stats.preferred.share_kept,
            "advantage/mean": stats.preferred.mean,
            "advantage/std": stats.preferred.std,
        }

    def _set_sampling(self, reference: Reference) -> float:
        """Tell the data which responses to draw; return the share of the budget that is left."""
        source, rewards = reference.source, cast(Tensor, self.rewards)
        preferred = source.table_preferred()
        stats = self.advantage_stats
        found = rewards if self.values is None else advantages(rewards, self.values)
        candidates = found if self.sampling == "all_priority" else found[preferred]
        if not bool((candidates > 0).any()):
            raise UserError(self._nothing_left(candidates))
        weights = sampling_weights(
            self.sampling,
            advantages=found,
            rewards=rewards,
            preferred=preferred,
            by="reward" if self.values is None else "advantage",
        )
        share = 1.0
        if stats is not None and self.options.budget == "share":
            is_all = self.sampling == "all_priority"
            share = (stats.everything if is_all else stats.preferred).share_kept
        source.set_sampling(weights, self.num_batches(share))
        return share

    def _nothing_left(self, candidates: Tensor) -> str:
        """Return the message for a training set without anything better than the reference."""
        highest = f"{float(candidates.max()):.4g}" if len(candidates) else "none"
        if self.values is None:
            return (
                f"no preferred response has a positive reward (highest: {highest}), and "
                f"`algorithm: {self.algorithm}` weighs by rewards: raw logits need "
                "`reward_transform: sigmoid` in the data"
            )
        stats = cast(AdvantageStats, self.advantage_stats)
        return (
            "no training response is better than what the reference is expected to get: mean "
            f"reward {stats.mean_reward:.4f}, mean value {stats.mean_value:.4f}, highest advantage "
            f"{highest}. Likely causes: stored rewards and `reward` are on different scales "
            "(logits and a sigmoid, or two reward models; `options.training_rewards: scored` uses "
            "one for both), or the reference is already better than the data"
        )

    def losses(self, batch: ScoredBatch) -> LolLoss:
        """Return the objective on a batch of single responses."""
        tokens = batch.tokens
        return lol_loss(
            self.algorithm,
            log_probs=self.policy.log_probs(tokens),
            response_mask=tokens.response_mask,
            rewards=self._looked_up(self.rewards, batch, otherwise=batch.rewards),
            ref_log_probs=None
            if self.ref_log_probs is None
            else self.ref_log_probs.gather(tokens.rows, tokens.response_mask),
            values=None if self.values is None else self._looked_up(self.values, batch),
            clip_epsilon=self.clip_epsilon,
            kl_coef=self.kl_coef,
            gold_floor=self.gold_floor,
            clamp_advantages=self.clamp_advantages,
        )

    def _looked_up(
        self, table: Tensor | None, batch: ScoredBatch, otherwise: Tensor | None = None
    ) -> Tensor:
        """Return the table's numbers for the rows of a batch."""
        if table is None:
            return cast(Tensor, otherwise)
        return table[batch.tokens.rows.cpu()].to(batch.rewards.device)

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the adapter to `folder`, and the reference's value head beside it."""
        super().save_pretrained(folder)
        if self.value_fit is not None:
            save_head(self.value_fit.head, folder, "value_head")
