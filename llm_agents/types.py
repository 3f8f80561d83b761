"""What passes between data, methods and rewards: frozen containers and plain protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

from llm_agents.errors import UserError

if TYPE_CHECKING:  # worlds, which stand on this, are looked up in an instant
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
            if hasattr(value := getattr(self, field.name), "to")
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

    def scores_and_parts(
        self, prompts: Sequence[Prompt], responses: Sequence[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return ``[B]`` scores and, of a sum, the ``[B]`` scores of each part by its name."""
        return self(prompts, responses), {}


def as_scores(found: object, *, count: int, name: str) -> Tensor:
    """Return what a reward gave as a ``[B]`` tensor, detached.

    Args:
        found: A tensor, an array, or a sequence of numbers; anything else is refused.
        count: B, the number of responses that were scored.
        name: The reward's name, for the message.

    Raises:
        UserError: It is not one number for each response.
    """
    import numpy as np
    import torch

    cure = f"return one number for each, ({count},), for a single response too"
    if isinstance(found, torch.Tensor) and not found.is_complex():
        scores = found.detach()
    elif isinstance(found, np.ndarray) and found.dtype.kind in "biuf":
        scores = torch.from_numpy(np.array(found, dtype=np.float32))
    elif isinstance(found, Sequence | np.ndarray) and not isinstance(found, (str, bytes)):
        scores = torch.tensor([_number(one, row, name) for row, one in enumerate(found)])
    else:
        given = f"{found!r:.60}" if found is None else f"a {type(found).__name__}"
        raise UserError(f"the reward `{name}` returned {given} for {count} responses: {cure}")
    if scores.shape != (count,):
        raise UserError(
            f"the reward `{name}` returned the shape {tuple(scores.shape)} for {count} responses: "
            f"{cure}"
        )
    return scores


def _number(found: object, row: int, name: str) -> float:
    """Return the score of one response."""
    detach = getattr(found, "detach", None)  # a tensor's
    one = found if detach is None else detach()
    if not isinstance(one, (str, bytes, bytearray)) and getattr(one, "ndim", 0) == 0:
        try:
            return float(one)  # type: ignore[arg-type]  # whatever can't be a number raises
        except OverflowError:
            return float("inf")
        except (TypeError, ValueError, RuntimeError):
            pass
    raise UserError(
        f"the reward `{name}` returned {found!r:.60} for response {row}: return a number for each "
        "response"
    )


@dataclass(frozen=True)
class Choice:
    """What an agent is asked at one step: a prompt, and the actions that the world admits.

    Args:
        prompt: Ends in an unfinished clause, without a trailing space; the action goes on with it.
        actions: Distinct texts that start without a space; empty only after an episode's end.
    """

    prompt: str
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Decisions(_Movable):
    """An agent's answers to E choices, with what its update needs to know of them.

    A *unit* is what gets an importance ratio and an advantage of its own: the whole action (L = 1)
    in PPO on actions, each token of it in POAD.

    Args:
        index: ``[E]`` int64, position of the action in its choice's list.
        log_probs: ``[E, L]`` float32, log-prob of each unit under the collecting policy.
        values: ``[E, L]`` float32, value before each unit; column 0 is the observation's.
        mask: ``[E, L]`` bool, True = unit; right-padded, at least one a row.
    """

    index: Tensor
    log_probs: Tensor
    values: Tensor
    mask: Tensor


