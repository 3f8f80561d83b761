"""States of choices below a model's lowest adapter, computed once and kept in memory.

A prompt's states are kept in blocks that prompts with a common beginning share; the states at the
nodes of an action trie belong to the choice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llm_agents.messages import say_once
from llm_agents.policies.action_layout import TreeLayout, lay_out, layout_inputs, tree_attention
from llm_agents.policies.action_memory import Memory
from llm_agents.policies.action_prefix import PrefixStore, StoredRange
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice
from llm_agents.policies.trunk_cache import (
    capture_layer_input,
    frozen_depth,
    layer_list,
    trunk_path_matches,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_logger = logging.getLogger(__name__)

_BLOCK = 32  # tokens
_STATE_BYTES = 2**30
_MOST_NUMBERS = 10**6
_PREFIX_BYTES = 2**28

_Block = tuple[int, tuple[int, ...]]  # number of the block before, and the tokens of this one


class ActionTrunk:
    """Gives the states that enter layer `depth`, which never change.

    Args:
        model: Causal model; its lowest `depth` layers are frozen and carry no adapter.
        depth: Number of layers that are left out of later passes.

    Attributes:
        note: Called with the choices of each pass, after it.
    """

    def __init__(self, model: PreTrainedModel, depth: int) -> None:
        self.model = model
        self.depth = depth
        self.note: Callable[[Sequence[EncodedChoice]], None] | None = None
        self._numbers: dict[_Block, int] = {}
        self._blocks: Memory[int, Tensor] = Memory(_STATE_BYTES)
        self._nodes: Memory[EncodedChoice, Tensor] = Memory(_STATE_BYTES // 4)
        self._prefixes = PrefixStore(_PREFIX_BYTES)

    @classmethod
    def open(cls, model: PreTrainedModel) -> ActionTrunk | None:
        """Return the trunk of a causal model, or None where there is nothing to leave out."""
        depth = frozen_depth(model)
        if not 0 < depth < len(layer_list(model)) or not trunk_path_matches(model, depth):
            return None
        say_once(
            _logger,
            "%d of %d layers don't train: what they make of a prompt is computed once and kept",
            depth,
            len(layer_list(model)),
        )
        return cls(model, depth)

    def states(
        self, layout: TreeLayout, choices: Sequence[EncodedChoice], tries: Sequence[ActionTrie]
    ) -> Tensor:
        """Return ``[1, N, H]``: the states of a layout's tokens that enter layer `depth`."""
        known = [self._known(choice, trie) for choice, trie in zip(choices, tries, strict=True)]
        missing = [row for row, parts in enumerate(known) if parts is None]
        if missing:
            found = self.compute([choices[r] for r in missing], [tries[r] for r in missing])
            for row, computed in zip(missing, found, strict=True):
                known[row] = computed
        size = layout.ids.shape[1]
        places: list[int] = []
        states = []
        for row, parts in enumerate(known):
            if parts is not None:
                prompt, nodes = parts
                own = layout.prompt_places[row]
                places += own + layout.node_places[row][1:]
                states += [prompt[len(prompt) - len(own) :], nodes]
        joined = torch.cat(states)
        index = torch.tensor(places, dtype=torch.int64, device=joined.device)
        return joined.new_empty(size, joined.shape[1]).index_copy_(0, index, joined)[None]

    def _known(self, choice: EncodedChoice, trie: ActionTrie) -> tuple[Tensor, Tensor] | None:
        """Return the kept states ``[P, H]`` of a prompt and ``[S, H]`` of its trie's nodes."""
        nodes = self._nodes.get(choice)
        if nodes is None:
            return None
        blocks = self._prompt_blocks(choice.prompt_ids)
        if sum(map(len, blocks)) < len(choice.prompt_ids):
            return None
        return torch.cat(blocks), nodes

    def _prompt_blocks(self, prompt_ids: tuple[int, ...]) -> list[Tensor]:
        """Return the kept blocks of a prompt up to the first that is missing."""
        blocks = []
        for number in self._block_numbers(prompt_ids):
            block = self._blocks.get(number)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _block_numbers(self, prompt_ids: tuple[int, ...]) -> list[int]:
        """Return the numbers of a prompt's blocks: equal ones for equal beginnings only."""
        if len(self._numbers) > _MOST_NUMBERS:
            self._numbers.clear()
            self._blocks.clear()
        numbers = [-1]
        for start in range(0, len(prompt_ids), _BLOCK):
            key = (numbers[-1], prompt_ids[start : start + _BLOCK])
            numbers.append(self._numbers.setdefault(key, len(self._numbers)))
        return numbers[1:]

    def compute(
        self, choices: Sequence[EncodedChoice], tries: Sequence[ActionTrie]
    ) -> list[tuple[Tensor, Tensor]]:
        """Compute and keep the states of choices.

        Returns:
            For each choice ``[P, H]`` of its prompt and ``[S, H]`` of its trie's nodes.
        """
        begun = [self._begun(choice.prompt_ids) for choice in choices]
        stored = [found for found, _ in begun]
        layout = lay_out(choices, tries, next(self.model.parameters()).device, stored)
        layout.begin(record=True)
        layers = getattr(self.model, self.model.base_model_prefix)
        with (
            torch.autocast(layout.ids.device.type, enabled=False),
            tree_attention(self.model),
            capture_layer_input(self.model, self.depth) as captured,
        ):
            layers(**layout_inputs(layout))
        if captured.hidden is None:
            raise RuntimeError("the model did not reach its layer")
        self._prefixes.keep(choices, layout, stored)
        states = captured.hidden[0]
        result = []
        for row, choice in enumerate(choices):
            prompt = torch.cat((*begun[row][1], states[layout.prompt_places[row]]))
            nodes = states[layout.node_places[row][1:]]
            numbers = self._block_numbers(choice.prompt_ids)
            for number, block in zip(numbers, torch.split(prompt, _BLOCK), strict=True):
                if number not in self._blocks:
                    kept = block.clone()
                    self._blocks.put(number, kept, kept.nbytes)
            self._nodes.put(choice, nodes, nodes.nbytes)
            result.append((prompt, nodes))
        if self.note is not None:
            self.note(choices)
        return result

    def _begun(self, prompt_ids: tuple[int, ...]) -> tuple[StoredRange | None, list[Tensor]]:
        """Return what is known of a prompt's beginning: keys and values, and states of as much."""
        found = self._prefixes.find(prompt_ids)
        if found is None:
            return None, []
        whole = found[1] // _BLOCK
        blocks = self._prompt_blocks(prompt_ids[: whole * _BLOCK])
        length = sum(map(len, blocks))
        return ((found[0], length), blocks) if length else (None, [])
