"""One atomic commit to the Hub, tried again when the network fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

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
) -> str:
    """Send the files of a folder as one commit, and return the commit's address.

    The card is merged with the one that is there. A commit is taken whole or not at all, so that
    trying again is safe; files that are the same already are not sent again.

    Raises:
        UserError: The Hub refuses, or can't be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants
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
        merge_existing(staged, repo_id, token=token, merge=merge)
        operations = [
            CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path)
            for path in sorted(staged.iterdir())
        ]
        done = api.create_commit(
            repo_id,
            operations=operations,
            commit_message=f"Published with llm_agents {__version__}",
        )
        return str(done.commit_url)

    try:
        return commit()
    except HfHubHTTPError as error:
        status = error.response.status_code
        cure = (
            "log in with `hf auth login`, with a token that may write"
            if status in (401, 403)
            else ""
        )
        raise UserError(
            f"{constants.ENDPOINT} refused to take `{repo_id}` ({status}): "
            f"{error.server_message or 'no reason given'}{'; ' if cure else ''}{cure}"
        ) from error
    except OSError as error:
        raise UserError(
            f"could not reach {constants.ENDPOINT} in {ATTEMPTS} attempts ({type(error).__name__}"
            "): nothing was published; the same command tries again"
        ) from error


def is_transient(error: BaseException) -> bool:
    """Return whether it is worth trying again: the network failed, or the Hub is overloaded."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (429, 500, 502, 503, 504)
    return isinstance(error, ConnectionError | TimeoutError)


def merge_existing(
    staged: Path, repo_id: str, *, token: str | None, merge: Callable[[str, str], str]
) -> None:
    """Merge the staged card with the repository's own, if it has one."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        existing = Path(hf_hub_download(repo_id, CARD_FILE, token=token))
    except EntryNotFoundError:
        return
    path = staged / CARD_FILE
    card = merge(path.read_text(encoding="utf8"), existing.read_text(encoding="utf8"))
    check_card(card)
    path.write_text(card, encoding="utf8")
