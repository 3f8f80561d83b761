"""Node states of encoder-decoders: each prompt is encoded once.

Two forms. Where the decoder's positions are a bias on attention that the model computes in a
method of its own (T5 and its kin), a choice is one decoder row, its trie under a tree mask, and the
bias is rebuilt from the nodes' depths. Elsewhere (BART and its kin) the start token is decoded
once, and the actions' rows follow behind views of its keys and values, those of the encoder's
states among them.

The prompt's end, node 0, is the decoder's start token: the state that predicts an action's first
token. `encoder_end_states` are the other candidate for a prompt's features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from llm_agents.policies.action_expand import (
    action_paths,
    cache_argument,
    cache_of_rows,
    path_passes,
    path_places,
)
from llm_agents.policies.action_plain import (
    EncodedPrompts,
    NodeCollector,
    encode_prompts,
    plain_node_states,
    right_padded,
    run_decoder,
)
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice, NodeStates
from llm_agents.policies.generation import decoder_start_id
from llm_agents.policies.plain_head import has_plain_head
from llm_agents.policies.recomputing import recomputes_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from llm_agents.policies.frozen_trunk import FrozenTrunk

_TOKENS_PER_PASS = 4096


def encoder_decoder_node_states(
    model: PreTrainedModel,
    choices: Sequence[EncodedChoice],
    tries: Sequence[ActionTrie],
    trunk: FrozenTrunk | None = None,
) -> NodeStates:
    """Return the states at the nodes of tries, each distinct prompt encoded once.

    Under gradient checkpointing it is one sequence an action.

    Args:
        model: Encoder-decoder with its output head.
        choices: D choices.
        tries: Their actions' tries.
        trunk: None: encoder-decoders have no frozen trunk.
    """
    if trunk is not None:
        raise ValueError("expected no trunk: the layers of encoder-decoders are all computed")
    if recomputes_layers(model):
        return plain_node_states(model, choices, tries)
    has_plain_head(model)  # found out, at the first call, by a pass with the model's own biases
    biases = _position_biases(model)
    collector = NodeCollector()
    for members in _passes(choices, tries):
        encoded = _encoded(model, [choices[member].prompt_ids for member in members])
        if biases:
            _decode_trees(model, encoded, members, tries, biases, collector)
        else:
            _decode_expanded(model, encoded, members, tries, collector)
    return collector.collect(tries)


def encoder_end_states(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Return ``[B, H]`` states of the encoder at the last token of B prompts.

    Args:
        model: Encoder-decoder.
        prompts: Their ids, as `EncodedChoice` holds them.
    """
    encoded = _encoded(model, prompts)
    rows = torch.arange(len(prompts), device=encoded.states.device)
    return encoded.states[rows, encoded.mask.sum(1) - 1]


