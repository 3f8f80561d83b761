"""Motif's agent: recurrent PPO with V-trace on the game's reward and the intrinsic one together.

Motif: Intrinsic Motivation from Artificial Intelligence Feedback (arXiv 2310.00166). A language
model's preferences over pairs of game messages become a reward of messages; the agent learns from
that reward, from the game's own, or from both, and sees neither the language model nor the reward.

Equation → function (``llm_agents.functional``):

- reward of a message, equation 2 → `intrinsic_rewards`, in the rollout
- both rewards together, equation 3 → `mixed_rewards`
- targets and advantages off the policy → `vtrace`
- clipped surrogate → `band_surrogate_loss`;  clipped value loss → `value_loss`

Differs from the release: updates are synchronous, or one rollout behind with the data's `overlap`,
instead of asynchronous; a rollout's last step has the next observation's value to hold against,
where the release's own advantage is always 0 (`rollout_end`); a step's intrinsic reward is that of
the observation it leads to (the data's `observed`); a time limit cuts an episode and doesn't end it
(the rules' `limit_terminates`). Each of these is a switch.

    lightning run recipes/motif_nethack.yaml
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.gae import gae
from llm_agents.functional.policy_gradient import (
    explained_variance,
    normalize_advantages,
    value_loss,
)
from llm_agents.functional.ratio_band import (
    band_surrogate_loss,
    uniform_divergence,
)
from llm_agents.functional.shaping import mixed_rewards
from llm_agents.functional.vtrace import vtrace
from llm_agents.methods.checkpoint_content import STATE_KEY, expect_weights, own_state
from llm_agents.methods.motif_settings import MotifPPOConfig
from llm_agents.methods.nethack_sequences import Sequences, minibatches
from llm_agents.methods.non_finite import expect_finite
from llm_agents.methods.optimizer_steps import clip_gradients, gradient_norm
from llm_agents.methods.step_means import StepMeans
from llm_agents.methods.trainer_budget import check_collecting_trainer
from llm_agents.policies.nethack import NetHackNetwork, ReleaseNetwork
from llm_agents.policies.nethack_files import load_nethack_network, save_nethack_network
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.policies.nethack_types import NetHackRollout

UNIFORM_CAP = 30.0
"""Bound on the divergence from the uniform policy, as released."""


class Losses(NamedTuple):
    """What a minibatch is to make small; only the first carries a gradient."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    value_clip_fraction: Tensor
    ratio_error: Tensor
    explained_variance: Tensor


