"""Token ids of a whole split, made once: truncation rules, the response table, its batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from llm_agents.data.base import DropReport, Example, Ragged, collate_prompts, collate_tokens
from llm_agents.data.templates import Template
from llm_agents.errors import UserError
from llm_agents.types import Prompt, PromptBatch, TokenBatch, Turn

Truncation = Literal["left", "turns"]


class TextEncoder(Protocol):
    """What of a policy turns text into ids."""

    context_length: int | None
    is_encoder_decoder: bool

    def encode_prompt(
        self, turns: Prompt, *, template: Template = ..., max_tokens: int | None = ...
    ) -> list[int]:
        """Return a dialogue's ids, its last `max_tokens`, begin token kept."""

    def encode_response(
        self, text: str, *, template: Template = ..., max_tokens: int | None = ...
    ) -> list[int]:
        """Return a response's ids with its end token, the first `max_tokens` of them."""


@dataclass(frozen=True)
class TextLimits:
    """How text becomes ids of a bounded length.

    Args:
        template: How dialogues are written out.
        max_prompt_tokens: Longest prompt, begin token included; None fills the model's window.
        max_response_tokens: Longest response, end token included; a longer one loses its end.
        truncation: What a long prompt loses: its left end (``left``), or its oldest turns, then the
            beginning of its last one, but never the system line (``turns``).
        append_eos: End responses with the end token, so that stopping is learnt. An empty response
            has one either way: something of it must be scored.
    """

    template: Template
    max_prompt_tokens: int | None
    max_response_tokens: int
    truncation: Truncation = "left"
    append_eos: bool = True

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("max_prompt_tokens", "max_response_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"expected `data.{name}` of at least 1, got {value}")


class SplitEncoder:
    """Turns examples into ids under one policy and one set of limits.

    Args:
        encoder: The policy.
        limits: Template and limits; the prompt's is lowered to what the model's window leaves.
    """

    def __init__(self, encoder: TextEncoder, limits: TextLimits) -> None:
        self.encoder = encoder
        self.limits = limits
        self.max_prompt = self._prompt_limit()
        self._check_prompt_limit()

    def _prompt_limit(self) -> int | None:
        """Return the longest prompt that leaves room for a longest response."""
        wanted, window = self.limits.max_prompt_tokens, self.encoder.context_length
        if window is None or self.encoder.is_encoder_decoder:
            return wanted
        room = window - self.limits.max_response_tokens
        if room < 8:
            raise UserError(
                f"expected a model window of at least {self.limits.max_response_tokens + 8} tokens "
                f"for data.max_response_tokens {self.limits.max_response_tokens}, got {window}: "
                "lower data.max_response_tokens or take a base model with a longer window"
            )
        return room if wanted is None else min(wanted, room)

    def _check_prompt_limit(self) -> None:
        """Refuse a limit that leaves room for the tokens around a prompt alone."""
        if self.max_prompt is None:
            return
        try:
            self.encoder.encode_prompt(
                (Turn("user", "?"),), template="verbatim", max_tokens=self.max_prompt
            )
        except ValueError as fault:
            raise UserError(
                f"expected room for a prompt in `data.max_prompt_tokens`, got {self.max_prompt} "
                f"with the tokens that this model puts around it: {fault}"
            ) from None

    def prompt(self, prompt: Prompt, report: DropReport) -> list[int]:
        """Return a prompt's ids, cut to its limit; cuts are counted."""
        ids = self._encode(prompt)
        if self.max_prompt is None or len(ids) <= self.max_prompt:
            return ids
        report.changed["prompts truncated"] += 1
        if self.limits.truncation == "turns":
            ids = self._encode(self._shortened(prompt, self.max_prompt))
            if len(ids) <= self.max_prompt:
                return ids
            report.changed["prompts whose system line was truncated"] += 1
        return self.encoder.encode_prompt(
            prompt, template=self.limits.template, max_tokens=self.max_prompt
        )

    def response(self, response: str, report: DropReport) -> list[int]:
        """Return a response's ids, cut to its limit; cuts are counted."""
        ids = self.encoder.encode_response(response, template=self.limits.template, max_tokens=None)
        if not response.strip():
            report.changed["responses empty"] += 1
        elif not self.limits.append_eos:
            ids = ids[:-1]
        if len(ids) > self.limits.max_response_tokens:
            report.changed["responses truncated (no end token)"] += 1
        return ids[: self.limits.max_response_tokens]

    def fits(self, example: Example) -> bool:
        """Return whether neither prompt nor any response would be cut."""
        quiet = DropReport()
        self.prompt(example.prompt, quiet)
        for response in example.responses:
            self.response(response, quiet)
        return all("truncated" not in reason for reason in quiet.changed)

    def _encode(self, prompt: Prompt) -> list[int]:
        """Return a whole prompt's ids."""
        return self.encoder.encode_prompt(prompt, template=self.limits.template, max_tokens=None)

    def _shortened(self, prompt: Prompt, most: int) -> Prompt:
        """Drop the oldest turns until the rest fits, then the beginning of the last one."""
        first = 1 if prompt[0].role == "system" else 0
        system, turns = prompt[:first], prompt[first:]
        while len(turns) > 1:
            turns = turns[1:]
            if len(self._encode((*system, *turns))) <= most:
                return (*system, *turns)
        words = turns[-1].text.split(" ") if turns else []
        low, high = 0, len(words)  # invariant: keeping `low` words fits or low is 0
        while low < high:
            middle = (low + high + 1) // 2
            kept = Turn(turns[-1].role, " ".join(words[-middle:]))
            if len(self._encode((*system, kept))) <= most:
                low = middle
            else:
                high = middle - 1
        text = " ".join(words[-low:]) if low else ""
        return (*system, Turn(turns[-1].role if turns else "user", text))


@dataclass(frozen=True)
class PromptTable:
    """The prompts of one split, as text and as ids.

    Args:
        examples: ``P`` examples.
        ids: Their prompts' ids.
    """

    examples: Sequence[Example]
    ids: Ragged

    def __len__(self) -> int:
        """Return P."""
        return len(self.examples)

    def batch(self, rows: Sequence[int]) -> PromptBatch:
        """Return the prompts `rows` as a batch."""
        prompts = [self.examples[row].prompt for row in rows]
        return collate_prompts(prompts, [self.ids[row] for row in rows], rows)


class ResponseTable:
    """All training responses of all training prompts, as text and as ids.

    Args:
        prompts: ``P`` prompts and their ids.
        ids: Ids of the ``N`` responses, prompt by prompt.
        rewards: ``[N]`` float32 stored rewards in the objective's range; NaN where there are none.
        is_training: Whether batches carry their rows; those of other splits carry −1, so that they
            can't be taken for training rows.
    """

    def __init__(
        self, prompts: PromptTable, ids: Ragged, rewards: Tensor, *, is_training: bool = True
    ) -> None:
        counts = torch.tensor([len(e.responses) for e in prompts.examples], dtype=torch.int64)
        self.prompts = prompts
        self.ids = ids
        self.rewards = rewards
        self.is_training = is_training
        self.prompt_of = torch.repeat_interleave(torch.arange(len(counts)), counts)
        self.first = counts.cumsum(0) - counts
        self.counts = counts
        self.preferred = torch.zeros(len(ids), dtype=torch.bool)
        wanted = torch.tensor([e.preferred for e in prompts.examples], dtype=torch.int64)
        self.preferred[(self.first + wanted)[wanted >= 0]] = True
        self.lengths = prompts.ids.lengths[self.prompt_of] + ids.lengths

    def __len__(self) -> int:
        """Return N."""
        return len(self.ids)

    def batch(self, rows: Sequence[int]) -> TokenBatch:
        """Return the responses `rows` with their prompts as a batch."""
        prompts = [self.prompts.ids[int(self.prompt_of[row])] for row in rows]
        numbers = rows if self.is_training else [-1] * len(rows)
        return collate_tokens(prompts, [self.ids[row] for row in rows], numbers)

    def texts(self) -> tuple[list[Prompt], list[str]]:
        """Return the N prompts and responses as text."""
        examples = self.prompts.examples
        prompts = [example.prompt for example in examples for _ in example.responses]
        return prompts, [text for example in examples for text in example.responses]

    def num_responses(self, source: object) -> int:
        """Return K, the responses of each prompt.

        Raises:
            UserError: If prompts of `source` differ in it.
        """
        found: list[int] = sorted(set(self.counts.tolist()))
        if len(found) != 1:
            raise UserError(
                f"expected equally many responses for every prompt of {source}, got {found}: "
                "ranking methods need one number of responses"
            )
        return found[0]

    def raw_rewards(self) -> Tensor:
        """Return ``[N]`` float32 rewards as the file has them; NaN where there are none."""
        values = [
            value
            for example in self.prompts.examples
            for value in (example.rewards or (float("nan"),) * len(example.responses))
        ]
        return torch.tensor(values, dtype=torch.float32)

    def by_length(self, tokens_per_batch: int) -> Iterator[list[int]]:
        """Yield the rows of batches of at most so many tokens, padding included, longest first.

        Responses of a prompt are neighbours, so that a model can compute their prompt once.
        """
        if tokens_per_batch < 1:
            raise ValueError(f"expected `tokens_per_batch` of at least 1, got {tokens_per_batch}")
        batch: list[int] = []
        width = 0
        longest = torch.zeros(len(self.counts), dtype=torch.int64)
        longest = longest.scatter_reduce(0, self.prompt_of, self.lengths, "amax")[self.prompt_of]
        for row in torch.argsort(longest, descending=True, stable=True).tolist():
            if batch and (len(batch) + 1) * width > tokens_per_batch:
                yield batch
                batch = []
            if not batch:
                width = int(longest[row])
            batch.append(row)
        if batch:
            yield batch

    @cached_property
    def fingerprint(self) -> str:
        """Return a digest of all token ids, their grouping and the rewards."""
        digest = hashlib.sha256()
        for ragged in (self.prompts.ids, self.ids):
            digest.update(ragged.lengths.numpy().tobytes())
            digest.update(ragged.flat.numpy().tobytes())
        for tensor in (self.counts, self.preferred, self.rewards, self.raw_rewards()):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def encode_prompts(
    examples: Sequence[Example], encoder: SplitEncoder, report: DropReport
) -> PromptTable:
    """Tokenize the prompts of a split."""

    def ids() -> Iterator[list[int]]:
        for row, example in enumerate(examples):
            try:
                yield encoder.prompt(example.prompt, report)
            except UserError as error:
                raise UserError(f"prompt {row} of the data: {error}") from error

    return PromptTable(examples, Ragged(ids()))


def encode_responses(
    examples: Sequence[Example],
    encoder: SplitEncoder,
    rewards: Tensor,
    report: DropReport,
    *,
    is_training: bool = True,
) -> ResponseTable:
    """Tokenize the prompts and responses of a split; the arguments are `ResponseTable`'s."""
    prompts = encode_prompts(examples, encoder, report)
    ids = Ragged(encoder.response(text, report) for e in examples for text in e.responses)
    return ResponseTable(prompts, ids, rewards, is_training=is_training)
