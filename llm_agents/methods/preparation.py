"""What offline methods need of the frozen reference, computed once and kept.

The reference answers the validation prompts, its value is fitted to the rewards of these answers,
and one pass over the training responses gives its log-probs and the value of every prompt. Nothing
of this changes during training, so nothing of it is computed in a training step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.job_progress import job_progress
from llm_agents.methods.content_cache import ContentCache, Key, tensors_digest
from llm_agents.methods.pieces import Pieces, rows_name
from llm_agents.methods.validation import (
    Answers,
    Scores,
    check_rewards,
    generate_answers,
    prompts_digest,
    score,
    texts_digest,
)
from llm_agents.methods.value_fit import ValueFit, ValueFitConfig, fit_value_head
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.heads import ValueHead
from llm_agents.policies.modes import evaluation
from llm_agents.types import (
    GenerationConfig,
    OfflineSource,
    Prompt,
    PromptBatch,
    Reward,
    TokenBatch,
    as_scores,
)

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_logger = logging.getLogger(__name__)


_SCORED_TOGETHER = 64


class PerToken(NamedTuple):
    """One number for each token of each training response.

    Args:
        flat: ``[sum of lengths]`` float32, response after response.
        offsets: ``[N + 1]`` int64, where each begins.
    """

    flat: Tensor
    offsets: Tensor

    def gather(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Return the numbers of responses, 0 where they have no token.

        Args:
            rows: ``[B]`` int64, the responses.
            mask: ``[B, T]`` bool, True = token.

        Raises:
            ValueError: A response has another number of scored tokens than it had.
        """
        rows, lengths = rows.cpu(), mask.sum(1).cpu()
        if bool((rows < 0).any()):
            raise ValueError("expected rows of the training table, got -1: the batch is not of it")
        starts = self.offsets[rows]
        known = self.offsets[rows + 1] - starts
        if not torch.equal(known, lengths):
            row = int((known != lengths).nonzero()[0])
            raise ValueError(
                f"expected {int(known[row])} tokens in training response {int(rows[row])}, got "
                f"{int(lengths[row])}: the data changed after the reference was computed"
            )
        index = starts[:, None] + torch.arange(mask.shape[1])
        found = self.flat[index.clamp(max=max(len(self.flat) - 1, 0))].to(mask.device)
        return found.masked_fill(~mask, 0.0)


