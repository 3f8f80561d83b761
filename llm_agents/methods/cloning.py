"""Behavioural cloning: a language model that does what somebody did; GLAM's comparison with RL.

Carta et al., ICML 2023 (arXiv 2302.02662), BC-GFlan-T5 and BC-Bot: the trajectories are those of a
trained agent or of a perfect player.

Equation → function (``llm_agents.functional``):

- ``tokens``: −Σ_j log P(w_j | prompt, w_<j), mean over the tokens of the actions taken, as in the
  paper → `gather` of `ActionScores.chosen`
- ``list``: −log π(a | prompt) among the offered actions, mean over steps → `list_log_probs`

Differs from the authors' code: actions end without an end token, here as where they are scored, so
that what is learnt is what acts; no padding counts; episodes are shuffled; the list loss is new.

    lightning run recipes/cloning_babyai_go_to_local.yaml
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.functional.action_scores import Normalization, list_log_mass, list_log_probs
from llm_agents.methods.agent_folder import write_agent
from llm_agents.methods.checkpoint_content import expect_weights, keep_weights
from llm_agents.methods.non_finite import expect_finite_choices
from llm_agents.methods.optimizer_steps import scheduled_optimizer
from llm_agents.methods.settings import OptimizerConfig
from llm_agents.methods.trainer_budget import check_precision
from llm_agents.methods.whole_actions import decide
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.modes import evaluation
from llm_agents.policies.trained import expect_trained, trained_parameters
from llm_agents.types import Choice, Decisions, Demonstrations

ClonedLoss = Literal["list", "tokens", "both"]


class CloningLosses(NamedTuple):
    """The losses of a batch.

    Args:
        loss: Scalar to minimize.
        token_nll: Mean over the tokens of the actions taken.
        list_nll: Mean over steps, among the offered actions.
        accuracy: Share of the steps whose action is the most probable one.
        list_mass: Probability that the model would say an offered action at all.
        num_tokens: Tokens that the mean of `token_nll` is over.
    """

    loss: Tensor
    token_nll: Tensor
    list_nll: Tensor
    accuracy: Tensor
    list_mass: Tensor
    num_tokens: Tensor


class Cloning(LightningModule):
    """Teaches a policy to do what was done.

    Args:
        policy: What learns; its adapter, or all of it.
        loss: ``list``: the action among those offered, which is what acts afterwards; ``tokens``:
            its words among all words, as in the paper; ``both``: their sum.
        normalization: Length that an action's log-prob is divided by where actions are compared.
        optimizer: How parameters are updated.

    Attributes:
        outcome: After a run: which weights were kept, of which step, and how good they were.
    """

    def __init__(
        self,
        policy: LanguagePolicy,
        loss: ClonedLoss = "list",
        normalization: Normalization = "sum",
        optimizer: OptimizerConfig | None = None,
    ) -> None:
        super().__init__()
        self.strict_loading = False  # `on_load_checkpoint` checks what trains; the base isn't saved
        if loss not in ("list", "tokens", "both"):
            raise UserError(f"expected `loss` list, tokens or both, got {loss!r}")
        self.policy, self.loss, self.normalization = policy, loss, normalization
        self.optimizer = optimizer or OptimizerConfig()
        self.outcome: dict[str, float | int | str] = {}
        self._validated: list[tuple[CloningLosses, int]] = []
        self.save_hyperparameters(
            {
                "base": policy.base,
                "loss": loss,
                "normalization": normalization,
                "optimizer": asdict(self.optimizer),
            }
        )

    # --- the agent ------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Draw an action for each choice from the softmax over its list.

        Args:
            choices: E choices with at least one action each.
            generator: On the CPU; an action takes one draw.
        """
        with evaluation(self):
            log_probs = self.policy.score_actions(choices, self.normalization).log_probs()
        return decide(log_probs, self.state_values(choices).to(log_probs.device), generator)

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` zeros: nothing has been learnt of values."""
        return torch.zeros(len(choices))

    # --- training -------------------------------------------------------------------------------

    def losses(self, batch: Demonstrations) -> CloningLosses:
        """Return the losses of a batch; only the first carries a gradient."""
        scores = self.policy.score_actions(batch.choices, self.normalization)
        index = batch.index.to(scores.scores.device)
        chosen = scores.chosen(index)
        token_nll = -chosen.log_probs.sum() / chosen.mask.sum()
        log_probs = list_log_probs(scores.scores, scores.mask)
        list_nll = -log_probs.gather(1, index[:, None]).mean()
        parts = {"list": list_nll, "tokens": token_nll, "both": list_nll + token_nll}
        mass = list_log_mass(scores.token_log_probs.detach(), scores.token_mask).exp()
        return CloningLosses(
            loss=parts[self.loss],
            token_nll=token_nll.detach(),
            list_nll=list_nll.detach(),
            accuracy=(log_probs.argmax(-1) == index).float().mean(),
            list_mass=mass.mean(),
            num_tokens=chosen.mask.sum(),
        )

    def training_step(self, batch: Demonstrations, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        del batch_idx
        losses = self.losses(batch)
        expect_finite_choices(
            self, losses.loss, what="loss", step=self.global_step, choices=batch.choices
        )
        self.log("loss", losses.loss.detach(), prog_bar=True, logger=False, batch_size=len(batch))
        self.log_dict(_named(losses, "train"), batch_size=len(batch))
        return losses.loss

    def on_validation_epoch_start(self) -> None:
        """Forget the last validation."""
        self._validated = []

    def validation_step(self, batch: Demonstrations, batch_idx: int) -> None:
        """Keep the losses of held-out steps."""
        del batch_idx
        with evaluation(self):
            self._validated.append((self.losses(batch), len(batch)))

    def on_validation_epoch_end(self) -> None:
        """Log the means over all held-out steps, however they were cut into batches."""
        if not self._validated:
            return
        steps = torch.tensor([float(count) for _, count in self._validated])
        tokens = torch.stack([losses.num_tokens for losses, _ in self._validated]).cpu()
        found = {}
        for name in ("token_nll", "list_nll", "accuracy", "list_mass"):
            weights = tokens if name == "token_nll" else steps
            parts = torch.stack([getattr(losses, name) for losses, _ in self._validated]).cpu()
            found[f"val/{name}"] = float((parts * weights).sum() / weights.sum())
        self.log_dict(found, sync_dist=True)
        self.outcome = {name.replace("/", "_"): value for name, value in found.items()}

    # --- Lightning ------------------------------------------------------------------------------

    def trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters that train, by name."""
        return trained_parameters(self)

    def setup(self, stage: str) -> None:
        """Check that something trains, and in which precision."""
        if stage == "fit":
            check_precision(self.trainer.precision)
            expect_trained(self)

    def configure_optimizers(self) -> Any:  # noqa: ANN401  (Lightning's own loose type)
        """Return the optimizer, and its schedule by optimizer steps."""
        parameters = (parameter for _, parameter in self.trainable())
        return scheduled_optimizer(
            self.optimizer, parameters, lambda: int(self.trainer.estimated_stepping_batches)
        )

    def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Tell the policy that its weights have changed."""
        del optimizer
        self.policy.parameters_changed()

    def description(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on."""
        return {"normalization": self.normalization}

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the adapter, or all of the model, and what acting depends on to `folder`."""
        self.policy.save_adapter(folder)
        write_agent(
            folder,
            method=type(self).__name__,
            options=self.description(),
            base=self.policy.base,
            revision=self.policy.revision,
        )

    def on_fit_end(self) -> None:
        """Say which weights there are: those of the last step."""
        self.outcome = {**self.outcome, "kept": "last", "step": self.trainer.global_step}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what trains, drop the base."""
        keep_weights(checkpoint, self.trainable())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of this policy."""
        expect_weights(checkpoint, self.trainable(), owner="policy")
        self.policy.parameters_changed()


def _named(losses: CloningLosses, part: str) -> dict[str, Tensor]:
    """Return the losses by their names in the log."""
    names = ("loss", "token_nll", "list_nll", "accuracy", "list_mass")
    return {f"{part}/{name}": getattr(losses, name).detach() for name in names}
