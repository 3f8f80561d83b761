"""The data module of offline methods: any readable source as scored, ranked and prompt batches."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from lightning import LightningDataModule
from torch import Tensor

from llm_agents.data.base import DropReport, Example, save_reports
from llm_agents.data.encoding import (
    PromptTable,
    ResponseTable,
    SplitEncoder,
    TextEncoder,
    TextLimits,
    Truncation,
    encode_prompts,
    encode_responses,
)
from llm_agents.data.reading import Sources, shown
from llm_agents.data.sampling import StepSampler, StepShape
from llm_agents.data.selection import (
    PromptSplit,
    RowRules,
    clean,
    limit,
    order_responses,
    require_pairs,
)
from llm_agents.data.source_parts import Paragraphs, SourceParts
from llm_agents.data.streams import (
    BatchStream,
    EvaluationBatch,
    EvaluationStream,
    ranked_batch,
    scored_batch,
)
from llm_agents.data.templates import Template, strip_generated
from llm_agents.errors import UserError
from llm_agents.types import Prompt, PromptBatch, RankedBatch, ScoredBatch, TokenBatch

Layout = Literal["scored", "ranked"]
EvaluationLayout = Literal["prompts", "scored", "ranked"]

_logger = logging.getLogger(__name__)


class OfflineDataModule(LightningDataModule):
    """Dialogues with answers and, if known, their rewards; also an `OfflineSource`.

    Everything is tokenized once, by the policy of the module in training or by `connect`'s.
    The module says which batches it wants: its ``batch_layout`` is ``scored`` (a response a row) or
    ``ranked`` (all responses of a prompt), its ``validation_layout`` may also be ``prompts``
    (nothing but prompts to answer), which it is by default.

    Args:
        train: Training data: ``sample``, a JSON-lines file, a Hub id, or a list of these; in Python
            also rows: a list of dicts, a ``datasets.Dataset`` or ``DatasetDict``.
        validation: Prompts to answer during training; ``held_out`` takes those held out of `train`.
        test: Test sets, each evaluated by itself; ``held_out`` as in `validation`.
        template: How dialogues are written out.
        max_prompt_tokens: Longest prompt; None leaves it to the model's window.
        max_response_tokens: Longest response; a longer one loses its end and its end token.
        truncation: What a long prompt loses: its left end, or its oldest turns.
        append_eos: End responses with the end token, so that stopping is learnt.
        batch_size: Rows (scored) or prompts (ranked) of a micro-batch.
        eval_batch_size: Prompts of a validation or test batch.
        reward_transform: Whether stored rewards are logits that a sigmoid brings to the objective's
            range; ranked batches have them as stored.
        reward_range: Lowest and highest reward after the transform; None checks nothing.
        drop_colon: Leave out training rows where any response ends with ":", cut off before a list.
        split_by_prompt: Hold prompts of `train` out; None trains on all, but for a tenth each for
            what asks for ``held_out``.
        rules: What becomes of malformed, unfit and long rows.
        seed: Decides the order of the data; None takes the run's `seed_everything`, else 0.
    """

    samples: ClassVar[str] = "hha"
    """Which bundled data ``sample`` stands for."""
    replaces_samples: ClassVar[bool] = False
    """Whether ``sample`` as validation or test data gives way to ``held_out`` for own data."""
    paragraphs: ClassVar[Paragraphs] = "keep"
    """What becomes of paragraphs without a role where the rules don't say."""

    def __init__(
        self,
        train: Sources,
        validation: Sources | None = None,
        test: Sources | None = None,
        *,
        template: Template = "chat",
        max_prompt_tokens: int | None = None,
        max_response_tokens: int = 128,
        truncation: Truncation = "left",
        append_eos: bool = True,
        batch_size: int = 4,
        eval_batch_size: int = 16,
        reward_transform: Literal["sigmoid", "none"] = "none",
        reward_range: tuple[float, float] | None = None,
        drop_colon: bool = False,
        split_by_prompt: PromptSplit | None = None,
        rules: RowRules | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.sources = {"train": train, "validation": validation, "test": test}
        self.limits = TextLimits(
            template, max_prompt_tokens, max_response_tokens, truncation, append_eos
        )
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.reward_transform = reward_transform
        self.reward_range = reward_range
        self.drop_colon = drop_colon
        self.split = split_by_prompt
        self.rules = RowRules() if rules is None else rules
        self.parts = SourceParts(
            train,
            validation,
            test,
            samples=self.samples,
            rules=self.rules,
            split=split_by_prompt,
            replaces_samples=self.replaces_samples,
            paragraphs=self.paragraphs,
        )
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self.reports: dict[str, DropReport] = {}
        self._policy: TextEncoder | None = None
        self._layouts: tuple[Layout, EvaluationLayout] = ("scored", "prompts")
        self._table: ResponseTable | None = None
        self._validation: PromptTable | ResponseTable | None = None
        self._tests: dict[str, PromptTable | ResponseTable] | None = None
        self._sampling: tuple[Tensor, int] | None = None
        self._stream: BatchStream[ScoredBatch] | BatchStream[RankedBatch] | None = None

    # --- preparation

    def connect(
        self,
        policy: TextEncoder,
        layout: Layout = "scored",
        validation_layout: EvaluationLayout = "prompts",
    ) -> None:
        """Tokenize with `policy` and yield these layouts; only needed without a trainer."""
        layouts = (layout, validation_layout)
        if policy is not self._policy or layouts != self._layouts:
            self._table = self._validation = self._tests = None
        self._policy, self._layouts = policy, layouts

    def setup(self, stage: str | None = None) -> None:
        """Read and tokenize what `stage` needs (fit, validate, test), or all of it.

        Raises:
            UserError: If a source can't be read or nothing of the training data is left.
        """
        if self.trainer is not None and hasattr(self.trainer.lightning_module, "policy"):
            module = self.trainer.lightning_module
            self.connect(
                cast(TextEncoder, module.policy),
                getattr(module, "batch_layout", "scored"),
                getattr(module, "validation_layout", "prompts"),
            )
        if self._policy is None:
            raise ValueError("expected a policy: call connect(policy) before setup()")
        encoder = SplitEncoder(self._policy, self.limits)
        if stage in (None, "fit") and self._table is None:
            self._table = self._training_table(encoder)
        if stage in (None, "fit", "validate") and self._validation is None:
            self._validation = self._validation_table(encoder)
        if stage in (None, "test") and self._tests is None:
            self._tests = self._test_tables(encoder)
        self.parts.forget()  # the text lives on in the tables

    def save_report(self, path: str | Path) -> None:
        """Write what was dropped and changed, split by split, as JSON."""
        save_reports(self.reports, Path(path))

    def _training_table(self, encoder: SplitEncoder) -> ResponseTable:
        """Select and tokenize the training data."""
        examples, report = self.parts.training()
        examples = order_responses(
            clean(examples, drop_colon=self.drop_colon, report=report), self.rules, report
        )
        if self._layouts[0] == "ranked":
            examples = require_pairs(examples, self.rules, report)
        if self.rules.too_long == "drop":
            fitting = [example for example in examples if encoder.fits(example)]
            report.dropped["longer than the limits"] += len(examples) - len(fitting)
            examples = fitting
        examples = limit(examples, self.rules.max_train, report)
        if not examples:
            raise UserError(
                f"expected training data in {shown(self.sources['train'])}, but no row is left: "
                f"{report}"
            )
        table = encode_responses(examples, encoder, self._rewards(examples), report)
        if self._layouts[0] == "ranked":
            table.num_responses(shown(self.sources["train"]))
        self._note("train", report)
        return table

    def _validation_table(self, encoder: SplitEncoder) -> PromptTable | ResponseTable:
        """Select and tokenize the validation rows; none if there is no source."""
        if not self.parts.unseen("validation"):
            return encode_prompts([], encoder, DropReport())
        examples, report = self.parts.validation()
        examples = limit(examples, self.rules.max_validation, report)
        return self._evaluation_table("validation", examples, encoder, report)

    def _test_tables(self, encoder: SplitEncoder) -> dict[str, PromptTable | ResponseTable]:
        """Tokenize the rows of each test set."""
        return {
            name: self._evaluation_table(f"test/{name}", examples, encoder, report)
            for name, examples, report in self.parts.tests()
        }

    def _evaluation_table(
        self, name: str, examples: list[Example], encoder: SplitEncoder, report: DropReport
    ) -> PromptTable | ResponseTable:
        """Tokenize prompts, with their responses if these are asked for."""
        table: PromptTable | ResponseTable
        if self._layouts[1] == "prompts":
            table = encode_prompts(examples, encoder, report)
        else:
            examples = clean(examples, drop_colon=False, report=report)
            if self._layouts[1] == "ranked":
                examples = order_responses(examples, self.rules, report)
                examples = require_pairs(examples, self.rules, report)
            if not examples:
                raise UserError(
                    f"expected responses in the {name} data, but none is left: {report}"
                )
            rewards = self._rewards(examples)
            table = encode_responses(examples, encoder, rewards, report, is_training=False)
        self._note(name, report)
        return table

    def _rewards(self, examples: Sequence[Example]) -> Tensor:
        """Return the stored rewards in the objective's range, checked."""
        values: list[float] = []
        for example in examples:
            values += example.rewards or (math.nan,) * len(example.responses)
        rewards = torch.tensor(values, dtype=torch.float32)
        if self.reward_transform == "sigmoid":
            rewards = torch.sigmoid(rewards)
        if self.reward_range is None:
            return rewards
        low, high = self.reward_range
        wrong = ((rewards < low) | (rewards > high)).nonzero().flatten().tolist()
        if wrong:
            files = [example.meta["source"] for example in examples for _ in example.responses]
            mine = torch.tensor([file == files[wrong[0]] for file in files]) & ~rewards.isnan()
            known = rewards[mine]
            raise UserError(
                f"expected stored rewards from {low} to {high} in {files[wrong[0]]}, got "
                f"{float(known.min()):.4f} to {float(known.max()):.4f}: set data.reward_transform "
                "to sigmoid if they are logits, or data.reward_range to their range"
            )
        return rewards

    def _note(self, name: str, report: DropReport) -> None:
        """Keep and log a split's report."""
        self.reports[name] = report
        if self.trainer is None or self.trainer.is_global_zero:
            _logger.info("%s: %s", name, report)

    # --- loaders

    def train_dataloader(self) -> BatchStream[ScoredBatch] | BatchStream[RankedBatch]:
        """Return training batches; a stream with a state, which Lightning saves and restores."""
        table = self._training()
        weights, num_batches = self._sampling or (None, None)
        sampler = partial(
            StepSampler,
            shape=self._shape(),
            seed=self.seed,
            weights=weights,
            num_batches=num_batches,
        )
        if self._layouts[0] == "ranked":
            num_responses = table.num_responses(shown(self.sources["train"]))
            lengths = table.lengths.view(-1, num_responses).amax(1)
            raw = table.raw_rewards().view(-1, num_responses)
            self._stream = BatchStream(sampler(lengths), partial(ranked_batch, table, raw))
        else:
            rows = torch.arange(len(table))
            if weights is None and self.rules.train_on == "preferred":
                rows = table.preferred.nonzero().flatten()
            if not len(rows):
                raise UserError(
                    f"expected a response that {shown(self.sources['train'])} call good, got none: "
                    "set data.rules.train_on to all, or train an objective that weighs responses"
                )
            self._stream = BatchStream(
                sampler(table.lengths[rows]), partial(scored_batch, table, rows)
            )
        return self._stream

    def val_dataloader(
        self,
    ) -> EvaluationStream[EvaluationBatch] | list[EvaluationStream[EvaluationBatch]]:
        """Return this process's validation batches; an empty list if there is no source."""
        table = self._validated()
        return self._evaluation_stream(table) if len(table) else []

    def test_dataloader(self) -> list[EvaluationStream[EvaluationBatch]]:
        """Return this process's test batches, one stream a test set, as `test_names` names them."""
        return [self._evaluation_stream(table) for table in self._tested().values()]

    @property
    def test_sets(self) -> dict[str, PromptTable]:
        """Return the prompts of every test set by name."""
        return {name: _prompts_of(table) for name, table in self._tested().items()}

    def read_test_examples(self) -> dict[str, list[Example]]:
        """Read the test sets with their responses, by name; needs no policy and no setup."""
        return {name: examples for name, examples, _ in self.parts.tests()}

    def read_validation_examples(self) -> list[Example]:
        """Read the validation prompts with their responses; needs no policy and no setup."""
        examples, report = self.parts.validation()
        return limit(examples, self.rules.max_validation, report)

    @property
    def test_names(self) -> list[str]:
        """Return the names of the test sets, in order."""
        return list(self._tested())

    @property
    def padding_share(self) -> float:
        """Return the share of padding in the training batches so far."""
        return 0.0 if self._stream is None else self._stream.padding_share

    def clean_response(self, text: str) -> str:
        """Return a generated text as the answer alone, under the template's rules."""
        return strip_generated(text, self.limits.template)

    def _shape(self) -> StepShape:
        """Return the size of an optimizer step under the trainer."""
        if self.trainer is None:
            return StepShape(self.batch_size)
        return StepShape(
            self.batch_size,
            self.trainer.accumulate_grad_batches,
            self.trainer.global_rank,
            self.trainer.world_size,
        )

    def _evaluation_stream(
        self, table: PromptTable | ResponseTable
    ) -> EvaluationStream[EvaluationBatch]:
        """Return this process's share of a split in the layout asked for."""
        collate: Callable[[list[int]], EvaluationBatch]
        count = len(_prompts_of(table))
        if isinstance(table, PromptTable):
            collate = table.batch
        elif self._layouts[1] == "scored":
            good = table.preferred.nonzero().flatten()
            count, collate = len(good), partial(scored_batch, table, good)
        else:
            raw = table.raw_rewards().view(-1, table.num_responses("the validation or test data"))
            collate = partial(ranked_batch, table, raw)
        shape = self._shape()
        return EvaluationStream(count, collate, self.eval_batch_size, shape.rank, shape.world_size)

    # --- OfflineSource

    def table_size(self) -> int:
        """Return N, the number of training responses."""
        return len(self._training())

    def table_rewards(self) -> Tensor:
        """Return ``[N]`` float32 stored rewards in the objective's range; NaN if there are none."""
        return self._training().rewards

    def table_preferred(self) -> Tensor:
        """Return ``[N]`` bool, True = the response that the data call good."""
        return self._training().preferred

    def table_prompts(self) -> Tensor:
        """Return ``[N]`` int64, the training prompt that each response belongs to."""
        return self._training().prompt_of

    def table_texts(self) -> tuple[Sequence[Prompt], Sequence[str]]:
        """Return the N prompts and responses as text."""
        return self._training().texts()

    def table_batches(self, tokens_per_batch: int) -> Iterator[TokenBatch]:
        """Yield every training response once, longest first, at most so many tokens at a time."""
        table = self._training()
        for rows in table.by_length(tokens_per_batch):
            yield table.batch(rows)

    def validation_batches(self, batch_size: int) -> Iterator[PromptBatch]:
        """Yield all validation prompts once, in order, whatever the process."""
        table = _prompts_of(self._validated())
        yield from EvaluationStream(len(table), table.batch, batch_size)

    def set_sampling(self, weights: Tensor, num_batches: int) -> None:
        """Draw rows in proportion to `weights`, with replacement, from the next loader on.

        Where rows are drawn by weights already, it holds from the next step on.

        Args:
            weights: ``[N]``, one a response (scored), or one a prompt (ranked); at least 0.
            num_batches: Micro-batches of a process until the loader ends.
        """
        if self._sampling is not None and self._stream is not None:
            self._stream.sampler.reweigh(weights)
        self._sampling = weights, num_batches

    def fingerprint(self) -> str:
        """Return a digest of the training rows' token ids and rewards."""
        return self._training().fingerprint

    def state_dict(self) -> dict[str, Any]:
        """Return what tells a resumed run whether its data are the same."""
        return {} if self._table is None else {"fingerprint": self.fingerprint()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse to go on with other data: the saved position would mean other rows."""
        if self._table is not None and state_dict.get("fingerprint") != self.fingerprint():
            raise UserError(
                "expected the training data of the interrupted run, got other rows, another "
                "tokenizer or other limits: restore them, or start a new run"
            )

    def _training(self) -> ResponseTable:
        """Return the training table."""
        if self._table is None:
            raise ValueError('expected setup("fit") before the training data are asked for')
        return self._table

    def _validated(self) -> PromptTable | ResponseTable:
        """Return the validation rows."""
        if self._validation is None:
            raise ValueError('expected setup("fit") before the validation data are asked for')
        return self._validation

    def _tested(self) -> dict[str, PromptTable | ResponseTable]:
        """Return the rows of every test set."""
        if self._tests is None:
            raise ValueError('expected setup("test") before the test sets are asked for')
        return self._tests


def _prompts_of(table: PromptTable | ResponseTable) -> PromptTable:
    """Return the prompts of a split."""
    return table if isinstance(table, PromptTable) else table.prompts