class Agent(Protocol):
    """What collects experience: a policy over admissible actions with a value of observations."""

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return a decision for each choice, without gradient, in eval mode."""

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` float32: the value of each prompt; the actions may be empty."""


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Args:
        discounted_return: As the world's paper reports it, with the world's own discount.
        undiscounted_return: Sum of the rewards.
        num_decisions: Steps that the agent took.
        num_primitive_steps: Steps of the world; more where actions are macros.
        success: Whether the task was done.
        world: Index of the world in its vector.
    """

    discounted_return: float
    undiscounted_return: float
    num_decisions: int
    num_primitive_steps: int
    success: bool
    world: int = 0


@dataclass(frozen=True)
class Rollout(_Movable):
    """T steps of E worlds: what an online method trains on.

    Args:
        choices: T · E choices, step by step: that of world ``e`` at step ``t`` is ``t * E + e``.
        index: ``[T, E]`` int64, the action taken.
        log_probs: ``[T, E, L]`` float32, see `Decisions`.
        values: ``[T, E, L]`` float32, see `Decisions`.
        mask: ``[T, E, L]`` bool, see `Decisions`.
        rewards: ``[T, E]`` float32.
        terminated: ``[T, E]`` bool, the world ended after the step.
        truncated: ``[T, E]`` bool, a limit cut the episode after the step.
        durations: ``[T, E]`` int64, primitive steps that the action took, ≥ 1.
        next_values: ``[T, E]`` float32, value of the observation that followed, before any reset;
            0 where the world ended.
        episodes: Episodes that ended in this rollout.
        number: Number of this rollout, from 0.
        num_rollouts: How many rollouts the whole run has.
    """

    choices: tuple[Choice, ...]
    index: Tensor
    log_probs: Tensor
    values: Tensor
    mask: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    durations: Tensor
    next_values: Tensor
    episodes: tuple[Episode, ...]
    number: int
    num_rollouts: int

    @property
    def num_steps(self) -> int:
        """Return T · E."""
        return int(self.index.numel())


@dataclass(frozen=True)
class Demonstrations(_Movable):
    """Choices with the action that somebody took: what behavioural cloning trains on.

    Args:
        choices: B choices.
        index: ``[B]`` int64, position of the action in its choice's list.
    """

    choices: tuple[Choice, ...]
    index: Tensor

    def __len__(self) -> int:
        """Return B."""
        return len(self.choices)


@dataclass(frozen=True)
class SymbolicRollout(_Movable):
    """T steps of E worlds that an agent sees as images: what a recurrent method trains on.

    Args:
        images: ``[T, E, 7, 7, 3]`` uint8: columns, rows, and type, colour and state of a cell.
        missions: The distinct goals.
        mission_index: ``[T, E]`` int64 into them.
        starts: ``[T, E]`` bool, True = first step of an episode, before which nothing is known.
        memories: ``[T, E, M]`` float32, what the agent remembered before the step.
        index: ``[T, E]`` int64, the action taken.
        log_probs: ``[T, E]`` float32, under the collecting policy.
        values: ``[T, E]`` float32.
        rewards: ``[T, E]`` float32.
        terminated: ``[T, E]`` bool, the world ended after the step.
        truncated: ``[T, E]`` bool, a limit cut the episode after the step.
        next_values: ``[T, E]`` float32, value of the observation that followed, before any reset;
            0 where the episode ended.
        episodes: Episodes that ended in this rollout.
        number: Number of this rollout, from 0.
        num_rollouts: How many rollouts the whole run has.
    """

    images: Tensor
    missions: tuple[str, ...]
    mission_index: Tensor
    starts: Tensor
    memories: Tensor
    index: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    next_values: Tensor
    episodes: tuple[Episode, ...]
    number: int
    num_rollouts: int

    @property
    def num_steps(self) -> int:
        """Return T · E."""
        return int(self.index.numel())


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


@dataclass(frozen=True)
class MessageObservations(_Movable):
    """What a reward of game messages sees; parts that it does not look at are None.

    Args:
        message: ``[M, 256]`` uint8, the message's bytes, padded with 0.
        blstats: ``[M, 27]`` integer, the game's bottom line as it stands.
        glyphs: ``[M, 21, 79]`` integer, the map.
    """

    message: Tensor
    blstats: Tensor | None = None
    glyphs: Tensor | None = None

    def __len__(self) -> int:
        """Return M."""
        return int(self.message.shape[0])

    def select(self, index: Tensor | slice) -> MessageObservations:
        """Return the rows `index`."""
        return MessageObservations(
            self.message[index],
            None if self.blstats is None else self.blstats[index],
            None if self.glyphs is None else self.glyphs[index],
        )


@dataclass(frozen=True)
class MessagePairs(_Movable):
    """Pairs of observations with a preference: what Motif's reward model trains on.

    Args:
        observations: M *distinct* ones.
        index: ``[B, 2, L]`` int64 into them: each side of a pair is L consecutive steps.
        preferences: ``[B]`` int64: 0 the first side is better, 1 the second, 2 a tie.
        rows: ``[B]`` int64, position of each pair in its data set.
        scores: ``[B, 2]`` float64, final game score of each side's episode; NaN where unknown.
    """

    observations: MessageObservations
    index: Tensor
    preferences: Tensor
    rows: Tensor
    scores: Tensor

    def __len__(self) -> int:
        """Return the number of pairs."""
        return int(self.preferences.shape[0])


class Job(ABC):
    """A stage of a recipe that trains nothing: it collects, annotates or prepares data.

    A recipe's `job` section names its class; the arguments of its constructor are the keys.
    """

    @abstractmethod
    def run(self, folder: Path) -> Mapping[str, object]:
        """Do the work, going on with what `folder` and the job's own output hold already.

        Args:
            folder: The run's folder, which exists.

        Returns:
            Numbers for ``results.json``: whatever JSON can hold.
        """
