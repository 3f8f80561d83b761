"""Where an adapter or a reward model lies: a folder as it is, or a snapshot from the Hub."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llm_agents.entries import absent, find_entry, is_hub_id
from llm_agents.errors import UserError

WANTED = ("*.safetensors", "*.json", "*.yaml", "*.md", "*.jinja", "*.model", "*.txt", "*.png")


def locate_folder(name: str | Path, *, marker: str, revision: str | None = None) -> Path:
    """Return the local folder of `name`, fetched from the Hub if it is not a folder.

    Only safetensors, JSON and text are fetched, never a pickle.

    Args:
        name: A folder, of a run too; a name of the zoo (see `llm_agents.entries`); or
            ``organization/repository``.
        marker: File that the folder must hold.
        revision: Branch, tag or commit on the Hub.

    Returns:
        The folder.

    Raises:
        UserError: There is no such folder or repository, or the marker is missing.
    """
    path = find_entry(str(name))
    if path is None:
        if not is_hub_id(str(name)):
            raise UserError(
                f"expected a folder, a name of the zoo or a Hub id `organization/name`, found "
                f"nothing at `{name}`: {absent(str(name))}"
            )
        path = download(str(name), revision)
    if not (path / marker).is_file():
        found = ", ".join(sorted(child.name for child in path.iterdir())[:8]) or "nothing"
        raise UserError(f"expected `{marker}` in `{name}`, found {found}")
    return path


def download(repo_id: str, revision: str | None = None) -> Path:
    """Return the folder of a repository's snapshot, from the Hub or the local cache."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"`{repo_id}`{f' at {revision}' if revision else ''} on {constants.ENDPOINT}"
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(WANTED)))
    except GatedRepoError as error:
        raise UserError(
            f"{where} is gated: accept its terms there, then `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"found no folder `{repo_id}` here and no {where}: check the spelling; a private "
            "repository needs `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"found no {where}: leave the revision out to take the newest") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UserError(
            f"could not fetch {where}, and it is not in the local cache: give a folder, or check "
            f"the network and HF_ENDPOINT ({type(error).__name__})"
        ) from error


def file_digest(*paths: Path) -> str:
    """Return 12 hexadecimal digits of the files' SHA-256, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]
