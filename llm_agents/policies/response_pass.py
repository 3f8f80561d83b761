"""What PPO on responses asks of a policy: what it samples, and log-probs with states to value."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from llm_agents.policies.generation import cut, generate
from llm_agents.policies.modes import evaluation
from llm_agents.types import GenerationConfig, TokenBatch

if TYPE_CHECKING:
    from llm_agents.policies.language_policy import LanguagePolicy


class SampledResponse(NamedTuple):
    """A response as it was sampled.

    Args:
        ids: All that was decided, at least one token: what completed a stop string belongs to it.
        kept: Its beginning that is the response: without a stop string.
        is_ended: It came to an end of its own, rather than to the limit of new tokens.
    """

    ids: list[int]
    kept: list[int]
    is_ended: bool


class LogProbsAndTokenStates(NamedTuple):
    """What one pass says of the tokens of responses.

    Args:
        log_probs: ``[B, T]`` float32, 0 under a False mask.
        states: ``[B, T, H]`` hidden states after the final norm, each before its token was read.
    """

    log_probs: Tensor
    states: Tensor


def sample_responses(
    policy: LanguagePolicy,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    generator: torch.Generator,
) -> list[SampledResponse]:
    """Return a response to each prompt, with the tokens by which it ended.

    A policy that is to learn when to stop must be told of the tokens that stopped it.

    Args:
        policy: Answers, in eval mode.
        prompts: Ids of N prompts, none empty.
        config: How to generate.
        generator: Source of the random numbers.
    """
    vocabulary = policy.generation_vocabulary()
    with evaluation(policy), torch.no_grad():
        found = generate(
            policy.causal_model,
            prompts,
            config,
            vocabulary=vocabulary,
            generator=generator,
            keep_stop=True,
        )
    responses = []
    for ids in found:
        kept = cut(ids, config.stop_strings, vocabulary)
        is_ended = len(kept) < len(ids) or ids[-1] in vocabulary.end_ids
        responses.append(SampledResponse(ids, kept, is_ended))
    return responses


def with_responses(tokens: TokenBatch, responses: Sequence[Sequence[int]]) -> TokenBatch:
    """Return the prompts of a batch with other responses.

    Args:
        tokens: B rows.
        responses: Ids of B responses, none empty.
    """
    if len(responses) != len(tokens) or not all(responses):
        raise ValueError(
            f"expected {len(tokens)} responses of at least one token, got {len(responses)}: "
            f"lengths {[len(ids) for ids in responses]}"
        )
    width = max(map(len, responses))
    ids = torch.zeros(len(responses), width, dtype=torch.int64)
    mask = torch.zeros(len(responses), width, dtype=torch.bool)
    for row, response in enumerate(responses):
        ids[row, : len(response)] = torch.tensor(response)
        mask[row, : len(response)] = True
    device = tokens.prompt_ids.device
    return TokenBatch(
        tokens.prompt_ids, tokens.prompt_mask, ids.to(device), mask.to(device), tokens.rows
    )


def log_probs_and_token_states(
    policy: LanguagePolicy, tokens: TokenBatch
) -> LogProbsAndTokenStates:
    """Return log-probs of the response tokens and the states that predict them, from one pass.

    Args:
        policy: Gradients flow to whatever trains.
        tokens: B rows with responses of up to T tokens.
    """
    return LogProbsAndTokenStates(*policy.forward_pass.log_probs_and_predictors(tokens))


def short_lived(policy: LanguagePolicy) -> AbstractContextManager[None]:
    """Keep the frozen layers' states of what is read inside in memory, not on disk, until its end.

    Args:
        policy: Without a trunk cache nothing is kept at all.
    """
    trunk = policy.forward_pass.trunk
    return nullcontext() if trunk is None else trunk.in_memory()
