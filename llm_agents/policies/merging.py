"""An adapter merged into its base, and how far that changes what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from llm_agents.errors import UserError
from llm_agents.policies import backbone
from llm_agents.policies.base_model import BaseConfig, load_base

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
_ROUNDING_OF_INT8 = 2e-1
"""Largest difference of the logits that merging may leave, as a share of the largest logit.

Weights are rounded once more when they are merged, inputs are too where layers compute in 8 bits.
"""


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

    Merging into 4-bit weights would round the adapter away, so they are de-quantized first.

    Args:
        model: Model with the adapter, in eval mode.
        config: How its base was loaded.
        probe_ids: Tokens on which the logits before and after are compared.

    Raises:
        UserError: PEFT can't merge such an adapter, or the merged model says something else.
    """
    merged = _merged_copy(model, config)
    base = backbone.unwrapped(model)
    ids = torch.tensor([list(probe_ids)], device=next(base.parameters()).device)
    arguments: dict[str, Any] = {"input_ids": ids}
    if base.config.is_encoder_decoder:
        arguments["decoder_input_ids"] = ids
    with torch.no_grad():
        before = base(**arguments).logits.float().cpu()
        on_device = {k: v.to(next(merged.parameters()).device) for k, v in arguments.items()}
        after = merged(**on_device).logits.float().cpu()
    report = MergeReport(float((before - after).abs().max()), float(before.abs().max()))
    _check_rounding(report, config, next(merged.parameters()).dtype)
    return merged, report


def _check_rounding(report: MergeReport, config: BaseConfig, dtype: torch.dtype) -> None:
    """Raise where the logits before and after differ by more than rounding explains."""
    share = _ROUNDING_OF_INT8 if config.quantization == "int8" else _ROUNDING.get(dtype, 1e-3)
    allowed = share * report.max_logit
    if not report.max_logit_difference <= allowed:  # NaN is not
        raise UserError(
            f"the merged model's logits differ from the policy's by "
            f"{report.max_logit_difference:.3g}, more than the {allowed:.3g} that rounding "
            "explains: nothing was written. Keep base and adapter apart, as `save_pretrained` "
            "writes them"
        )


def _merged_copy(model: PeftModel, config: BaseConfig) -> PreTrainedModel:
    """Return the base, loaded anew and de-quantized, with `model`'s adapter merged into it."""
    base = load_base(config, keep_dropout=True).model
    if config.quantization is not None:
        dequantize: Any = base.dequantize
        base = dequantize()
    try:
        with TemporaryDirectory() as folder:
            backbone.write_adapter(model, Path(folder), base_name=config.base)
            adapted: Any = backbone.apply_adapter(base, Path(folder))
        _untie(base)
        merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
        _record_tying(merged)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
        raise UserError(
            f"PEFT can't merge this adapter into its base: {error} Keep base and adapter apart, "
            "as `save_pretrained` writes them"
        ) from error
    return merged


def _untie(base: PreTrainedModel) -> None:
    """Give a head and an embedding that share a matrix one each, where an adapter is on either.

    What is merged into one of them would be in the other too.
    """
    first, last = _ends(base)
    inner = _innermost(first), _innermost(last)
    if last is None or inner == (first, last) or inner[0].weight is not inner[1].weight:
        return
    inner[1].weight = nn.Parameter(inner[1].weight.detach().clone(), requires_grad=False)


def _record_tying(merged: PreTrainedModel) -> None:
    """Say in the configuration whether head and embedding are one: files are read after it."""
    first, last = _ends(merged)
    is_one = last is not None and first.weight.data_ptr() == last.weight.data_ptr()
    for settings in (merged.config, merged.config.get_text_config()):
        if getattr(settings, "tie_word_embeddings", False) and not is_one:
            settings.tie_word_embeddings = False


def _ends(model: Any) -> tuple[Any, Any]:  # noqa: ANN401  (transformers leaves them untyped)
    """Return the input embedding and the output head, None where there is none."""
    return model.get_input_embeddings(), model.get_output_embeddings()


def _innermost(module: Any) -> Any:  # noqa: ANN401  (any layer, or PEFT's wrapper around it)
    """Return the base's own layer inside PEFT's wrappers."""
    while True:
        inside = [
            getattr(module, name)
            for name in ("original_module", "token_adapter", "base_layer")
            if name in getattr(module, "_modules", {})
        ]
        if not inside:
            return module
        module = inside[0]
