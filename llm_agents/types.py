"""What passes between data, methods and rewards: frozen containers and plain protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

Role = Literal["system", "user", "assistant"]


class Turn(NamedTuple):
    """One utterance of a dialogue."""

    role: Role
    text: str


Prompt = tuple[Turn, ...]
"""A dialogue up to the point where the assistant is to speak; plain text is one user turn."""


class _Movable:
    """Moves every tensor of a dataclass, nested ones included, to a device."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Return a copy on `device`; anything that has no ``to`` is kept."""
        moved = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
            if isinstance(value := getattr(self, field.name), (Tensor, _Movable))
        }
        return replace(self, **moved)  # type: ignore[type-var]  # subclasses are dataclasses


@dataclass(frozen=True)
class TokenBatch(_Movable):
    """Prompts and responses as token ids, tokenized apart and never re-encoded.

    Args:
        prompt_ids: ``[B, P]`` int64, **left**-padded.
        prompt_mask: ``[B, P]`` bool, True = real token.
        response_ids: ``[B, T]`` int64, **right**-padded, end token included where the text has one.
        response_mask: ``[B, T]`` bool, True = token is scored. Every row has at least one.
        rows: ``[B]`` int64, position of each row in its source's response table (cache key); -1 if
            it has none.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor
    rows: Tensor

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.response_ids.shape[0])

    @property
    def num_tokens(self) -> int:
        """Return the number of real tokens, prompt and response together."""
        return int(self.prompt_mask.sum() + self.response_mask.sum())

    def select(self, index: Tensor) -> TokenBatch:
        """Return the rows `index` (``[N]`` int64 or bool), without columns of padding only."""
        prompt_mask, response_mask = self.prompt_mask[index], self.response_mask[index]
        used = prompt_mask.any(0)
        first = int(used.float().argmax()) if bool(used.any()) else prompt_mask.shape[1]
        last = int(response_mask.sum(1).max()) if len(response_mask) else 0
        return TokenBatch(
            prompt_ids=self.prompt_ids[index][:, first:],
            prompt_mask=prompt_mask[:, first:],
            response_ids=self.response_ids[index][:, :last],
            response_mask=response_mask[:, :last],
            rows=self.rows[index],
        )


@dataclass(frozen=True)
class ScoredBatch(_Movable):
    """One response a row with its reward: what the A-LoL family trains on.

    Args:
        tokens: ``B`` rows.
        rewards: ``[B]`` float32, in the reward's own range (HHA: 0 to 1).
    """

    tokens: TokenBatch
    rewards: Tensor


@dataclass(frozen=True)
class RankedBatch(_Movable):
    """K responses a prompt, best first by file order: what DPO, PRO and reward models train on.

    Args:
        tokens: ``B * K`` rows; row ``b * K + k`` is response k of prompt b.
        rewards: ``[B, K]`` float32, raw scores (PRO's temperatures); NaN where the data have none.
    """

    tokens: TokenBatch
    rewards: Tensor

    @property
    def num_responses(self) -> int:
        """Return K."""
        return int(self.rewards.shape[1])


@dataclass(frozen=True)
class PromptBatch(_Movable):
    """Prompts to answer.

    Args:
        prompts: ``B`` dialogues, for rewards and reports.
        prompt_ids: ``[B, P]`` int64, left-padded.
        prompt_mask: ``[B, P]`` bool, True = real token.
        rows: ``[B]`` int64, position of each prompt in its split.
    """

    prompts: tuple[Prompt, ...]
    prompt_ids: Tensor
    prompt_mask: Tensor
    rows: Tensor


@dataclass(frozen=True)
class GenerationConfig:
    """How responses are generated.

    Args:
        max_new_tokens: Upper bound on the response's tokens.
        temperature: 0 is greedy decoding.
        top_p: Nucleus of the sampling distribution, in (0, 1].
        top_k: Candidates kept when sampling; 0 keeps all.
        num_beams: Beams; 1 is no beam search.
        repetition_penalty: 1 is no penalty.
        stop_strings: The response ends before the first of these.
        batch_size: Prompts per pass, sorted by length.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    num_beams: int = 1
    repetition_penalty: float = 1.0
    stop_strings: tuple[str, ...] = ()
    batch_size: int = 16


class Reward(ABC):
    """A judge of text: one number per prompt and response.

    Attributes:
        name: Short name for logs and result tables.
        version: Changes whenever the scores may change; part of every cache key.
        low: Lowest possible score.
        high: Highest possible score: the `max_value` of a value head fitted to it.
    """

    name: str
    version: str
    low: float
    high: float

    @abstractmethod
    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Tensor:
        """Return ``[B]`` float32 scores on the CPU; the shape holds for ``B = 1`` too."""


class OfflineSource(Protocol):
    """What an offline method may ask of its data before and during training."""

    def table_size(self) -> int:
        """Return N, the number of training responses (all responses of all training prompts)."""

    def table_rewards(self) -> Tensor:
        """Return ``[N]`` float32 stored rewards in the objective's range; NaN for a missing one."""

    def table_preferred(self) -> Tensor:
        """Return ``[N]`` bool, True = the response the data call good (index ``sft_index``)."""

    def table_prompts(self) -> Tensor:
        """Return ``[N]`` int64, the training prompt that each response belongs to."""

    def table_texts(self) -> tuple[Sequence[Prompt], Sequence[str]]:
        """Return the N prompts and responses as text, for rewards."""

    def table_batches(self, tokens_per_batch: int) -> Iterator[TokenBatch]:
        """Yield every training response once, sorted by length, `tokens_per_batch` at a time."""

    def validation_batches(self, batch_size: int) -> Iterator[PromptBatch]:
        """Yield the validation prompts once, in order."""

    def set_sampling(self, weights: Tensor, num_batches: int) -> None:
        """Draw training rows in proportion to `weights` (``[N]``, with replacement) from now on."""

    def fingerprint(self) -> str:
        """Return a digest of the training rows' token ids and rewards: part of every cache key."""
