"""Whether a model's logits are its output head's, of the last states, and nothing more."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from llm_agents.policies.modes import evaluation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_logger = logging.getLogger(__name__)

_TOLERANCE = 1e-3  # relative to the largest logit; the same states go in, so it is met exactly
_is_plain: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def output_head(model: PreTrainedModel) -> nn.Module:
    """Return the output head of a transformers model."""
    get: Any = model.get_output_embeddings
    head: nn.Module = get()
    return head


def head_input(model: PreTrainedModel, states: Tensor) -> Tensor:
    """Return what goes into the head; T5 with tied embeddings shrinks the states."""
    if getattr(model.config, "scale_decoder_outputs", False):
        return states * (1 / math.sqrt(model.config.d_model))
    return states


def has_plain_head(model: PreTrainedModel) -> bool:
    """Tell whether the logits are the head's of the last states; found out once a model.

    Some families scale or cap them; those compute all logits themselves, at a cost.
    """
    if model not in _is_plain:
        _is_plain[model] = _check(model)
    return _is_plain[model]


def _check(model: PreTrainedModel) -> bool:
    """Compare the model's logits with the head's."""
    ids = torch.arange(1, 5, device=next(model.parameters()).device)[None]
    with evaluation(model), torch.no_grad():
        if model.config.is_encoder_decoder:
            get: Any = model.get_decoder
            output = model(input_ids=ids, decoder_input_ids=ids, use_cache=False)
            states = get()(
                input_ids=ids,
                encoder_hidden_states=output.encoder_last_hidden_state,
                use_cache=False,
            ).last_hidden_state
        else:
            output = model(input_ids=ids, use_cache=False)
            layers = getattr(model, model.base_model_prefix)
            states = layers(input_ids=ids, use_cache=False).last_hidden_state
        logits = output.logits.float()
        heads = output_head(model)(head_input(model, states)).float()
    is_plain = bool((heads - logits).abs().max() <= _TOLERANCE * logits.abs().max())
    if not is_plain:
        _logger.warning(
            "%s changes its logits after the output head: log-probs take more memory, as all "
            "positions' logits are held",
            type(model).__name__,
        )
    return is_plain
