"""DRRN: values of action texts, learnt from a memory of transitions; GLAM's comparison.

He et al., ACL 2016 (arXiv 1511.04636), as GLAM (arXiv 2302.02662) uses it. Two small readers turn
prompt and action into vectors, a network on both is Q(s, a), and actions are drawn from a softmax
over Q, in training and afterwards.

Equation → code:

- π(a | s) = softmax_a(Q(s, a) / temperature) → `DRRN.act`
- L = smooth L1 of Q(s, a) and r + γ max_a′ Q(s′, a′), by the same network → `DRRN.losses`

Differs from GLAM's release: the first prompt of an episode has its observation; transitions are
drawn from all of the memory, of which the release has the same as its default; episodes that a
limit cut count on if the data say so (``bootstrap_at_limit``), and otherwise end, as there; the
memory is kept with every checkpoint.

    lightning run recipes/drrn_babyai_go_to_local.yaml
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
from torch.nn.functional import smooth_l1_loss

from llm_agents.errors import UserError
from llm_agents.methods.agent_folder import save_network, write_agent
from llm_agents.methods.checkpoint_content import STATE_KEY, own_state
from llm_agents.methods.non_finite import expect_finite_choices
from llm_agents.methods.optimizer_steps import clip_gradients, gradient_norm
from llm_agents.methods.ranges import expect_range
from llm_agents.methods.replay import Situation, Transition, TransitionReplay
from llm_agents.methods.rollout_report import rollout_metrics
from llm_agents.methods.step_means import StepMeans
from llm_agents.methods.trainer_budget import check_collecting_trainer
from llm_agents.methods.whole_actions import decide
from llm_agents.policies.drrn import DRRNetwork
from llm_agents.policies.modes import evaluation
from llm_agents.types import Choice, Decisions, Rollout


@dataclass(frozen=True)
class DRRNConfig:
    """The numbers of DRRN, as in GLAM's release.

    The release takes one step after every 4 steps of each world: rollouts of ``num_steps: 4``.

    Args:
        gamma: Discount between actions.
        temperature: Of the softmax over values that actions are drawn from.
        batch_size: Transitions of a step.
        steps_per_rollout: Optimizer steps after each rollout, from when there are enough
            transitions for one.
        memory: Transitions kept.
        lr: Learning rate of Adam.
        max_grad_norm: Bound on the norm of the gradient; None for none.
    """

    gamma: float = 0.9
    temperature: float = 1.0
    batch_size: int = 64
    steps_per_rollout: int = 1
    memory: int = 5_000_000
    lr: float = 1e-4
    max_grad_norm: float | None = 5.0

    def __post_init__(self) -> None:
        expect_range(self, "settings", "from 0 to 1", "gamma")
        expect_range(self, "settings", "above 0", "temperature")
        expect_range(self, "settings", "above 0, or null", "max_grad_norm")
        expect_range(self, "settings", "of at least 1", "batch_size", "steps_per_rollout")
        expect_range(self, "settings", "from 0", "lr")
        if self.memory < self.batch_size:
            raise UserError(
                f"expected `settings.memory` of at least `batch_size`, got {self.memory}"
            )


class _Pending(NamedTuple):
    """A last step of a rollout, which waits for what follows it."""

    choice: Choice
    taken: int
    reward: float


class DRRN(LightningModule):
    """Learns the values of actions' texts.

    Args:
        network: What the values come from; its sizes are GLAM's by default.
        settings: The numbers of the method.

    Attributes:
        outcome: After a run: which weights were kept, and how many steps of the worlds they saw.
    """

    def __init__(
        self, network: DRRNetwork | None = None, settings: DRRNConfig | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = network or DRRNetwork()
        self.settings = settings or DRRNConfig()
        self.outcome: dict[str, float | int | str] = {}
        self._replay: TransitionReplay | None = None
        self._pending: list[_Pending | None] = []
        self._means = StepMeans()
        self._num_frames = 0
        self.save_hyperparameters(
            {"settings": asdict(self.settings), "network": self.network.config}
        )

    # --- the agent ------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Draw an action for each choice from the softmax over its actions' values.

        Args:
            choices: E choices with at least one action each.
            generator: On the CPU; an action takes one draw.
        """
        with evaluation(self):
            values = self.action_values(choices)
        log_probs = (values / self.settings.temperature).log_softmax(-1)
        return decide(log_probs, values.amax(-1), generator)

    @torch.no_grad()
    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]``: the value of the best action of each choice; 0 where there is none."""
        found = torch.zeros(len(choices), device=self.device)
        rows = [row for row, choice in enumerate(choices) if choice.actions]
        if rows:
            with evaluation(self):
                best = self.action_values([choices[row] for row in rows]).amax(-1)
            found[torch.tensor(rows, device=self.device)] = best
        return found

    def action_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E, A]`` values; −∞ where there is no action."""
        states, actions = zip(*(self.network.encode(choice) for choice in choices), strict=True)
        values: Tensor = self.network(states, actions)
        return values

    # --- the update -----------------------------------------------------------------------------

    def training_step(self, rollout: Rollout, batch_idx: int) -> None:
        """Remember a rollout, and learn from what is remembered."""
        del batch_idx
        self._num_frames = (rollout.number + 1) * rollout.num_steps
        self.replay.add(self._transitions(rollout))
        for _ in range(self.settings.steps_per_rollout):
            if len(self.replay) >= self.settings.batch_size:
                self._step(rollout)
        numbers = {"train/memory": float(len(self.replay)), "train/lr": self.settings.lr}
        self.log_dict({**self._means.take(), **numbers, **rollout_metrics(rollout)}, batch_size=1)

    @property
    def replay(self) -> TransitionReplay:
        """Return the memory; its draws are seeded by the run's seed."""
        if self._replay is None:
            self._replay = TransitionReplay(self.settings.memory, torch.initial_seed())
        return self._replay

    def _transitions(self, rollout: Rollout) -> list[Transition]:
        """Return the transitions that a rollout completes; the last steps wait for the next one."""
        steps, worlds = rollout.index.shape
        numbers = [
            column.tolist()
            for column in (
                rollout.index,
                rollout.rewards,
                rollout.terminated | rollout.truncated,
                rollout.next_values,
            )
        ]
        found = []
        waiting = self._pending or [None] * worlds
        for step in range(steps):
            for world in range(worlds):
                choice = rollout.choices[step * worlds + world]
                if (before := waiting[world]) is not None:
                    found.append(self._transition(before, choice, 0.0))
                index, reward, ended, value = (column[step][world] for column in numbers)
                now = _Pending(choice, index, reward)
                waiting[world] = None if ended else now
                if ended:  # `value` is 0 after an end, and where a limit counts as one
                    found.append(self._transition(now, None, value))
        self._pending = waiting
        return found

    def _transition(self, before: _Pending, after: Choice | None, value: float) -> Transition:
        """Return a transition as numbers of words."""
        return Transition(
            situation=Situation(*self.network.encode(before.choice)),
            taken=before.taken,
            reward=before.reward,
            after=None if after is None else Situation(*self.network.encode(after)),
            bootstrap=value,
        )

    def losses(self, transitions: Sequence[Transition]) -> tuple[Tensor, Tensor]:
        """Return the scalar to minimize, and ``[B]`` the values of the actions taken."""
        values = self.network(
            [one.situation.state for one in transitions],
            [one.situation.actions for one in transitions],
        )
        index = torch.tensor([one.taken for one in transitions], device=values.device)
        taken = values.gather(1, index[:, None])[:, 0]
        return smooth_l1_loss(taken, self.targets(transitions)), taken.detach()

    @torch.no_grad()
    def targets(self, transitions: Sequence[Transition]) -> Tensor:
        """Return ``[B]``: r + γ max_a′ Q(s′, a′)."""
        following = torch.tensor([one.bootstrap for one in transitions], device=self.device)
        rows = [row for row, one in enumerate(transitions) if one.after is not None]
        after = [one.after for one in transitions if one.after is not None]
        if after:
            best = self.network([s.state for s in after], [s.actions for s in after]).amax(-1)
            following[torch.tensor(rows, device=self.device)] = best
        rewards = torch.tensor([one.reward for one in transitions], device=self.device)
        return rewards + self.settings.gamma * following

    def _step(self, rollout: Rollout) -> None:
        """Take one optimizer step."""
        optimizer = cast(LightningOptimizer, self.optimizers())
        optimizer.zero_grad()
        loss, values = self.losses(self.replay.sample(self.settings.batch_size))
        self._check_finite("loss", loss, rollout)
        self.manual_backward(loss)
        own = list(self.network.parameters())
        norm = gradient_norm(own)
        self._check_finite("norm of the gradient", norm, rollout)
        clip_gradients(own, norm, bound=self.settings.max_grad_norm)
        optimizer.step()
        for name, number in (("loss", loss), ("grad_norm", norm), ("value_mean", values.mean())):
            self._means.add_number(name, number.detach())

    def _check_finite(self, what: str, value: Tensor, rollout: Rollout) -> None:
        """Stop at a number that is not finite."""
        expect_finite_choices(
            self, value, what=what, step=self._num_frames, choices=rollout.choices
        )

    # --- Lightning ------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Check that one process trains and collects: each would give words numbers of its own."""
        if stage == "fit":
            check_collecting_trainer(self.trainer, type(self).__name__)
        data = getattr(self.trainer, "datamodule", None)
        if stage == "fit" and max(self.trainer.world_size, getattr(data, "num_processes", 1)) > 1:
            raise UserError(
                "DRRN numbers words as it meets them, which only one process can do: set "
                "`trainer.devices: 1` and `data.num_processes: 1`"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the network."""
        return torch.optim.Adam(self.network.parameters(), lr=self.settings.lr)

    def description(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on."""
        return {"temperature": self.settings.temperature}

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the network, its words, and what acting depends on to `folder`."""
        save_network(self.network, folder)
        write_agent(folder, method=type(self).__name__, options={"settings": asdict(self.settings)})

    def on_fit_end(self) -> None:
        """Say which weights there are: those of the last update."""
        self.outcome = {"kept": "last", "step": self._num_frames}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the memory, and the steps that wait for what follows them."""
        pending = [
            None if one is None else [one.choice.prompt, list(one.choice.actions), *one[1:]]
            for one in self._pending
        ]
        checkpoint[STATE_KEY] = {
            "frames": self._num_frames,
            "replay": self.replay.state_dict(),
            "pending": pending,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` added."""
        state = own_state(checkpoint, "replay", writer="a run of DRRN")
        self._num_frames = int(state["frames"])
        self.replay.load_state_dict(state["replay"])
        self._pending = [
            None if one is None else _Pending(Choice(one[0], tuple(one[1])), one[2], one[3])
            for one in state["pending"]
        ]
