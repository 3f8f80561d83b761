"""Base models and what is attached to them: freezing, adapters, optimizers.

The only file that imports peft and bitsandbytes.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.adapter_files import (
    BASE_FILE,
    WEIGHTS_FILE,
    base_name,
    base_sizes,
    check_base,
    check_biases,
    of_base,
    unshared,
)
from llm_agents.policies.base_model import (
    LoadedBase,
    layer_container,
    num_layers,
    require_bitsandbytes,
)
from llm_agents.policies.model_digest import adapter_tensors
from llm_agents.whole_files import write_tensors

if TYPE_CHECKING:
    import peft
    from peft import PeftModel
    from transformers import PreTrainedModel
    from typing_extensions import TypeIs

OptimizerName = Literal["adamw", "paged_adamw_32bit", "adamw_8bit"]

POLICY_ADAPTER = "default"
REFERENCE_ADAPTER = "reference"

# PEFT imports bitsandbytes, which says on some CPUs that it lacks a faster kernel.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


@dataclass(frozen=True)
class LoraConfig:
    """Size and place of a LoRA adapter.

    Args:
        r: Rank.
        alpha: The update is scaled by alpha / r.
        dropout: Share of the adapter's inputs dropped in training.
        targets: Names of linear layers; ``attention`` takes those that PEFT adapts by default in
            the model's family (query and value projections where these are apart), ``all-linear``
            all linear parts of the layers, which leaves the output head out.
        top_layers: Adapt only the last K layers (of each stack, with an encoder and a decoder);
            None adapts all.
    """

    r: int = 8
    alpha: int = 16
    dropout: float = 0.0
    targets: tuple[str, ...] | Literal["all-linear", "attention"] = "attention"
    top_layers: int | None = None


def freeze(model: PreTrainedModel, *, raise_precision: bool) -> None:
    """Freeze a base model.

    Args:
        model: Base model.
        raise_precision: Raise what is not quantized (norms, embeddings, head) to float32, in which
            adapters train steadily.
    """
    if raise_precision:
        import peft

        prepare: Any = peft.prepare_model_for_kbit_training
        prepare(model, use_gradient_checkpointing=False)
    model.requires_grad_(False)


def enable_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Recompute layers in the backward pass; adapters get gradients above frozen layers too."""
    with without_future_warnings():  # transformers 5.24 renames it; older ones know this name only
        enable: Any = model.gradient_checkpointing_enable
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def add_lora(model: PreTrainedModel, config: LoraConfig) -> PeftModel:
    """Attach a fresh trainable LoRA adapter named ``default``.

    Raises:
        UserError: The model has no such layers.
    """
    import peft

    layers = _top_layers(model, config)
    if model.config.is_encoder_decoder:
        task = peft.TaskType.SEQ_2_SEQ_LM
    else:
        task = peft.TaskType.CAUSAL_LM
    settings = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=lora_targets(model, config),
        exclude_modules=_beside_text(model),
        layers_to_transform=layers,
        layers_pattern=layer_container(model) if layers is not None else None,
        bias="none",
        task_type=task,
        fan_in_fan_out=_stores_transposed(model),
    )
    try:
        with without_future_warnings():
            return peft.get_peft_model(model, settings, adapter_name=POLICY_ADAPTER)
    except ValueError as error:
        raise UserError(
            f"can't attach LoRA to {model.config.model_type}: {error} Name linear layers of the "
            "model in `lora.targets`, or take `all-linear`"
        ) from error


