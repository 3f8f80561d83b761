"""Validation by generation: answers to prompts and their rewards."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.methods.content_cache import Key, tensors_digest
from llm_agents.methods.pieces import Pieces
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.modes import evaluation
from llm_agents.types import GenerationConfig, Prompt, PromptBatch, Reward, as_scores

if TYPE_CHECKING:
    from llm_agents.methods.offline import OfflineModule

_PART = "parts/"


class Answers(NamedTuple):
    """Answers to prompts, not scored yet.

    Args:
        rows: Position of each prompt in its split.
        prompts: The dialogues.
        texts: What the policy answers.
    """

    rows: list[int]
    prompts: list[Prompt]
    texts: list[str]

    @classmethod
    def join(cls, parts: Iterable[Answers]) -> Answers:
        """Return all answers of several batches."""
        joined = cls([], [], [])
        for part in parts:
            joined.rows.extend(part.rows)
            joined.prompts.extend(part.prompts)
            joined.texts.extend(part.texts)
        return joined


class Scores(NamedTuple):
    """What a reward says about answers.

    Args:
        rows: ``[N]`` int64, position of each prompt in its split.
        rewards: ``[N]`` float32.
        words: ``[N]`` float32, words of each answer.
        parts: ``[N]`` float32 scores of each part of a summed reward, by name.
    """

    rows: Tensor
    rewards: Tensor
    words: Tensor
    parts: Mapping[str, Tensor] = MappingProxyType({})

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors by name, as a file can hold it."""
        parts = {f"{_PART}{name}": values for name, values in self.parts.items()}
        return {"rows": self.rows, "rewards": self.rewards, "words": self.words, **parts}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Scores:
        """Return the scores whose `tensors` these are."""
        parts = {
            name.removeprefix(_PART): values
            for name, values in tensors.items()
            if name.startswith(_PART)
        }
        return cls(tensors["rows"], tensors["rewards"], tensors["words"], parts)

    def mean(self, part: str | None) -> float:
        """Return the mean reward, or that of one of its parts.

        Raises:
            UserError: There is no such part.
        """
        if part is None:
            return float(self.rewards.mean())
        if part not in self.parts:
            known = ", ".join(self.parts) or "none: it is no sum"
            raise UserError(
                f"expected `options.select_by` to name a part of the reward, got {part!r}; its "
                f"parts: {known}"
            )
        return float(self.parts[part].mean())

    def select(self, rows: Tensor) -> Scores:
        """Return the scores of the prompts at `rows` (``[M]``) of the split, in that order."""
        place = {int(row): index for index, row in enumerate(self.rows)}
        missing = [int(row) for row in rows if int(row) not in place]
        if missing:
            raise UserError(
                f"the reference answered {len(place)} validation prompts, prompt {missing[0]} was "
                "not among them: don't change the validation data during a run"
            )
        index = torch.tensor([place[int(row)] for row in rows], dtype=torch.int64)
        parts = {name: values[index] for name, values in self.parts.items()}
        return Scores(rows, self.rewards[index], self.words[index], parts)


def answer(
    policy: LanguagePolicy,
    batches: Iterable[PromptBatch],
    generation: GenerationConfig,
    clean: Callable[[str], str],
    pieces: Pieces | None = None,
) -> Answers:
    """Answer prompts in eval mode; where sampling is on, with the same noise every time.

    Args:
        policy: Answers, as it stands.
        batches: The prompts, on any device.
        generation: How.
        clean: From what was generated to the answer.
        pieces: Holds answers that were given earlier, and gets new ones, batch by batch.
    """
    rows: list[int] = []
    prompts: list[Prompt] = []

    def noted() -> Iterator[PromptBatch]:
        for batch in batches:
            rows.extend(batch.rows.tolist())
            prompts.extend(batch.prompts)
            yield batch

    ids = generate_answers(policy, noted(), generation, pieces)
    return Answers(rows, prompts, [clean(policy.decode(row)) for row in ids])


@torch.no_grad()
def generate_answers(
    policy: LanguagePolicy,
    batches: Iterable[PromptBatch],
    generation: GenerationConfig,
    pieces: Pieces | None = None,
) -> list[list[int]]:
    """Return the ids of an answer to each prompt, as `answer` has them."""
    ids: list[list[int]] = []
    generator = torch.Generator(device=policy.device).manual_seed(0)
    with evaluation(policy):
        for batch in batches:
            name = prompts_digest([batch])
            known = None if pieces is None else pieces.find(name)
            if known is None:
                found = policy.generate(batch.to(policy.device), generation, generator)
                if pieces is not None:
                    pieces.keep(name, generated_part(found, generator))
            else:
                found = generated_ids(known, generator)
            ids += found
    return ids


def validation_batches(module: OfflineModule) -> Iterator[Any]:
    """Yield what the validation loop of a module's trainer would."""
    trainer: Any = module.trainer
    data = getattr(trainer, "datamodule", None)
    loader = [] if data is None else data.val_dataloader()
    limit = trainer.limit_val_batches
    count = limit if isinstance(limit, int) else math.ceil(len(loader) * limit)
    for batch in islice(loader, count):
        yield batch.to(module.device)


