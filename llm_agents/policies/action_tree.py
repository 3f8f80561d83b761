"""Node states of causal models: all choices in one pass under their actions' tries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llm_agents.policies.action_layout import TreeLayout, lay_out, layout_inputs, tree_attention
from llm_agents.policies.action_prefix import PrefixStore
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_trunk import ActionTrunk
from llm_agents.policies.action_types import EncodedChoice, NodeStates
from llm_agents.policies.plain_head import has_plain_head, output_head
from llm_agents.policies.recomputing import recomputed_layers
from llm_agents.policies.trunk_cache import bypass_lower_layers, layer_list

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def tree_node_states(
    model: PreTrainedModel,
    choices: Sequence[EncodedChoice],
    tries: Sequence[ActionTrie],
    trunk: ActionTrunk | None = None,
    prefixes: PrefixStore | None = None,
) -> NodeStates:
    """Return the states at the nodes of the choices' tries, from one pass.

    Args:
        model: Causal model with its output head.
        choices: D choices.
        tries: Their actions' tries.
        trunk: Keeps the states of the frozen lower layers.
        prefixes: Keeps keys and values for later calls under the same weights; without gradient.
    """
    device = next(model.parameters()).device
    stored = None
    if prefixes is not None:
        stored = [prefixes.find(choice.prompt_ids) for choice in choices]
    layout = lay_out(choices, tries, device, stored)
    flat = [place for places in layout.node_places for place in places]
    nodes, distinct = (torch.tensor(p, device=device) for p in (flat, sorted(set(flat))))
    counts = tuple(len(places) for places in layout.node_places)
    needs_logits = not has_plain_head(model)
    bypass: AbstractContextManager[None] = nullcontext()
    if trunk is not None:
        bypass = bypass_lower_layers(model, trunk.depth, trunk.states(layout, choices, tries))
    layout.begin(record=prefixes is not None)
    inside = partial(_inside, model, distinct)
    with bypass, inside(), recomputed_layers(model, inside):
        states, logits = _run(model, layout, nodes, needs_logits=needs_logits)
    if prefixes is not None and stored is not None:
        prefixes.keep(choices, layout, stored)
    return NodeStates(states, logits, counts)


def _run(
    model: PreTrainedModel, layout: TreeLayout, nodes: Tensor, *, needs_logits: bool
) -> tuple[Tensor, Tensor | None]:
    """Return states ``[N, H]`` at `nodes`, and ``[N, V]`` logits if they are not the head's."""
    inputs = layout_inputs(layout)
    if not needs_logits:
        layers = getattr(model, model.base_model_prefix)
        return layers(**inputs).last_hidden_state[0, nodes], None
    seen: list[Tensor] = []
    handle = output_head(model).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        logits: Tensor = model(**inputs, logits_to_keep=nodes).logits
    finally:
        handle.remove()
    return seen[0][0], logits[0]


@contextmanager
def _inside(model: PreTrainedModel, places: Tensor) -> Iterator[None]:
    """Let a model compute a layout's pass, of whose last states those at `places` are read."""
    with tree_attention(model), _last_layer_at(model, places):
        yield


@contextmanager
def _last_layer_at(model: PreTrainedModel, places: Tensor) -> Iterator[None]:
    """Let the last layer's feed-forward part compute some tokens alone: no one reads the others.

    Keys and values of the layer come before it, so that attention still sees all tokens.

    Args:
        model: Causal model; a layer without a part called ``mlp`` stays as it is.
        places: ``[M]`` int64, distinct places in the sequence.
    """
    block = getattr(layer_list(model)[-1], "mlp", None)
    if block is None:
        yield
        return
    whole, own = block.forward, block.__dict__.get("forward")

    def forward(states: Tensor, *args: object, **options: object) -> object:
        if args or options or states.dim() != 3:
            return whole(states, *args, **options)
        found = whole(states[:, places])
        if not isinstance(found, Tensor):  # experts tell their router's logits too
            return whole(states)
        return found.new_zeros(*states.shape[:2], found.shape[2]).index_copy(1, places, found)

    block.forward = forward
    try:
        yield
    finally:
        del block.__dict__["forward"]
        if own is not None:
            block.forward = own