class MotifAgent(LightningModule):
    """Plays NetHack, and learns from rollouts of its games.

    Args:
        network: What plays; all of it trains.
        ppo: The numbers of the update.
        log_every: Rollouts between what is logged; the first and the last one always are. What the
            updates did is averaged over those in between.

    Attributes:
        outcome: After a run: which weights were kept, and how many steps of the games they saw.
    """

    def __init__(
        self,
        network: NetHackNetwork | None = None,
        ppo: MotifPPOConfig | None = None,
        *,
        log_every: int = 4,
    ) -> None:
        if log_every < 1:
            raise UserError(f"expected `log_every` of at least 1, got {log_every}")
        super().__init__()
        self.automatic_optimization = False
        self.network = network or ReleaseNetwork()
        self.ppo, self.log_every = ppo or MotifPPOConfig(), log_every
        self.outcome: dict[str, float | int | str] = {}
        self._shuffle = torch.Generator()
        self._means = StepMeans()
        self._num_frames = 0
        self.save_hyperparameters(
            {
                "network": type(self.network).__name__,
                **self.network.describe(),
                "ppo": asdict(self.ppo),
            },
        )

    @classmethod
    def from_pretrained(cls, folder: Path | str, *, ppo: MotifPPOConfig | None = None) -> Self:
        """Return the agent that `save_pretrained` wrote, to play or to train on.

        Args:
            folder: Where it was written.
            ppo: Of further training.

        Raises:
            UserError: The folder's files are missing, damaged, or of another version.
        """
        return cls(load_nethack_network(folder).train(), ppo)

    # --- the agent

    @property
    def recurrence(self) -> int | None:
        """Return the steps of the sequences that gradients go through; None is a whole rollout."""
        return self.ppo.recurrence

    def player(self) -> NetworkPlayer:
        """Return a player with the present weights; `refresh` gives it later ones."""
        return NetworkPlayer(self.network)

    # --- the update

    def training_step(self, rollout: NetHackRollout, batch_idx: int) -> None:
        """Learn from one rollout: all its epochs and minibatches."""
        del batch_idx
        self._num_frames = (rollout.number + 1) * rollout.num_steps
        optimizer = cast(LightningOptimizer, self.optimizers())
        sequences = self.sequences(rollout)
        for rows in minibatches(
            len(sequences), self.ppo.num_minibatches, self.ppo.num_epochs, self._shuffle
        ):
            losses = self.losses(sequences.select(rows))
            self._check_finite("loss", losses.loss)
            optimizer.zero_grad()
            self.manual_backward(losses.loss)
            self._clip_and_step(optimizer)
            for name, value in losses._asdict().items():
                self._means.add_number(name, value.detach())
        self._report(rollout, sequences)

    def sequences(self, rollout: NetHackRollout) -> Sequences:
        """Return a rollout's sequences with their rewards and, without V-trace, advantages."""
        config = self.ppo
        rewards = mixed_rewards(
            extrinsic=rollout.rewards,
            intrinsic=rollout.intrinsic,
            extrinsic_coef=config.extrinsic_coef,
            intrinsic_coef=config.intrinsic_coef,
            scale=config.reward_scale,
            clip=config.reward_clip,
        )
        length = config.recurrence or len(rollout.actions)
        if config.advantages == "vtrace":
            return Sequences.of(rollout, length=length, rewards=rewards)
        following = torch.cat([rollout.values[1:], rollout.next_values[-1:]])
        advantages, targets = gae(
            rewards=rewards,
            values=rollout.values,
            next_values=torch.where(rollout.truncated, rollout.next_values, following),
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            discounts=torch.full_like(rewards, config.gamma),
            gae_lambda=config.gae_lambda,
        )
        return Sequences.of(
            rollout, length=length, rewards=rewards, advantages=advantages, targets=targets
        )

    def losses(self, batch: Sequences) -> Losses:
        """Return the loss of some sequences, and its parts."""
        config = self.ppo
        found = self.network(batch.observations, batch.states, batch.starts)
        log_probs = found.logits.log_softmax(-1)
        taken = log_probs.gather(-1, batch.actions.unsqueeze(-1))[..., 0]
        ratio = (taken - batch.log_probs).clamp(-20, 20).exp()
        targets, advantages = self._assigned(batch, found.values, ratio)
        everywhere = torch.ones_like(found.values, dtype=torch.bool)
        normalized = normalize_advantages(
            advantages, everywhere, unbiased=True, epsilon=0.0, floor=config.advantage_floor
        )
        surrogate = band_surrogate_loss(
            importance_ratio=ratio.flatten(),
            advantages=normalized.flatten(),
            clip_epsilon=config.clip_epsilon,
            bounds=config.ratio_bounds,
        )
        critic = value_loss(
            values=found.values,
            old_values=batch.values,
            returns=targets,
            mask=everywhere,
            clip_epsilon=config.value_clip,
            reduction="units",
        )
        flat = log_probs.flatten(0, 1)
        entropy = -(flat.exp() * flat).sum(-1).mean()
        regret = (
            -entropy
            if config.exploration == "entropy"
            else uniform_divergence(flat).mean().clamp(max=UNIFORM_CAP)
        )
        squared = 2 * critic.loss  # `value_loss` has half of it
        return Losses(
            loss=surrogate.loss + config.value_coef * squared + config.exploration_coef * regret,
            policy_loss=surrogate.loss,
            value_loss=squared,
            entropy=entropy,
            approx_kl=surrogate.approx_kl,
            clip_fraction=surrogate.clip_fraction,
            value_clip_fraction=critic.clip_fraction,
            ratio_error=(ratio.detach() - 1).abs().max(),
            explained_variance=explained_variance(
                values=found.values.detach(), returns=targets, mask=everywhere
            ),
        )

    def _assigned(self, batch: Sequences, values: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``[L, N]`` targets of the values, and advantages of the actions."""
        if batch.targets is not None and batch.advantages is not None:
            return batch.targets, batch.advantages
        found = vtrace(
            rewards=batch.rewards,
            values=values,
            next_values=batch.next_values,
            terminated=batch.terminated,
            truncated=batch.truncated,
            importance_ratio=ratio,
            gamma=self.ppo.gamma,
            rho_clip=self.ppo.rho_clip,
            c_clip=self.ppo.c_clip,
            rollout_end=self.ppo.rollout_end,
        )
        return found.targets, found.advantages

    def _clip_and_step(self, optimizer: LightningOptimizer) -> None:
        """Clip the gradient's norm and take a step."""
        own = list(self.network.parameters())
        norm = gradient_norm(own)
        self._check_finite("gradient's norm", norm)
        clip_gradients(own, norm, bound=self.ppo.max_grad_norm)
        self._means.add_number("grad_norm", norm)
        optimizer.step()

    def _check_finite(self, what: str, value: Tensor) -> None:
        """Stop at a number that is not finite."""
        cure = "Lower `ppo.lr`, or `ppo.reward_clip`"
        expect_finite(value, what=what, step=self._num_frames, cure=cure)

    def _report(self, rollout: NetHackRollout, sequences: Sequences) -> None:
        """Log what was collected and what the updates did, if it is time to."""
        last = rollout.number + 1 == rollout.num_rollouts
        if rollout.number % self.log_every and not last:
            return
        self.log_dict(
            {
                **self._means.take(),
                **rollout.metrics,
                "rollout/frames": float(self._num_frames),
                "rollout/reward_mean": float(sequences.rewards.mean()),
                "rollout/extrinsic_mean": float(rollout.rewards.mean()),
                "rollout/intrinsic_mean": float(rollout.intrinsic.mean()),
                "train/value_mean": float(rollout.values.mean()),
            },
            batch_size=1,
        )

    # --- Lightning

    def setup(self, stage: str) -> None:
        """Check that one process trains, and seed the order of the sequences."""
        if stage != "fit":
            return
        check_collecting_trainer(self.trainer, type(self).__name__)
        if self.trainer.world_size > 1:
            raise UserError(
                f"MotifAgent trains in one process, the trainer has {self.trainer.world_size}: set "
                "`trainer.devices: 1` and give the data more games instead"
            )
        self._shuffle.manual_seed(torch.initial_seed())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam on the whole network."""
        config = self.ppo
        return torch.optim.Adam(
            self.network.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
        )

    def on_fit_end(self) -> None:
        """Say which weights there are: those of the last update."""
        self.outcome = {"kept": "last", "step": self._num_frames}

    def description(self) -> dict[str, Any]:
        """Return what results are to say of the agent."""
        return {"network": type(self.network).__name__, **self.network.describe()}

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the network to `folder`; `from_pretrained` and `load_nethack_network` read it."""
        save_nethack_network(
            self.network,
            folder,
            {
                "method": "MotifAgent",
                "frames": self._num_frames,
                "extrinsic_coef": self.ppo.extrinsic_coef,
                "intrinsic_coef": self.ppo.intrinsic_coef,
            },
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what makes a resumed run continue alike."""
        checkpoint[STATE_KEY] = {
            "shuffle": self._shuffle.get_state(),
            "frames": self._num_frames,
            "means": self._means.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of this agent; restore what `on_save_checkpoint` added."""
        state = own_state(checkpoint, "shuffle", writer="a run of MotifAgent")
        expect_weights(checkpoint, self.state_dict().items(), owner="agent")
        self._shuffle.set_state(state["shuffle"].cpu())
        self._num_frames = int(state["frames"])
        self._means.load_state_dict(state["means"])