def _encoded(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> EncodedPrompts:
    """Encode prompts, equal ones once."""
    rows = {ids: row for row, ids in enumerate(dict.fromkeys(map(tuple, prompts)))}
    encoded = encode_prompts(model, list(rows))
    if len(rows) == len(prompts):
        return encoded
    return _select(encoded, [rows[tuple(prompt)] for prompt in prompts])


def _select(encoded: EncodedPrompts, rows: Sequence[int]) -> EncodedPrompts:
    """Return some rows, a view where there is but one."""
    if len(encoded.states) == 1:
        return EncodedPrompts(*(part.expand(len(rows), *part.shape[1:]) for part in encoded))
    index = torch.tensor(rows, device=encoded.states.device)
    return EncodedPrompts(encoded.states[index], encoded.mask[index])


def _passes(
    choices: Sequence[EncodedChoice], tries: Sequence[ActionTrie]
) -> Iterator[Sequence[int]]:
    """Yield places of choices of like length for passes of a bounded number of tokens."""
    lengths = [
        len(choice.prompt_ids) + trie.num_nodes for choice, trie in zip(choices, tries, strict=True)
    ]
    part: list[int] = []
    for member in sorted(range(len(choices)), key=lambda place: lengths[place]):
        if part and lengths[member] * (len(part) + 1) > _TOKENS_PER_PASS:
            yield part
            part = []
        part.append(member)
    yield part


# --- a decoder row a choice ---------------------------------------------------------------------


def _position_biases(model: PreTrainedModel) -> list[nn.Module]:
    """Return the decoder's modules that compute a bias by position; empty if it has others."""
    get: Any = model.get_decoder
    decoder: nn.Module = get()
    return [
        module
        for module in decoder.modules()
        if getattr(module, "has_relative_attention_bias", False)
        and hasattr(module, "relative_attention_bias")
        and hasattr(module, "compute_bias")
    ]


def _decode_trees(
    model: PreTrainedModel,
    encoded: EncodedPrompts,
    members: Sequence[int],
    tries: Sequence[ActionTrie],
    biases: Sequence[nn.Module],
    collector: NodeCollector,
) -> None:
    """Decode the tries of the choices `members`, a row each."""
    device = encoded.states.device
    own = [tries[member] for member in members]
    start = decoder_start_id(model)
    ids, _ = right_padded([(start, *trie.tokens) for trie in own], device)
    depths, _ = right_padded([(0, *(depth + 1 for depth in trie.depths)) for trie in own], device)
    seen = torch.eye(ids.shape[1], dtype=torch.bool).repeat(len(own), 1, 1)
    for row, trie in enumerate(own):
        seen[row, 1 : trie.num_nodes, 0] = True
        seen[row, 1 : trie.num_nodes, 1 : trie.num_nodes] = trie.visibility()
    mask = torch.zeros(seen.shape, dtype=encoded.states.dtype)
    mask = mask.masked_fill(~seen, torch.finfo(mask.dtype).min)[:, None].to(device)
    nodes = [
        (member, node)
        for member, trie in zip(members, own, strict=True)
        for node in range(trie.num_nodes)
    ]
    places = [(row, node) for row, trie in enumerate(own) for node in range(trie.num_nodes)]
    with _biases_by_depth(biases, depths):
        found = run_decoder(model, encoded, ids, places, mask=mask, use_cache=False)
    collector.add(nodes, *found)


@contextmanager
def _biases_by_depth(modules: Sequence[nn.Module], depths: Tensor) -> Iterator[None]:
    """Let biases follow `depths` (``[B, L]``) where the model goes by places in the row."""
    attributes = [module.__dict__ for module in modules]
    for module, own in zip(modules, attributes, strict=True):
        own["compute_bias"] = _bias_by_depth(module, depths)
    try:
        yield
    finally:
        for own in attributes:
            del own["compute_bias"]


def _bias_by_depth(module: nn.Module, depths: Tensor) -> Callable[..., Tensor]:
    """Return a `compute_bias` that gives ``[B, heads, L, L]``."""
    by_place: Any = module.compute_bias
    size = int(depths.max()) + 1

    def compute_bias(*args: object, **options: object) -> Tensor:
        table: Tensor = by_place(size, size)[0]
        return table[:, depths[:, :, None], depths[:, None, :]].transpose(0, 1)

    return compute_bias


# --- a decoder row an action, behind copies of a cache ------------------------------------------


def _decode_expanded(
    model: PreTrainedModel,
    encoded: EncodedPrompts,
    members: Sequence[int],
    tries: Sequence[ActionTrie],
    collector: NodeCollector,
) -> None:
    """Decode the start token of the choices `members`, and then their actions behind it."""
    from transformers import DynamicCache, EncoderDecoderCache

    device = encoded.states.device
    get: Any = model.get_decoder
    name = cache_argument(get())
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    options: dict[str, Any] = {name: cache, "use_cache": True}
    start = torch.full((len(members), 1), decoder_start_id(model), device=device)
    places = [(row, 0) for row in range(len(members))]
    found = run_decoder(model, encoded, start, places, **options)
    collector.add([(member, 0) for member in members], *found)
    paths = [path for row, m in enumerate(members) for path in action_paths(row, tries[m])]
    for part in path_passes(paths, encoded.states.shape[1]):
        rows = [path.choice for path in part]
        own = copy.copy(cache)
        own.self_attention_cache = cache_of_rows(cache.self_attention_cache, torch.tensor(rows))
        own.cross_attention_cache = cache_of_rows(cache.cross_attention_cache, torch.tensor(rows))
        options[name] = own
        tokens, _ = right_padded([path.tokens for path in part], device)
        found = run_decoder(model, _select(encoded, rows), tokens, path_places(part), **options)
        nodes = [(members[path.choice], node) for path in part for node in path.nodes]
        collector.add(nodes, *found)