def lora_targets(model: PreTrainedModel, config: LoraConfig) -> str | list[str]:
    """Return `config.targets` as PEFT takes them."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    if config.targets == "all-linear":
        return _linear_names(model)
    if config.targets != "attention":
        return list(config.targets)
    family = model.config.model_type
    if family not in DEFAULTS:  # a model of several kinds of input: that of its text
        family = model.config.get_text_config().model_type
    if family not in DEFAULTS:
        raise UserError(
            f"`lora.targets: attention` is not known for {family!r}: name the linear layers, or "
            "take `all-linear`"
        )
    targets = DEFAULTS[family]
    return targets if isinstance(targets, str) else list(targets)


def _linear_names(model: PreTrainedModel) -> list[str]:
    """Return the names, within a layer, of all its linear parts.

    PEFT's own ``all-linear`` can't be confined to some layers.
    """
    from transformers.pytorch_utils import Conv1D

    container = f".{layer_container(model)}."
    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if container in name and isinstance(module, (nn.Linear, Conv1D))
        }
    )


def _beside_text(model: PreTrainedModel) -> str | None:
    """Return a pattern of what reads images and the like in a model of several kinds of input."""
    if model.config.get_text_config() is model.config:
        return None
    whole: Any = model
    text = whole.get_decoder()
    name = next(name for name, module in model.named_modules() if module is text)
    return rf"(?!{re.escape(name)}\.|lm_head).*"


def _top_layers(model: PreTrainedModel, config: LoraConfig) -> list[int] | None:
    """Return the indices of the last `top_layers` layers."""
    if config.top_layers is None:
        return None
    count = num_layers(model)
    if not 1 <= config.top_layers <= count:
        raise UserError(
            f"expected `lora.top_layers` from 1 to {count}, the number of layers of this base, "
            f"got {config.top_layers}"
        )
    decoder_layers = getattr(model.config, "num_decoder_layers", count)
    if decoder_layers != count:
        raise UserError(
            f"`lora.top_layers` needs encoder and decoder of equal depth, this base has {count} "
            f"and {decoder_layers} layers: leave it out"
        )
    return list(range(count - config.top_layers, count))


def _stores_transposed(model: PreTrainedModel) -> bool:
    """Tell whether the layers are GPT-2's ``Conv1D``, which hold their weights transposed."""
    from transformers.pytorch_utils import Conv1D

    return any(isinstance(module, Conv1D) for module in model.modules())


def is_adapted(model: PreTrainedModel | PeftModel) -> TypeIs[PeftModel]:
    """Tell whether `model` carries PEFT adapters; PEFT, slow to import, is not asked."""
    return hasattr(model, "peft_config")


def unwrapped(model: PeftModel) -> PreTrainedModel:
    """Return the transformers model in whose layers the adapters sit."""
    unwrap: Any = model.get_base_model
    base: PreTrainedModel = unwrap()
    return base


def attach_adapter(
    base: LoadedBase, folder: Path, *, trainable: bool, lora: LoraConfig | None = None
) -> PeftModel:
    """Attach an adapter in PEFT's format as ``default``, and again, frozen, as ``reference``.

    Args:
        base: Model to attach it to.
        folder: Folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
        trainable: Whether ``default`` trains; if not, there is no ``reference``.
        lora: What the adapter must be, unless None; its dropout replaces the adapter's own.

    Raises:
        UserError: The adapter was made for another base or vocabulary, brings an embedding of its
            own, or is of a kind that changes the input rather than layers; or it is to train and
            PEFT can't hold a frozen copy of it.
    """
    import peft

    config = adapter_config(folder)
    check_base(base, folder, config)
    check_biases(config, folder, trainable=trainable)
    if lora is not None:
        _agree_with_lora(base.model, folder, config, lora)
    device = str(next(base.model.parameters()).device)
    config.inference_mode = not trainable
    try:
        with without_future_warnings():
            model = peft.PeftModel.from_pretrained(
                base.model,
                folder,
                adapter_name=POLICY_ADAPTER,
                is_trainable=trainable,
                config=config,
                torch_device=device,
            )
            _check_keys(model, config, folder)
            if trainable:
                _add_reference(model, folder)
    except (RuntimeError, ValueError) as error:  # other shapes, or layers that the base lacks
        raise UserError(
            f"the adapter {folder} does not fit the base {base_name(base)!r}: {error}"
        ) from error
    return model


def apply_adapter(model: PreTrainedModel, folder: Path, config: Any = None) -> PeftModel:  # noqa: ANN401
    """Return `model` with the adapter in `folder`, frozen, as plain PEFT loads it."""
    import peft

    with without_future_warnings():
        return peft.PeftModel.from_pretrained(model, folder, config=config)


