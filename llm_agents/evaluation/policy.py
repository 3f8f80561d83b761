"""Answers of a policy to test prompts, and what a reward says about them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from llm_agents.data.templates import Template, strip_generated
from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import BootstrapConfig, bootstrap_mean
from llm_agents.evaluation.references import answer_metrics, gold_result
from llm_agents.evaluation.results import (
    Answer,
    Results,
    TestSetResult,
    describe_reward,
)
from llm_agents.evaluation.text_metrics import distinct_n, num_words
from llm_agents.job_progress import job_progress
from llm_agents.methods.content_cache import digest_of, policy_key
from llm_agents.methods.pieces import Pieces
from llm_agents.methods.validation import generated_ids, generated_part
from llm_agents.policies import LanguagePolicy
from llm_agents.rewards.scores import check_scores
from llm_agents.types import GenerationConfig, Prompt, PromptBatch, Reward

log = logging.getLogger(__name__)
OVERALL = "all"
UNFINISHED_ANSWERS = ".unfinished_answers"


def evaluate_policy(
    policy: LanguagePolicy,
    reward: Reward,
    test_sets: Mapping[str, Iterable[PromptBatch]],
    generation: GenerationConfig,
    *,
    template: Template = "alol",
    name: str = "policy",
    seed: int = 0,
    num_prompts: int | None = None,
    bootstrap: BootstrapConfig | None = None,
    details: Mapping[str, Any] | None = None,
    references: Mapping[str, Sequence[str | None]] | None = None,
    scores_references: bool = False,
    progress: bool = False,
    folder: Path | None = None,
) -> Results:
    """Generate a response to every test prompt and score it.

    Args:
        policy: Answers the prompts, in evaluation mode.
        reward: Scores the answers.
        test_sets: Batches of prompts by the test set's name.
        generation: How responses are generated.
        template: How the prompts are written, which says where an answer ends.
        name: What is evaluated, for tables.
        seed: Seed of the generation, where it samples.
        num_prompts: Use only this many prompts of each test set, the first ones.
        bootstrap: How intervals are computed.
        details: Kept in the results as they are.
        references: The data's own answers by test set, one a prompt in the set's order, None where
            they have none.
        scores_references: Score these too.
        progress: Show a bar for each test set.
        folder: Keeps answers until all are there, so that an evaluation that is cut short goes on.

    Returns:
        Numbers for each test set, for all together, and for each prompt.

    Raises:
        UserError: There is no test set, one has no prompt, or a score is not finite.
    """
    _check_names(test_sets)
    bootstrap = bootstrap or BootstrapConfig()
    answered = []
    settings = _Settings(generation, seed, template, num_prompts, progress)
    for found in _answer_all(policy, reward, test_sets, settings, folder):
        found = _with_references(found, (references or {}).get(found.test))
        answered.append(_with_gold(found, reward) if scores_references else found)
    return Results(
        name=name,
        reward=describe_reward(reward),
        generation=generation,
        bootstrap=bootstrap,
        seed=seed,
        tests=_summaries(answered, bootstrap),
        answers=tuple(answer for entry in answered for answer in entry.answers),
        details=dict(details or {}),
    )


class _Settings(NamedTuple):
    """How answers are made; see `evaluate_policy`."""

    generation: GenerationConfig
    seed: int
    template: Template
    num_prompts: int | None
    progress: bool


def _answer_all(
    policy: LanguagePolicy,
    reward: Reward,
    test_sets: Mapping[str, Iterable[PromptBatch]],
    settings: _Settings,
    folder: Path | None,
) -> list[_Answered]:
    """Answer every test set, going on with what an evaluation of the same policy left."""
    key = {"generation": json.dumps(asdict(settings.generation)), "seed": str(settings.seed)}
    left: AbstractContextManager[Pieces | None] = nullcontext()
    if folder is not None:
        left = Pieces.opened(folder / UNFINISHED_ANSWERS, {**policy_key(policy), **key})
    answered = []
    with left as pieces:
        for index, (test, batches) in enumerate(test_sets.items()):
            given = _collect(test, batches, settings.num_prompts)
            generator = torch.Generator(device=policy.device).manual_seed(settings.seed + index)
            answered.append(_answer(policy, reward, test, given, settings, generator, pieces))
        if pieces is not None:
            pieces.discard()
    return answered


def rescore(results: Results, reward: Reward) -> Results:
    """Score the answers of earlier results with another reward; nothing is generated.

    Args:
        results: As `read_results` gives them.
        reward: The new judge.

    Returns:
        The same answers with their new scores, and the numbers that follow.

    Raises:
        UserError: A score is not finite.
    """
    answered = []
    for test in results.test_names():
        start = time.perf_counter()
        answers = [answer for answer in results.answers if answer.test == test]
        rewards, parts = score(reward, [a.prompt for a in answers], [a.response for a in answers])
        scored = [replace(a, reward=float(r)) for a, r in zip(answers, rewards, strict=True)]
        found = _Answered(test, scored, parts, time.perf_counter() - start)
        before = next((entry.gold for entry in results.tests if entry.name == test), None)
        has_gold = before is not None and before.reward is not None
        answered.append(_with_gold(found, reward) if has_gold else found)
    return replace(
        results,
        reward=describe_reward(reward),
        tests=_summaries(answered, results.bootstrap),
        answers=tuple(answer for entry in answered for answer in entry.answers),
    )


def _check_names(test_sets: Mapping[str, object]) -> None:
    """Raise unless there are test sets whose names can stand in a table."""
    if not test_sets:
        raise UserError("expected at least one test set, got none: name files in `data.test`")
    if OVERALL in test_sets:
        raise UserError(f"a test set may not be called `{OVERALL}`: that row is the mean of all")


class _TestPrompts(NamedTuple):
    """The prompts of a test set, their token ids, and their positions in it."""

    prompts: list[Prompt]
    ids: list[list[int]]
    rows: list[int]


class _Answered(NamedTuple):
    """The answers to a test set, the scores of the reward's parts, and the seconds they took.

    `gold` are the rewards of the references that there are, and those of the reward's parts.
    """

    test: str
    answers: list[Answer]
    parts: dict[str, Tensor]
    seconds: float
    gold: tuple[Tensor, dict[str, Tensor]] | None = None


def _with_references(answered: _Answered, references: Sequence[str | None] | None) -> _Answered:
    """Put the data's own answers beside the generated ones."""
    if references is None:
        return answered
    answers = [replace(answer, reference=references[answer.row]) for answer in answered.answers]
    return answered._replace(answers=answers)


