"""Keys and values of prompts that were computed, for prompts that begin alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llm_agents.policies.action_layout import StoredPrefix, TreeLayout
from llm_agents.policies.action_memory import Memory
from llm_agents.policies.action_text import common_length
from llm_agents.policies.action_types import EncodedChoice

_LEAST = 16  # tokens that are worth looking up and keeping

StoredRange = tuple[StoredPrefix, int]


class PrefixStore:
    """Remembers the last prompts' keys and values, those of one state of the weights.

    Args:
        limit_bytes: Size of what is kept; what was not used for longest goes first.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._prefixes: Memory[tuple[int, ...], StoredPrefix] = Memory(limit_bytes)

    def clear(self) -> None:
        """Forget everything, as the weights have changed."""
        self._prefixes.clear()

    def find(self, prompt_ids: tuple[int, ...]) -> StoredRange | None:
        """Return the longest stored beginning of a prompt; its last token is never among it."""
        best, longest = None, _LEAST - 1
        for ids in self._prefixes:
            length = min(common_length(ids, prompt_ids), len(prompt_ids) - 1)
            if length > longest:
                best, longest = ids, length
        if best is None:
            return None
        found = self._prefixes.get(best)
        return None if found is None else (found, longest)

    def keep(
        self,
        choices: Sequence[EncodedChoice],
        layout: TreeLayout,
        stored: Sequence[StoredRange | None],
    ) -> None:
        """Keep the prompts of a pass whose layout recorded its keys and values."""
        if layout.record is None:
            raise ValueError("expected a layout that recorded its pass: `begin(record=True)`")
        for choice, places, found in zip(choices, layout.prompt_places, stored, strict=True):
            ids = choice.prompt_ids
            if len(ids) < _LEAST or ids in self._prefixes:
                continue
            index = torch.tensor(places, dtype=torch.int64, device=layout.ids.device)
            layers = tuple(
                (_whole(layer, 0, keys, index, found), _whole(layer, 1, values, index, found))
                for layer, (keys, values) in enumerate(layout.record)
            )
            size = sum(keys.nbytes + values.nbytes for keys, values in layers)
            self._prefixes.put(ids, StoredPrefix(ids, layers), size)


def _whole(layer: int, kind: int, new: Tensor, index: Tensor, found: StoredRange | None) -> Tensor:
    """Return a prompt's keys (`kind` 0) or values (1): the stored ones, then those at `index`."""
    own = new.index_select(2, index)
    if found is None:
        return own
    prefix, length = found
    return torch.cat((prefix.layers[layer][kind][:, :, :length], own), 2)
