"""Models of a known architecture that know nothing: GLAM's comparison with pretraining."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from llm_agents.errors import UserError

if TYPE_CHECKING:
    from llm_agents.policies.language_policy import LanguagePolicy

_EMBEDDING_NAMES = ("embed", "shared")


def forget_pretraining(policy: LanguagePolicy, *, keep_embeddings: bool, seed: int) -> None:
    """Give the base model of a policy the random weights that its architecture begins with.

    Adapters stay as they are. The policy is in the mode that it was in: unlike a model built from
    its configuration, it does not come with dropout on.

    Args:
        policy: Changed in place.
        keep_embeddings: Keep what the pretraining made of the tokens: the input embeddings of the
            model, and every parameter that has ``embed`` or ``shared`` in its name.
        seed: Of the random weights.

    Raises:
        UserError: The weights are quantized, or states of the pretrained model are kept on disk.
    """
    if policy.config.quantization is not None:
        raise UserError(
            "a model without its pretraining can't be quantized: leave `quantization` out"
        )
    if policy.forward_pass.trunk is not None:
        raise UserError(
            "`trunk_cache` keeps states of the pretrained model, and this one is without its "
            "pretraining: leave it out"
        )
    model = policy.causal_model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = type(model)
        fresh: nn.Module = build(deepcopy(model.config))
    weights = dict(fresh.named_parameters(remove_duplicate=False))
    kept = {id(parameter) for parameter in _embeddings(model)} if keep_embeddings else set()
    with torch.no_grad():
        for name, parameter in model.named_parameters(remove_duplicate=False):
            source = weights.get(name.replace(".base_layer.", "."))
            if source is not None and id(parameter) not in kept:
                parameter.copy_(source)
    policy.scorer.forget()
    policy.parameters_changed()
    policy.begin_here()


def _embeddings(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield what belongs to the tokens: by the model's own accessor, and by name."""
    accessor: Any = model
    yield from accessor.get_input_embeddings().parameters()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(part in name for part in _EMBEDDING_NAMES):
            yield parameter