def _with_gold(answered: _Answered, reward: Reward) -> _Answered:
    """Score the data's own answers."""
    given = [answer for answer in answered.answers if answer.reference is not None]
    if not given:
        return answered
    texts = [answer.reference or "" for answer in given]
    gold = score(reward, [answer.prompt for answer in given], texts)
    return answered._replace(gold=gold)


def _answer(
    policy: LanguagePolicy,
    reward: Reward,
    test: str,
    given: _TestPrompts,
    settings: _Settings,
    generator: torch.Generator,
    pieces: Pieces | None,
) -> _Answered:
    """Answer each prompt of a test set and score the answers."""
    start = time.perf_counter()
    generation = settings.generation
    ids = generate_all(
        policy, given.ids, generation, generator, pieces, label=test, progress=settings.progress
    )
    if pieces is not None:
        pieces.write()
    texts = [strip_generated(policy.decode(row), settings.template) for row in ids]
    rewards, parts = score(reward, given.prompts, texts)
    answers = [
        Answer(
            test=test,
            row=given.rows[i],
            prompt=given.prompts[i],
            prefix=policy.decode(given.ids[i]),
            response=texts[i],
            reward=float(rewards[i]),
            num_words=num_words(texts[i]),
            num_tokens=len(ids[i]),
            is_truncated=is_truncated(ids[i], policy, generation),
        )
        for i in range(len(ids))
    ]
    return _Answered(test, answers, parts, time.perf_counter() - start)


def _summaries(
    answered: Sequence[_Answered], bootstrap: BootstrapConfig
) -> tuple[TestSetResult, ...]:
    """Return the numbers of each test set and, if there are several, of all together."""
    entries = list(answered)
    if len(entries) > 1:
        everything = _Answered(
            test=OVERALL,
            answers=[answer for entry in entries for answer in entry.answers],
            parts={
                part: torch.cat([entry.parts[part] for entry in entries])
                for part in entries[0].parts
            },
            seconds=sum(entry.seconds for entry in entries),
            gold=_joined_gold([entry.gold for entry in entries]),
        )
        entries.append(everything)
    return tuple(
        summarize(entry.test, entry.answers, entry.parts, entry.seconds, bootstrap, entry.gold)
        for entry in entries
    )


def _joined_gold(
    found: Sequence[tuple[Tensor, dict[str, Tensor]] | None],
) -> tuple[Tensor, dict[str, Tensor]] | None:
    """Return the scores of the references of all test sets; None unless all have some."""
    known = [entry for entry in found if entry is not None]
    if len(known) < len(found):
        return None
    parts = {name: torch.cat([entry[1][name] for entry in known]) for name in known[0][1]}
    return torch.cat([entry[0] for entry in known]), parts


