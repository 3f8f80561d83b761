"""Digests of models: every byte of their weights, and every setting that decides what they compute.

Caches are keyed by them: a key that looked at a part of the weights would hand out another model's
numbers for good. A frozen tensor is hashed once (about 0.6 s for 540 MB), one that trains whenever
it is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from llm_agents.policies.weight_version import weight_version

_KNOWN = "_llm_agents_digest"  # attribute of a frozen tensor: what it was when hashed, and the hash
_VOLATILE = ("_name_or_path", "transformers_version", "architectures", "use_cache")
_IRRELEVANT = (  # of an adapter's settings: where it came from, and what counts in training alone
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "auto_mapping",
    "peft_version",
    "lora_dropout",
    "init_lora_weights",
)


def tensor_digest(tensor: Tensor) -> bytes:
    """Return the SHA-256 of a tensor's bytes, remembered while it is frozen and not written."""
    state = (weight_version([tensor]), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape))  # type: ignore[list-item]  # buffers have versions too
    known = getattr(tensor, _KNOWN, None)
    if known is not None and known[0] == state and not tensor.requires_grad:
        found: bytes = known[1]
        return found
    content = tensor.detach().reshape(-1).contiguous().cpu().view(torch.uint8)
    digest = hashlib.sha256(content.numpy().data).digest()
    if not tensor.requires_grad:
        setattr(tensor, _KNOWN, (state, digest))
    return digest


def named_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of names, shapes, types and all values, in the order given."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor_digest(tensor))
    return digest.hexdigest()


def every_tensor(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters, buffers, and what quantized layers keep beside their weights.

    A tensor that has two names is under both.
    """
    found: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    ids = {id(tensor) for tensor in found.values()}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in ids:
            found.setdefault(name, value)
    return found


def base_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the base's tensors by the names that they have without adapters around them, sorted."""
    adapters = _adapter_names(model)
    found = {
        _own_name(name): tensor
        for name, tensor in every_tensor(model).items()
        if adapters.isdisjoint(name.split("."))
    }
    yield from sorted(found.items())


def adapter_tensors(model: nn.Module, adapter: str) -> Iterator[tuple[str, Tensor]]:
    """Yield an adapter's tensors, sorted; their names leave out what the adapter is called."""
    for name, tensor in sorted(every_tensor(model).items()):
        parts = name.split(".")
        if adapter in parts:
            yield ".".join(part for part in parts if part != adapter), tensor


def config_digest(model: nn.Module) -> str:
    """Return a digest of a transformers model's configuration, without what is only its origin.

    A network around such a model has its configuration; one without any has none.
    """
    configs = (getattr(module, "config", None) for module in model.modules())
    config: Any = next((found for found in configs if hasattr(found, "to_dict")), None)
    return _settings_digest({} if config is None else config.to_dict(), _VOLATILE)


def adapter_digest(model: nn.Module, adapter: str) -> str:
    """Return a digest of an adapter's weights and of what scales and places them."""
    settings: Any = model.peft_config[adapter]  # type: ignore[index]  # PEFT's dictionary
    weights = named_digest(adapter_tensors(model, adapter))
    return _text_digest(weights, _settings_digest(settings.to_dict(), _IRRELEVANT))


def model_digest(model: nn.Module, adapter: str = "default") -> str:
    """Return a digest of all that decides a model's numbers: configuration, base, adapter."""
    parts = [config_digest(model), named_digest(base_tensors(model))]
    if adapter in getattr(model, "peft_config", {}):
        parts.append(adapter_digest(model, adapter))
    return _text_digest(*parts)


def text_model_version(model: nn.Module, tokenizer: Any) -> str:  # noqa: ANN401  (of transformers)
    """Return 12 hexadecimal digits that change with whatever a model of text makes of a text."""
    return _text_digest(model_digest(model), tokenizer_digest(tokenizer))[:12]


def tokenizer_digest(tokenizer: Any) -> str:  # noqa: ANN401  (any class of transformers)
    """Return a digest of a tokenizer's vocabulary and rules, its chat template among them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules: object = [tokenizer.get_vocab(), getattr(tokenizer, "init_kwargs", {})]
    else:
        rules = json.loads(backend.to_str())
        for passing in ("truncation", "padding"):  # set by whatever was encoded last
            rules.pop(passing, None)  # type: ignore[attr-defined]  # a dictionary
    own = [
        type(tokenizer).__name__,
        tokenizer.special_tokens_map,
        getattr(tokenizer, "clean_up_tokenization_spaces", None),
        getattr(tokenizer, "chat_template", None),
    ]
    return _text_digest(json.dumps([rules, own], sort_keys=True, default=str))


def _adapter_names(model: nn.Module) -> set[str]:
    """Return the names of the adapters in a model, which PEFT's own wrapper may be missing of."""
    found = set(getattr(model, "peft_config", {}))
    for module in model.modules():
        for attribute in getattr(module, "adapter_layer_names", ()):
            found.update(getattr(getattr(module, attribute, None), "keys", tuple)())
    return found


def _own_name(name: str) -> str:
    """Return the name that a base's tensor has without adapters around it."""
    for added in ("base_model.model.", "token_adapter.", "base_layer.", "original_module."):
        name = name.replace(added, "")
    return name


def _settings_digest(settings: dict[str, Any], without: Collection[str]) -> str:
    """Return a digest of plain settings."""
    kept = {key: value for key, value in settings.items() if key not in without}
    return _text_digest(json.dumps(kept, sort_keys=True, default=_plain))


def _plain(value: object) -> object:
    """Return what JSON can hold: sets in order, the rest as text."""
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


def _text_digest(*texts: str) -> str:
    """Return the SHA-256 of texts."""
    return hashlib.sha256("\x1d".join(texts).encode()).hexdigest()
