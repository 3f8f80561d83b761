"""Where the tokens of a batch lie in the rows that a model computes.

Causal models get each row as ``[prompt | response | padding]``. Padding comes last, so no token
ever sees it: no attention mask, no position ids, the same numbers whatever the family's positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from llm_agents.types import PromptBatch, TokenBatch


class CausalRows(NamedTuple):
    """Rows for a causal model.

    Args:
        ids: ``[B, L]`` int64, real tokens first; 0 under padding.
        mask: ``[B, L]`` bool, True = real token.
        prompt_lengths: ``[B]`` int64.
    """

    ids: Tensor
    mask: Tensor
    prompt_lengths: Tensor

    def token_lists(self) -> list[list[int]]:
        """Return the real tokens of each row."""
        lengths = self.mask.sum(1).tolist()
        return [row[:length] for row, length in zip(self.ids.tolist(), lengths, strict=True)]


def causal_rows(batch: TokenBatch | PromptBatch, *, prompts_only: bool = False) -> CausalRows:
    """Return the rows of `batch` with its padding moved to the end.

    Args:
        batch: Prompts padded on any side; responses, if it has any, padded on the right.
        prompts_only: Leave the responses out.

    Raises:
        ValueError: A prompt is empty, so that nothing predicts its response's first token.
    """
    ids, mask = batch.prompt_ids, batch.prompt_mask
    prompt_lengths = mask.sum(1)
    if ids.shape[1] == 0 or not bool((prompt_lengths > 0).all()):
        row = int((prompt_lengths == 0).nonzero()[0, 0]) if ids.shape[0] else 0
        raise ValueError(
            f"expected at least one token in each prompt, row {row} has none: encode prompts with "
            "`encode_prompt`, which gives an empty one a begin token"
        )
    if isinstance(batch, TokenBatch) and not prompts_only:
        ids = torch.cat((ids, batch.response_ids), 1)
        mask = torch.cat((mask, batch.response_mask), 1)
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    width = int(mask.sum(1).max())
    order = order[:, :width]
    mask = mask.gather(1, order)
    return CausalRows(ids.gather(1, order).masked_fill(~mask, 0), mask, prompt_lengths)


def response_positions(rows: CausalRows, batch: TokenBatch, *, shift: int) -> Tensor:
    """Return ``[B, T]`` positions in `rows` of the response tokens, moved by `shift`.

    A `shift` of −1 gives the positions that predict them. Positions under padding are clamped.
    """
    offsets = torch.arange(batch.response_ids.shape[1], device=rows.ids.device)
    positions = rows.prompt_lengths[:, None] + offsets + shift
    return positions.clamp(max=rows.ids.shape[1] - 1)


def gather_positions(states: Tensor, positions: Tensor) -> Tensor:
    """Return ``[B, T, H]``: `states` (``[B, L, H]``) at `positions` (``[B, T]``)."""
    index = positions[:, :, None].expand(-1, -1, states.shape[-1])
    return states.gather(1, index)
