"""Run the upper layers of a causal model on stored states of its frozen lower layers.

Where adapters sit in the top layers only, the states below them never change: they are captured
once (`capture_layer_input`), stored (`TrunkStore`), and handed over in every later pass
(`bypass_lower_layers`). Only the layers' own computation is left out; embedding, masks, positions
and final norm stay the model's code, so one mechanism serves every family that passes its check
(`trunk_path_matches`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from llm_agents.policies.model_digest import (
    base_tensors,
    config_digest,
    every_tensor,
    named_digest,
)
from llm_agents.policies.modes import evaluation
from llm_agents.policies.trunk_store import TrunkStore, content_key

__all__ = [
    "Captured",
    "TrunkStore",
    "bypass_lower_layers",
    "capture_layer_input",
    "content_key",
    "frozen_depth",
    "layer_list",
    "trunk_digest",
    "trunk_path_matches",
]

_logger = logging.getLogger(__name__)


def layer_list(model: nn.Module) -> nn.ModuleList:
    """Return the list of decoder layers of a causal model, PEFT-wrapped or not.

    It is the largest list that is as long as the configuration says the model is deep.

    Args:
        model: Causal transformers model.

    Raises:
        ValueError: There is no such list, or the model is an encoder-decoder.
    """
    base = _base_model(model)
    if getattr(base.config, "is_encoder_decoder", False):
        raise ValueError(
            f"expected a causal model, got the encoder-decoder {type(base).__name__}: "
            "the trunk cache does not serve it"
        )
    depth = base.config.get_text_config().num_hidden_layers
    lists = [m for m in base.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    if not lists:
        raise ValueError(
            f"{type(base).__name__} has no list of {depth} layers: switch the trunk cache off"
        )
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))


def frozen_depth(model: nn.Module) -> int:
    """Return how many of the lowest layers have nothing trainable in or below them.

    A layer with an adapter counts as trainable even while that adapter is switched off or frozen.
    Encoder-decoder models have a frozen depth of 0.

    Args:
        model: Transformers model, PEFT-wrapped or not.
    """
    base = _base_model(model)
    if getattr(base.config, "is_encoder_decoder", False):
        return 0
    layers = layer_list(model)
    inside = {id(parameter) for parameter in layers.parameters()}
    own = {id(parameter) for parameter in base.parameters()}
    if any(p.requires_grad and id(p) not in own for p in model.parameters()):
        return 0  # a learned prompt or the like enters at the bottom
    for module in base.modules():
        if module is layers:
            break  # modules registered after the layers (final norm, output head) come after them
        own_parameters = module.parameters(recurse=False)
        if any(p.requires_grad and id(p) not in inside for p in own_parameters):
            return 0
        if _is_adapter(module):
            return 0
    for depth, layer in enumerate(layers):
        if any(p.requires_grad for p in layer.parameters()) or any(
            map(_is_adapter, layer.modules())
        ):
            return depth
    return len(layers)


def trunk_digest(model: nn.Module, depth: int) -> str:
    """Return a digest of everything that determines the states below layer `depth`.

    It covers the configuration and every value of every tensor of the base model outside the layers
    from `depth` on. Name a `TrunkStore`'s folder after it.

    Args:
        model: Causal transformers model, PEFT-wrapped or not.
        depth: Layers whose output is stored, see `frozen_depth`.
    """
    base, layers = _base_model(model), layer_list(model)
    above = {id(t) for layer in layers[depth:] for t in every_tensor(layer).values()}
    below = [(name, t) for name, t in base_tensors(base) if id(t) not in above]
    parts = f"{depth} {config_digest(base)} {named_digest(below)}"
    return hashlib.sha256(parts.encode()).hexdigest()


@dataclass
class Captured:
    """What `capture_layer_input` recorded.

    Args:
        hidden: ``[B, L, H]`` states, detached; None before the model has run.
    """

    hidden: Tensor | None = None


class _EndPassError(Exception):
    """Ends a forward pass whose remaining layers are not needed."""


@contextmanager
def capture_layer_input(model: nn.Module, depth: int) -> Iterator[Captured]:
    """Record what enters layer `depth` and leave out everything from that layer on.

    The model runs in eval mode and without gradients inside, whatever mode it is in. Its call does
    not return: it ends the ``with`` block, so make it the last statement there.

    Args:
        model: Causal transformers model, PEFT-wrapped or not.
        depth: 0 records the embedding, the number of layers the last layer's output.

    Yields:
        Holder whose `hidden` is set after the block.
    """
    layers = layer_list(model)
    captured = Captured()
    if depth == len(layers):
        handle = layers[-1].register_forward_hook(_output_recorder(captured))
    else:
        handle = layers[depth].register_forward_pre_hook(
            _input_recorder(captured), with_kwargs=True
        )
    try:
        with evaluation(model), torch.no_grad():
            yield captured
    except _EndPassError:
        pass
    finally:
        handle.remove()
    if captured.hidden is None:
        raise RuntimeError("expected a forward pass of the model inside `capture_layer_input`")


@contextmanager
def bypass_lower_layers(model: nn.Module, depth: int, hidden: Tensor) -> Iterator[None]:
    """Let the first `depth` layers hand over `hidden` instead of computing anything.

    No gradient flows into `hidden` or below it. Dropout of the lower layers is off by construction.

    Args:
        model: Causal transformers model, PEFT-wrapped or not; call it with ``use_cache=False``.
        depth: Number of layers left out, at least 1.
        hidden: ``[B, L, H]`` states entering layer `depth`, for the ids the model is called on.
    """
    layers = list(layer_list(model))
    if not 1 <= depth <= len(layers):
        raise ValueError(f"expected `depth` from 1 to {len(layers)}, got {depth}")
    num_extra = _num_extra_outputs(model)
    hidden = hidden.detach()
    if any(getattr(layer, "gradient_checkpointing", False) for layer in layers[depth:]):
        hidden.requires_grad_()  # re-entrant checkpoints pass no gradients unless an input has one
    covered = [(layer.__dict__, layer.__dict__.get("forward")) for layer in layers[:depth]]
    # The layers stay in place, since models read attributes of theirs; only `forward` is covered.
    for position, (attributes, _) in enumerate(covered):
        attributes["forward"] = _hand_over(hidden if position == 0 else None, num_extra)
    try:
        yield
    finally:
        for attributes, forward in covered:
            del attributes["forward"]
            if forward is not None:
                attributes["forward"] = forward


def trunk_path_matches(model: nn.Module, depth: int, tolerance: float = 1e-5) -> bool:
    """Tell whether capturing and bypassing `depth` layers gives the logits of the full pass.

    Runs the model on a few random ids, in eval mode. A family that fails is reported in the log.

    Args:
        model: Causal transformers model, PEFT-wrapped or not.
        depth: Number of layers left out.
        tolerance: Largest difference, relative to the largest logit.
    """
    base = _base_model(model)
    name, device = type(base).__name__, next(model.parameters()).device
    generator = torch.Generator().manual_seed(depth)
    vocabulary: int = base.config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (2, 12), generator=generator).to(device)
    try:
        with evaluation(model), torch.no_grad():
            full = model(input_ids=ids, use_cache=False)[0]
            hidden = _states_below(model, depth, ids)
            with bypass_lower_layers(model, depth, hidden):
                short = model(input_ids=ids, use_cache=False)[0]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        _logger.warning(
            "the layers of %s can't be bypassed: %s: %s", name, type(error).__name__, error
        )
        return False
    difference = float((full - short).abs().max() / full.abs().max())
    matches = difference <= tolerance  # NaN does not
    if not matches:
        _logger.warning(
            "bypassing %d layers of %s changes its logits by %.1e of the largest",
            depth,
            name,
            difference,
        )
    return matches


def _states_below(model: nn.Module, depth: int, ids: Tensor) -> Tensor:
    """Return what enters layer `depth`."""
    with capture_layer_input(model, depth) as captured:
        model(input_ids=ids, use_cache=False)
    if captured.hidden is None:
        raise RuntimeError(f"the model never called its layer {depth}")
    return captured.hidden


def _base_model(model: nn.Module) -> Any:  # noqa: ANN401  (any class of transformers)
    """Return the transformers model inside a PEFT wrapper, or `model` itself."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def _is_adapter(module: nn.Module) -> bool:
    """Tell whether PEFT put this module there; PEFT itself is not imported here."""
    return hasattr(type(module), "adapter_layer_names")


