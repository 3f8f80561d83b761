"""GLAM: a language model that grounds what it knows in a world, by PPO on its own action scores.

Carta et al., ICML 2023 (arXiv 2302.02662). The model scores each offered action by the log-prob of
its text after the prompt; a softmax over the list is the policy. A small network on the model's
state at the end of the prompt is the value, and one update moves all of it: model, adapter or not,
and network.

Equation → function (``llm_agents.functional``):

- s(a) = Σ_j log P(w_j | prompt, w_<j), π = softmax(s) → `normalize_scores`, `list_log_probs`
- δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γ λ A_{t+1}, R = A + V → `gae`
- clipped surrogate − 0.01 H + 0.5 L_v, clipped like the ratio → `clipped_surrogate_loss`,
  `list_entropy`, `value_loss`
- the releases' other rules → `probability_policy` (to May 2023), `logit_scores` (since)

Differs from the authors' code: actions are scored by log-probs, not by raw logits, unless
``scoring`` asks for it; padding counts nothing; the value loss is a mean over B pairs of value and
return, where theirs is one over all B × B; rollout and update have no dropout, also where the model
starts without its pretraining; the state of a run is saved after whole updates, and after the last.
With ``critic: base`` the value is TWOSOME's instead: of states of the frozen base, learnt apart.

    lightning run recipes/glam_babyai_go_to_local.yaml
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import Normalization, list_log_probs
from llm_agents.functional.gae import Advantages
from llm_agents.functional.glam_scores import logit_scores, probability_policy
from llm_agents.methods.minibatches import Samples
from llm_agents.methods.online_ppo import OnlinePPO
from llm_agents.methods.ppo_losses import PolicyLosses, Units, policy_losses
from llm_agents.methods.ppo_settings import PPOConfig
from llm_agents.methods.rollout_report import list_mass
from llm_agents.methods.whole_actions import action_advantages, action_units
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.action_logits import action_token_logits
from llm_agents.policies.action_types import ActionScores
from llm_agents.policies.backbone import is_adapted
from llm_agents.policies.heads import load_head, save_head
from llm_agents.policies.modes import evaluation
from llm_agents.policies.state_mlp import StateMLP
from llm_agents.policies.untrained import forget_pretraining
from llm_agents.types import Choice, Rollout

Scoring = Literal["log_softmax", "logits", "logits_padded", "probabilities"]
Pretrained = Literal["all", "embeddings", "none"]

ACTION_HEAD = "action_head"
_STAND_IN = ("wait",)  # what is asked after a prompt that admits no action; its score is not read


@dataclass(frozen=True)
class GLAMConfig(PPOConfig):
    """The same with the numbers of GLAM's release.

    Its loss has half the mean squared error of the values; `value_coef` weighs half of it already.
    """

    gae_lambda: float = 0.99
    macro_discount: bool = False
    num_minibatches: int = 20
    normalize_advantages: Literal["rollout", "minibatch", "chunk", "none"] = "none"
    value_coef: float = 1.0
    target_kl: float | None = None
    lr: float = 1e-6
    critic_lr: float = 1e-6


class _Both:
    """Two optimizers that step as one: their gradients are bounded by their common norm."""

    def __init__(self, *optimizers: LightningOptimizer) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of both."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """Forget the gradients of both."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """Take a step of each."""
        for optimizer in self.optimizers:
            optimizer.step()


class GLAM(OnlinePPO):
    """PPO on whole actions, scored by a language model that learns its values as well.

    Args:
        policy: What acts; its adapter, or all of it, trains.
        scoring: What an action's score is. ``log_softmax``: its log-prob. The releases' rules:
            ``logits``, the sum of raw logits (since May 2023); ``logits_padded``, the same with 1
            for each position of padding, as released, for the published checkpoints;
            ``probabilities``, a softmax over probabilities (before).
        normalization: Length that a log-prob is divided by: ``sum`` 1, ``token`` its tokens,
            ``word`` its words.
        pad_group: For ``logits_padded``: actions of a list that were padded together, the release's
            minibatch of 3.
        action_head: Number of actions of a head that takes the place of scoring (AFlan-T5): the
            actions of a list are its outputs by their places. None scores their texts.
        critic: What the values read. ``joint``: the model's own state, which learns from their loss
            too. ``base``: the frozen base's, as in TWOSOME; cheaper, and needs an adapter.
        pretrained: What is kept of the base's pretraining: ``all``, the ``embeddings`` (NPAE), or
            ``none`` (NPA).
        init_seed: Of the random weights where not all is kept.
        ppo: The numbers of the update.
        critic_widths: Hidden widths of the value's network and of the action head.
    """

    default_ppo = GLAMConfig

    def __init__(
        self,
        policy: LanguagePolicy,
        scoring: Scoring = "log_softmax",
        normalization: Normalization = "sum",
        pad_group: int = 3,
        action_head: int | None = None,
        critic: Literal["joint", "base"] = "joint",
        pretrained: Pretrained = "all",
        init_seed: int = 0,
        ppo: GLAMConfig | None = None,
        critic_widths: tuple[int, ...] = (1024, 1024),
    ) -> None:
        super().__init__(policy, normalization, ppo, critic_widths)
        self.scoring, self.pad_group = scoring, pad_group
        self.critic_reads, self.pretrained, self.init_seed = critic, pretrained, init_seed
        self._check(action_head)
        if pretrained != "all":
            forget_pretraining(policy, keep_embeddings=pretrained == "embeddings", seed=init_seed)
        widths, size = tuple(critic_widths), policy.hidden_size
        self.action_head = None if action_head is None else StateMLP(size, action_head, widths)
        self.save_settings(critic=critic, critic_widths=widths, **self._options())

    def new_critic(self, widths: tuple[int, ...]) -> StateMLP:
        """Return the release's network, which lets gradients through to the model."""
        return StateMLP(self.policy.hidden_size, 1, widths)

    def _check(self, action_head: int | None) -> None:
        """Refuse settings that contradict each other."""
        if self.scoring != "log_softmax" and self.normalization != "sum":
            raise UserError(
                f"`normalization: {self.normalization}` divides log-probs, and `scoring: "
                f"{self.scoring}` has none: leave one of them out"
            )
        if action_head is not None and (self.scoring, self.normalization) != ("log_softmax", "sum"):
            raise UserError(
                "an `action_head` takes the place of scoring: leave `scoring` and `normalization` "
                "out, or the head"
            )
        if action_head is not None and action_head < 1:
            raise UserError(f"expected `action_head` of at least 1, or null, got {action_head}")
        if action_head is not None and self.ppo.kl_coef > 0:
            raise UserError(
                "the reference has no `action_head` of its own to differ from: set `ppo.kl_coef: 0`"
            )
        if self.pad_group < 1:
            raise UserError(f"expected `pad_group` of at least 1, got {self.pad_group}")
        has_base = is_adapted(self.policy.model) or not self.policy.trainable
        if self.critic_reads == "base" and not has_base:
            raise UserError(
                "`critic: base` reads a frozen base, and all weights of this policy train: set "
                "`critic: joint`, or train an adapter (`lora: {r: 8}`)"
            )
        if self.critic_reads == "joint" and self.ppo.warm_up_frames > 0:
            raise UserError(
                "a joint critic is a part of the model, and can't be warmed up without it: set "
                "`ppo.warm_up_frames: 0`, or `critic: base`"
            )

    def _options(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on, sizes apart."""
        return {
            "scoring": self.scoring,
            "normalization": self.normalization,
            "pad_group": self.pad_group,
            "pretrained": self.pretrained,
            "init_seed": self.init_seed,
        }

    def description(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on."""
        num_actions = None if self.action_head is None else self.action_head.num_outputs
        options = self._options()
        if not is_adapted(self.policy.model):  # then the saved model is all there is to know
            options["pretrained"] = "all"
        return {**options, "action_head": num_actions, "critic": self.critic_reads}

    # --- the policy -----------------------------------------------------------------------------

    def units(self, choices: Sequence[Choice], scores: ActionScores) -> Units:
        """Return the softmax over each list: an action is one unit."""
        return action_units(self._list_log_probs(choices, scores), scores.mask)

    def _list_log_probs(self, choices: Sequence[Choice], scores: ActionScores) -> Tensor:
        """Return ``[B, A]`` log-probs of the offered actions."""
        if self.action_head is not None:
            return self._head_log_probs(self.action_head, scores)
        if self.scoring == "log_softmax":
            return list_log_probs(scores.scores, scores.mask)
        if self.scoring == "probabilities":
            return probability_policy(scores.scores, scores.mask)
        is_padded = self.scoring == "logits_padded"
        found = logit_scores(
            action_token_logits(self.policy, choices),
            scores.token_mask,
            pad_value=float(is_padded),
            group=self.pad_group,
        )
        return list_log_probs(found, scores.mask)

    def _head_log_probs(self, head: StateMLP, scores: ActionScores) -> Tensor:
        """Return the head's log-probs of the places in each list."""
        count = scores.mask.shape[1]
        if count > head.num_outputs:
            raise UserError(
                f"a list of {count} actions was offered, and the head has {head.num_outputs}: set "
                f"`action_head: {count}`"
            )
        return list_log_probs(head(scores.prompt_states)[..., :count], scores.mask)

    # --- the values -----------------------------------------------------------------------------

    def unit_states(self, choices: Sequence[Choice], index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state of each prompt's end, which no action changes."""
        if self.critic_reads == "base":
            states = self.policy.base_features(choices).prompt_states
        else:
            states = self._own_states(choices)
        return states[:, None], index.new_ones((len(index), 1)).bool()

    def _own_states(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[N, H]``: the policy's own states; the choices may be without actions."""
        asked = [Choice(choice.prompt, choice.actions or _STAND_IN) for choice in choices]
        return self.policy.score_actions(asked, self.normalization).prompt_states

    @torch.no_grad()
    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` values of the prompts; what has ended has no actions, and a value too."""
        if self.critic_reads == "base":
            return super().state_values(choices)
        with evaluation(self), self._precision():
            values: Tensor = self.critic(self._own_states(choices)).float()
            return values

    def assign(self, rollout: Rollout) -> Advantages:
        """Return the advantages of whole actions."""
        return action_advantages(rollout, self.ppo)

    # --- the update -----------------------------------------------------------------------------

    def policy_losses(self, samples: Samples) -> PolicyLosses:
        """Return the loss on samples that are scored together, that of the values included."""
        if self.critic_reads == "base":
            return super().policy_losses(samples)
        scores = self.policy.score_actions(samples.choices, self.normalization)
        self._means.add_number("list_mass", list_mass(scores))
        losses = policy_losses(self.units(samples.choices, scores), samples, self.ppo)
        of_values = self.critic_loss(self.critic(scores.prompt_states)[:, None], samples)
        return losses._replace(loss=losses.loss + self.ppo.value_coef * of_values)

    def _critic_step(self, samples: Samples) -> None:
        """Take one step of the critic, unless it learns in the policy's."""
        if self.critic_reads == "base":
            super()._critic_step(samples)

    def _optimizers(self) -> tuple[LightningOptimizer, LightningOptimizer]:
        """Return the policy's optimizer, which steps both if they are joint, and the critic's."""
        policy, critic = super()._optimizers()
        if self.critic_reads == "base":
            return policy, critic
        return cast(LightningOptimizer, _Both(policy, critic)), critic

    def policy_parameters(self) -> Iterator[nn.Parameter]:
        """Yield what the policy's optimizer moves: policy and action head."""
        yield from super().policy_parameters()
        if self.action_head is not None:
            yield from self.action_head.parameters()

    # --- files ----------------------------------------------------------------------------------

    def heads(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the networks beside the language model by the names of their files."""
        yield "value_head", self.critic
        if self.action_head is not None:
            yield ACTION_HEAD, self.action_head

    def save_pretrained(self, folder: Path | str) -> None:
        """Write adapter or model, networks, and what acting depends on to `folder`."""
        super().save_pretrained(folder)
        if self.action_head is not None:
            save_head(self.action_head, folder, ACTION_HEAD)

    def load_heads(self, folder: Path | str) -> None:
        """Take the networks that `save_pretrained` wrote.

        Raises:
            UserError: They are missing, or of another kind or size.
        """
        for name, own in self.heads():
            found = load_head(folder, name, self.policy.hidden_size)
            if not isinstance(found, StateMLP):
                raise UserError(
                    f"expected a StateMLP called {name} in {folder}, got {type(found).__name__}"
                )
            own = found.to(self.policy.device)
            if name == ACTION_HEAD:
                self.action_head = own
            else:
                self.critic = own
