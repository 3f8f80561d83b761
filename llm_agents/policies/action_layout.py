"""Prompts and their actions' tries as one sequence in which common beginnings come once.

Everything in a model but attention treats tokens one by one. Attention is told which tokens see
which: `lay_out` cuts the sequence into pieces, and an attention function that is registered with
transformers attends piece by piece. So no padding is computed, gradients of a shared beginning add
up, and keys and values of earlier passes can stand in for tokens that are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from llm_agents.policies.action_text import common_length
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "llm_agents_tree"
_LEAST_SHARED = 8  # tokens that are worth a piece of their own

Range = tuple[int, int]


@dataclass(frozen=True)
class StoredPrefix:
    """Keys and values of a prompt's beginning, from an earlier pass.

    Args:
        ids: The P tokens they belong to.
        layers: ``[1, key heads, P, D]`` keys and values of each layer that was computed.
    """

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens that attention computes in one call.

    Args:
        start: First token.
        end: One past the last token.
        before: Ranges of earlier tokens that all of these see.
        stored: Prefix that all of these see first, and how much of it.
        mask: ``[T, K]`` bool over all keys, True = seen; None is plain causality.
    """

    start: int
    end: int
    before: tuple[Range, ...]
    stored: tuple[StoredPrefix, int] | None
    mask: Tensor | None


