"""An adapter merged into its base, and how far that changes what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from llm_agents.policies import backbone
from llm_agents.policies.base_model import BaseConfig

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class MergeReport:
    """Result of merging an adapter into its base.

    Args:
        max_logit_difference: Largest difference of the logits before and after, on a short text.
        max_logit: Largest logit there, for scale.
    """

    max_logit_difference: float
    max_logit: float


def merge_adapter(
    model: PeftModel, config: BaseConfig, probe_ids: Sequence[int]
) -> tuple[PreTrainedModel, MergeReport]:
    """Return the base, loaded anew, with the adapter of `model` merged into it.

    Args:
        model: Model with the adapter, in eval mode.
        config: How its base was loaded.
        probe_ids: Tokens on which the logits before and after are compared.
    """
    merged = backbone.merged_copy(model, config)
    base = backbone.unwrapped(model)
    ids = torch.tensor([list(probe_ids)], device=next(base.parameters()).device)
    arguments: dict[str, Any] = {"input_ids": ids}
    if base.config.is_encoder_decoder:
        arguments["decoder_input_ids"] = ids
    with torch.no_grad():
        before = base(**arguments).logits.float().cpu()
        on_device = {k: v.to(next(merged.parameters()).device) for k, v in arguments.items()}
        after = merged(**on_device).logits.float().cpu()
    difference = float((before - after).abs().max())
    return merged, MergeReport(difference, float(before.abs().max()))