def _first(output: Any) -> Tensor:  # noqa: ANN401  (layers return a tensor or a tuple)
    """Return the hidden states in a layer's output."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def _input_recorder(captured: Captured) -> Callable[..., None]:
    """Return a hook that records a layer's input and ends the pass."""

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        captured.hidden = (args[0] if args else kwargs["hidden_states"]).detach()
        raise _EndPassError

    return record


def _output_recorder(captured: Captured) -> Callable[..., None]:
    """Return a hook that records a layer's output and ends the pass."""

    def record(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
        captured.hidden = _first(output).detach()
        raise _EndPassError

    return record


def _hand_over(hidden: Tensor | None, num_extra: int | None) -> Callable[..., Any]:
    """Return a layer's `forward` that gives `hidden`, or what comes in if that is None."""

    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (stands for any layer's)
        if any(hasattr(value, "get_seq_length") for value in (*args, *kwargs.values())):
            raise ValueError(
                "a key-value cache can't be filled from stored states: use_cache=False"
            )
        incoming: Tensor = args[0] if args else kwargs["hidden_states"]
        states = incoming if hidden is None else hidden.to(incoming.device, non_blocking=True)
        if states.shape != incoming.shape:
            raise ValueError(
                f"expected stored states of shape {tuple(incoming.shape)} like the model's input, "
                f"got {tuple(states.shape)}"
            )
        return states if num_extra is None else (states, *([None] * num_extra))

    return forward


_extra_outputs: WeakKeyDictionary[nn.Module, int | None] = WeakKeyDictionary()


def _num_extra_outputs(model: nn.Module) -> int | None:
    """Return how much a layer returns beside its states; None if it returns the bare tensor."""
    base, first = _base_model(model), layer_list(model)[0]
    if base not in _extra_outputs:
        found: list[int | None] = []

        def record(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
            found.append(len(output) - 1 if isinstance(output, tuple) else None)
            raise _EndPassError

        handle = first.register_forward_hook(record)
        ids = torch.zeros(1, 2, dtype=torch.int64, device=next(model.parameters()).device)
        try:
            with evaluation(model), torch.no_grad():
                base(input_ids=ids, use_cache=False)
        except _EndPassError:
            _extra_outputs[base] = found[0]
        finally:
            handle.remove()
    return _extra_outputs[base]
