"""What the methods that learn from fixed data share: from preparation to the best adapter.

A method fills two hooks: `losses` (a batch's loss and its named parts) and `prepare` (what it needs
to know of the reference before training, and the share of the budget that it takes). `max_steps`
and `val_check_interval` of the trainer count **optimizer steps** here, whatever is accumulated.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.methods.best_weights import BestWeights, copy_into, swapped, worse_than_reference
from llm_agents.methods.checkpoint_content import STATE_KEY, expect_weights, keep_weights, own_state
from llm_agents.methods.content_cache import (
    ContentCache,
    expect_reference,
    reference_key,
    reference_record,
    tensors_digest,
)
from llm_agents.methods.non_finite import expect_finite_rows
from llm_agents.methods.optimizer_steps import gradient_norm, log_step, scheduled_optimizer
from llm_agents.methods.pieces import Pieces
from llm_agents.methods.preparation import Reference, fill_trunk_cache, rank_zero_first
from llm_agents.methods.random_state import RandomState
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.methods.step_means import Losses, StepMeans
from llm_agents.methods.trainer_budget import TrainerBudget, check_precision, epoch_steps
from llm_agents.methods.validation import (
    Answers,
    Scores,
    answer,
    expect_reward,
    score,
    score_metrics,
    unfinished_answers,
    validation_batches,
)
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.bundled import cache_folder
from llm_agents.policies.modes import evaluation
from llm_agents.policies.trained import expect_trained, trained_parameters
from llm_agents.types import (
    GenerationConfig,
    OfflineSource,
    PromptBatch,
    RankedBatch,
    Reward,
    ScoredBatch,
)

_logger = logging.getLogger(__name__)

OfflineBatch = ScoredBatch | RankedBatch
Layout = Literal["prompts", "scored", "ranked"]


class OfflineModule(LightningModule):
    """Trains a policy's adapter on fixed data and keeps the best by the reward of its answers.

    Args:
        policy: What is trained; its reference is the policy as it was given.
        reward: Scores answers to the validation prompts; None validates by the negative
            log-likelihood of the preferred responses.
        optimizer: How parameters are updated.
        generation: How validation answers are generated.
        options: Settings that all offline methods share.

    Attributes:
        best: The best weights so far and their score.
        reference_scores: What `reward` says about the reference's answers.
        outcome: After a run: which weights were kept, of which step, and their score.
        total_steps: Optimizer steps of the run, scaled by the share of data that is left.
    """

    batch_layout: Literal["scored", "ranked"] = "scored"
    has_reference_score = True
    takes_rewards = False
    can_move_reference = False
    reads_table = True
    """Whether training passes go over the data's own responses."""

    def __init__(
        self,
        policy: LanguagePolicy,
        reward: Reward | None,
        optimizer: OptimizerConfig | None = None,
        generation: GenerationConfig | None = None,
        options: OfflineOptions | None = None,
    ) -> None:
        super().__init__()
        self.strict_loading = False  # `on_load_checkpoint` checks what trains; the base isn't saved
        self.policy = policy
        expect_reward(reward)
        self._reward = (reward,)  # no submodule: it neither trains nor belongs in checkpoints
        self.optimizer = optimizer or OptimizerConfig()
        self.generation = generation or GenerationConfig()
        self.options = options or OfflineOptions()
        if self.options.training_rewards == "scored" and not self.takes_rewards:
            raise UserError(
                f"{type(self).__name__} takes no rewards from a model: leave "
                "`options.training_rewards` out"
            )
        if self.options.if_none_better == "reference" and not self.has_reference_score:
            raise UserError(
                f"{type(self).__name__} has no reference to fall back to: leave "
                "`options.if_none_better` out"
            )
        if self.options.move_reference is not None and not (self.can_move_reference and reward):
            raise UserError(
                f"{type(self).__name__} can't move its reference"
                f"{'' if reward else ' without a `reward`'}: leave `options.move_reference` out"
            )
        self.best = BestWeights()
        self.reference_scores: Scores | None = None
        self.outcome: dict[str, float | int | str] = {}
        self.total_steps = 0
        self._reference_key: dict[str, str] = {}
        self._start: dict[str, Tensor] = {}
        self._budget: TrainerBudget | None = None
        self._resumed: dict[str, Any] | None = None
        self._rng: RandomState | None = None
        self._rng_is_stale = False
        self._last_rows: list[int] = []
        self._means = StepMeans()
        self._validated: list[Any] = []
        self._validated_step = -1
        self._bar: float | None = None
        self._pieces: Pieces | None = None
        self._moved = BestWeights()  # the reference, once it is no longer the start

    # --- what a method fills in -----------------------------------------------------------------

    def losses(self, batch: Any) -> Losses:  # noqa: ANN401  (each method has its own layout)
        """Return the batch's loss and its parts."""
        raise NotImplementedError

    def prepare(self, reference: Reference) -> float:
        """Learn what training needs of the reference; return the share of the budget to take."""
        del reference
        return 1.0

    # --- what methods use -----------------------------------------------------------------------

    @property
    def steps_per_batch(self) -> int:
        """Return the optimizer steps that the method takes by itself on each batch."""
        return 1

    @property
    def reward(self) -> Reward | None:
        """Return the judge of the validation answers."""
        return self._reward[0]

    @property
    def validation_layout(self) -> Layout:
        """Return what the data's validation batches are to be."""
        return "prompts" if self.reward is not None else "scored"

    @property
    def clean(self) -> Callable[[str], str]:
        """Return what turns generated text into an answer: the data's rule, if it has one."""
        found: Callable[[str], str] = getattr(self.source(), "clean_response", str.strip)
        return found

    def source(self) -> OfflineSource | None:
        """Return the trainer's data module, if it has one."""
        return cast("OfflineSource | None", getattr(self.trainer, "datamodule", None))

    def trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters that train, by name."""
        return trained_parameters(self)

    def num_batches(self, share: float) -> int:
        """Return the batches that `share` of the trainer's budget takes on each process."""
        budget = self._budget or self._asked_budget()
        return budget.num_steps(share) * int(self.trainer.accumulate_grad_batches)

    def _asked_budget(self) -> TrainerBudget:
        """Return the budget in optimizer steps, however it was asked for."""
        if (epochs := self.options.epochs) is None:
            return TrainerBudget.of(self.trainer)
        steps = epoch_steps(self.source(), self.trainer, self.steps_per_batch)
        return TrainerBudget.of(self.trainer, epochs * steps)

    def log_now(self, metrics: dict[str, float]) -> None:
        """Hand metrics to the loggers where `self.log` may not be called."""
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, step=self.trainer.global_step)

    def save_settings(self, **values: object) -> None:
        """Record a method's plain values, and the shared settings, as hyper-parameters."""
        shared = {
            "base": self.policy.base,
            "reward": None if self.reward is None else self.reward.name,
            "optimizer": asdict(self.optimizer),
            "generation": asdict(self.generation),
            "options": asdict(self.options),
        }
        self.save_hyperparameters({**shared, **values})

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the adapter to `folder`, as PEFT does, and heads beside it."""
        self.policy.save_adapter(folder)

    # --- before the first step ------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Record what the policy is before a checkpoint or training changes it."""
        if stage != "fit":
            return
        check_precision(self.trainer.precision)
        self._reference_key = reference_key(self.policy)
        self._start = {name: p.detach().cpu().clone() for name, p in self.trainable()}
        expect_trained(self)

    def configure_optimizers(self) -> Any:  # noqa: ANN401  (Lightning's own loose type)
        """Return the optimizer over everything trainable, and its schedule by optimizer steps."""
        parameters = (parameter for _, parameter in self.trainable())
        return scheduled_optimizer(self.optimizer, parameters, lambda: self.total_steps)

    def on_fit_start(self) -> None:
        """Ask the reference what training needs to know, and set the budget."""
        if self._resumed is not None:
            expect_reference(self._resumed, self._reference_key)
        self._budget = self._asked_budget()
        with isolate_rng(), rank_zero_first(self.trainer):
            # A resumed policy has moved already, and the reference may be the policy at its start.
            with nullcontext() if self._resumed is None else swapped(self.trainable, self._start):
                share = self._prepare()
            if self._moved.weights is not None:
                with swapped(self.trainable, self._moved.weights):
                    self._prepare(is_moved=True)
        self.total_steps = self._budget.apply(self.trainer, share, self.steps_per_batch)
        self.trainer.num_sanity_val_steps = 0  # the reference has shown that validation works

    def _prepare(self, *, is_moved: bool = False) -> float:
        """Ask the reference, which may be the policy as it is; return the share of the budget."""
        source = self.source()
        if source is None:
            if type(self).prepare is not OfflineModule.prepare:
                raise UserError(
                    f"{type(self).__name__} looks at all training data before it starts: give the "
                    "trainer a data module such as HHAData, not a bare loader"
                )
            return 1.0
        if self.reads_table:
            fill_trunk_cache(self.policy, source, self.options.tokens_per_batch)
        folder = Path(self.options.cache) if self.options.cache else cache_folder() / "reference"
        key = {**self._reference_key, "precision": str(self.trainer.precision)}
        if is_moved:
            key["moved"] = tensors_digest(sorted(self.trainable()))
        reference = Reference(
            policy=self.policy,
            source=source,
            cache=ContentCache(folder),
            key=key,
            tokens_per_batch=self.options.tokens_per_batch,
            autocast=self.trainer.precision_plugin.forward_context,
            is_moved=is_moved,
        )
        if self.reward is not None and self.trainer.enable_validation and reference.has_prompts():
            self.reference_scores = reference.validation_scores(
                self.reward, self.generation, self.clean
            )
        return self.prepare(reference)

    def on_train_start(self) -> None:
        """Score the reference at step 0; catch up on a validation that a kill prevented."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self._score_reference()
        elif self._validation_is_due():
            with isolate_rng(), evaluation(self), torch.no_grad():
                self.on_validation_start()
                self._validated = [self.validate(batch) for batch in validation_batches(self)]
                self.log_now(self._conclude_validation())

    def _score_reference(self) -> None:
        """Set the bar that a validation has to beat."""
        if not self.trainer.enable_validation or not self.has_reference_score:
            return
        if self.reference_scores is not None:
            bar = self.reference_scores.mean(self.options.select_by)
            metrics = score_metrics(self.reference_scores)
            metrics["val/reference_reward"] = metrics["val/reward"]
        elif self.reward is None:
            with isolate_rng(), evaluation(self), torch.no_grad(), self.policy.reference():
                parts = [self.validate(batch) for batch in validation_batches(self)]
            if not parts:
                return
            metrics, bar = self.summarize(parts)
        else:
            return
        self.best = BestWeights(score=bar)
        self.log_now(metrics)

    def _validation_is_due(self) -> bool:
        """Tell whether the checkpoint was written between a step and its validation."""
        interval, step = self.trainer.val_check_interval, self.trainer.global_step
        if not self.trainer.enable_validation or not isinstance(interval, int) or step < 1:
            return False
        batches = step * self.trainer.accumulate_grad_batches // self.steps_per_batch
        return bool(batches % interval == 0 and self._validated_step < step)

    # --- training -------------------------------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        """Keep what a loader draws at its start out of the random numbers of training."""
        self._rng_is_stale = self._rng is not None

    def on_train_batch_start(self, batch: OfflineBatch, batch_idx: int) -> None:
        """Continue the random numbers where the last training step left them."""
        del batch, batch_idx
        if self._rng_is_stale and self._rng is not None:
            self._rng.restore(self.device)
        self._rng_is_stale = False

    def training_step(self, batch: OfflineBatch, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        del batch_idx
        self._last_rows = batch.tokens.rows.tolist()
        losses = self.losses(batch)
        self._check_finite("loss", losses.loss)
        self._means.add(losses, batch.tokens)
        self._rng = RandomState.capture(self.device)
        return losses.loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the means over the batches of this optimizer step."""
        norm = gradient_norm(parameter for _, parameter in self.trainable())
        self._check_finite("norm of the gradients", norm)
        self._means.add_number("grad_norm", norm)
        log_step(self, self._means, optimizer)

    def _check_finite(self, what: str, value: Tensor) -> None:
        """Stop at a number that is not finite; the rows of the last batch are kept."""
        expect_finite_rows(self, value, what=what, rows=self._last_rows)

    # --- validation -----------------------------------------------------------------------------

    def validate(self, batch: Any) -> Any:  # noqa: ANN401  (each layout has its own)
        """Return what validation needs of one batch."""
        if isinstance(batch, PromptBatch):
            if self.reward is None:
                raise UserError(
                    "validation prompts come without responses and there is no `reward` to judge "
                    "answers: name `model.reward`, or leave `data.validation` out"
                )
            return answer(self.policy, [batch], self.generation, self.clean, self._pieces)
        return -self.policy.sequence_log_probs(batch.tokens).cpu()

    def summarize(self, parts: list[Any]) -> tuple[dict[str, float], float]:
        """Return metrics over all validation batches, and the score that is to rise."""
        if self.reward is None:
            nll = float(torch.cat(parts).double().mean())
            return {"val/nll": nll}, -nll
        scores = score(Answers.join(parts), self.reward)
        metrics = score_metrics(scores)
        if self.reference_scores is not None:
            same = self.reference_scores.select(scores.rows)
            metrics["val/reference_reward"] = float(same.rewards.mean())
            self._bar = same.mean(self.options.select_by)  # of the prompts that were answered
        return metrics, scores.mean(self.options.select_by)

    def on_validation_start(self) -> None:
        """Begin a validation; the random numbers of training wait."""
        self._validated, self._rng_is_stale = [], True
        if self.trainer.state.fn == "fit":
            self._pieces = unfinished_answers(self, self._reference_key)

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """Look at one validation batch."""
        del batch_idx
        self._validated.append(self.validate(batch))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics, and keep the weights if they are the best so far."""
        if self._validated:
            self.log_dict(self._conclude_validation(), batch_size=1)

    def _conclude_validation(self) -> dict[str, float]:
        """Return the metrics of the batches seen; offer the weights."""
        metrics, found = self.summarize(self._validated)
        self._validated = []
        metrics = {name: self._over_processes(value) for name, value in metrics.items()}
        found = self._over_processes(found)
        bar = None if self._bar is None else self._over_processes(self._bar)
        if bar is not None and self.best.weights is None and self._moved.weights is None:
            self.best.score = bar
        if self.trainer.state.fn == "fit":
            self._validated_step = self.trainer.global_step
            self.best.offer(found, self.trainer.global_step, self.trainable())
            least = self.options.move_reference
            if least is not None and bar is not None and found > bar + least:
                self._move_reference(found)
                metrics["val/reference_moved"] = 1.0
        return metrics

    def _move_reference(self, score: float) -> None:
        """Let the policy as it is be the reference, and learn anew what training needs of it."""
        self._moved = BestWeights()
        self._moved.offer(score, self.trainer.global_step, self.trainable())
        # Validation is in inference mode, whose tensors no training step may save for its gradient.
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            isolate_rng(),
            rank_zero_first(self.trainer),
        ):
            self._prepare(is_moved=True)
        _logger.info("step %d: the policy is the reference now", self.trainer.global_step)

    def _over_processes(self, value: float) -> float:
        """Return the mean over processes; each has equally many validation rows."""
        tensor = torch.tensor(value, device=self.device)
        return float(self.trainer.strategy.reduce(tensor, reduce_op="mean"))

    # --- after the last step --------------------------------------------------------------------

    def on_fit_end(self) -> None:
        """Put the best weights in place and say which they are."""
        self._put_back_budget()
        if self._pieces is not None:
            self._pieces.discard()
        kept, step = "last", self.trainer.global_step
        if self.best.weights is not None:
            kept, step = "best", self.best.step
            copy_into(self.trainable(), self.best.weights)
        elif self._validated_step < 0:
            kept = "last, as nothing was validated"
        elif self.options.if_none_better == "reference":
            kept, step = "reference, as nothing was better", 0
            copy_into(self.trainable(), self._start)
        else:
            kept = "last, though nothing was better than the reference"
        self.outcome = {"kept": kept, "step": step, "best_score": self.best.score}
        if kept.endswith("than the reference"):
            self.outcome["warning"] = worse_than_reference(self.best.score)
        if math.isfinite(self.best.score):
            self.log_now({"best/step": float(step), "best/score": self.best.score})
        if kept != "best":
            _logger.warning("weights kept: %s", kept)

    def on_exception(self, exception: BaseException) -> None:
        """Leave the trainer as it was made."""
        del exception
        self._put_back_budget()

    def _put_back_budget(self) -> None:
        """Give the trainer back its own settings."""
        if self._budget is not None:
            self._budget.restore(self.trainer)
            self._budget = None

    # --- checkpoints ----------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what trains, drop the base; add what makes a resumed run continue alike."""
        keep_weights(checkpoint, self.trainable())
        checkpoint[STATE_KEY] = {
            **reference_record(self._reference_key),
            "rng": None if self._rng is None else self._rng.state_dict(),
            "best": self.best.save(self._folder("best"), writes=self.trainer.is_global_zero),
            "moved": self._moved.save(self._folder("moved"), writes=self.trainer.is_global_zero),
            "validated_step": self._validated_step,
        }

    def _folder(self, kind: str) -> Path:
        """Return where weights lie that checkpoints name: the best, or a reference that moved."""
        return Path(self.trainer.default_root_dir) / f"{kind}_weights"

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of this policy; restore what `on_save_checkpoint` added."""
        state = own_state(
            checkpoint,
            "reference",
            writer="a run of an offline method",
            instead=", or give an adapter as `policy.adapter`",
        )
        expect_weights(checkpoint, self.trainable(), owner="policy")
        self._resumed = state
        self.best = BestWeights.load(state["best"], self._folder("best"))
        if "moved" in state:  # checkpoints from before references moved hold none
            self._moved = BestWeights.load(state["moved"], self._folder("moved"))
        self._validated_step = int(state["validated_step"])
        if state["rng"] is not None:
            self._rng, self._rng_is_stale = RandomState(**state["rng"]), True
