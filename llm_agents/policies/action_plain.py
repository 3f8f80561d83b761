"""Node states the plain way: one sequence an action. Slow, right for every model, and the oracle.

What other ways of computing node states have in common is here too: gathering states that come in
any order, and reading them off a model whose logits may not be its output head's alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice, NodeStates
from llm_agents.policies.generation import decoder_start_id
from llm_agents.policies.plain_head import has_plain_head, output_head
from llm_agents.policies.recomputing import recomputed_layers
from llm_agents.policies.rows import CausalRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from llm_agents.policies.frozen_trunk import FrozenTrunk

_TOKENS_PER_PASS = 4096

Node = tuple[int, int]
"""A choice's place in its call, and a node of its trie."""


class EncodedPrompts(NamedTuple):
    """What an encoder made of B prompts.

    Args:
        states: ``[B, P, H]``.
        mask: ``[B, P]`` int64, 1 = real token.
    """

    states: Tensor
    mask: Tensor


class _Row(NamedTuple):
    """One action's sequence.

    Args:
        choice: Place of its choice.
        ids: Its tokens without the last one, which nothing follows.
        nodes: Its nodes, the prompt's end first.
    """

    choice: int
    ids: tuple[int, ...]
    nodes: tuple[int, ...]


class NodeCollector:
    """Puts the states of nodes that come in any order, some twice, into theirs."""

    def __init__(self) -> None:
        self._nodes: dict[Node, int] = {}
        self._states: list[Tensor] = []
        self._logits: list[Tensor] = []
        self._size = 0

    def add(self, nodes: Sequence[Node], states: Tensor, logits: Tensor | None) -> None:
        """Add the states ``[n, H]`` of `nodes`, and their logits ``[n, V]`` if there are any."""
        for place, node in enumerate(nodes, start=self._size):
            self._nodes.setdefault(node, place)
        self._size += len(nodes)
        self._states.append(states)
        if logits is not None:
            self._logits.append(logits)

    def collect(self, tries: Sequence[ActionTrie]) -> NodeStates:
        """Return the states of all nodes of `tries`."""
        order = [
            self._nodes[choice, node]
            for choice, trie in enumerate(tries)
            for node in range(trie.num_nodes)
        ]
        index = torch.tensor(order, device=self._states[0].device)
        logits = torch.cat(self._logits)[index] if self._logits else None
        counts = tuple(trie.num_nodes for trie in tries)
        return NodeStates(torch.cat(self._states)[index], logits, counts)


def plain_node_states(
    model: PreTrainedModel,
    choices: Sequence[EncodedChoice],
    tries: Sequence[ActionTrie],
    trunk: FrozenTrunk | None = None,
) -> NodeStates:
    """Return the states at the nodes of tries, each action computed with a prompt of its own.

    Args:
        model: Model with its output head.
        choices: D choices.
        tries: Their actions' tries.
        trunk: Gives the states below a causal model's lowest adapter.
    """
    collector = NodeCollector()
    has_encoder = bool(model.config.is_encoder_decoder)
    rows = [row for place, trie in enumerate(tries) for row in _rows(place, trie)]
    for part in _passes(rows, [len(choice.prompt_ids) for choice in choices]):
        prompts = [choices[row.choice].prompt_ids for row in part]
        skipped = [0 if has_encoder else len(prompt) - 1 for prompt in prompts]
        places = [
            (place, skip + offset)
            for place, (row, skip) in enumerate(zip(part, skipped, strict=True))
            for offset in range(len(row.nodes))
        ]
        nodes = [(row.choice, node) for row in part for node in row.nodes]
        with recomputed_layers(model):
            if has_encoder:
                encoded = encode_prompts(model, prompts)
                found = decoder_nodes(model, encoded, [row.ids for row in part], places)
            else:
                found = _causal_nodes(model, prompts, [row.ids for row in part], places, trunk)
        collector.add(nodes, *found)
    return collector.collect(tries)


def _rows(choice: int, trie: ActionTrie) -> Iterator[_Row]:
    """Yield the sequence of each action."""
    ids: list[int] = []
    nodes: list[int] = []
    edges = zip(trie.edge_actions, trie.edge_nodes, trie.edge_tokens, strict=True)
    last = 0
    for action, node, token in edges:
        if action != last:
            yield _Row(choice, tuple(ids[:-1]), tuple(nodes))
            ids, nodes, last = [], [], action
        ids.append(token)
        nodes.append(node)
    yield _Row(choice, tuple(ids[:-1]), tuple(nodes))


