"""Rows of a batch laid end to end: no padding is computed, and equal prompts are computed once.

The rows become one sequence. Everything in a model but attention treats tokens one by one, and
attention is told which of them belong together: `pack_rows` says so, and an attention function that
is registered with transformers obeys. Without such a layout it is transformers' ``sdpa``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from llm_agents.policies.modes import evaluation
from llm_agents.policies.rows import CausalRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_logger = logging.getLogger(__name__)

ATTENTION = "llm_agents_packed"
_LEAST_GAIN = 0.05  # share of the tokens that packing must save to be worth its bookkeeping
_TOLERANCE = 1e-4  # relative to the largest state


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens that see each other causally, and all of a prefix before that.

    Args:
        start: First token.
        end: One past the last token.
        prefix: Start and end of the tokens that all of these see too; None if there are none.
    """

    start: int
    end: int
    prefix: tuple[int, int] | None = None


@dataclass(frozen=True)
class PackedRows:
    """Rows as one sequence of N tokens.

    Args:
        ids: ``[1, N]`` int64.
        position_ids: ``[1, N]`` int64, each token's place in its own row.
        sources: ``[N]`` int64, where in the flattened ``[B * L]`` rows each token was.
        places: ``[B, L]`` int64, where in the sequence each row's tokens are; 0 under padding.
        segments: Cover the sequence in order.
    """

    ids: Tensor
    position_ids: Tensor
    sources: Tensor
    places: Tensor
    segments: tuple[Segment, ...]
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def mask(self, segment: Segment, device: torch.device) -> Tensor | None:
        """Return ``[1, 1, T, P + T]`` bool, True = seen, or None where plain causality holds."""
        if segment.prefix is None:
            return None
        length, seen = segment.end - segment.start, segment.prefix[1] - segment.prefix[0]
        if (length, seen) not in self._masks:
            ones = torch.ones(1, 1, length, seen + length, dtype=torch.bool, device=device)
            self._masks[length, seen] = ones.tril(seen)
        return self._masks[length, seen]

    def unpack(self, states: Tensor) -> Tensor:
        """Return ``[1, N, …]`` as ``[B, L, …]``; what lies under padding has no meaning."""
        return states[0][self.places]


def pack_rows(rows: CausalRows) -> PackedRows | None:
    """Lay rows end to end, rows with equal prompts behind one copy of the prompt.

    Returns:
        The layout, or None where it would save too little.
    """
    batch_size, width = rows.ids.shape
    prompt_lengths = rows.prompt_lengths.tolist()
    tokens = rows.token_lists()
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, length in enumerate(prompt_lengths):
        groups.setdefault(tuple(tokens[row][:length]), []).append(row)
    segments: list[Segment] = []
    sources: list[int] = []
    positions: list[int] = []
    places = torch.zeros(batch_size, width, dtype=torch.int64)

    def add(row: int, first: int, last: int, prefix: tuple[int, int] | None) -> tuple[int, int]:
        start, end = len(sources), len(sources) + last - first
        if end > start:
            segments.append(Segment(start, end, prefix))
        sources.extend(range(row * width + first, row * width + last))
        positions.extend(range(first, last))
        places[row, first:last] = torch.arange(start, end)
        return start, end

    for group in groups.values():
        if len(group) == 1:
            add(group[0], 0, len(tokens[group[0]]), None)
            continue
        length = prompt_lengths[group[0]]
        prompt = add(group[0], 0, length, None)
        for row in group:
            places[row, :length] = torch.arange(*prompt)
            add(row, length, len(tokens[row]), prompt)
    if len(sources) > (1 - _LEAST_GAIN) * batch_size * width:
        return None
    device = rows.ids.device
    index = torch.tensor(sources, device=device)
    return PackedRows(
        ids=rows.ids.reshape(-1)[index][None],
        position_ids=torch.tensor(positions, device=device)[None],
        sources=index,
        places=places.to(device),
        segments=tuple(segments),
    )


