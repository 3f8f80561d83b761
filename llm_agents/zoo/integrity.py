"""Digests of weights: written when a folder is published or kept, checked whenever it is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from llm_agents.errors import UserError
from llm_agents.whole_files import sha256
from llm_agents.zoo.layout import read_json, write_json

HASHES_FILE = "hashes.json"


def write_hashes(folder: Path) -> dict[str, str]:
    """Write the SHA-256 of each file with weights to ``hashes.json``, and return them by name."""
    found = {path.name: sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    write_json(folder / HASHES_FILE, found)
    return found


def weights_digest(folder: Path) -> str | None:
    """Return one digest of all weights in a folder; None if there are none."""
    found = [f"{path.name} {sha256(path)}\n" for path in sorted(folder.glob("*.safetensors"))]
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16] if found else None


def verify(folder: Path, *, where: str) -> None:
    """Compare the weights in a folder with its ``hashes.json``, if it has one.

    Args:
        folder: Of an entry.
        where: What a message calls it.

    Raises:
        UserError: A file is missing, was changed, or came from elsewhere.
    """
    path = folder / HASHES_FILE
    if not path.is_file():
        return
    expected = read_json(path)
    check_digests(folder, expected, where=where)
    unknown = {path.name for path in folder.glob("*.safetensors")} - set(expected)
    if unknown:
        raise UserError(
            f"{where} holds {', '.join(sorted(unknown))}, which its `{HASHES_FILE}` does not name: "
            "weights of two trainings lie in one folder; fetch or save it again"
        )


def check_digests(folder: Path, expected: Mapping[str, object], *, where: str) -> None:
    """Raise unless each file is there and has its SHA-256.

    Raises:
        UserError: Names the file, what was found and what was expected.
    """
    for name, digest in expected.items():
        if not (folder / name).is_file():
            raise UserError(f"{where} has no `{name}`, whose digest is recorded: fetch it again")
        found = sha256(folder / name)
        if found != digest:
            raise UserError(
                f"`{name}` of {where} has the SHA-256 {found}, expected {digest}: the file was "
                "changed or damaged; delete it from the cache and try again"
            )
