"""One process at a time in a run's folder."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from llm_agents.errors import UserError

log = logging.getLogger(__name__)

LOCK_FILE = "running.lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder for as long as this one is at work there.

    The lock ends with the process, however it ends; processes that this one starts don't hold it.
    Of the processes of one distributed run the first claims for all.

    Args:
        folder: Of the run; made if it isn't there.

    Raises:
        UserError: Another run is at work there.
    """
    if getattr(rank_zero_only, "rank", 0) != 0:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with path.open("a+", encoding="utf8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise UserError(
                f"another process ({_owner(path)}) is at work in {folder}: two would write over "
                "each other. Wait for it or stop it, or name another `run.folder`"
            ) from error
        except OSError as error:  # a file system that has no locks
            log.warning("nothing keeps a second process out of %s: %s", folder, error)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _owner(path: Path) -> str:
    """Return what a lock's file says of its process."""
    return path.read_text(encoding="utf8").strip() or "of unknown number"
