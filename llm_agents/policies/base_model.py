"""Base models: found, loaded from safetensors, quantized on the way if asked."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn

from llm_agents.errors import MissingExtraError, UserError
from llm_agents.messages import quietly, say_once
from llm_agents.policies.bundled import ResolvedBase, resolve_base

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)

DtypeName = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["nf4", "int8"]

DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class BaseConfig:
    """Which base model, and how its weights are held.

    Args:
        base: Alias, folder, GGUF file or Hub id.
        revision: Branch, tag or commit on the Hub.
        quantization: 4 bits (``nf4``) or 8 bits (``int8``) for the linear layers.
        double_quantization: Quantize the nf4 constants too.
        dtype: Type of the weights that are not quantized.
        compute_dtype: Type in which nf4 layers compute; `dtype` if None. On CPUs without bfloat16
            arithmetic float32 is ten times faster.
        trust_remote_code: Run the Python code that comes with a model of Hub or folder: it can
            do on this machine whatever you can, so set it only for authors whom you trust. By
            default no code of a model is run, and a model that needs its own is refused.
    """

    base: str
    revision: str | None = None
    quantization: Quantization | None = None
    double_quantization: bool = False
    dtype: DtypeName = "float32"
    compute_dtype: DtypeName | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class LoadedBase:
    """A base model without adapters, in eval mode.

    Args:
        name: What it was asked for by.
        model: The model with its output head.
        tokenizer: Its tokenizer.
        resolved: Where it came from.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    resolved: ResolvedBase


def load_base(config: BaseConfig, *, keep_dropout: bool) -> LoadedBase:
    """Load a base model and its tokenizer, from safetensors only.

    A quantized model is placed on this process's accelerator at once, if there is one.

    Args:
        config: What to load.
        keep_dropout: Leave the model's own dropout in place. It has no use where the base is
            frozen: an adapter brings its own.

    Raises:
        UserError: The model can't be found or read.
        MissingExtraError: Quantization is asked for and bitsandbytes is not installed.
    """
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
    )

    arguments = _quantization_arguments(config)
    resolved = resolve_base(config.base, config.revision)
    _refuse_pickles(config.base, resolved)
    where = {"revision": resolved.revision, "trust_remote_code": config.trust_remote_code}
    if resolved.revision is None:
        del where["revision"]
    try:
        settings = AutoConfig.from_pretrained(resolved.source, **where)
        if not keep_dropout:
            _switch_dropout_off(settings)
        auto = AutoModelForSeq2SeqLM if settings.is_encoder_decoder else AutoModelForCausalLM
        if resolved.kind != "tiny":
            say_once(_logger, "loading the base model %s", config.base)
        with quietly():
            model = auto.from_pretrained(
                resolved.source,
                config=settings,
                dtype=DTYPES[config.dtype],
                use_safetensors=True,
                **arguments,
                **where,
            )
        tokenizer = AutoTokenizer.from_pretrained(resolved.source, **where)
    except (OSError, ValueError, SafetensorError) as error:  # whatever transformers can't read
        raise UserError(f"base model {config.base!r} can't be loaded: {error}") from error
    for module in model.modules():
        # Otherwise bitsandbytes repacks nf4 weights at the first pass in eval mode on CPUs with
        # AVX512-BF16: their constants are rounded to bfloat16 and no gradient passes them any more.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return LoadedBase(config.base, model.eval(), tokenizer, resolved)


def _switch_dropout_off(settings: PreTrainedConfig) -> None:
    """Set every dropout probability of a configuration, and of the parts it has, to 0."""
    for part in {id(one): one for one in (settings, settings.get_text_config())}.values():
        for key, value in part.to_dict().items():
            if isinstance(value, float) and ("dropout" in key or key.endswith("pdrop")):
                setattr(part, key, 0.0)


def _quantization_arguments(config: BaseConfig) -> dict[str, object]:
    """Return the arguments that make transformers quantize."""
    if config.quantization is None:
        if config.double_quantization or config.compute_dtype is not None:
            raise UserError(
                "`double_quantization` and `compute_dtype` belong to `quantization: nf4`, "
                "which is not set: set it, or leave them out"
            )
        return {}
    require_bitsandbytes("to load a base model in 4 or 8 bits")
    import transformers

    make: Any = transformers.BitsAndBytesConfig
    if config.quantization == "int8":
        if config.double_quantization or config.compute_dtype is not None:
            raise UserError("`double_quantization` and `compute_dtype` belong to nf4, not to int8")
        quantizer = make(load_in_8bit=True)
    else:
        quantizer = make(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=config.double_quantization,
            bnb_4bit_compute_dtype=DTYPES[config.compute_dtype or config.dtype],
        )
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = f"cuda:{rank}" if torch.cuda.is_available() else "cpu"
    return {"quantization_config": quantizer, "device_map": {"": device}}


def require_bitsandbytes(purpose: str) -> None:
    """Raise unless bitsandbytes can be imported; quieten what it says at every multiplication."""
    if find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "quantized", purpose)
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)


def _refuse_pickles(name: str, resolved: ResolvedBase) -> None:
    """Raise for a folder whose weights are pickles only."""
    folder = Path(resolved.source)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    pickles = sorted(
        file.name for ending in ("*.bin", "*.pt", "*.pth") for file in folder.glob(ending)
    )
    if pickles:
        raise UserError(
            f"base model {name!r} holds its weights as pickle ({pickles[0]}), which can run any "
            "code when read: convert it to safetensors with `model.save_pretrained(folder)`"
        )
    raise UserError(f"base model {name!r}: {folder.absolute()} holds no *.safetensors file")


def num_layers(model: PreTrainedModel) -> int:
    """Return the number of layers (of the encoder, where there are two stacks)."""
    return int(model.config.get_text_config().num_hidden_layers)


def layer_container(model: PreTrainedModel) -> str:
    """Return the name of the list that holds the model's layers: ``layers``, ``h`` or ``block``."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers(model):
            return str(name).rsplit(".", 1)[-1]
    raise UserError(
        f"no list of {num_layers(model)} layers was found in {type(model).__name__}: leave "
        "`lora.top_layers` out"
    )


def check_training(
    adapter: str | None,
    lora: object | None,
    quantization: Quantization | None,
    *,
    trainable: bool,
) -> None:
    """Raise a `UserError` for a combination that can't train, or a LoRA that would not."""
    if not trainable and lora is not None and adapter is None:
        raise UserError(
            "a fresh LoRA that is not trained changes nothing: give `adapter`, or leave `lora` out"
        )
    if trainable and quantization is not None and adapter is None and lora is None:
        raise UserError(
            f"the weights of a base in {quantization} can't be trained: give `lora` or `adapter`, "
            "or `trainable: false`"
        )
