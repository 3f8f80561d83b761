"""PPO on rollouts of text worlds: the update loop that GLAM, TWOSOME and POAD share.

The policy is an adapted language model, the critic a small network on the states of the same model
without adapters: neither loss reaches the other's parameters. Two hooks make a method of it:

- `units`: what has a log-prob, an entropy and an importance ratio of its own, an action or a token;
  `unit_states` says where the critic reads the value of each.
- `assign`: how a rollout's rewards become advantages.

Equation → function (``llm_agents.functional``):

- clipped surrogate, k3 estimate of the divergence → `clipped_surrogate_loss`, `kl_per_unit`
- clipped value loss → `value_loss`
- normalized advantages → `normalize_advantages`
- linear annealing after the critic's warm-up → `annealing_factor`

Differs from the releases of TWOSOME and POAD: each optimizer clips the norm of its own parameters
and has no others; a minibatch's mean doesn't depend on how it is split into chunks unless
``chunk_weights: equal`` is asked for; samples that don't divide into minibatches are not dropped.
Rollout and update both run in eval mode: dropout of the adapter would make the ratio of an
unchanged policy differ from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins import Precision
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import Normalization
from llm_agents.functional.gae import Advantages
from llm_agents.functional.policy_gradient import (
    annealing_factor,
    value_loss,
)
from llm_agents.methods.agent_folder import write_agent
from llm_agents.methods.checkpoint_content import (
    STATE_KEY,
    expect_weights,
    keep_weights,
    own_state,
)
from llm_agents.methods.minibatches import Samples, distinct, update_steps, weighted_passes
from llm_agents.methods.non_finite import expect_finite_choices
from llm_agents.methods.optimizer_steps import clip_gradients, gradient_norm
from llm_agents.methods.ppo_losses import (
    PolicyLosses,
    Units,
    fitted,
    of_taken,
    policy_losses,
    step_metrics,
)
from llm_agents.methods.ppo_settings import PPOConfig
from llm_agents.methods.rollout_report import list_mass, rollout_metrics, value_metrics
from llm_agents.methods.step_means import StepMeans
from llm_agents.methods.trainer_budget import check_collecting_trainer
from llm_agents.methods.whole_actions import draw
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.action_types import ActionScores
from llm_agents.policies.backbone import build_optimizer, is_adapted
from llm_agents.policies.heads import save_head
from llm_agents.policies.modes import evaluation
from llm_agents.policies.state_mlp import StateMLP
from llm_agents.policies.state_value import StateValueHead
from llm_agents.policies.trained import expect_trained, trained_parameters
from llm_agents.types import Choice, Decisions, Rollout

CRITIC = "value_head"


def expect_frozen_base(policy: LanguagePolicy) -> None:
    """Refuse a policy all of whose weights train, for a critic that reads the base as it was."""
    if policy.trainable and not is_adapted(policy.model):
        raise UserError(
            "all weights of this policy train, and the critic reads the states of a base that "
            "stays as it was: train an adapter (`lora: {r: 8}`); GLAM with `critic: joint` can "
            "train all"
        )


class OnlinePPO(LightningModule):
    """Collects decisions as an agent, and learns from rollouts of them.

    Args:
        policy: What acts; its adapter, or all of it, trains.
        normalization: How the scores of actions of different lengths are put on one scale.
        ppo: The numbers of the update.
        critic_widths: Hidden widths of the critic.

    Attributes:
        outcome: After a run: which weights were kept, and how many steps of the worlds they saw.
    """

    default_ppo = PPOConfig
    asks_entropies = False

    def __init__(
        self,
        policy: LanguagePolicy,
        normalization: Normalization = "word",
        ppo: PPOConfig | None = None,
        critic_widths: tuple[int, ...] = (1024, 512),
    ) -> None:
        super().__init__()
        self.strict_loading = False  # `on_load_checkpoint` checks what trains; the base isn't saved
        self.automatic_optimization = False
        self.policy = policy
        self.normalization = normalization
        self.ppo = ppo or self.default_ppo()
        self.critic = self.new_critic(tuple(critic_widths))
        if self.ppo.critic_init == "zero":
            for parameter in self.critic.layers[-1].parameters():
                torch.nn.init.zeros_(parameter)
        self.outcome: dict[str, float | int | str] = {}
        self._shuffle = torch.Generator()
        self._plugin: Precision | None = None  # of the trainer, in a process that has none
        self._means = StepMeans()
        self._num_frames = self._policy_steps = self._refused_steps = 0
        self._computed: dict[str, Any] | None = None  # by the run that this one goes on with

    # --- what a method fills in -----------------------------------------------------------------

    def units(self, choices: Sequence[Choice], scores: ActionScores) -> Units:
        """Return what has a ratio of its own, and what actions are drawn from."""
        raise NotImplementedError

    def unit_states(self, choices: Sequence[Choice], index: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``[N, L, H]`` states that the values are read from, and ``[N, L]`` bool mask."""
        raise NotImplementedError

    def assign(self, rollout: Rollout) -> Advantages:
        """Return ``[T, E, L]`` advantages and returns."""
        raise NotImplementedError

    def new_critic(self, widths: tuple[int, ...]) -> StateValueHead | StateMLP:
        """Return the network of the values, as PyTorch draws it; its last layer is linear."""
        return StateValueHead(self.policy.hidden_size, widths)

    def description(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on."""
        return {"normalization": self.normalization}

    # --- the agent ------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Draw an action for each choice.

        Args:
            choices: E choices with at least one action each.
            generator: On the CPU; an action takes one draw.
        """
        with evaluation(self), self._precision():
            scores = self.policy.score_actions(choices, self.normalization)
            units = self.units(choices, scores)
            index = draw(units.action_log_probs, generator)
            values, mask = self.unit_values(choices, index)
        log_probs = of_taken(units.log_probs, index, mask.shape[1])
        return Decisions(index, log_probs.masked_fill(~mask, 0), values, mask)

    @torch.no_grad()
    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` values of the prompts; what has ended has no actions, and a value too."""
        with evaluation(self), self._precision():
            states = self.policy.base_features(choices).prompt_states
            values: Tensor = self.critic(states).float()
            return values

    def unit_values(self, choices: Sequence[Choice], index: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``[N, L]`` values before each unit of the actions `index`, and their mask.

        Equal actions of equal choices are computed once.
        """
        first, kinds = distinct(list(zip(choices, index.tolist(), strict=True)))
        rows = torch.tensor(first, device=index.device)
        states, mask = self.unit_states([choices[row] for row in first], index[rows])
        values = states.new_zeros(mask.shape, dtype=torch.float32)
        values = values.masked_scatter(mask, self.critic(states[mask]).float())
        kinds = kinds.to(index.device)
        return values[kinds], mask[kinds]

    def _precision(self) -> AbstractContextManager[None]:
        """Return the trainer's autocast: rollouts are collected outside its steps."""
        plugin = self._plugin if self._trainer is None else self._trainer.precision_plugin
        return nullcontext() if plugin is None else plugin.forward_context()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process acts with: it has no trainer, and no use for a generator."""
        plugin = self._plugin if self._trainer is None else self._trainer.precision_plugin
        # A generator does not survive torch's way of sending tensors to processes.
        shuffle = self._shuffle.get_state().numpy().tobytes()
        return {**super().__getstate__(), "_plugin": plugin, "_shuffle": shuffle}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become the module of `__getstate__`."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's own
        self._shuffle = torch.Generator()
        self._shuffle.set_state(torch.frombuffer(bytearray(state["_shuffle"]), dtype=torch.uint8))

    # --- the update -----------------------------------------------------------------------------

    def training_step(self, rollout: Rollout, batch_idx: int) -> None:
        """Learn from one rollout: all its epochs and minibatches."""
        del batch_idx
        warms_up = self._begin(rollout)
        with evaluation(self):
            samples = self.samples(rollout)
            for step in update_steps(len(samples), self.ppo, self._shuffle):
                if step.network == "critic":
                    self._critic_step(samples.select(step.chunks[0]))
                elif warms_up:
                    continue
                elif self._policy_step(samples, step.chunks):
                    self._policy_steps += 1
                else:
                    self._refused_steps += 1
                    if self.ppo.on_target_kl == "stop":
                        break
        self._report(rollout, samples)

    def samples(self, rollout: Rollout) -> Samples:
        """Return a rollout's samples with their advantages and, for a penalty, the reference."""
        advantages, returns = self.assign(rollout)
        samples = Samples.of(rollout, advantages=advantages, returns=returns)
        if self.ppo.normalize_advantages == "rollout":
            samples = samples.normalized(self.ppo)
        if self.ppo.kl_coef > 0:
            samples = replace(samples, ref_log_probs=self._reference_log_probs(samples))
        return samples

    @torch.no_grad()
    def _reference_log_probs(self, samples: Samples) -> Tensor:
        """Return ``[N, L]`` log-probs of the units under the policy that training began with."""
        first, kinds = distinct(samples.choices)
        choices = [samples.choices[row] for row in first]
        with self.policy.reference():
            scores = self.policy.score_actions(choices, self.normalization)
        log_probs = self.units(choices, scores).log_probs[kinds.to(samples.index.device)]
        return of_taken(log_probs, samples.index, samples.mask.shape[1])

    def policy_losses(self, samples: Samples) -> PolicyLosses:
        """Return the policy's loss on samples that are scored together."""
        scores = self.policy.score_actions(
            samples.choices, self.normalization, entropies=self.asks_entropies
        )
        self._means.add_number("list_mass", list_mass(scores))
        return policy_losses(self.units(samples.choices, scores), samples, self.ppo)

    def _policy_step(self, samples: Samples, chunks: Sequence[Tensor]) -> bool:
        """Add up the chunks' gradients and take a step, unless the policy has moved too far."""
        optimizer = self._optimizers()[0]
        optimizer.zero_grad()
        found: list[tuple[PolicyLosses, float]] = []
        target, moved = self.ppo.target_kl or math.inf, 0.0
        for part, weight in weighted_passes(samples, chunks, self.ppo):
            with torch.set_grad_enabled(moved <= target):
                losses = self.policy_losses(part)
            self._check_finite("policy's loss", losses.loss, part)
            moved += float(losses.approx_kl) * weight  # no part of it is below 0
            if moved <= target:
                self.manual_backward(losses.loss * weight)
            found.append((losses._replace(loss=losses.loss.detach()), weight))
        self._note(step_metrics(found))
        if moved > target:
            optimizer.zero_grad()
            return False
        self._clip_and_step("grad_norm", optimizer, samples)
        self.policy.parameters_changed()
        return True

    def _note(self, metrics: dict[str, Tensor]) -> None:
        """Add a policy step's metrics to the means; the ratio's error is that of the first step."""
        ratio_error = metrics.pop("ratio_error")
        if not self._means.has("first_ratio_error"):
            self._means.add_number("first_ratio_error", ratio_error)
        for name, value in metrics.items():
            self._means.add_number(name, value)

    def _critic_step(self, samples: Samples) -> None:
        """Take one step of the critic."""
        optimizer = self._optimizers()[1]
        optimizer.zero_grad()
        values, _ = self.unit_values(samples.choices, samples.index)
        loss = self.critic_loss(fitted(values, samples.mask.shape[1]), samples)
        self._check_finite("critic's loss", loss, samples)
        self.manual_backward(self.ppo.value_coef * loss)
        self._clip_and_step("critic_grad_norm", optimizer, samples)

    def critic_loss(self, values: Tensor, samples: Samples) -> Tensor:
        """Return the scalar loss of the samples' ``[N, L]`` values."""
        found = value_loss(
            values=values,
            old_values=samples.values,
            returns=samples.returns,
            mask=samples.mask,
            clip_epsilon=self.ppo.value_clip,
            reduction=self.ppo.reduction,
        )
        self._means.add_number("value_loss", found.loss.detach())
        self._means.add_number("value_clip_fraction", found.clip_fraction)
        return found.loss

    def _clip_and_step(self, name: str, optimizer: LightningOptimizer, samples: Samples) -> None:
        """Clip the norm of the optimizer's own gradients, and take its step."""
        own = [p for group in optimizer.param_groups for p in group["params"]]
        norm = gradient_norm(own)
        self._check_finite(f"norm of the {name.removesuffix('_norm')}ient", norm, samples)
        clip_gradients(own, norm, bound=self.ppo.max_grad_norm)
        self._means.add_number(name, norm)
        optimizer.step()

    def _check_finite(self, what: str, value: Tensor, samples: Samples) -> None:
        """Stop at a number that is not finite; the choices are kept."""
        expect_finite_choices(
            self, value, what=what, step=self._num_frames, choices=samples.choices
        )

    def _optimizers(self) -> tuple[LightningOptimizer, LightningOptimizer]:
        """Return the policy's optimizer and the critic's."""
        policy, critic = cast("list[LightningOptimizer]", self.optimizers())
        return policy, critic

    def _begin(self, rollout: Rollout) -> bool:
        """Set the learning rates; tell whether the critic is still being warmed up."""
        num_warm_up = self.ppo.warm_up_frames // rollout.num_steps
        scale = 1.0
        if self.ppo.anneal:
            scale = annealing_factor(
                update=rollout.number, num_updates=rollout.num_rollouts, num_warm_up=num_warm_up
            )
        rates = (self.ppo.lr * scale, self.ppo.critic_lr * scale)
        for optimizer, lr in zip(self._optimizers(), rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr
        self._policy_steps = self._refused_steps = 0
        self._num_frames = (rollout.number + 1) * rollout.num_steps
        return rollout.number < num_warm_up

    def _report(self, rollout: Rollout, samples: Samples) -> None:
        """Log what was collected and what the update did."""
        policy, critic = self._optimizers()
        metrics = {
            **self._means.take(),
            **rollout_metrics(rollout),
            **value_metrics(samples),
            "train/policy_steps": float(self._policy_steps),
            "train/refused_steps": float(self._refused_steps),
            "train/lr": float(policy.param_groups[0]["lr"]),
            "train/critic_lr": float(critic.param_groups[0]["lr"]),
        }
        self.log_dict(metrics, batch_size=1)

    # --- Lightning ------------------------------------------------------------------------------

    def trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters that train, by name."""
        return trained_parameters(self)

    def setup(self, stage: str) -> None:
        """Check that something trains, in one process, and seed the order of the samples."""
        if stage != "fit":
            return
        check_collecting_trainer(self.trainer, type(self).__name__)
        expect_trained(self.policy)
        if self.trainer.world_size > 1:
            raise UserError(
                f"{type(self).__name__} trains in one process, the trainer has "
                f"{self.trainer.world_size}: set `trainer.devices: 1` and give the data more "
                "worlds instead"
            )
        data = getattr(self.trainer, "datamodule", None)
        of_data = getattr(data, "warm_up_frames", self.ppo.warm_up_frames)
        if of_data != self.ppo.warm_up_frames:
            raise UserError(
                f"expected the data's `warm_up_frames` and `ppo.warm_up_frames` to be equal, got "
                f"{of_data} and {self.ppo.warm_up_frames}"
            )
        self._shuffle.manual_seed(torch.initial_seed())

    def policy_parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield what the policy's optimizer moves."""
        for _, parameter in self.policy.trainable_parameters():
            yield parameter

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the policy's optimizer and the critic's, without a common parameter."""
        config = self.ppo
        policy = build_optimizer(
            config.optimizer,
            list(self.policy_parameters()),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        critic = build_optimizer(
            "adamw",
            self.critic.parameters(),
            lr=config.critic_lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=0.0,
        )
        return [policy, critic]

    def save_settings(self, **values: object) -> None:
        """Record a method's plain values, and the shared settings, as hyper-parameters."""
        self.save_hyperparameters({"base": self.policy.base, "ppo": asdict(self.ppo), **values})

    def save_pretrained(self, folder: Path | str) -> None:
        """Write adapter, critic and what acting depends on to `folder`."""
        self.policy.save_adapter(folder)
        save_head(self.critic, folder, CRITIC)
        write_agent(
            folder,
            method=type(self).__name__,
            options=self.description(),
            base=self.policy.base,
            revision=self.policy.revision,
        )

    def on_fit_end(self) -> None:
        """Say which weights there are: those of the last update."""
        self.outcome = {"kept": "last", "step": self._num_frames}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what trains, drop the base; add what makes a resumed run continue alike."""
        keep_weights(checkpoint, self.trainable())
        checkpoint[STATE_KEY] = {
            "shuffle": self._shuffle.get_state(),
            "frames": self._num_frames,
            "computed": self.policy.scorer.computed_groups(self.policy.parameter_version),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of this agent; restore what `on_save_checkpoint` added."""
        state = own_state(
            checkpoint,
            *("shuffle", "frames", "computed"),
            writer="a run of an online method",
            instead=", or give an adapter as `policy.adapter`",
        )
        expect_weights(checkpoint, self.trainable(), owner="agent")
        self._shuffle.set_state(state["shuffle"].cpu())
        self._num_frames = int(state["frames"])
        self._computed = state["computed"]
        self.policy.parameters_changed()

    def on_train_start(self) -> None:
        """Compute again what an interrupted run knew, so that not even rounding differs."""
        policy, computed, self._computed = self.policy, self._computed, None
        if computed is not None:
            contexts: dict[str, Callable[[], AbstractContextManager[None]]] = {
                "policy": nullcontext,
                "reference": policy.reference,
                "base": policy.without_adapters,
            }
            with evaluation(self), self._precision():
                policy.scorer.compute_again(computed, contexts, policy.parameter_version)