def packed_inputs(packed: PackedRows) -> dict[str, object]:
    """Return a causal model's arguments for packed rows."""
    # A mask of four dimensions is taken for a finished one: transformers builds none of its own.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=packed.ids.device)
    return {
        "input_ids": packed.ids,
        "position_ids": packed.position_ids,
        "attention_mask": unused,
        "packed_rows": packed,
        "use_cache": False,
    }


def enable_packing(model: PreTrainedModel) -> bool:
    """Make a causal model's attention obey a layout, if it can and is right when it does.

    Models that attend in another way than ``sdpa``, or to a window only, stay as they are.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config, text = model.config, model.config.get_text_config()
    is_windowed = any(kind != "full_attention" for kind in getattr(text, "layer_types", None) or ())
    if config.is_encoder_decoder or is_windowed or config._attn_implementation != "sdpa":
        return False
    if getattr(text, "sliding_window", None) and not hasattr(text, "layer_types"):
        return False
    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    config._attn_implementation = ATTENTION
    if _is_right(model):
        return True
    config._attn_implementation = "sdpa"
    _logger.info("%s can't take packed rows: padding is computed", type(model).__name__)
    return False


def _is_right(model: PreTrainedModel) -> bool:
    """Compare packed rows, one pair with an equal prompt among them, with the rows alone."""
    prompts, responses = ([1, 2, 3], [1, 2, 3], [4]), ([5, 6], [7, 8, 9, 1], [2])
    ids = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    width = max(map(len, ids))
    padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids])
    lengths = torch.tensor([len(row) for row in ids])
    device = next(model.parameters()).device
    rows = CausalRows(
        padded.to(device),
        (torch.arange(width) < lengths[:, None]).to(device),
        torch.tensor([len(prompt) for prompt in prompts], device=device),
    )
    packed = pack_rows(rows)
    layers = getattr(model, model.base_model_prefix)
    if packed is None:
        raise RuntimeError("these rows save more than half of their tokens when packed")
    try:
        with evaluation(model), torch.no_grad():
            expected = layers(input_ids=rows.ids, use_cache=False).last_hidden_state[rows.mask]
            states = packed.unpack(layers(**packed_inputs(packed)).last_hidden_state)[rows.mask]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        _logger.info("%s refuses packed rows: %s", type(model).__name__, error)
        return False
    difference = float((states - expected).abs().max())
    tolerance = _TOLERANCE if model.dtype == torch.float32 else 100 * _TOLERANCE
    return difference <= tolerance * float(expected.abs().max())


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_rows: PackedRows | None = None,
    **options: Any,  # noqa: ANN401  # whatever a model passes to attention
) -> tuple[Tensor, None]:
    """Attend within the segments of `packed_rows`, or as ``sdpa`` does if that is None.

    Args:
        module: The model's attention.
        query: ``[1, heads, N, D]``.
        key: ``[1, key heads, N, D]``.
        value: ``[1, key heads, N, D]``.
        attention_mask: Passed on without a layout, unused with one.
        packed_rows: Which tokens see which.
        options: Passed on.

    Returns:
        ``[1, N, heads, D]`` and None.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attend: Any = sdpa_attention_forward
    if packed_rows is None:
        output: tuple[Tensor, None] = attend(module, query, key, value, attention_mask, **options)
        return output
    parts = []
    for segment in packed_rows.segments:
        own = slice(segment.start, segment.end)
        keys, values = key[:, :, own], value[:, :, own]
        if segment.prefix is not None:
            before = slice(*segment.prefix)
            keys = torch.cat((key[:, :, before], keys), 2)
            values = torch.cat((value[:, :, before], values), 2)
        mask = packed_rows.mask(segment, query.device)
        parts.append(attend(module, query[:, :, own], keys, values, mask, **options)[0])
    return torch.cat(parts, 1), None
