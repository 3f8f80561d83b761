"""Settings of the PPO update that the online methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_agents.errors import UserError
from llm_agents.functional.policy_gradient import Reduction
from llm_agents.methods.ranges import expect_range
from llm_agents.policies.backbone import OptimizerName


@dataclass(frozen=True)
class PPOConfig:
    """The numbers of a PPO update; the defaults learn with float32 adapters on a small model.

    A *step* is one of the optimizer's, a *chunk* a part of a step's samples whose gradient is added
    to the step's, a *unit* what has a ratio of its own: an action, or each token of one.

    Args:
        gamma: Discount between actions.
        gae_lambda: Trace of the advantages between actions.
        macro_discount: Discount by ``gamma`` to the power of the action's primitive steps.
        num_epochs: Passes over a rollout.
        order: ``phases`` takes an epoch's critic steps first and its policy steps after them;
            ``interleaved`` takes a critic step and a policy step on each minibatch.
        num_minibatches: Policy steps an epoch.
        critic_minibatches: Critic steps an epoch, of ``phases``; as many as policy steps if None.
        accumulate: Chunks that a policy step's samples are split into at random.
        chunk_weights: ``size`` weighs chunks by what they hold, so that splitting changes nothing;
            ``equal`` takes the mean of the chunks' means.
        choices_per_pass: Bound on the distinct choices that are scored with gradients at once: less
            memory, the same gradient. None scores a chunk's together.
        normalize_advantages: Group whose advantages are brought to mean 0 and deviation 1.
        unbiased_deviation: Divide that group's variance by its size less one.
        advantage_floor: Least deviation that they are divided by, in units of the return. Where
            rewards are rare, most groups hold the critic's noise alone, and above 0 it stays small.
        reduction: Losses are means over ``units``, or over ``actions`` of each one's mean.
        clip_epsilon: Bound on the importance ratio's distance from 1.
        value_clip: Bound on a value's distance from the rollout's; None for none.
        value_coef: Weight of the value loss.
        critic_init: Values before the first update: ``random`` as PyTorch draws the critic, or
            ``zero``. Random values look like advantages, and move a policy that has met no reward.
        entropy_coef: Weight of the entropy, per unit.
        kl_coef: Weight of the divergence from the reference, per unit; 0 never computes it.
        target_kl: Policy steps whose samples diverge more from the rollout's policy are not taken;
            None takes all.
        on_target_kl: ``stop`` ends the update there, ``skip`` leaves out that step alone.
        max_grad_norm: Bound on the norm of each optimizer's gradient; None for none.
        optimizer: Of the policy; the critic has AdamW.
        lr: Learning rate of the policy.
        critic_lr: Learning rate of the critic.
        betas: Decay of both optimizers' moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay of the policy.
        anneal: Lower both rates linearly over the run, from full at the first update.
        warm_up_frames: Steps of the worlds, counted over all, that train the critic alone; as many
            as the data's ``warm_up_frames``.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.95
    macro_discount: bool = True
    num_epochs: int = 4
    order: Literal["phases", "interleaved"] = "interleaved"
    num_minibatches: int = 1
    critic_minibatches: int | None = None
    accumulate: int = 1
    chunk_weights: Literal["size", "equal"] = "size"
    choices_per_pass: int | None = 32
    normalize_advantages: Literal["rollout", "minibatch", "chunk", "none"] = "rollout"
    unbiased_deviation: bool = True
    advantage_floor: float = 0.0
    reduction: Reduction = "units"
    clip_epsilon: float = 0.2
    value_clip: float | None = 0.2
    value_coef: float = 0.5
    critic_init: Literal["random", "zero"] = "random"
    entropy_coef: float = 0.01
    kl_coef: float = 0.0
    target_kl: float | None = 0.05
    on_target_kl: Literal["stop", "skip"] = "stop"
    max_grad_norm: float | None = 0.5
    optimizer: OptimizerName = "adamw"
    lr: float = 1e-3
    critic_lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-5
    weight_decay: float = 0.0
    anneal: bool = False
    warm_up_frames: int = 0

    def __post_init__(self) -> None:
        expect_range(self, "ppo", "from 0 to 1", "gamma", "gae_lambda")
        expect_range(self, "ppo", "of at least 1", "num_epochs", "num_minibatches", "accumulate")
        expect_range(
            self, "ppo", "of at least 1, or null", "critic_minibatches", "choices_per_pass"
        )
        expect_range(self, "ppo", "above 0, or null", "value_clip", "target_kl", "max_grad_norm")
        expect_range(self, "ppo", "from 0", "value_coef", "entropy_coef", "kl_coef")
        expect_range(self, "ppo", "from 0", "lr", "critic_lr", "eps", "weight_decay")
        expect_range(self, "ppo", "from 0", "warm_up_frames", "advantage_floor")
        if self.critic_init not in ("random", "zero"):
            raise UserError(f"expected `ppo.critic_init` random or zero, got {self.critic_init!r}")
        expect_range(self, "ppo", "above 0 and below 1", "clip_epsilon")
        if self.advantage_floor > 0 and self.normalize_advantages == "none":
            raise UserError(
                "`ppo.advantage_floor` is of normalized advantages, and `ppo.normalize_advantages: "
                "none` normalizes none: leave one of them out"
            )
        if self.order == "interleaved" and self.critic_minibatches is not None:
            raise UserError(
                "`ppo.critic_minibatches` belongs to `ppo.order: phases`: interleaved steps take "
                "the critic's minibatches from `ppo.num_minibatches`"
            )


@dataclass(frozen=True)
class TokenPPOConfig(PPOConfig):
    """The same with the defaults of an update on tokens.

    The entropy of a token is larger than that of a choice from a list, and there is one for each
    token; a minibatch that diverges is left out, and the update goes on.
    """

    macro_discount: bool = False
    entropy_coef: float = 1e-4
    on_target_kl: Literal["stop", "skip"] = "skip"
    unbiased_deviation: bool = False