def _add_reference(model: PeftModel, folder: Path) -> None:
    """Add a frozen copy of the adapter ``default`` as ``reference``.

    Raises:
        UserError: PEFT made something else of it.
    """
    from peft import set_peft_model_state_dict

    config, state = copy.deepcopy(model.peft_config[POLICY_ADAPTER]), adapter_state(model)
    config.inference_mode = True
    if hasattr(config, "init_lora_weights"):
        config.init_lora_weights = True  # PiSSA and its like take their part out of the base
    model.add_adapter(REFERENCE_ADAPTER, config)
    set_peft_model_state_dict(model, dict(state), adapter_name=REFERENCE_ADAPTER)
    own = dict(adapter_tensors(model, POLICY_ADAPTER))
    copied = dict(adapter_tensors(model, REFERENCE_ADAPTER))
    differing = set(own) ^ set(copied) or set(state) ^ set(adapter_state(model))
    if differing or not all(torch.equal(own[name], copied[name]) for name in own):
        raise UserError(
            f"the adapter {folder} can't be trained further: PEFT {metadata.version('peft')} holds "
            f"no second copy of it, which the reference is (of {len(differing)} tensors, as "
            f"{', '.join(sorted(differing)[:1])}). It can be loaded with `trainable=False`, or be "
            "merged; one without `ensure_weight_tying` can be trained further"
        )
    for tensor in copied.values():
        tensor.requires_grad_(False)


@contextmanager
def without_future_warnings() -> Iterator[None]:
    """Hide that attributes of transformers are read here and in PEFT under their old names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)
        yield


def adapter_config(folder: Path) -> peft.PeftConfig:
    """Read an adapter's configuration; refuse kinds that this package can't run."""
    import peft

    try:
        config: peft.PeftConfig = peft.PeftConfig.from_pretrained(str(folder))
    except (TypeError, ValueError) as error:  # no JSON, or no configuration of an adapter
        raise UserError(
            f"the configuration of the adapter {folder} can't be read: {error}"
        ) from error
    if config.is_prompt_learning or getattr(config, "alora_invocation_tokens", None):
        raise UserError(
            f"the adapter {folder} is of type {_kind(config)}, which changes the input: only "
            "adapters inside layers (LoRA and its kin) can be used"
        )
    return config


def _kind(config: peft.PeftConfig) -> str:
    """Return the name of an adapter's type."""
    return str(getattr(config.peft_type, "value", config.peft_type))


def _agree_with_lora(
    model: PreTrainedModel, folder: Path, config: peft.PeftConfig, lora: LoraConfig
) -> None:
    """Take the dropout of `lora` and raise if the adapter is anything else than it says."""
    import peft

    if not isinstance(config, peft.LoraConfig):
        raise UserError(f"the adapter {folder} is no LoRA but {_kind(config)}: leave `lora` out")
    targets, theirs = lora_targets(model, lora), config.target_modules or ()
    wanted: dict[str, object] = {
        "r": lora.r,
        "alpha": lora.alpha,
        "targets": targets if isinstance(targets, str) else sorted(targets),
        "layers": _top_layers(model, lora) or "all",
    }
    stored: dict[str, object] = {
        "r": config.r,
        "alpha": config.lora_alpha,
        "targets": theirs if isinstance(theirs, str) else sorted(theirs),
        "layers": config.layers_to_transform or "all",
    }
    differing = [key for key in wanted if wanted[key] != stored[key]]
    if differing:
        said = "; ".join(f"{key} {stored[key]} and not {wanted[key]}" for key in differing)
        raise UserError(
            f"the adapter {folder} has {said}: an adapter keeps its shape, so leave `lora` out or "
            "make it agree (its dropout alone is free)"
        )
    config.lora_dropout = lora.dropout


def _check_keys(model: PeftModel, config: peft.PeftConfig, folder: Path) -> None:
    """Raise if the file held other tensors than the adapter has, copies of the base's aside."""
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        found = set(file.keys())
    expected = set(adapter_state(model))
    missing, unknown = sorted(expected - found), sorted(found - expected - of_base(found, config))
    if missing or unknown:
        raise UserError(
            f"the adapter {folder} does not fit its base: {len(missing)} tensors are missing "
            f"({', '.join(missing[:3])}), {len(unknown)} have no place ({', '.join(unknown[:3])})"
        )


