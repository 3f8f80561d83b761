"""Tensors that are computed once, kept under a digest of everything they depend on.

One safetensors file a result, written to a temporary name and renamed. The whole key is stored in
the file and compared when it is read, so a result is never taken for another's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.backbone import is_adapted, reference_adapter
from llm_agents.policies.model_digest import (
    adapter_digest,
    base_tensors,
    config_digest,
    named_digest,
    tokenizer_digest,
)
from llm_agents.whole_files import write_tensors

_logger = logging.getLogger(__name__)

CODE_VERSION = "2"
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
        key = _whole(key)
        path = self.path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if path.exists():
                _logger.info("%s: taken from %s", kind, path)
                return _read(path, key)
            tensors = {name: tensor.detach().cpu() for name, tensor in make().items()}
            _write(path, key, tensors)
            shutil.rmtree(self.pieces_folder(kind, key), ignore_errors=True)
            return tensors

    def has(self, kind: str, key: Key) -> bool:
        """Return whether the result of `key` is here."""
        return self.path(kind, key).exists()

    def path(self, kind: str, key: Key) -> Path:
        """Return where the result of `key` is kept."""
        return self.folder / f"{kind}-{digest_of(_whole(key))[:24]}.safetensors"

    def pieces_folder(self, kind: str, key: Key) -> Path:
        """Return where parts of the result are kept until it is whole, see `pieces.Pieces`."""
        return self.path(kind, key).with_suffix(".pieces")


def _whole(key: Key) -> Key:
    """Return a key with whose code computes what it names."""
    return {**key, "code_version": CODE_VERSION, "computed_by": computed_by()}


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


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of names, shapes, types and all values.

    Args:
        tensors: By name, in a fixed order.
    """
    digest = hashlib.sha256()
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(flat.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def reference_key(policy: LanguagePolicy) -> dict[str, str]:
    """Return what identifies a policy's reference and tokenizer; call it before training.

    The reference is the base with the adapter that training started from, or without any. Of both
    every value counts, and the settings that decide what is computed with them.
    """
    model, adapter = policy.model, "none"
    if is_adapted(model) and (name := reference_adapter(model)) is not None:
        adapter = adapter_digest(model, name)
    held = asdict(policy.config)
    del held["base"], held["revision"], held["trust_remote_code"]
    return {
        "base": policy.base,
        "revision": str(policy.revision),
        "base_weights": named_digest(base_tensors(model)),
        "base_config": config_digest(model),
        "held": json.dumps(held, sort_keys=True),
        "adapter": adapter,
        "tokenizer": tokenizer_digest(policy.tokenizer),
    }


def reference_record(key: Key) -> dict[str, str]:
    """Return what a checkpoint keeps of the `reference_key` that its run started from."""
    return {"reference": digest_of(key), "reference_version": CODE_VERSION}


def policy_key(policy: LanguagePolicy) -> dict[str, str]:
    """Return what identifies a policy as it stands, and its tokenizer: what it answers with."""
    moving = {
        name: parameter
        for name, parameter in policy.named_parameters()
        if parameter.requires_grad or ".lora_" in name or ".modules_to_save." in name
    }
    return {**reference_key(policy), "weights": tensors_digest(sorted(moving.items()))}


def expect_reference(record: Mapping[str, object], key: Key) -> None:
    """Refuse a checkpoint whose run started from another reference.

    Raises:
        UserError: It did. Whether a run of another version of this code did can't be told; that is
            said in the log.
    """
    if record.get("reference_version") != CODE_VERSION:
        _logger.warning(
            "the checkpoint was written by another version of this package, so that its reference "
            "can't be compared: it is taken to be this recipe's"
        )
    elif record["reference"] != digest_of(key):
        raise UserError(
            "the checkpoint's run started from another base or adapter than this recipe names: "
            "resume with the recipe that the run started from"
        )


@cache
def computed_by() -> str:
    """Return the versions of the packages whose code gives the numbers that are kept."""
    names = ("torch", "transformers", "peft")
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)
