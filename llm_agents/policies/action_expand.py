"""Node states by expansion: keys and values of a prompt once, its actions behind views of them.

The fallback for causal models whose attention can't follow a trie. It asks nothing of a model but
that its key-value cache works, so that windows, biases by distance and caps stay the model's own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from llm_agents.policies.action_plain import (
    NodeCollector,
    causal_nodes,
    plain_node_states,
    right_padded,
)
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice, NodeStates

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from llm_agents.policies.frozen_trunk import FrozenTrunk

_TOKENS_PER_PASS = 4096
_CACHED_TOKENS = 2**15  # keys and values held at a time for the rows of actions


class ActionPath(NamedTuple):
    """The way from a prompt's end to an inner node that none of the others goes on from.

    Args:
        choice: Place of its choice in the call.
        tokens: Tokens on the way.
        nodes: The nodes that they lead to.
    """

    choice: int
    tokens: tuple[int, ...]
    nodes: tuple[int, ...]


def expand_node_states(
    model: PreTrainedModel,
    choices: Sequence[EncodedChoice],
    tries: Sequence[ActionTrie],
    trunk: FrozenTrunk | None = None,
) -> NodeStates:
    """Return the states at the nodes of tries, each prompt computed once.

    Prompts of one length share a pass; so there is never padding before an action. Stored states
    of a trunk hold no keys and values: with a trunk, rows of whole sequences through the layers
    above it are taken instead where they are fewer.

    Args:
        model: Causal model with its output head.
        choices: D choices.
        tries: Their actions' tries.
        trunk: Gives the states below the model's lowest adapter.
    """
    if trunk is not None and _trunk_is_cheaper(trunk, choices, tries):
        return plain_node_states(model, choices, tries, trunk)
    collector = NodeCollector()
    order = sorted(range(len(choices)), key=lambda place: len(choices[place].prompt_ids))
    for length, same in groupby(order, key=lambda place: len(choices[place].prompt_ids)):
        members = list(same)
        size = max(1, _TOKENS_PER_PASS // length)
        for start in range(0, len(members), size):
            _expand(model, members[start : start + size], choices, tries, collector)
    return collector.collect(tries)


def _trunk_is_cheaper(
    trunk: FrozenTrunk, choices: Sequence[EncodedChoice], tries: Sequence[ActionTrie]
) -> bool:
    """Tell whether one sequence an action above the trunk is less work than expansion."""
    num_layers = int(trunk.model.config.get_text_config().num_hidden_layers)
    expanded, plain = 0, 0
    for choice, trie in zip(choices, tries, strict=True):
        num_actions, length = trie.edge_actions[-1] + 1, len(choice.prompt_ids)
        expanded += length + sum(len(path.tokens) for path in action_paths(0, trie))
        plain += num_actions * length + len(trie.edge_tokens) - num_actions
    return plain * (num_layers - trunk.depth) < expanded * num_layers


def _expand(
    model: PreTrainedModel,
    members: Sequence[int],
    choices: Sequence[EncodedChoice],
    tries: Sequence[ActionTrie],
    collector: NodeCollector,
) -> None:
    """Compute the nodes of the choices `members`, whose prompts have one length."""
    from transformers import DynamicCache

    device = next(model.parameters()).device
    ids = torch.tensor([choices[member].prompt_ids for member in members], device=device)
    cache = DynamicCache(config=model.config)  # the configuration says which layers see a window
    name = cache_argument(getattr(model, model.base_model_prefix))
    places = [(row, ids.shape[1] - 1) for row in range(len(members))]
    nodes = [(member, 0) for member in members]
    found = causal_nodes(model, places, input_ids=ids, use_cache=True, **{name: cache})
    collector.add(nodes, *found)
    rows = {member: row for row, member in enumerate(members)}
    paths = [path for member in members for path in action_paths(member, tries[member])]
    for part in path_passes(paths, ids.shape[1]):
        own = cache_of_rows(cache, torch.tensor([rows[path.choice] for path in part]))
        tokens, _ = right_padded([path.tokens for path in part], device)
        found = causal_nodes(
            model, path_places(part), input_ids=tokens, use_cache=True, **{name: own}
        )
        collector.add([(path.choice, node) for path in part for node in path.nodes], *found)


def action_paths(choice: int, trie: ActionTrie) -> list[ActionPath]:
    """Return the ways to the inner nodes that have no inner node behind them."""
    ways: list[tuple[int, ...]] = [()]
    for node, parent in enumerate(trie.parents, start=1):
        ways.append((*ways[parent], node))
    inner = {0, *trie.parents}
    return [
        ActionPath(choice, tuple(trie.tokens[step - 1] for step in way), way)
        for node, way in enumerate(ways)
        if node not in inner
    ]


def path_passes(paths: Sequence[ActionPath], prompt_length: int) -> Iterator[Sequence[ActionPath]]:
    """Yield paths for passes whose keys and values stay within bounds."""
    longest = max((len(path.tokens) for path in paths), default=0)
    size = max(1, _CACHED_TOKENS // (prompt_length + longest))
    for start in range(0, len(paths), size):
        yield paths[start : start + size]


def path_places(paths: Sequence[ActionPath]) -> list[tuple[int, int]]:
    """Return the row and column of each node of paths that are the rows of a pass."""
    return [(row, column) for row, path in enumerate(paths) for column in range(len(path.nodes))]


def cache_argument(module: nn.Module) -> str:
    """Return the name under which a module takes its key-value cache."""
    parameters = inspect.signature(module.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def cache_of_rows(cache: Any, rows: Tensor) -> Any:  # noqa: ANN401  # any cache of transformers
    """Return a cache that begins with some rows of another one, which stays as it is.

    Args:
        cache: Keys and values of B rows.
        rows: ``[N]`` int64 on the CPU, which of them each new row begins with.
    """
    own = copy.copy(cache)
    own.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in own.layers:
        if not layer.is_initialized:
            continue
        if layer.keys.shape[0] == 1:  # a view: the first update copies anyway
            layer.keys = layer.keys.expand(len(rows), -1, -1, -1)
            layer.values = layer.values.expand(len(rows), -1, -1, -1)
        else:
            index = rows.to(layer.keys.device)
            layer.keys, layer.values = layer.keys[index], layer.values[index]
    return own
