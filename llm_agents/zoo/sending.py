"""One atomic commit to the Hub, tried again when the network fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tenacity import (
    before_sleep_log,
    retry,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
)

from llm_agents import __version__
from llm_agents.errors import UserError
from llm_agents.zoo.card import check_card
from llm_agents.zoo.layout import CARD_FILE

log = logging.getLogger(__name__)
ATTEMPTS = 5


def send(
    staged: Path,
    repo_id: str,
    *,
    private: bool,
    token: str | None,
    merge: Callable[[str, str], str],
    is_ours: Callable[[str], bool],
    revision: str | None = None,
) -> str:
    """Send the files of a folder as one commit, and return the commit's address.

    The card is merged with the one that is there. A commit is taken whole or not at all, so that
    trying again is safe; files that are the same already are not sent again, and those of an
    earlier publication that are no longer part of it are removed by the same commit.

    Args:
        staged: Holds exactly what is to be there.
        repo_id: Made if it isn't there.
        private: Make a new repository private.
        token: Access token; the stored one if None.
        merge: Merges our card with theirs.
        is_ours: Says of a file's name whether a publication writes such files.
        revision: Branch, made if it isn't there; the main one if None.

    Raises:
        UserError: The Hub refuses, or can't be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(token=token)

    @retry(
        retry=retry_if_exception(is_transient),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=0.5, max=20),
        before_sleep=before_sleep_log(log, logging.WARNING),
        reraise=True,
    )
    def commit() -> str:
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        merge_existing(staged, repo_id, token=token, merge=merge, revision=revision)
        there = filter(is_ours, api.list_repo_files(repo_id, revision=revision))
        done = api.create_commit(
            repo_id,
            operations=changes(staged, list(there)),
            commit_message=f"Published with llm_agents {__version__}",
            revision=revision,
        )
        return str(done.commit_url)

    try:
        return commit()
    except HfHubHTTPError as error:
        raise refusal(repo_id, error.response.status_code, error.server_message) from error
    except (OSError, *transport_errors()) as error:  # type: ignore[misc]  # classes all the same
        raise unreachable(error) from error


def changes(staged: Path, ours: Sequence[str]) -> list[Any]:
    """Return the operations of a commit.

    Args:
        staged: Holds exactly what is to be there.
        ours: Files in the repository that an earlier publication wrote.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    written = [
        CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path)
        for path in sorted(staged.iterdir())
    ]
    gone = [CommitOperationDelete(path_in_repo=n) for n in ours if not (staged / n).exists()]
    return [*written, *gone]


def refusal(repo_id: str, status: int, reason: str | None) -> UserError:
    """Return what to tell when the Hub refuses."""
    from huggingface_hub import constants

    cure = "; log in with `hf auth login`, with a token that may write"
    return UserError(
        f"{constants.ENDPOINT} refused to take `{repo_id}` ({status}): "
        f"{reason or 'no reason given'}{cure if status in (401, 403) else ''}"
    )


def unreachable(error: BaseException) -> UserError:
    """Return what to tell when the Hub can't be reached."""
    from huggingface_hub import constants

    return UserError(
        f"could not reach {constants.ENDPOINT} in {ATTEMPTS} attempts ({type(error).__name__}): "
        "nothing was published; the same command tries again"
    )


def is_transient(error: BaseException) -> bool:
    """Return whether it is worth trying again: the network failed, or the Hub is overloaded."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (429, 500, 502, 503, 504)
    return isinstance(error, (ConnectionError, TimeoutError, *transport_errors()))


def transport_errors() -> tuple[type[Exception], ...]:
    """Return what a failed connection raises: the Hub's library uses one of two HTTP clients."""
    clients = [name for name in ("httpx2", "httpx") if find_spec(name) is not None]
    return tuple(import_module(name).TransportError for name in clients)


def merge_existing(
    staged: Path,
    repo_id: str,
    *,
    token: str | None,
    merge: Callable[[str, str], str],
    revision: str | None = None,
) -> None:
    """Merge the staged card with the repository's own, if it has one."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        existing = Path(hf_hub_download(repo_id, CARD_FILE, token=token, revision=revision))
    except LocalEntryNotFoundError as error:  # a kind of the next, but it means: no answer
        raise ConnectionError(f"no answer about {CARD_FILE}") from error
    except EntryNotFoundError:
        return
    path = staged / CARD_FILE
    card = merge(path.read_text(encoding="utf8"), existing.read_text(encoding="utf8"))
    check_card(card)
    path.write_text(card, encoding="utf8")