def unfinished_answers(module: OfflineModule, start: Key) -> Pieces:
    """Return the answers of a validation that the same weights gave before a kill.

    Those of other weights are dropped. Each batch is written when it comes.

    Args:
        module: Says what trains and how answers are made; its trainer names the folder.
        start: What identifies the policy apart from what trains.
    """
    key = {
        **start,
        "weights": tensors_digest(sorted(module.trainable())),
        "generation": json.dumps(asdict(module.generation)),
    }
    trainer = module.trainer
    folder = Path(trainer.default_root_dir) / f".unfinished_validation-{trainer.global_rank}"
    return Pieces(folder, key, seconds=0.0)


def generated_part(ids: Sequence[Sequence[int]], generator: torch.Generator) -> dict[str, Tensor]:
    """Return N generated sequences, and where that leaves the generator, as tensors."""
    return {
        "ids": torch.tensor([token for row in ids for token in row], dtype=torch.int64),
        "lengths": torch.tensor([len(row) for row in ids], dtype=torch.int64),
        "generator": generator.get_state(),
    }


def generated_ids(part: Mapping[str, Tensor], generator: torch.Generator) -> list[list[int]]:
    """Return the sequences of `generated_part`, and bring the generator to where it was."""
    generator.set_state(part["generator"])
    return [row.tolist() for row in torch.split(part["ids"], part["lengths"].tolist())]


def score(answers: Answers, reward: Reward) -> Scores:
    """Score answers.

    Raises:
        UserError: A score is not a number or lies outside the reward's range.
    """
    rewards, parts = reward.scores_and_parts(answers.prompts, answers.texts)
    rewards = as_scores(rewards, count=len(answers.texts), name=reward.name)
    check_rewards(
        rewards, reward.low, reward.high, [f"validation prompt {r}" for r in answers.rows]
    )
    words = torch.tensor([float(len(text.split())) for text in answers.texts])
    rows = torch.tensor(answers.rows, dtype=torch.int64)
    return Scores(rows, rewards.float(), words, {n: part.float() for n, part in parts.items()})


def score_metrics(scores: Scores) -> dict[str, float]:
    """Return what the log says of scores."""
    parts = {f"val/parts/{name}": float(part.mean()) for name, part in scores.parts.items()}
    means = {
        "val/reward": float(scores.rewards.mean()),
        "val/words": float(scores.words.mean()),
    }
    return {**means, **parts}


def expect_reward(reward: object) -> None:
    """Refuse what is no `Reward`: a bare function has neither a name nor a range.

    Raises:
        UserError: It is something else, not None.
    """
    if reward is not None and not isinstance(reward, Reward):
        wrapped = "wrap it, `CallableReward(function, low=…, high=…)`" if callable(reward) else ""
        raise UserError(
            f"expected a `Reward` or None, got a {type(reward).__name__}: "
            f"{wrapped or 'see `llm_agents.rewards`'}"
        )


def check_rewards(
    rewards: Tensor, low: float | None, high: float | None, names: Sequence[str] | None = None
) -> None:
    """Refuse rewards that are not finite or not in the range ``[low, high]``.

    Args:
        rewards: ``[N]``.
        low: Lowest allowed; None allows any.
        high: Highest allowed; None allows any.
        names: What each is the reward of; training responses if None.

    Raises:
        UserError: Names the first wrong one.
    """

    def name(row: int) -> str:
        return names[row] if names else f"training response {row}"

    wrong = (~rewards.isfinite()).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"expected finite rewards, got {float(rewards[row])} for {name(row)} and "
            f"{len(wrong) - 1} others: score them again, or leave those rows out"
        )
    outside = torch.zeros_like(rewards, dtype=torch.bool)
    if low is not None:
        outside |= rewards < low - 1e-5 * max(1.0, abs(low))
    if high is not None:
        outside |= rewards > high + 1e-5 * max(1.0, abs(high))
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise UserError(
            f"expected rewards from {low} to {high}, got {float(rewards[row]):.4g} for {name(row)} "
            f"({int(outside.sum())} of {len(rewards)} lie outside): raw logits need "
            "`reward_transform: sigmoid` in the data, other scales a reward with their range"
        )


def prompts_digest(batches: Iterable[PromptBatch]) -> str:
    """Return a digest of the prompts' token ids and positions."""
    digest = hashlib.sha256()
    for batch in batches:
        for row, ids, mask in zip(
            batch.rows.tolist(), batch.prompt_ids, batch.prompt_mask, strict=True
        ):
            digest.update(f"{row} {ids[mask].tolist()}".encode())
    return digest.hexdigest()


def texts_digest(prompts: Sequence[Prompt], responses: Sequence[str]) -> str:
    """Return a digest of dialogues and what is said to each, as a reward reads them."""
    digest = hashlib.sha256()
    for prompt, response in zip(prompts, responses, strict=True):
        turns = [[turn.role, turn.text] for turn in prompt]
        digest.update(json.dumps([turns, response]).encode())
    return digest.hexdigest()
