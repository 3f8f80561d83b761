"""Hidden states of responses with the state of their prompt's end, from one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from llm_agents.types import TokenBatch

if TYPE_CHECKING:
    from llm_agents.policies.language_policy import LanguagePolicy


class ResponseStates(NamedTuple):
    """What a reward head reads.

    Args:
        hidden: ``[B, T, H]`` states after the final norm that have read each response token.
        mask: ``[B, T]`` bool, True = real token.
        prompt_end: ``[B, H]`` state of each prompt's last token.
    """

    hidden: Tensor
    mask: Tensor
    prompt_end: Tensor


def response_states(policy: LanguagePolicy, tokens: TokenBatch) -> ResponseStates:
    """Return the states of prompts and responses that a reward head reads.

    Args:
        policy: The trunk; gradients flow to whatever trains.
        tokens: B rows.
    """
    states, _ = policy.hidden_states(tokens, part="all")
    lengths = tokens.prompt_mask.sum(1)
    rows = torch.arange(len(states), device=states.device)
    offsets = torch.arange(tokens.response_mask.shape[1], device=states.device)
    if policy.is_encoder_decoder:  # the decoder's states follow the padded encoder's
        starts = torch.full_like(lengths, states.shape[1] - len(offsets))
    else:  # a row's response follows its prompt
        starts = lengths
    places = (starts[:, None] + offsets).clamp(max=states.shape[1] - 1)
    return ResponseStates(
        hidden=states[rows[:, None], places],
        mask=tokens.response_mask,
        prompt_end=states[rows, lengths - 1],
    )