@dataclass(frozen=True)
class Reference:
    """Asks the frozen reference of a policy, each question once.

    Args:
        policy: Its `reference()` is what is asked.
        source: Training and validation data.
        cache: Where answers are kept.
        key: What identifies policy, reference and precision.
        tokens_per_batch: Tokens a pass.
        autocast: Precision of the passes, as in training.
        is_moved: Ask the policy as it stands, which has become the reference.
    """

    policy: LanguagePolicy
    source: OfflineSource
    cache: ContentCache
    key: Key
    tokens_per_batch: int
    autocast: Callable[[], Any]
    is_moved: bool = False

    def has_prompts(self) -> bool:
        """Return whether there are validation prompts."""
        return next(iter(self.source.validation_batches(1)), None) is not None

    def validation_scores(
        self, reward: Reward, generation: GenerationConfig, clean: Callable[[str], str]
    ) -> Scores:
        """Return the rewards of the reference's own answers to the validation prompts."""
        if not self.has_prompts():
            raise UserError(
                "expected validation prompts, whose answers tell what the reference is worth, got "
                "none: name `data.validation`"
            )
        answers = self._answers(generation, clean)
        is_sum = type(reward).scores_and_parts is not Reward.scores_and_parts
        key = {
            "answers": texts_digest(answers.prompts, answers.texts),
            "rows": json.dumps(answers.rows),
            "reward": f"{reward.name} {reward.version}",
            "parts": "kept" if is_sum else "none",
        }
        found = self.cache.get("validation", key, lambda: score(answers, reward).tensors())
        return Scores.of_tensors(found)

    def _answers(self, generation: GenerationConfig, clean: Callable[[str], str]) -> Answers:
        """Return the reference's answers to the validation prompts, generated once."""
        key = {**self.key, **self._generation_key(generation)}

        def make() -> dict[str, Tensor]:
            size = generation.batch_size
            with self._asked(), self._pieces("answers", key) as pieces:
                batches = progress(
                    "reference answers · prompts",
                    lambda: self.source.validation_batches(size),
                    num_prompts,
                )
                ids = generate_answers(self.policy, batches, generation, pieces)
            lengths = torch.tensor([len(row) for row in ids], dtype=torch.int64)
            flat = torch.tensor([token for row in ids for token in row], dtype=torch.int64)
            return {"ids": flat, "lengths": lengths}

        found = self.cache.get("answers", key, make)
        parts = torch.split(found["ids"], found["lengths"].tolist())
        texts = [clean(self.policy.decode(ids.tolist())) for ids in parts]
        rows: list[int] = []
        prompts: list[Prompt] = []
        for batch in self.source.validation_batches(generation.batch_size):
            rows += batch.rows.tolist()
            prompts += batch.prompts
        return Answers(rows, prompts, texts)

    def _generation_key(self, generation: GenerationConfig) -> Key:
        """Return what is generated depends on, beside the model: prompts, settings, end tokens."""
        settings = asdict(generation)
        del settings["batch_size"]  # what is generated doesn't depend on it
        vocabulary = self.policy.generation_vocabulary()
        return {
            "prompts": prompts_digest(self.source.validation_batches(generation.batch_size)),
            "generation": json.dumps(settings),
            "end_tokens": json.dumps(sorted(vocabulary.end_ids)),
            "window": str(vocabulary.context_length),
            "device": self.policy.device.type,
        }

    def value_fit(self, targets: Scores, max_value: float, config: ValueFitConfig) -> ValueFit:
        """Return a value head fitted to the rewards of the reference's answers."""
        key = {
            **self._prompts_key(),
            "targets": tensors_digest(sorted(targets._replace(parts={}).tensors().items())),
            "value": json.dumps([asdict(config), max_value]),
        }

        def make() -> dict[str, Tensor]:
            states, rows = self._prompt_states()
            with self._pieces("value", key) as pieces:
                fit = fit_value_head(
                    states,
                    targets.select(torch.tensor(rows)).rewards,
                    max_value=max_value,
                    config=config,
                    device=self.policy.device,
                    pieces=pieces,
                )
            with self._pieces("prompt-states", self._prompts_key()) as pieces:
                pieces.discard()
            kept = {f"head.{name}": value for name, value in fit.head.state_dict().items()}
            mse = torch.tensor(fit.epoch_mse, dtype=torch.float64)
            return {**kept, "mse": mse, "variance": torch.tensor(fit.target_variance)}

        found = self.cache.get("value", key, make)
        head = ValueHead(self.policy.hidden_size, config.num_heads, max_value, config.dropout)
        head.load_state_dict(
            {k.removeprefix("head."): v for k, v in found.items() if k.startswith("head.")}
        )
        return ValueFit(head.eval(), tuple(found["mse"].tolist()), float(found["variance"]))

    def _prompts_key(self) -> Key:
        """Return what the states of the validation prompts depend on."""
        return {**self.key, "prompts": prompts_digest(self.source.validation_batches(16))}

    def _prompt_states(self) -> tuple[list[Tensor], list[int]]:
        """Return the reference's states of each validation prompt, and the prompts' positions."""
        states: list[Tensor] = []
        rows: list[int] = []
        with self._asked(), self._pieces("prompt-states", self._prompts_key()) as pieces:
            for batch in progress(
                "states of prompts · tokens",
                lambda: self.source.validation_batches(16),
                num_tokens,
            ):
                name = rows_name(batch.rows)
                if (known := pieces.find(name)) is None:
                    hidden, mask = self.policy.hidden_states(
                        batch.to(self.policy.device), part="prompt"
                    )
                    known = {"states": hidden[mask].cpu(), "lengths": mask.sum(1).cpu()}
                    pieces.keep(name, known)
                states += torch.split(known["states"], known["lengths"].tolist())
                rows += batch.rows.tolist()
        return states, rows

    def log_probs(self) -> PerToken:
        """Return the reference's log-probs of every token of the training responses."""
        found = self.cache.get(
            "log-probs", self._table_key(), lambda: self._score_table(None, wants_log_probs=True)
        )
        return PerToken(found["flat"], found["offsets"])

    def values(self, head: ValueHead, *, wants_log_probs: bool) -> tuple[Tensor, PerToken | None]:
        """Return ``[N]`` values of the training responses' prompts, and the reference's log-probs.

        Where neither is cached yet, one pass gives both.
        """
        key = self._value_key(head)
        with_log_probs = wants_log_probs and not self.cache.has("log-probs", self._table_key())

        def make() -> dict[str, Tensor]:
            found = self._score_table(head, wants_log_probs=with_log_probs)
            values = found.pop("values")
            if found:  # kept first: with the values the parts of both are dropped
                self.cache.get("log-probs", self._table_key(), lambda: found)
            return {"values": values}

        values = self.cache.get("values", key, make)["values"]
        return values, self.log_probs() if wants_log_probs else None

    def _value_key(self, head: ValueHead) -> Key:
        """Return what the values of the training responses' prompts depend on."""
        head_digest = tensors_digest(sorted(head.state_dict().items()))
        return {**self._table_key(), "head": head_digest}

    def _table_key(self) -> Key:
        """Return what numbers of the training responses depend on."""
        return {**self.key, "data": self.source.fingerprint()}

    def _score_table(self, head: ValueHead | None, *, wants_log_probs: bool) -> dict[str, Tensor]:
        """Pass the training responses through the reference once."""
        size, prompts = self.source.table_size(), self.source.table_prompts()
        per_row: list[Tensor | None] = [None] * size
        values = torch.full((int(prompts.max()) + 1,), torch.nan)
        device = self.policy.device
        judge = head.to(device).eval() if head is not None else None
        with self._asked(), self._table_pieces(head, wants_log_probs) as pieces:
            for batch in progress(
                "reference pass · tokens",
                lambda: self.source.table_batches(self.tokens_per_batch),
                num_tokens,
            ):
                rows = batch.rows.cpu()
                name = rows_name(rows)
                if (known := pieces.find(name)) is None:
                    new = values[prompts[rows]].isnan() if judge is not None else torch.zeros(0)
                    known = self._numbers(batch.to(device), judge, new, wants_log_probs)
                    pieces.keep(name, known)
                if "log_probs" in known:
                    lengths = batch.response_mask.sum(1).tolist()
                    for row, found in zip(
                        rows, torch.split(known["log_probs"], lengths), strict=True
                    ):
                        per_row[int(row)] = found
                if "values" in known:
                    values[prompts[rows][known["new"]]] = known["values"]
        if judge is not None:
            judge.cpu()
        return _collect(per_row if wants_log_probs else None, values[prompts] if head else None)

    def _pieces(self, kind: str, key: Key) -> AbstractContextManager[Pieces]:
        """Give the parts of a result that are there; those that come are kept."""
        return Pieces.opened(self.cache.pieces_folder(kind, key), key)

    def _table_pieces(
        self, head: ValueHead | None, wants_log_probs: bool
    ) -> AbstractContextManager[Pieces]:
        """Give the parts of a pass over the training responses."""
        key = {**self._table_key(), "log_probs": str(wants_log_probs)}
        if head is None:
            return Pieces.opened(self.cache.pieces_folder("log-probs", self._table_key()), key)
        value_key = self._value_key(head)
        key["head"] = value_key["head"]
        return Pieces.opened(self.cache.pieces_folder("values", value_key), key)

    def _numbers(
        self, batch: TokenBatch, judge: ValueHead | None, new: Tensor, wants_log_probs: bool
    ) -> dict[str, Tensor]:
        """Return the log-probs of a batch's tokens, and the values of prompts that are new."""
        log_probs, states = self._pass(batch, wants_log_probs, wants_states=bool(new.any()))
        found: dict[str, Tensor] = {}
        if log_probs is not None:
            found["log_probs"] = log_probs[batch.response_mask].cpu()
        if states is not None and judge is not None:
            hidden, mask = (part[new.to(batch.response_mask.device)] for part in states)
            found |= {"values": judge(hidden.float(), mask).cpu(), "new": new}
        return found

    def _pass(
        self, batch: TokenBatch, wants_log_probs: bool, *, wants_states: bool
    ) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """Return what is wanted of a batch, log-probs and prompt states, from one pass."""
        if wants_log_probs and wants_states:
            log_probs, states, mask = self.policy.log_probs_and_prompt_states(batch)
            return log_probs, (states, mask)
        if wants_log_probs:
            return self.policy.log_probs(batch), None
        if wants_states:
            return None, self.policy.hidden_states(batch, part="prompt")
        return None, None

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Switch to the reference: frozen, dropout off, in the precision of training."""
        reference = nullcontext() if self.is_moved else self.policy.reference()
        with evaluation(self.policy), torch.no_grad(), self.autocast(), reference:
            yield


def _collect(per_row: list[Tensor | None] | None, values: Tensor | None) -> dict[str, Tensor]:
    """Put what was found for each row into flat tensors."""
    found: dict[str, Tensor] = {}
    if per_row is not None:
        missing = [row for row, numbers in enumerate(per_row) if numbers is None]
        if missing:
            raise ValueError(f"the data's table batches left out row {missing[0]} of the table")
        rows = [numbers for numbers in per_row if numbers is not None]
        lengths = torch.tensor([0, *(len(numbers) for numbers in rows)], dtype=torch.int64)
        found["flat"] = torch.cat(rows).float()
        found["offsets"] = lengths.cumsum(0)
    if values is not None:
        found["values"] = values.float()
    return found


def training_rewards(
    source: OfflineSource, reward: Reward | None, cache: ContentCache, *, scored_by_model: bool
) -> Tensor:
    """Return the ``[N]`` rewards of the training responses.

    Args:
        source: The data.
        reward: Gives the range, and the scores if `scored_by_model` or if none are stored.
        cache: Where scores are kept.
        scored_by_model: Score the responses with `reward` in place of what is stored.

    Raises:
        UserError: A reward is missing, not a number, or outside the range.
    """
    stored = source.table_rewards()
    if not scored_by_model and reward is not None and bool(stored.isnan().all()):
        _logger.info("the training data hold no rewards: %s scores their responses", reward.name)
        scored_by_model = True
    if scored_by_model:
        if reward is None:
            raise UserError("`options.training_rewards: scored` needs a `reward`")
        judge = reward
        key = {
            "data": source.fingerprint(),
            "texts": texts_digest(*source.table_texts()),  # of which the ids may be a part
            "reward": f"{reward.name} {reward.version}",
        }
        rewards = cache.get("rewards", key, lambda: _scored(source, judge, cache, key))["rewards"]
    else:
        rewards = stored
        if bool(rewards.isnan().all()):
            raise UserError(
                "the training data hold no rewards: take data that do, or name a `reward` that "
                "scores them"
            )
    names = response_names(source) if not bool(rewards.isfinite().all()) else None
    low, high = (reward.low, reward.high) if reward is not None else (None, None)
    check_rewards(rewards, low, high, names)
    return rewards


def _scored(
    source: OfflineSource, judge: Reward, cache: ContentCache, key: Key
) -> dict[str, Tensor]:
    """Return the ``[N]`` scores of the training responses, computed part by part."""
    prompts, texts = source.table_texts()
    parts: list[Tensor] = []
    with (
        Pieces.opened(cache.pieces_folder("rewards", key), key) as pieces,
        job_progress("training responses scored", len(texts)) as advance,
    ):
        for start in range(0, len(texts), _SCORED_TOGETHER):
            part = slice(start, start + _SCORED_TOGETHER)
            known = pieces.find(str(start))
            if known is None:
                found = judge(prompts[part], texts[part])
                known = {"rewards": as_scores(found, count=len(texts[part]), name=judge.name)}
                pieces.keep(str(start), known)
            parts.append(known["rewards"].cpu())
            advance(len(texts[part]))
    return {"rewards": torch.cat(parts)}


def response_names(source: OfflineSource) -> list[str]:
    """Return what messages call each training response: its row, prompt and first words."""
    prompts = source.table_prompts().tolist()
    _, texts = source.table_texts()
    return [
        f"training response {row} (prompt {prompt}, {text[:40]!r})"
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]


@contextmanager
def rank_zero_first(trainer: Trainer) -> Iterator[None]:
    """Let the first process fill the caches before the others read them."""
    if not trainer.is_global_zero:
        trainer.strategy.barrier("prepared")
    yield
    if trainer.is_global_zero:
        trainer.strategy.barrier("prepared")


B = TypeVar("B", TokenBatch, PromptBatch)


def progress(
    label: str, batches: Callable[[], Iterable[B]], size: Callable[[B], int]
) -> Iterator[B]:
    """Yield batches, and show how far it is, with the time that is left.

    Args:
        label: What is done, and what is counted.
        batches: Gives the same batches each time: they are counted first.
        size: How much a batch counts.
    """
    with job_progress(label, sum(map(size, batches()))) as advance:
        for batch in batches():
            yield batch
            advance(size(batch))


def num_tokens(batch: TokenBatch | PromptBatch) -> int:
    """Return the tokens of prompts and responses."""
    responses = int(batch.response_mask.sum()) if isinstance(batch, TokenBatch) else 0
    return int(batch.prompt_mask.sum()) + responses


def num_prompts(batch: PromptBatch) -> int:
    """Return the number of prompts."""
    return len(batch.rows)


def fill_trunk_cache(policy: LanguagePolicy, source: OfflineSource, tokens_per_batch: int) -> None:
    """Store the states of a policy's frozen layers for all training responses, if it keeps them."""
    if policy.forward_pass.trunk is not None:
        batches = progress(
            "frozen layers · tokens", lambda: source.table_batches(tokens_per_batch), num_tokens
        )
        policy.fill_trunk_cache(batches)
