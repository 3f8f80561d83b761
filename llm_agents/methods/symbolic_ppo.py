"""PPO on BabyAI's symbolic view, with a recurrent network; GLAM's comparison without language.

BabyAI's learner (Chevalier-Boisvert et al., ICLR 2019, arXiv 1810.08272), as GLAM (arXiv
2302.02662) compares itself with it. Rollouts are cut into sub-sequences, through which gradients
flow; each begins with what was remembered there, in the rollout at first, and from the second epoch
on at the end of the sub-sequence before, as the epoch before has left it.

Equation → function (``llm_agents.functional``):

- δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γ λ A_{t+1} → `gae`
- clipped surrogate − 0.01 H + 0.5 L_v → `clipped_surrogate_loss`, `value_loss`

Differs from the release: what an image shows is computed for a whole minibatch at once, so that
statistics of batch normalization in the update are those of all its steps, rather than of one step
of each sub-sequence; mission words that are new at test time get no number.

    lightning run recipes/symbolic_ppo_babyai_go_to_red_ball.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.gae import gae
from llm_agents.functional.policy_gradient import clipped_surrogate_loss, value_loss
from llm_agents.methods.agent_folder import save_network, write_agent
from llm_agents.methods.checkpoint_content import STATE_KEY, own_state
from llm_agents.methods.non_finite import expect_finite
from llm_agents.methods.optimizer_steps import clip_gradients, gradient_norm
from llm_agents.methods.ranges import expect_range
from llm_agents.methods.rollout_report import episode_metrics
from llm_agents.methods.step_means import StepMeans
from llm_agents.methods.trainer_budget import check_collecting_trainer
from llm_agents.methods.whole_actions import draw
from llm_agents.policies.babyai_symbolic import BabyAISymbolic, SymbolicDecisions, SymbolicOutput
from llm_agents.types import SymbolicRollout


@dataclass(frozen=True)
class SymbolicPPOConfig:
    """The numbers of BabyAI's PPO, as in GLAM's comparison.

    Args:
        gamma: Discount.
        gae_lambda: Trace of the advantages.
        num_epochs: Passes over a rollout.
        num_minibatches: Optimizer steps an epoch.
        recurrence: Steps of a sub-sequence, through which gradients flow; a divisor of a rollout's.
        clip_epsilon: Bound on the importance ratio's distance from 1.
        value_clip: Bound on a value's distance from the rollout's; None for none.
        value_coef: Weight of the value loss, which is half the mean squared error.
        entropy_coef: Weight of the entropy.
        max_grad_norm: Bound on the norm of the gradient; None for none.
        lr: Learning rate of Adam.
        betas: Decay of the moments.
        eps: Added to the root of the second moment.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.99
    num_epochs: int = 4
    num_minibatches: int = 2
    recurrence: int = 20
    clip_epsilon: float = 0.2
    value_clip: float | None = 0.2
    value_coef: float = 1.0
    entropy_coef: float = 0.01
    max_grad_norm: float | None = 0.5
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-5

    def __post_init__(self) -> None:
        expect_range(self, "ppo", "from 0 to 1", "gamma", "gae_lambda")
        expect_range(self, "ppo", "above 0 and below 1", "clip_epsilon")
        expect_range(self, "ppo", "of at least 1", "num_epochs", "num_minibatches", "recurrence")
        expect_range(self, "ppo", "above 0, or null", "value_clip", "max_grad_norm")
        expect_range(self, "ppo", "from 0", "value_coef", "entropy_coef", "lr", "eps")


class _Parts(NamedTuple):
    """A rollout in N sub-sequences of R steps; each entry ``[N, R, …]`` but the first memory.

    Args:
        images, mission_index, starts, log_probs, values: As in the rollout.
        actions: Its `index`.
        advantages: Without normalization.
        returns: Targets of the values.
        memories: ``[N, M]``, before the first step.
        followers: ``[N]`` int64, the sub-sequence that goes on where this one ends; −1 for none.
    """

    images: Tensor
    mission_index: Tensor
    starts: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    memories: Tensor
    followers: Tensor


