"""Tensors that are computed once, kept under a digest of everything they depend on.

One safetensors file a result, written to a temporary name and renamed. The whole key is stored in
the file and compared when it is read, so a result is never taken for another's.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.backbone import REFERENCE_ADAPTER
from llm_agents.whole_files import write_tensors

_logger = logging.getLogger(__name__)

CODE_VERSION = "1"
"""Raise it when the same inputs would give other numbers."""

Key = Mapping[str, str]


@dataclass(frozen=True)
class ContentCache:
    """A folder of tensors by what they were computed from.

    Args:
        folder: Made when the first result is written.
    """

    folder: Path

    def get(self, kind: str, key: Key, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the tensors of `key`, computed by `make` if they are not here yet.

        Two processes that ask for the same result compute it once.

        Args:
            kind: Name of the result, the first part of the file's name.
            key: Everything that the result depends on.
            make: Computes it; tensors of any device.

        Returns:
            Tensors on the CPU.

        Raises:
            UserError: The file of this result holds something else, or can't be read.
        """
        key = {**key, "code_version": CODE_VERSION}
        path = self.path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if path.exists():
                _logger.info("%s: taken from %s", kind, path)
                return _read(path, key)
            tensors = {name: tensor.detach().cpu() for name, tensor in make().items()}
            _write(path, key, tensors)
            return tensors

    def has(self, kind: str, key: Key) -> bool:
        """Return whether the result of `key` is here."""
        return self.path(kind, key).exists()

    def path(self, kind: str, key: Key) -> Path:
        """Return where the result of `key` is kept."""
        key = {**key, "code_version": CODE_VERSION}
        return self.folder / f"{kind}-{digest_of(key)[:24]}.safetensors"


def digest_of(key: Key) -> str:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()


def _write(path: Path, key: Key, tensors: dict[str, Tensor]) -> None:
    """Write a result so that `path` is whole whenever it exists."""
    metadata = {"key": json.dumps(dict(key), sort_keys=True)}
    write_tensors(path, tensors, metadata=metadata, survives_power_loss=True)


def _read(path: Path, key: Key) -> dict[str, Tensor]:
    """Read a result after comparing its key."""
    cure = f"delete {path}, it is computed again"
    try:
        with safe_open(path, framework="pt") as file:
            found = (file.metadata() or {}).get("key", "")
            if found != json.dumps(dict(key), sort_keys=True):
                raise UserError(
                    f"the cached result {path.name} was made from something else: {cure}"
                )
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise UserError(f"the cached result {path.name} can't be read ({error}): {cure}") from error


def tensors_digest(tensors: Iterable[tuple[str, Tensor]], *, sample: int | None = None) -> str:
    """Return a digest of names, shapes, types and values.

    Args:
        tensors: By name, in a fixed order.
        sample: Look at this many evenly spaced values of each; None looks at all.
    """
    digest = hashlib.sha256()
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        if sample is not None and len(flat) > sample:
            places = torch.arange(sample, device=flat.device) * (len(flat) - 1) // (sample - 1)
            flat = flat[places]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(flat.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def reference_key(policy: LanguagePolicy) -> dict[str, str]:
    """Return what identifies a policy's reference and tokenizer; call it before training.

    The reference is the base with the adapter that training started from, or without any. Of the
    base's weights a sample of each tensor counts, of the adapter's every value.
    """
    base: dict[str, Tensor] = {}
    adapter: dict[str, Tensor] = {}
    for name, parameter in policy.named_parameters():
        if f".{REFERENCE_ADAPTER}." in name:
            adapter[name] = parameter
        elif not _is_adapter(name):
            base[_own_name(name)] = parameter
    return {
        "base": policy.base,
        "revision": str(policy.revision),
        "base_weights": tensors_digest(sorted(base.items()), sample=32),
        "adapter": tensors_digest(sorted(adapter.items())) if adapter else "none",
        "tokenizer": _tokenizer_digest(policy),
    }


def _is_adapter(name: str) -> bool:
    """Tell whether a parameter's name is one that PEFT gives to an adapter's."""
    return ".lora_" in name or ".modules_to_save." in name


def _own_name(name: str) -> str:
    """Return the name that a base's parameter has without adapters around it."""
    return name.replace("base_model.model.", "").replace(".base_layer.", ".")


def _tokenizer_digest(policy: LanguagePolicy) -> str:
    """Return a digest of the tokenizer's vocabulary and rules."""
    backend = getattr(policy.tokenizer, "backend_tokenizer", None)
    if backend is None:
        text = json.dumps(policy.tokenizer.get_vocab(), sort_keys=True)
    else:
        text = backend.to_str()
    special = json.dumps(policy.tokenizer.special_tokens_map, sort_keys=True, default=str)
    return hashlib.sha256(f"{text} {special}".encode()).hexdigest()