def _passes(rows: Sequence[_Row], prompt_lengths: Sequence[int]) -> Iterator[list[_Row]]:
    """Yield rows for passes of a bounded number of tokens."""
    part: list[_Row] = []
    width = 0
    for row in rows:
        length = prompt_lengths[row.choice] + len(row.ids)
        if part and max(width, length) * (len(part) + 1) > _TOKENS_PER_PASS:
            yield part
            part, width = [], 0
        part.append(row)
        width = max(width, length)
    yield part


def _causal_nodes(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    actions: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    trunk: FrozenTrunk | None,
) -> tuple[Tensor, Tensor | None]:
    """Return states, and logits if need be, at `places` of rows of prompt and action."""
    device = next(model.parameters()).device
    sequences = [(*prompt, *ids) for prompt, ids in zip(prompts, actions, strict=True)]
    ids, mask = right_padded(sequences, device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    rows = CausalRows(ids, mask, lengths)
    # Padding comes last, so that no token sees it: neither mask nor positions are needed.
    with nullcontext() if trunk is None else trunk.handed_over(rows, None):
        return causal_nodes(model, places, input_ids=ids, use_cache=False)


def right_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ``[B, L]`` int64 ids of `rows`, 0 as padding, and bool mask, True = real token."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    return ids.to(device), mask.to(device)


def causal_nodes(
    model: PreTrainedModel,
    places: Sequence[tuple[int, int]],
    **inputs: Any,  # noqa: ANN401  # whatever a model takes
) -> tuple[Tensor, Tensor | None]:
    """Return states ``[n, H]``, and ``[n, V]`` logits if they are not the head's, of a causal pass.

    Args:
        model: Causal model with its output head.
        places: Row and column of each of the n states.
        inputs: The model's arguments.
    """
    device = inputs["input_ids"].device
    rows, columns = torch.tensor(places, device=device).unbind(1)
    if has_plain_head(model):
        layers = getattr(model, model.base_model_prefix)
        return layers(**inputs).last_hidden_state[rows, columns], None
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        kept = torch.tensor(sorted({column for _, column in places}), device=device)
        columns = torch.searchsorted(kept, columns.contiguous())
        inputs["logits_to_keep"] = kept
    return with_logits(model, rows, columns, inputs)


def with_logits(
    model: PreTrainedModel, rows: Tensor, columns: Tensor, inputs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return what enters the output head, and the model's logits, at rows and columns."""
    seen: list[Tensor] = []
    handle = output_head(model).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        logits: Tensor = model(**inputs).logits
    finally:
        handle.remove()
    return seen[0][rows, columns], logits[rows, columns]


def encode_prompts(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> EncodedPrompts:
    """Run the encoder over B prompts, padded on the right."""
    ids, mask = right_padded(prompts, next(model.parameters()).device)
    states = model.get_encoder()(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    return EncodedPrompts(states, mask.long())


def decoder_nodes(
    model: PreTrainedModel,
    encoded: EncodedPrompts,
    actions: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor | None]:
    """Return decoder states, and logits if need be, at `places` of start token and actions."""
    start = decoder_start_id(model)
    ids, _ = right_padded([(start, *action) for action in actions], encoded.states.device)
    return run_decoder(model, encoded, ids, places, use_cache=False)


def run_decoder(
    model: PreTrainedModel,
    encoded: EncodedPrompts,
    ids: Tensor,
    places: Sequence[tuple[int, int]],
    *,
    mask: Tensor | None = None,
    **inputs: Any,  # noqa: ANN401  # a cache under the name that the model gives it
) -> tuple[Tensor, Tensor | None]:
    """Return states ``[n, H]``, and ``[n, V]`` logits if they are not the head's, of a decoder.

    Args:
        model: Encoder-decoder with its output head.
        encoded: The encoder's states, a row for each of `ids`.
        ids: ``[B, L]`` int64.
        places: Row and column of each of the n states.
        mask: Finished mask of the decoder's attention to itself; None is plain causality.
        inputs: More arguments, alike for the decoder and the whole model.
    """
    rows, columns = torch.tensor(places, device=ids.device).unbind(1)
    if has_plain_head(model):
        get: Any = model.get_decoder
        output = get()(
            input_ids=ids,
            attention_mask=mask,
            encoder_hidden_states=encoded.states,
            encoder_attention_mask=encoded.mask,
            **inputs,
        )
        return output.last_hidden_state[rows, columns], None
    from transformers.modeling_outputs import BaseModelOutput

    inputs |= {
        "encoder_outputs": BaseModelOutput(last_hidden_state=encoded.states),
        "attention_mask": encoded.mask,
        "decoder_input_ids": ids,
        "decoder_attention_mask": mask,
    }
    return with_logits(model, rows, columns, inputs)
