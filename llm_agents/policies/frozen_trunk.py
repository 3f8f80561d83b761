"""The frozen lower layers of a model, whose states are computed once and kept on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llm_agents.policies.bundled import cache_folder
from llm_agents.policies.packing import PackedRows, pack_rows, packed_inputs
from llm_agents.policies.rows import CausalRows
from llm_agents.policies.trunk_cache import (
    TrunkStore,
    bypass_lower_layers,
    capture_layer_input,
    content_key,
    frozen_depth,
    layer_list,
    trunk_digest,
    trunk_path_matches,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_logger = logging.getLogger(__name__)


class FrozenTrunk:
    """Gives the states below a model's lowest adapter, from the store or by computing them.

    Args:
        model: Causal model; its lowest `depth` layers never change.
        store: Where the states are kept.
        depth: Number of layers whose output is kept.

    Attributes:
        can_pack: Tells whether the model takes packed rows; no, unless it is set.
    """

    def __init__(self, model: PreTrainedModel, store: TrunkStore, depth: int) -> None:
        self.model = model
        self.store = store
        self.depth = depth
        self.can_pack: Callable[[], bool] = lambda: False
        self._memory: dict[bytes, Tensor] | None = None

    @classmethod
    def open(
        cls, model: PreTrainedModel, folder: Path | None, top_layers: int | None = None
    ) -> FrozenTrunk | None:
        """Open the trunk's store, or say in the log why there is none and return None.

        Args:
            model: Model with its adapters.
            folder: Holds one store for each trunk; None is the user's cache.
            top_layers: Layers that are no part of the trunk, though they may be frozen too.
        """
        depth = frozen_depth(model)
        if depth and top_layers is not None:
            depth = max(0, min(depth, len(layer_list(model)) - top_layers))
        if depth == 0:
            _logger.warning(
                "`trunk_cache` has no effect: no layer lies below everything that trains or is "
                "adapted. Set `lora.top_layers` (causal models only)"
            )
            return None
        if not trunk_path_matches(model, depth):
            _logger.warning("`trunk_cache` is off for this model: every pass computes all layers")
            return None
        folder = (folder or cache_folder() / "trunk") / trunk_digest(model, depth)[:24]
        store = TrunkStore(
            folder, int(model.config.get_text_config().hidden_size), _state_dtype(model, depth)
        )
        return cls(model, store, depth)

    @contextmanager
    def handed_over(self, rows: CausalRows, packed: PackedRows | None) -> Iterator[None]:
        """Let the trunk's layers hand over the states of `rows` to the layers above.

        Args:
            rows: What the model is called on.
            packed: The same in one sequence, if the model gets it in that form.
        """
        states = self.states(rows)
        if packed is not None:
            states = states.flatten(0, 1)[packed.sources][None]
        with bypass_lower_layers(self.model, self.depth, states):
            yield

    @contextmanager
    def in_memory(self) -> Iterator[None]:
        """Keep the states of what is met inside in memory, and forget them afterwards.

        Responses that a policy has just sampled are read a few times and then never again.
        """
        outer, self._memory = self._memory, {}
        try:
            yield
        finally:
            self._memory = outer

    def states(self, rows: CausalRows) -> Tensor:
        """Return ``[B, L, H]`` states, zero under padding; compute and store what is missing."""
        keys = [content_key(ids) for ids in rows.token_lists()]
        if self._memory is not None:
            return self._remembered(rows, keys, self._memory)
        self._store_missing(rows, keys)
        states = self.store.read_padded(keys, rows.ids.shape[1])
        if states is None:
            raise RuntimeError(
                f"the trunk cache {self.store.folder} lost rows that were just written"
            )
        return states.to(rows.ids.device, non_blocking=True)

    def fill(self, rows: CausalRows) -> int:
        """Store the states of `rows` that are not there yet, and return how many those were."""
        return self._store_missing(rows, [content_key(ids) for ids in rows.token_lists()])

    def _store_missing(self, rows: CausalRows, keys: list[bytes]) -> int:
        """Compute and store rows whose keys are not in the store; return their number."""
        missing = [row for row, key in enumerate(keys) if key not in self.store]
        if missing:
            self.store.put([keys[row] for row in missing], self._computed(rows, missing))
        return len(missing)

    def _remembered(
        self, rows: CausalRows, keys: list[bytes], memory: dict[bytes, Tensor]
    ) -> Tensor:
        """Return ``[B, L, H]`` states from memory, once those that are missing are computed."""
        missing = [row for row, key in enumerate(keys) if key not in memory]
        if missing:
            memory.update(
                zip([keys[row] for row in missing], self._computed(rows, missing), strict=True)
            )
        found = [memory[key] for key in keys]
        states = found[0].new_zeros(*rows.ids.shape, found[0].shape[-1])
        for row, state in enumerate(found):
            states[row, : len(state)] = state
        return states

    def _computed(self, rows: CausalRows, chosen: list[int]) -> list[Tensor]:
        """Compute the states of the rows `chosen`, ``[L, H]`` each; equal prompts once."""
        index = torch.tensor(chosen, device=rows.ids.device)
        lengths = rows.mask[index].sum(1)
        width = int(lengths.max())
        part = CausalRows(
            rows.ids[index, :width], rows.mask[index, :width], rows.prompt_lengths[index]
        )
        packed = pack_rows(part) if self.can_pack() else None
        if packed is None:
            hidden = _states_below(self.model, self.depth, input_ids=part.ids, use_cache=False)
        else:
            hidden = packed.unpack(_states_below(self.model, self.depth, **packed_inputs(packed)))
        return [state[:length] for state, length in zip(hidden, lengths.tolist(), strict=True)]


def _states_below(model: PreTrainedModel, depth: int, **inputs: object) -> Tensor:
    """Return what enters layer `depth`, in the model's own precision whatever autocast says."""
    device = next(model.parameters()).device.type
    with torch.autocast(device, enabled=False), capture_layer_input(model, depth) as captured:
        model(**inputs)
    if captured.hidden is None:
        raise RuntimeError("the model did not reach its layer")
    return captured.hidden


def _state_dtype(model: PreTrainedModel, depth: int) -> torch.dtype:
    """Return the precision of the states: float32 norms raise a half-precision model's, say."""
    ids = torch.zeros(1, 2, dtype=torch.int64, device=next(model.parameters()).device)
    return _states_below(model, depth, input_ids=ids, use_cache=False).dtype