def adapter_state(model: PeftModel) -> dict[str, Tensor]:
    """Return the tensors of the adapter ``default`` under PEFT's names on disk, not copied."""
    from peft import get_peft_model_state_dict

    state: dict[str, Tensor] = get_peft_model_state_dict(
        model, adapter_name=POLICY_ADAPTER, save_embedding_layers=False
    )
    return state


def load_adapter_state(model: PeftModel, state: Mapping[str, Tensor]) -> None:
    """Overwrite the adapter ``default`` with `state`, which must fit it exactly.

    Raises:
        UserError: A tensor is missing, unknown or of another shape.
    """
    from peft import set_peft_model_state_dict

    current = adapter_state(model)
    wrong = sorted(set(current) ^ set(state)) or sorted(
        key for key in current if current[key].shape != state[key].shape
    )
    if wrong:
        raise UserError(
            f"the saved adapter has {len(state)} tensors, this policy's {len(current)}; "
            f"{len(wrong)} don't fit, as {wrong[0]}: resume with the same base, targets, rank and "
            "layers"
        )
    set_peft_model_state_dict(model, dict(state), adapter_name=POLICY_ADAPTER)


def write_adapter(model: PeftModel, folder: Path, *, base_name: str) -> None:
    """Write the adapter ``default`` as PEFT does, with the base's sizes beside it.

    Args:
        model: Model that carries it.
        folder: Made if it isn't there.
        base_name: Recorded as the base.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.peft_config[POLICY_ADAPTER])
    config.base_model_name_or_path = base_name
    config.inference_mode = True
    config.save_pretrained(str(folder))
    state = unshared(adapter_state(model))
    write_tensors(folder / WEIGHTS_FILE, state, metadata={"format": "pt"})
    sizes = base_sizes(unwrapped(model))
    (folder / BASE_FILE).write_text(
        json.dumps({"base": base_name, **sizes}, indent=2) + "\n", encoding="utf-8"
    )


@contextmanager
def adapter_switched(model: PeftModel, name: str | None) -> Iterator[None]:
    """Run with the adapter `name`, or with none; afterwards all is as before.

    PEFT's own switches set what trains by what is active; that is put back parameter by parameter.
    """
    tuner: Any = model.base_model
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    active = model.active_adapter
    try:
        if name is None:
            tuner.disable_adapter_layers()
        else:
            tuner.set_adapter(name, inference_mode=True)
        yield
    finally:
        if name is None:
            tuner.enable_adapter_layers()
        else:
            tuner.set_adapter(active)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def reference_adapter(model: PeftModel) -> str | None:
    """Return the name of the adapter that training started from; None is the bare base."""
    return REFERENCE_ADAPTER if REFERENCE_ADAPTER in model.peft_config else None


def build_optimizer(
    name: OptimizerName,
    params: Iterable[nn.Parameter] | Iterable[dict[str, object]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """Build an optimizer; every number is passed on, so no package's own default counts.

    Args:
        name: ``adamw``; ``paged_adamw_32bit`` (states may move to the CPU's memory; without an
            accelerator it is not paged); ``adamw_8bit`` (states in 8 bits).
        params: Parameters or parameter groups.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay.

    Raises:
        MissingExtraError: bitsandbytes is needed and not installed.
    """
    if name == "adamw":
        return torch.optim.AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    if name not in ("paged_adamw_32bit", "adamw_8bit"):
        raise UserError(
            f"expected an optimizer of adamw, paged_adamw_32bit, adamw_8bit, got {name!r}"
        )
    require_bitsandbytes(f"for the optimizer {name}")
    import bitsandbytes

    optimizers: Any = bitsandbytes.optim
    chosen = optimizers.AdamW8bit if name == "adamw_8bit" else optimizers.PagedAdamW32bit
    optimizer: torch.optim.Optimizer = chosen(
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
    )
    return optimizer