@dataclass
class TreeLayout:
    """Choices as one sequence of N tokens.

    Args:
        ids: ``[1, N]`` int64.
        position_ids: ``[1, N]`` int64, each token's place in its own text.
        node_places: For each choice, where its trie's nodes are; the prompt's end first.
        prompt_places: For each choice, where its prompt's tokens are, stored ones left out.
        pieces: Cover the sequence in order.
    """

    ids: Tensor
    position_ids: Tensor
    node_places: list[list[int]]
    prompt_places: list[list[int]]
    pieces: list[Piece]
    record: list[tuple[Tensor, Tensor]] | None = None
    _calls: int = field(default=0, repr=False)

    def begin(self, *, record: bool = False) -> None:
        """Prepare for a pass of the model.

        Args:
            record: Keep each layer's keys and values in `record`.
        """
        self._calls = 0
        self.record = [] if record else None

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: dict[str, Any],
    ) -> Tensor:
        """Return ``[1, N, heads, D]``: attention within the pieces."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attend: Any = sdpa_attention_forward
        layer = self._calls
        self._calls += 1
        if self.record is not None:
            self.record.append((key.detach(), value.detach()))
        queries = torch.split(query, [piece.end - piece.start for piece in self.pieces], 2)
        keys, values = self._seen(key), self._seen(value)
        parts = []
        for number, piece in enumerate(self.pieces):
            seen = [keys[number], values[number]]
            if piece.stored is not None:
                prefix, length = piece.stored
                pairs = zip(prefix.layers[layer], seen, strict=True)
                seen = [torch.cat((old[:, :, :length], own), 2) for old, own in pairs]
            mask = None if piece.mask is None else piece.mask[None, None]
            parts.append(attend(module, queries[number], *seen, mask, **options)[0])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _seen(self, own: Tensor) -> Sequence[Tensor]:
        """Return what each piece sees of the sequence's keys or values.

        One look-up serves all pieces: each slice would cost the backward pass a sum over all of
        the sequence.
        """
        if len(self.pieces) == 1:
            return (own,)
        index, sizes = self._sight
        return torch.split(own.index_select(2, index), sizes, 2)

    @cached_property
    def _sight(self) -> tuple[Tensor, list[int]]:
        """Return the tokens that the pieces see, piece by piece, and how many each sees."""
        seen = [
            [
                token
                for start, end in (*piece.before, (piece.start, piece.end))
                for token in range(start, end)
            ]
            for piece in self.pieces
        ]
        flat = [token for tokens in seen for token in tokens]
        index = torch.tensor(flat, dtype=torch.int64, device=self.ids.device)
        return index, [len(tokens) for tokens in seen]


def lay_out(
    choices: Sequence[EncodedChoice],
    tries: Sequence[ActionTrie],
    device: torch.device,
    stored: Sequence[tuple[StoredPrefix, int] | None] | None = None,
) -> TreeLayout:
    """Lay choices end to end, each common beginning of their prompts once.

    Args:
        choices: D choices.
        tries: Their actions' tries.
        device: Where the model computes.
        stored: For each choice, keys and values of its prompt's beginning that need no pass, and
            how many tokens of them, fewer than the prompt has.
    """
    return _Builder(choices, tries, device, stored or [None] * len(choices)).build()


class _Builder:
    """Builds a `TreeLayout`."""

    def __init__(
        self,
        choices: Sequence[EncodedChoice],
        tries: Sequence[ActionTrie],
        device: torch.device,
        stored: Sequence[tuple[StoredPrefix, int] | None],
    ) -> None:
        self.prompts = [choice.prompt_ids for choice in choices]
        self.tries = tries
        self.device = device
        self.stored = stored
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.pieces: list[Piece] = []
        self.node_places: list[list[int]] = [[] for _ in choices]
        self.prompt_places: list[list[int]] = [[] for _ in choices]

    def build(self) -> TreeLayout:
        def origin(member: int) -> tuple[int, int]:
            found = self.stored[member]
            return (0, 0) if found is None else (id(found[0]), found[1])

        members = sorted(range(len(self.prompts)), key=lambda m: (origin(m), self.prompts[m]))
        for (_, length), group in groupby(members, key=origin):
            self._place(list(group), length, ())
        return TreeLayout(
            torch.tensor([self.ids], dtype=torch.int64, device=self.device),
            torch.tensor([self.positions], dtype=torch.int64, device=self.device),
            self.node_places,
            self.prompt_places,
            self.pieces,
        )

    def _place(self, members: list[int], start: int, before: tuple[Range, ...]) -> None:
        """Place the tokens from `start` on of `members`, which are sorted and alike up to there."""
        if len(members) == 1:
            self._place_last(members[0], start, before)
            return
        first = self.prompts[members[0]]
        common = common_length(first, self.prompts[members[-1]])
        if common - start >= _LEAST_SHARED or common == len(self.prompts[members[-1]]) > start:
            piece = self._add(first[start:common], range(start, common), before, members[0], None)
            for member in members:
                self.prompt_places[member].extend(range(*piece))
            before, start = (*before, piece), common

        def following(member: int) -> int:
            prompt = self.prompts[member]
            return prompt[common] if len(prompt) > common else -1

        for token, group in groupby(members, key=following):
            if token >= 0:
                self._place(list(group), start, before)
            else:
                for member in group:
                    self._place_last(member, start, before)

    def _place_last(self, member: int, start: int, before: tuple[Range, ...]) -> None:
        """Place the rest of a prompt and its actions' trie."""
        rest, trie = self.prompts[member][start:], self.tries[member]
        places, length = self.prompt_places[member], len(self.prompts[member])
        if rest and not before and self.stored[member] is None:
            # Nothing comes before it: attention is faster without a mask.
            piece = self._add(rest, range(start, length), before, member, None)
            places.extend(range(*piece))
            before, rest = (piece,), ()
        depths = [length + depth for depth in trie.depths]
        positions = [*range(length - len(rest), length), *depths]
        if positions:
            first, _ = self._add((*rest, *trie.tokens), positions, before, member, trie)
            places.extend(range(first, first + len(rest)))
        nodes = range(len(self.ids) - len(trie.tokens), len(self.ids))
        self.node_places[member] = [places[-1], *nodes]

    def _add(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        before: tuple[Range, ...],
        member: int,
        trie: ActionTrie | None,
    ) -> Range:
        """Add a piece of tokens, the last ones those of `trie`, and return where it is."""
        start, end = len(self.ids), len(self.ids) + len(ids)
        stored = self.stored[member]
        num_before = sum(b - a for a, b in before) + (0 if stored is None else stored[1])
        mask = None
        if num_before or (trie is not None and trie.tokens):
            mask = torch.ones(len(ids), num_before + len(ids), dtype=torch.bool)
            mask = mask.tril_(num_before)
            if trie is not None and trie.tokens:
                size = len(trie.tokens)
                mask[-size:, -size:] = trie.visibility()
            mask = mask.to(self.device)
        self.ids.extend(ids)
        self.positions.extend(positions)
        self.pieces.append(Piece(start, end, before, stored, mask))
        return start, end


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a causal model's attention obey a layout inside."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    before = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def layout_inputs(layout: TreeLayout) -> dict[str, object]:
    """Return a causal model's arguments for a layout."""
    # A mask of four dimensions is taken for a finished one: transformers builds none of its own.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=layout.ids.device)
    return {
        "input_ids": layout.ids,
        "position_ids": layout.position_ids,
        "attention_mask": unused,
        "tree_layout": layout,
        "use_cache": False,
    }


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree_layout: TreeLayout,
    **options: Any,  # noqa: ANN401  # whatever a model passes to attention
) -> tuple[Tensor, None]:
    """Attend as `tree_layout` says; the mask is not used."""
    return tree_layout.attend(module, query, key, value, options), None
