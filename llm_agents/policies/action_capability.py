"""Which way of scoring actions a model takes: a table of what is known, and a check of what is not.

A tree pass gives attention a mask of its own. So it is wrong, silently, wherever a model's
attention is more than "see what the mask shows": windows, biases by the distance of keys, caps,
states that run along the sequence. The table knows these. Whatever it allows is then compared with
one sequence an action on a few tokens, once a model, and a way that fails is not taken; the log
says so. Too short to show a window, the check can't replace the table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn

from llm_agents.policies.action_encoder_decoder import encoder_decoder_node_states
from llm_agents.policies.action_expand import expand_node_states
from llm_agents.policies.action_plain import plain_node_states
from llm_agents.policies.action_tree import tree_node_states
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.action_types import EncodedChoice, NodeStates
from llm_agents.policies.modes import evaluation
from llm_agents.policies.recomputing import recomputes_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_logger = logging.getLogger(__name__)

Method = Literal["tree", "expand", "plain", "encoder_decoder"]

_TOLERANCE = 1e-4  # relative to the largest state
_ROUGH_TOLERANCE = 3e-2  # where weights or arithmetic are coarser than float32
_CHECK_LENGTH = 32  # above the longest sequence of the check
_SIMPLE_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_checked: WeakKeyDictionary[nn.Module, dict[Method, bool]] = WeakKeyDictionary()
_reported: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def choose_method(model: PreTrainedModel, longest: int) -> Method:
    """Return how the actions of choices are scored with `model`.

    The fastest way that is right is taken; one that is not the fastest of all is reported in the
    log, with the reason.

    Args:
        model: Model with its output head; adapters may live in its layers.
        longest: Tokens of the longest prompt with its longest action.
    """
    for method, why_not in _from_table(model, longest):
        if why_not:
            _report(model, f"{why_not}: not scored by `{method}`")
        elif method == "plain":
            _report(model, "actions are scored one sequence each, which is slow")
            return method
        elif _passes_check(model, method):
            return method
    raise RuntimeError("one sequence an action is always possible")


def attention_window(model: PreTrainedModel) -> int | None:
    """Return how far back the most short-sighted layer sees, in tokens; None without a bound."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windows = []
    if getattr(config, "use_sliding_window", True) and (
        kinds is None or "sliding_attention" in kinds
    ):
        windows.append(getattr(config, "sliding_window", None))
    if kinds is not None and "chunked_attention" in kinds:
        windows.append(getattr(config, "attention_chunk_size", None))
    if "local" in (getattr(config, "attention_layers", None) or ()):  # GPT-Neo
        windows.append(config.window_size)
    return min((int(window) for window in windows if window), default=None)


def _from_table(model: PreTrainedModel, longest: int) -> Iterator[tuple[Method, str]]:
    """Yield the ways of scoring, fastest first, with what speaks against each."""
    if model.config.is_encoder_decoder:
        yield "encoder_decoder", _second_pass(model)
    else:
        why_not = _state_along_sequence(model)
        yield "tree", why_not or _attention_beyond_mask(model, longest)
        yield "expand", why_not or _second_pass(model)
    yield "plain", ""


def _state_along_sequence(model: PreTrainedModel) -> str:
    """Return why neither a tree nor copies of a cache are right; empty if nothing is known."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or kinds - _SIMPLE_LAYERS:
        return "a state runs along the sequence"
    return ""


def _second_pass(model: PreTrainedModel) -> str:
    """Return what makes layers compute twice, which leaves no cache; empty if nothing."""
    if recomputes_layers(model):
        return "gradient checkpointing computes layers again after the pass"
    return ""


def _attention_beyond_mask(model: PreTrainedModel, longest: int) -> str:
    """Return what attention does that a tree pass would leave out; empty if nothing is known."""
    window = attention_window(model)
    if window is not None and max(longest, _CHECK_LENGTH) > window:
        return f"choices are longer than the window of {window} tokens that layers see"
    if _has_distance_bias(model):
        return "attention is biased by the distance between keys and queries (ALiBi)"
    if not getattr(model, "_supports_sdpa", False):
        return "attention is more than sdpa can compute"
    return ""


def _has_distance_bias(model: PreTrainedModel) -> bool:
    """Tell whether attention adds a bias by the distance of keys."""
    config = model.config.get_text_config()
    if config.model_type == "bloom" or getattr(config, "alibi", False):
        return True
    return bool(getattr(getattr(config, "attn_config", None), "alibi", False))  # MPT


def _report(model: PreTrainedModel, text: str) -> None:
    """Write to the log, once a model."""
    known = _reported.setdefault(model, set())
    if text not in known:
        known.add(text)
        _logger.warning("%s: %s", type(model).__name__, text)


def _passes_check(model: PreTrainedModel, method: Method) -> bool:
    """Tell whether a method agrees with one sequence an action; found out once a model."""
    known = _checked.setdefault(model, {})
    if method not in known:
        known[method] = _agrees(model, method)
    return known[method]


def _agrees(model: PreTrainedModel, method: Method) -> bool:
    """Compare a method with one sequence an action, and report what is wrong."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    choices = _check_choices(vocabulary)
    tries = [ActionTrie.build(choice.action_ids) for choice in choices]
    try:
        with evaluation(model), torch.no_grad():
            expected = plain_node_states(model, choices, tries).states
            states = _NODE_STATES[method](model, choices, tries).states
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        _report(
            model, f"refuses scoring by `{method}` ({type(error).__name__}: {error}): not taken"
        )
        return False
    is_float32 = model.dtype == torch.float32 and not getattr(model, "is_quantized", False)
    difference = float((states - expected).abs().max() / expected.abs().max())
    if difference <= (_TOLERANCE if is_float32 else _ROUGH_TOLERANCE):  # NaN is not
        return True
    _report(
        model,
        f"scoring by `{method}` differs from one sequence an action by {difference:.1e} of the "
        "largest state on a few tokens: not taken",
    )
    return False


def _check_choices(vocabulary: int) -> list[EncodedChoice]:
    """Return choices with common beginnings among prompts and among actions, of several lengths."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocabulary, (_CHECK_LENGTH,), generator=generator).tolist()
    first, second = tuple(ids[:20]), tuple(ids[20:27])
    a, b, c, d, e = ids[27:]
    actions = ((a, b, c, d), (a, b, e), (a, c), (d,))
    return [
        EncodedChoice(prompt, offered, (1,) * len(offered))
        for prompt, offered in (
            (first, actions),
            ((*first[:12], *second), actions[1:]),
            (second, actions[:2]),
        )
    ]


class _NodeStatesFunction(Protocol):
    """Computes node states in one of the ways."""

    def __call__(
        self,
        model: PreTrainedModel,
        choices: Sequence[EncodedChoice],
        tries: Sequence[ActionTrie],
        /,
    ) -> NodeStates: ...


_NODE_STATES: dict[Method, _NodeStatesFunction] = {
    "tree": tree_node_states,
    "expand": expand_node_states,
    "plain": plain_node_states,
    "encoder_decoder": encoder_decoder_node_states,
}
