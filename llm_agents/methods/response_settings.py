"""Settings of PPO on generated responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_agents.errors import UserError
from llm_agents.methods.ppo_settings import PPOConfig
from llm_agents.methods.ranges import expect_range


@dataclass(frozen=True)
class ResponsePPOConfig:
    """The numbers of an update on generated responses, as A-LoL's release takes them from TRL.

    A rollout is as many responses as the data's batches have rows.

    Args:
        num_epochs: Passes over a rollout.
        num_minibatches: Optimizer steps an epoch.
        accumulate: Chunks that a step's responses are split into at random.
        chunk_weights: ``size`` weighs chunks by their tokens, so that splitting changes nothing;
            ``equal`` takes the mean of the chunks' means, as in TRL.
        gamma: Discount from a token to the next.
        gae_lambda: Trace of the advantages.
        whiten: Bring the advantages of all tokens of a rollout to mean 0 and deviation 1.
        normalize_scores: By mean and deviation of all scores of the run so far.
        clip_epsilon: Bound on the importance ratio's distance from 1.
        value_clip: Bound on a value's distance from the rollout's; None for none.
        value_coef: Weight of half the mean squared error of the values.
        kl_coef: What a token pays for each nat that it leaves the reference by, at the beginning.
        kl_target: Divergence of a response from the reference that the coefficient moves towards;
            None leaves it as it is.
        kl_horizon: Responses in which the coefficient can change by a fifth of itself.
        max_ratio: A chunk whose mean ratio is larger teaches nothing; None takes all.
        max_grad_norm: Bound on the norm of the gradient; None for none.
    """

    num_epochs: int = 4
    num_minibatches: int = 1
    accumulate: int = 1
    chunk_weights: Literal["size", "equal"] = "size"
    gamma: float = 1.0
    gae_lambda: float = 0.95
    whiten: bool = True
    normalize_scores: bool = True
    clip_epsilon: float = 0.2
    value_clip: float | None = 0.2
    value_coef: float = 0.1
    kl_coef: float = 0.2
    kl_target: float | None = 6.0
    kl_horizon: float = 10_000
    max_ratio: float | None = 10.0
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        expect_range(self, "ppo", "of at least 1", "num_epochs", "num_minibatches", "accumulate")
        expect_range(self, "ppo", "from 0 to 1", "gamma", "gae_lambda")
        expect_range(self, "ppo", "above 0 and below 1", "clip_epsilon")
        expect_range(self, "ppo", "from 0", "value_coef", "kl_coef")
        expect_range(self, "ppo", "above 0", "kl_horizon")
        expect_range(
            self, "ppo", "above 0, or null", "value_clip", "kl_target", "max_ratio", "max_grad_norm"
        )
        if self.kl_target is not None and self.kl_coef == 0:
            raise UserError(
                "`ppo.kl_target` moves `ppo.kl_coef` by a share of itself, and that is 0: set "
                "`ppo.kl_target: null`"
            )

    @property
    def steps_per_rollout(self) -> int:
        """Return the optimizer steps of an update."""
        return self.num_epochs * self.num_minibatches

    def order(self) -> PPOConfig:
        """Return what says in which order an update goes through its samples."""
        return PPOConfig(
            num_epochs=self.num_epochs,
            num_minibatches=self.num_minibatches,
            accumulate=self.accumulate,
            normalize_advantages="rollout" if self.whiten else "none",
        )
