"""Files that are whole whenever they exist: written under a temporary name, and renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_agents.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def write_whole(
    path: Path, write: Callable[[Path], object], *, survives_power_loss: bool = False
) -> None:
    """Let `write` fill a file of another name, which becomes `path`.

    Whoever may read new files may read it, too, though some writers keep theirs to themselves.

    Args:
        path: Its folder is made if it isn't there.
        write: Writes the file that it is given.
        survives_power_loss: Wait until the disk has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.touch()
    permissions = unfinished.stat().st_mode
    write(unfinished)
    unfinished.chmod(permissions)
    if survives_power_loss:
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
    unfinished.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a text."""
    write_whole(path, lambda file: file.write_text(text, encoding="utf8"))


def write_json(path: Path, values: Mapping[str, Any], *, indent: int = 2) -> None:
    """Write an object as JSON."""
    write_text(path, json.dumps(values, indent=indent) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file.

    Raises:
        UserError: The file holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"expected a JSON object in {path}, got {type(found).__name__}")
    return found


def read_described(
    path: Path, kind: str, *, what: str, known: Collection[str], version: int
) -> dict[str, Any]:
    """Return the object in a file that says of what kind and format it is.

    Args:
        path: The file.
        kind: Key of the kind.
        what: What it describes, before the kind's name, for the message.
        known: Kinds that there are.
        version: Format that is read, under ``format_version``.

    Raises:
        UserError: The file holds something else, or another kind or format.
    """
    found = read_json(path)
    name, number = found.get(kind), found.get("format_version")
    if name not in known or number != version:
        raise UserError(
            f"{path} describes {what} {name!r}, format {number!r}: this version reads "
            f"{', '.join(known)}, format {version}; upgrade llm-agents"
        )
    return found


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    metadata: dict[str, str] | None = None,
    survives_power_loss: bool = False,
) -> None:
    """Write tensors of any device as safetensors, with `metadata` in the file's head."""
    from safetensors.torch import save_file

    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_whole(
        path,
        lambda file: save_file(kept, file, metadata=metadata),
        survives_power_loss=survives_power_loss,
    )


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