class SymbolicPPO(LightningModule):
    """Recurrent PPO on images and missions.

    Args:
        network: What acts; its sizes are those of BabyAI by default.
        ppo: The numbers of the update.

    Attributes:
        outcome: After a run: which weights were kept, and how many steps of the worlds they saw.
        memory_size: Numbers that the network remembers.
    """

    def __init__(
        self, network: BabyAISymbolic | None = None, ppo: SymbolicPPOConfig | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = network or BabyAISymbolic()
        self.ppo = ppo or SymbolicPPOConfig()
        self.memory_size, self.num_actions = self.network.memory_size, self.network.num_actions
        self.outcome: dict[str, float | int | str] = {}
        self._shuffle = torch.Generator()
        self._means = StepMeans()
        self._num_frames = 0
        self.save_hyperparameters({"ppo": asdict(self.ppo), "network": self.network.config})

    # --- the agent ------------------------------------------------------------------------------

    @torch.no_grad()
    def act_on_images(
        self, images: Tensor, missions: Sequence[str], memory: Tensor, generator: torch.Generator
    ) -> SymbolicDecisions:
        """Draw an action for each situation.

        Args:
            images: ``[E, 7, 7, 3]`` integer.
            missions: E texts.
            memory: ``[E, M]``; zeros at the beginning of an episode.
            generator: On the CPU; an action takes one draw.
        """
        found = self.network(images.to(self.device), missions, memory.to(self.device))
        index = draw(found.log_probs, generator)
        log_probs = found.log_probs.gather(1, index[:, None])
        return SymbolicDecisions(index, log_probs[:, 0], found.values, found.memory)

    @torch.no_grad()
    def image_values(self, images: Tensor, missions: Sequence[str], memory: Tensor) -> Tensor:
        """Return ``[E]`` values of situations."""
        found = self.network(images.to(self.device), missions, memory.to(self.device))
        values: Tensor = found.values
        return values

    # --- the update -----------------------------------------------------------------------------

    def training_step(self, rollout: SymbolicRollout, batch_idx: int) -> None:
        """Learn from one rollout: all its epochs and minibatches."""
        del batch_idx
        self._num_frames = (rollout.number + 1) * rollout.num_steps
        parts = self.parts(rollout)
        memories = parts.memories.clone()
        for _ in range(self.ppo.num_epochs):
            order = torch.randperm(len(memories), generator=self._shuffle)
            following = memories.clone()
            for rows in order.tensor_split(self.ppo.num_minibatches):
                rows = rows.to(memories.device)
                last = self._step(rollout, parts, memories[rows], rows)
                is_followed = parts.followers[rows] >= 0
                following[parts.followers[rows][is_followed]] = last[is_followed]
            memories = following
        self.log_dict(
            {
                **self._means.take(),
                **episode_metrics(rollout),
                "train/value_mean": float(rollout.values.mean()),
                "train/lr": self.ppo.lr,
            },
            batch_size=1,
        )

    def parts(self, rollout: SymbolicRollout) -> _Parts:
        """Cut a rollout into sub-sequences, with advantages and returns.

        Raises:
            UserError: It can't be cut evenly, or has fewer sub-sequences than minibatches.
        """
        steps, worlds = rollout.index.shape
        length = self.ppo.recurrence
        count = steps // length * worlds
        if steps % length or count < self.ppo.num_minibatches:
            raise UserError(
                f"a rollout of {worlds} worlds and {steps} steps can't be cut into sub-sequences "
                f"of {length} steps, of at least one for each of {self.ppo.num_minibatches} "
                "minibatches: make `data.num_steps` a multiple of `ppo.recurrence`, or lower "
                "`ppo.num_minibatches`"
            )
        found = gae(
            rewards=rollout.rewards,
            values=rollout.values,
            next_values=rollout.next_values,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            discounts=torch.full_like(rollout.rewards, self.ppo.gamma),
            gae_lambda=self.ppo.gae_lambda,
        )

        def cut(column: Tensor) -> Tensor:
            rows = column.reshape(-1, length, *column.shape[1:]).transpose(1, 2)
            return rows.flatten(0, 1)

        followers = torch.arange(count, device=rollout.index.device) + worlds
        return _Parts(
            images=cut(rollout.images),
            mission_index=cut(rollout.mission_index),
            starts=cut(rollout.starts),
            actions=cut(rollout.index),
            log_probs=cut(rollout.log_probs),
            values=cut(rollout.values),
            advantages=cut(found.advantages),
            returns=cut(found.returns),
            memories=cut(rollout.memories)[:, 0],
            followers=followers.masked_fill(followers >= count, -1),
        )

    def replay(
        self, missions: Sequence[str], parts: _Parts, memories: Tensor, rows: Tensor
    ) -> SymbolicOutput:
        """Go through sub-sequences again.

        Args:
            missions: The rollout's distinct ones.
            parts: Of the rollout.
            memories: ``[B, M]``, before the first step of each.
            rows: ``[B]`` int64, which sub-sequences.

        Returns:
            ``[B, R, A]`` log-probs, ``[B, R]`` values, and ``[B, M]`` memories after the last step.
        """
        numbers = parts.mission_index[rows]
        used = sorted(set(numbers.flatten().tolist()))
        read = self.network.missions([missions[number] for number in used])
        places = torch.searchsorted(torch.tensor(used, device=numbers.device), numbers)
        seen = self.network.see(parts.images[rows].flatten(0, 1), read[places].flatten(0, 1))
        seen = seen.reshape(len(rows), -1, seen.shape[-1])
        memory, remembered = memories, []
        for step in range(seen.shape[1]):
            known = ~parts.starts[rows, step, None]
            memory = self.network.remember(seen[:, step], memory * known)
            remembered.append(memory)
        found = self.network.decide(torch.stack(remembered, 1).flatten(0, 1))
        shape = (len(rows), seen.shape[1])
        log_probs = found.log_probs.reshape(*shape, -1)
        return SymbolicOutput(log_probs, found.values.reshape(shape), memory.detach())

    def _step(
        self, rollout: SymbolicRollout, parts: _Parts, memories: Tensor, rows: Tensor
    ) -> Tensor:
        """Take one optimizer step; return what sub-sequences end with."""
        found = self.replay(rollout.missions, parts, memories, rows)
        log_probs = found.log_probs.gather(-1, parts.actions[rows][..., None])[..., 0]
        mask = torch.ones_like(log_probs, dtype=torch.bool)
        surrogate = clipped_surrogate_loss(
            log_probs=log_probs,
            old_log_probs=parts.log_probs[rows],
            advantages=parts.advantages[rows],
            mask=mask,
            clip_epsilon=self.ppo.clip_epsilon,
            reduction="units",
        )
        values = value_loss(
            values=found.values,
            old_values=parts.values[rows],
            returns=parts.returns[rows],
            mask=mask,
            clip_epsilon=self.ppo.value_clip,
            reduction="units",
        )
        entropy = -(found.log_probs.exp() * found.log_probs).sum(-1).mean()
        loss = surrogate.loss + self.ppo.value_coef * values.loss - self.ppo.entropy_coef * entropy
        self._take(loss)
        numbers = {
            "policy_loss": surrogate.loss,
            "value_loss": values.loss,
            "entropy": entropy,
            "approx_kl": surrogate.approx_kl,
            "clip_fraction": surrogate.clip_fraction,
        }
        if not self._means.has("first_ratio_error"):
            numbers["first_ratio_error"] = (surrogate.importance_ratio - 1).abs().max()
        for name, number in numbers.items():
            self._means.add_number(name, number.detach())
        return found.memory

    def _take(self, loss: Tensor) -> None:
        """Take an optimizer step down a loss."""
        optimizer = cast(LightningOptimizer, self.optimizers())
        optimizer.zero_grad()
        self.manual_backward(loss)
        own = list(self.network.parameters())
        norm = gradient_norm(own)
        expect_finite(
            norm, what="norm of the gradient", step=self._num_frames, cure="Lower `ppo.lr`"
        )
        clip_gradients(own, norm, bound=self.ppo.max_grad_norm)
        self._means.add_number("grad_norm", norm)
        optimizer.step()

    # --- Lightning ------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Seed the order of the sub-sequences; one process trains, as words get numbers here."""
        if stage != "fit":
            return
        check_collecting_trainer(self.trainer, type(self).__name__)
        if self.trainer.world_size > 1:
            raise UserError(
                "SymbolicPPO numbers words as it meets them, which only one process can do: set "
                "`trainer.devices: 1` and give the data more worlds instead"
            )
        self._shuffle.manual_seed(torch.initial_seed())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the network."""
        config = self.ppo
        return torch.optim.Adam(
            self.network.parameters(), lr=config.lr, betas=config.betas, eps=config.eps
        )

    def description(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on: none."""
        return {}

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the network, its words, and what acting depends on to `folder`."""
        save_network(self.network, folder)
        write_agent(folder, method=type(self).__name__, options=self.description())

    def on_fit_end(self) -> None:
        """Say which weights there are: those of the last update."""
        self.outcome = {"kept": "last", "step": self._num_frames}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what makes a resumed run continue alike."""
        checkpoint[STATE_KEY] = {"shuffle": self._shuffle.get_state(), "frames": self._num_frames}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` added."""
        state = own_state(checkpoint, "shuffle", writer="a run of SymbolicPPO")
        self._shuffle.set_state(state["shuffle"].cpu())
        self._num_frames = int(state["frames"])