def _collect(test: str, batches: Iterable[PromptBatch], limit: int | None) -> _TestPrompts:
    """Return the prompts of a test set, the first `limit` of them."""
    prompts: list[Prompt] = []
    ids: list[list[int]] = []
    rows: list[int] = []
    for batch in batches:
        prompts += batch.prompts
        rows += batch.rows.tolist()
        for row, mask in zip(batch.prompt_ids, batch.prompt_mask, strict=True):
            ids.append(row[mask].tolist())
        if limit is not None and len(prompts) >= limit:
            break
    if not prompts:
        raise UserError(f"the test set `{test}` has no prompt: look at what its file dropped")
    return _TestPrompts(prompts[:limit], ids[:limit], rows[:limit])


def generate_all(
    policy: LanguagePolicy,
    prompt_ids: Sequence[list[int]],
    generation: GenerationConfig,
    generator: torch.Generator,
    pieces: Pieces | None = None,
    *,
    label: str,
    progress: bool,
) -> list[list[int]]:
    """Return the responses' ids in the prompts' order, generated a few passes at a time.

    Those that `pieces` holds are not generated again.
    """
    order = sorted(range(len(prompt_ids)), key=lambda row: len(prompt_ids[row]), reverse=True)
    responses: list[list[int]] = [[] for _ in prompt_ids]
    title = f"answers · {label}"
    with job_progress(title, len(order), is_shown=progress) as advance:
        for start in range(0, len(order), generation.batch_size):
            chosen = order[start : start + generation.batch_size]
            batch = [list(prompt_ids[row]) for row in chosen]
            name = digest_of({"test": label, "rows": str(chosen), "prompts": str(batch)})
            known = None if pieces is None else pieces.find(name)
            if known is None:
                produced = [list(ids) for ids in policy.generate(batch, generation, generator)]
                if pieces is not None:
                    pieces.keep(name, generated_part(produced, generator))
            else:
                produced = generated_ids(known, generator)
            for row, ids in zip(chosen, produced, strict=True):
                responses[row] = ids
            advance(len(chosen))
    return responses


def is_truncated(ids: Sequence[int], policy: LanguagePolicy, generation: GenerationConfig) -> bool:
    """Return whether a response met the limit of new tokens before it ended."""
    ends = policy.generation_vocabulary().end_ids
    if len(ids) < generation.max_new_tokens or ids[-1] in ends:
        return False
    text = policy.decode(list(ids))
    return not any(stop in text for stop in generation.stop_strings)


def score(
    reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return ``[N]`` rewards and, for a sum, the ``[N]`` scores of its parts."""
    rewards, parts = reward.scores_and_parts(prompts, responses)
    checked = check_scores(
        rewards, count=len(responses), name=reward.name, low=reward.low, high=reward.high
    )
    return checked, parts


def summarize(
    name: str,
    answers: Sequence[Answer],
    parts: Mapping[str, Tensor],
    seconds: float,
    bootstrap: BootstrapConfig,
    gold: tuple[Tensor, Mapping[str, Tensor]] | None = None,
) -> TestSetResult:
    """Return the numbers of one test set.

    Args:
        name: Of the test set.
        answers: With their references, if there are any.
        parts: ``[N]`` scores of the parts of a summed reward.
        seconds: Time that the answers took.
        bootstrap: How intervals are computed.
        gold: Rewards of the references that there are, and those of the reward's parts.
    """
    texts = [answer.response for answer in answers]
    return TestSetResult(
        name=name,
        reward=bootstrap_mean(torch.tensor([answer.reward for answer in answers]), bootstrap),
        words=bootstrap_mean(
            torch.tensor([float(answer.num_words) for answer in answers]), bootstrap
        ),
        distinct={n: distinct_n(texts, n) for n in (1, 2, 3)},
        num_empty=sum(not text.strip() for text in texts),
        num_truncated=sum(answer.is_truncated for answer in answers),
        num_tokens=sum(answer.num_tokens for answer in answers),
        seconds=round(seconds, 3),
        parts={part: bootstrap_mean(values, bootstrap) for part, values in parts.items()},
        metrics=answer_metrics(answers, bootstrap),
        gold=gold_result(answers, gold, bootstrap),
    )


def mean_scores(
    reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str]
) -> dict[str, float]:
    """Return the mean of a reward, as ``final_reward``, and of each of its parts.

    Args:
        reward: Scores the responses.
        prompts: N of them.
        responses: The data's own answers, say.
    """
    rewards, parts = score(reward, prompts, responses)
    means = {name: float(values.mean()) for name, values in parts.items()}
    return {**means, "final_reward": float(rewards.mean())}
