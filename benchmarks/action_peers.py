"""The ways in which released codes score actions, re-created from what they compute.

*Repeat* gives every action a row of its own with the whole prompt, takes the logits of all
positions and their log-softmax. *Cached* computes the prompt's keys and values once (and logits
that it drops), copies them for every action, and goes on with the last prompt token and the
actions, padded; of an encoder-decoder it encodes the prompt once and copies the states. Their
overheads are left out. Scores are mean log-probs of an action's tokens, a list for each choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from llm_agents.policies.action_types import EncodedChoice


def token_scores(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Return ``[A]`` mean log-probs of ids ``[A, L]`` under logits ``[A, L, V]``."""
    chosen = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return (chosen * mask).sum(-1) / mask.sum(-1)


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


def repeat_scores(model: Any, choices: Sequence[EncodedChoice]) -> list[Tensor]:
    """Score with a row of prompt and action for every action."""
    scores = []
    for choice in choices:
        prompt = len(choice.prompt_ids)
        ids, mask = padded([(*choice.prompt_ids, *action) for action in choice.action_ids])
        logits = model(input_ids=ids, attention_mask=mask).logits
        log_probs = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        action_mask = mask[:, prompt:]
        total = (log_probs[:, prompt - 1 :] * action_mask).sum(-1)
        scores.append(total / action_mask.sum(-1))
    return scores


def cached_scores(model: Any, choices: Sequence[EncodedChoice]) -> list[Tensor]:
    """Score with the prompt's keys and values copied for every action."""
    scores = []
    for choice in choices:
        num_actions, length = len(choice.action_ids), len(choice.prompt_ids)
        cache = DynamicCache(config=model.config)
        model(input_ids=torch.tensor([choice.prompt_ids[:-1]]), cache=cache, use_cache=True)
        cache.batch_repeat_interleave(num_actions)
        ids, mask = padded(choice.action_ids)
        last = torch.full((num_actions, 1), choice.prompt_ids[-1])
        logits = model(
            input_ids=torch.cat((last, ids[:, :-1]), 1),
            attention_mask=torch.cat((mask.new_ones(num_actions, length), mask[:, :-1]), 1),
            cache=cache,
            use_cache=True,
        ).logits
        scores.append(token_scores(logits, ids, mask))
    return scores


def decoder_rows(model: Any, choice: EncodedChoice) -> tuple[Tensor, Tensor, Tensor]:
    ids, mask = padded(choice.action_ids)
    start = torch.full((len(ids), 1), model.config.decoder_start_token_id)
    return ids, mask, torch.cat((start, ids[:, :-1]), 1)


def repeat_seq2seq(model: Any, choices: Sequence[EncodedChoice]) -> list[Tensor]:
    """Score with the prompt encoded for every action."""
    scores = []
    for choice in choices:
        ids, mask, inputs = decoder_rows(model, choice)
        prompts = torch.tensor([choice.prompt_ids]).repeat(len(ids), 1)
        scores.append(
            token_scores(model(input_ids=prompts, decoder_input_ids=inputs).logits, ids, mask)
        )
    return scores


def cached_seq2seq(model: Any, choices: Sequence[EncodedChoice]) -> list[Tensor]:
    """Score with the prompt encoded once and its states copied for every action."""
    scores = []
    for choice in choices:
        ids, mask, inputs = decoder_rows(model, choice)
        encoded = model.get_encoder()(input_ids=torch.tensor([choice.prompt_ids]))
        states = encoded.last_hidden_state.repeat_interleave(len(ids), 0)
        output = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states), decoder_input_ids=inputs
        )
        scores.append(token_scores(output.logits, ids, mask))
    return scores
