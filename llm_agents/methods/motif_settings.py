"""Settings of Motif's update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_agents.errors import UserError
from llm_agents.functional.vtrace import RolloutEnd
from llm_agents.methods.ranges import expect_range


@dataclass(frozen=True)
class MotifPPOConfig:
    """The numbers of a recurrent PPO update; the defaults are those of Motif's published runs.

    The reward is ``extrinsic_coef · clamp(reward_scale · r, ± reward_clip) + intrinsic_coef ·
    r_int``.

    Args:
        extrinsic_coef: Motif: 0.1 for the score, 10 for other tasks, 0 for intrinsic only.
        intrinsic_coef: Weight of the messages' reward; 0 for extrinsic only.
        reward_scale: Factor on the world's reward.
        reward_clip: Bound on it after that.
        gamma: Discount.
        advantages: ``vtrace`` corrects for the policy having changed since the rollout; ``gae`` is
            plain PPO's.
        rho_clip: Bound on V-trace's ratio in the error.
        c_clip: Bound on V-trace's ratio in the trace.
        gae_lambda: Trace of ``gae``.
        rollout_end: What follows a sequence's last step: the value of the next observation
            (``bootstrap``), or nothing that could give it an advantage (``self``, as released).
        recurrence: L, steps of the sequences that gradients go through; null is a whole rollout.
        num_minibatches: Optimizer steps an epoch.
        num_epochs: Passes over a rollout.
        clip_epsilon: The ratio's band is from 1 / (1 + ε) to 1 + ε.
        ratio_bounds: The ratio counts as one of these beyond them.
        value_clip: Bound on a value's distance from the rollout's; null for none.
        value_coef: Weight of the mean of the larger squared error.
        exploration: ``entropy`` is rewarded, or the divergence from the uniform policy
            (``uniform``) punished.
        exploration_coef: Weight of that.
        advantage_floor: Least deviation that advantages are divided by.
        max_grad_norm: Bound on the gradient's norm; null for none.
        lr: Learning rate of Adam, constant.
        betas: Decay of Adam's moments.
        eps: Added to the root of the second moment.
    """

    extrinsic_coef: float = 0.1
    intrinsic_coef: float = 0.1
    reward_scale: float = 0.1
    reward_clip: float = 10.0
    gamma: float = 0.99
    advantages: Literal["vtrace", "gae"] = "vtrace"
    rho_clip: float = 1.0
    c_clip: float = 1.0
    gae_lambda: float = 0.95
    rollout_end: RolloutEnd = "bootstrap"
    recurrence: int | None = None
    num_minibatches: int = 1
    num_epochs: int = 1
    clip_epsilon: float = 0.1
    ratio_bounds: tuple[float, float] = (0.05, 20.0)
    value_clip: float | None = 1.0
    value_coef: float = 0.5
    exploration: Literal["entropy", "uniform"] = "entropy"
    exploration_coef: float = 0.003
    advantage_floor: float = 1e-3
    max_grad_norm: float | None = 4.0
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6

    def __post_init__(self) -> None:
        expect_range(self, "ppo", "from 0 to 1", "gamma", "gae_lambda")
        expect_range(self, "ppo", "of at least 1", "num_minibatches", "num_epochs")
        expect_range(self, "ppo", "above 0, or null", "value_clip", "max_grad_norm", "recurrence")
        expect_range(self, "ppo", "above 0", "reward_clip", "rho_clip", "c_clip")
        expect_range(self, "ppo", "above 0", "clip_epsilon", "advantage_floor")
        expect_range(self, "ppo", "from 0", "extrinsic_coef", "intrinsic_coef", "value_coef")
        expect_range(self, "ppo", "from 0", "exploration_coef", "lr")
        for name, known in (
            ("advantages", ("vtrace", "gae")),
            ("rollout_end", ("bootstrap", "self")),
            ("exploration", ("entropy", "uniform")),
        ):
            if (value := getattr(self, name)) not in known:
                raise UserError(f"expected `ppo.{name}` {' or '.join(known)}, got {value!r}")
        low, high = self.ratio_bounds
        if not 0 < low < 1 < high:
            raise UserError(
                f"expected `ppo.ratio_bounds` around 1, both above 0, got {self.ratio_bounds!r}"
            )
        if self.rollout_end == "self" and (self.advantages == "gae" or self.gamma == 0):
            raise UserError(
                "`ppo.rollout_end: self` is of V-trace with a `ppo.gamma` above 0: set "
                "`ppo.advantages: vtrace`, or `ppo.rollout_end: bootstrap`"
            )
