"""PPO on generated responses, a baseline of A-LoL: answers, their rewards, a penalty for leaving.

Ziegler et al. 2019 (arXiv 1909.08593), with the numbers that A-LoL's release gives to TRL 0.7.1.
The policy answers the prompts of the training data by sampling, the reward judges the answers, and
every token pays for its log-ratio to the reference; a linear value head on the policy's own states
says what was to be expected, and learns with it.

Equation → function (``llm_agents.functional``):

- scores by mean and deviation of all so far → `add_to_moments`, `standardize_scores`
- r_t = −k (ln π − ln π_ref), and the score at the last token → `response_token_rewards`
- δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γ λ A_{t+1} → `response_advantages`, `masked_whiten`
- clipped surrogate + 0.1 · ½ clipped squared error → `clipped_surrogate_loss`, `value_loss`
- k towards the divergence that is wanted → `adapted_kl_coef`

Everything around the update (prompts, validation, the best weights, checkpoints) is that of the
offline methods, the order of its samples that of `OnlinePPO`; there is no world and no list of
actions, so nothing else of the latter fits.

Differs from the release: the penalty is for leaving the adapter that training started from, not
the bare base (``kl_reference: base`` for the release's); rollout and update are in eval mode, so
that an unchanged policy has a ratio of 1; the tokens that completed a stop string are learnt from;
the value head starts at 0; a run resumes.

    lightning run recipes/ppo_hha.yaml
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.masked import masked_mean
from llm_agents.functional.policy_gradient import clipped_surrogate_loss, value_loss
from llm_agents.functional.response_rewards import (
    Moments,
    adapted_kl_coef,
    add_to_moments,
    standardize_scores,
)
from llm_agents.methods.checkpoint_content import STATE_KEY, own_state
from llm_agents.methods.minibatches import update_steps
from llm_agents.methods.offline import OfflineModule
from llm_agents.methods.optimizer_steps import clip_gradients, gradient_norm
from llm_agents.methods.preparation import Reference
from llm_agents.methods.response_rollout import ResponseRollout, chunk_weights
from llm_agents.methods.response_settings import ResponsePPOConfig
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.methods.trainer_budget import check_checkpoints
from llm_agents.methods.validation import check_rewards
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.backbone import is_adapted
from llm_agents.policies.heads import save_head
from llm_agents.policies.modes import evaluation
from llm_agents.policies.response_pass import (
    log_probs_and_token_states,
    sample_responses,
    short_lived,
    with_responses,
)
from llm_agents.policies.state_mlp import StateMLP
from llm_agents.policies.trained import expect_trained
from llm_agents.types import GenerationConfig, Prompt, Reward, ScoredBatch, TokenBatch, as_scores

_logger = logging.getLogger(__name__)

SAMPLING = GenerationConfig(max_new_tokens=128, temperature=1.0, top_p=0.95, top_k=50)
"""How A-LoL's release samples; the 50 is its library's default."""


class PPO(OfflineModule):
    """Answers prompts, and learns which of its answers are better than it expected.

    `trainer.max_steps` counts optimizer steps: ``ppo.num_epochs`` times ``ppo.num_minibatches`` a
    rollout.

    Args:
        policy: What is trained.
        reward: Judges its answers, in training and in validation.
        ppo: The numbers of the update.
        kl_reference: What the policy pays for leaving: where it ``start``-ed, or the ``base``
            without any adapter, as in the release.
        sampling: How training answers are sampled.
        optimizer: How parameters are updated.
        generation: How validation answers are generated.
        options: Settings that it shares with the offline methods.

    Attributes:
        kl_coef: Present weight of the penalty.
        moments: Of all scores so far.
    """

    reads_table = False

    def __init__(
        self,
        policy: LanguagePolicy,
        reward: Reward,
        ppo: ResponsePPOConfig | None = None,
        kl_reference: Literal["start", "base"] = "start",
        sampling: GenerationConfig | None = None,
        optimizer: OptimizerConfig | None = None,
        generation: GenerationConfig | None = None,
        options: OfflineOptions | None = None,
    ) -> None:
        super().__init__(policy, reward, optimizer, generation, options)
        self.automatic_optimization = False
        self.ppo = ppo or ResponsePPOConfig()
        self.kl_reference, self.sampling = kl_reference, sampling or SAMPLING
        if not self.sampling.temperature > 0:
            raise UserError(
                "PPO learns from the differences between its answers: set `sampling.temperature` "
                f"above 0, got {self.sampling.temperature}"
            )
        is_whole = policy.trainable and not is_adapted(policy.model)
        if kl_reference == "base" and is_whole:
            raise UserError(
                "all weights of this policy train, and no base stays as it was: leave "
                "`kl_reference: base` out, or train an adapter (`lora: {r: 8}`)"
            )
        self.critic = StateMLP(policy.hidden_size, 1, ())
        for parameter in self.critic.parameters():
            torch.nn.init.zeros_(parameter)
        self.kl_coef, self.moments = self.ppo.kl_coef, Moments()
        self.num_generated = self.num_trained = 0
        self._number = 0
        self._seed = 0
        self._shuffle = torch.Generator()
        self._prompts: list[Prompt] = []
        self._frozen: tuple[LanguagePolicy, ...] = ()  # no submodule: a second model never trains
        self._is_warned = False
        self.save_settings(
            ppo=asdict(self.ppo), kl_reference=kl_reference, sampling=asdict(self.sampling)
        )

    # --- before the first step ------------------------------------------------------------------

    @property
    def steps_per_batch(self) -> int:
        """Return the optimizer steps of a rollout."""
        return self.ppo.steps_per_rollout

    def setup(self, stage: str) -> None:
        """Check the trainer, keep the start of a policy that trains as a whole, and seed."""
        super().setup(stage)
        if stage != "fit":
            return
        expect_trained(self.policy)
        if self.trainer.world_size > 1:
            raise UserError(
                f"PPO trains in one process, the trainer has {self.trainer.world_size}: set "
                "`trainer.devices: 1`"
            )
        if self.trainer.max_steps > 0 and self.trainer.max_steps % self.steps_per_batch:
            raise UserError(
                f"expected `trainer.max_steps` to be a multiple of {self.steps_per_batch}, the "
                f"steps of a rollout (num_epochs · num_minibatches), got {self.trainer.max_steps}"
            )
        check_checkpoints(self.trainer, type(self).__name__, steps=self.steps_per_batch)
        if not is_adapted(self.policy.model):
            frozen = copy.deepcopy(self.policy).requires_grad_(False)
            frozen.trainable = False
            self._frozen = (frozen.eval(),)
        self._seed = torch.initial_seed() % 2**31
        self._shuffle.manual_seed(self._seed)

    def prepare(self, reference: Reference) -> float:
        """Look up the prompts as text, for the reward."""
        self._prompts = list(reference.source.table_texts()[0])
        for frozen in self._frozen:
            frozen.to(self.policy.device)
        return 1.0

    # --- the rollout ----------------------------------------------------------------------------

    @torch.no_grad()
    def collect(self, tokens: TokenBatch, clean: Callable[[str], str]) -> ResponseRollout:
        """Answer prompts, and ask reward and reference about the answers.

        Args:
            tokens: Prompts of the training table; their stored responses are not looked at.
            clean: From what was generated to the answer that is judged.
        """
        generator = torch.Generator(self.policy.device)
        generator.manual_seed(self._seed * 1_000_003 + self._number)
        prompts = [
            ids[mask].tolist()
            for ids, mask in zip(tokens.prompt_ids, tokens.prompt_mask, strict=True)
        ]
        sampled = sample_responses(self.policy, prompts, self.sampling, generator)
        texts = [clean(self.policy.decode(response.kept)) for response in sampled]
        scores = self._judge(tokens.rows.tolist(), texts)
        answered = with_responses(tokens, [response.ids for response in sampled])
        log_probs, states = log_probs_and_token_states(self.policy, answered)
        with self._reference():
            ref_log_probs = self._referee().log_probs(answered)
        values = self.critic(states).masked_fill(~answered.response_mask, 0)
        device = values.device
        return ResponseRollout(
            tokens=answered,
            log_probs=log_probs,
            ref_log_probs=ref_log_probs,
            values=values,
            scores=scores.to(device),
            words=torch.tensor([float(len(text.split())) for text in texts], device=device),
            is_ended=torch.tensor([response.is_ended for response in sampled], device=device),
            advantages=torch.zeros_like(values),
            returns=torch.zeros_like(values),
        )

    def _judge(self, rows: list[int], texts: list[str]) -> Tensor:
        """Return ``[N]`` scores of answers to the prompts of training responses."""
        reward = cast(Reward, self.reward)
        found = reward([self._prompts[row] for row in rows], texts)
        scores = as_scores(found, count=len(texts), name=reward.name).float()
        names = [f"the answer to training response {row}'s prompt" for row in rows]
        check_rewards(scores, reward.low, reward.high, names)
        return scores

    def _referee(self) -> LanguagePolicy:
        """Return who is asked for the reference's log-probs."""
        return self._frozen[0] if self._frozen else self.policy

    def _reference(self) -> AbstractContextManager[None]:
        """Return what makes the policy the reference."""
        if self._frozen:
            return nullcontext()
        if self.kl_reference == "base":
            return self.policy.without_adapters()
        return self.policy.reference()

    # --- the update -----------------------------------------------------------------------------

    def training_step(self, batch: ScoredBatch, batch_idx: int) -> None:  # type: ignore[override]
        """Answer the batch's prompts, and learn from the answers: all epochs and minibatches."""
        del batch_idx
        self._last_rows = batch.tokens.rows.tolist()
        with evaluation(self), short_lived(self.policy):
            rollout = self.collect(batch.tokens, self.clean)
            self.moments = add_to_moments(self.moments, rollout.scores)
            scores = rollout.scores
            if self.ppo.normalize_scores:
                scores = standardize_scores(scores, self.moments)
            rollout = rollout.judged(scores, kl_coef=self.kl_coef, config=self.ppo)
            for step in update_steps(len(rollout), self.ppo.order(), self._shuffle):
                if step.network == "policy":  # its step is the value head's too
                    self._take_step(rollout, step.chunks)
        self._count(rollout)
        self._report(rollout)
        self._adapt(rollout)

    def _take_step(self, rollout: ResponseRollout, chunks: tuple[Tensor, ...]) -> None:
        """Add up the chunks' gradients and take an optimizer step."""
        optimizer = cast(LightningOptimizer, self.optimizers())
        optimizer.zero_grad()
        weights = chunk_weights(rollout, chunks, self.ppo)
        for rows, weight in zip(chunks, weights, strict=True):
            loss = self.loss(rollout.select(rows))
            self._check_finite("loss", loss)
            self.manual_backward(loss * weight)
        own = [parameter for _, parameter in self.trainable()]
        norm = gradient_norm(own)
        self._check_finite("norm of the gradients", norm)
        self._means.add_number("grad_norm", norm)
        clip_gradients(own, norm, bound=self.ppo.max_grad_norm)
        optimizer.step()
        cast(Any, self.lr_schedulers()).step()
        self.policy.parameters_changed()

    def loss(self, part: ResponseRollout) -> Tensor:
        """Return the loss of responses that are read together, a mean over their tokens."""
        log_probs, states = log_probs_and_token_states(self.policy, part.tokens)
        surrogate = clipped_surrogate_loss(
            log_probs=log_probs,
            old_log_probs=part.log_probs,
            advantages=part.advantages,
            mask=part.mask,
            clip_epsilon=self.ppo.clip_epsilon,
            reduction="units",
        )
        values = value_loss(
            values=self.critic(states),
            old_values=part.values,
            returns=part.returns,
            mask=part.mask,
            clip_epsilon=self.ppo.value_clip,
            reduction="units",
        )
        loss = surrogate.loss + self.ppo.value_coef * values.loss
        ratio = surrogate.importance_ratio.detach()
        mean_ratio = masked_mean(ratio, part.mask)
        limit = self.ppo.max_ratio
        is_refused = limit is not None and float(mean_ratio) > limit
        numbers = {
            "loss": loss,
            "policy_loss": surrogate.loss,
            "value_loss": values.loss,
            "approx_kl": surrogate.approx_kl,
            "clip_fraction": surrogate.clip_fraction,
            "value_clip_fraction": values.clip_fraction,
            "importance_ratio": mean_ratio,
            "refused": torch.full_like(mean_ratio, float(is_refused)),
        }
        if not self._means.has("first_ratio_error"):
            numbers["first_ratio_error"] = (ratio - 1).abs().max()
        for name, number in numbers.items():
            self._means.add_number(name, number.detach())
        return loss * 0.0 if is_refused else loss

    def _count(self, rollout: ResponseRollout) -> None:
        """Count the rollout, and the tokens that were generated and trained on."""
        generated = int(rollout.mask.sum())
        self._number += 1
        self.num_generated += generated
        self.num_trained += self.ppo.num_epochs * generated

    def _adapt(self, rollout: ResponseRollout) -> None:
        """Move the penalty's weight, and say so if the divergence can't be one."""
        divergence = float(rollout.divergences.mean())
        if divergence < -1.0 and not self._is_warned:
            self._is_warned = True
            _logger.warning(
                "the mean divergence from the reference is %.2f, and a divergence is never below "
                "0: answers are sampled from another distribution than the one that is scored. "
                "`sampling.top_k` and `top_p` narrow it, a low `temperature` sharpens it; take "
                "top_k: 0, top_p: 1.0, temperature: 1.0",
                divergence,
            )
        if self.ppo.kl_target is not None:
            self.kl_coef = adapted_kl_coef(
                self.kl_coef,
                divergence=divergence,
                target=self.ppo.kl_target,
                horizon=self.ppo.kl_horizon,
                count=len(rollout),
            )

    def _report(self, rollout: ResponseRollout) -> None:
        """Log what was answered and what the update did."""
        optimizer = cast(LightningOptimizer, self.optimizers())
        metrics = {
            **self._means.take(),
            **rollout.metrics(),
            "train/kl_coef": self.kl_coef,
            "train/lr": float(optimizer.param_groups[0]["lr"]),
            "rollout/generated_tokens": float(self.num_generated),
            "train/trained_tokens": float(self.num_trained),
        }
        self.log_dict(metrics, batch_size=1)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave the log to the end of the rollout."""

    # --- files ----------------------------------------------------------------------------------

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the adapter to `folder`, and the value head beside it."""
        super().save_pretrained(folder)
        save_head(self.critic, folder, "value_head")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add where the run stands: penalty, scores so far, random numbers, counts."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[STATE_KEY]["ppo"] = {
            "kl_coef": self.kl_coef,
            "moments": tuple(self.moments),
            "number": self._number,
            "seed": self._seed,
            "shuffle": self._shuffle.get_state(),
            "tokens": (self.num_generated, self.num_trained),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where the saved run stood."""
        state = own_state(checkpoint, "ppo", writer="a run of PPO on responses")["ppo"]
        super().on_load_checkpoint(checkpoint)
        self.kl_coef, self.moments = float(state["kl_coef"]), Moments(*state["moments"])
        self._number, self._seed = int(state["number"]), int(state["seed"])
        self._shuffle.set_state(state["shuffle"].cpu())
        self.num_generated, self.num_trained = map(int, state["tokens"])
        self.policy.parameters_changed()
