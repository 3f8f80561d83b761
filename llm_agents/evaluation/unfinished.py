"""Episodes of an evaluation that has not come to its end, for the next one to go on from."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_agents.types import Episode
from llm_agents.whole_files import write_text

log = logging.getLogger(__name__)

FILE = ".unfinished_evaluation.json"


class UnfinishedEpisodes:
    """What agents have played so far, kept in a file until all of it is done.

    Args:
        folder: Where the file lies.
        identity: What must be equal for kept episodes to count, as JSON: who plays, what, and with
            which draws. Episodes of anything else are dropped.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True, default=str)
        self._path = folder / FILE
        self._identity = hashlib.sha256(text.encode()).hexdigest()
        self._played = self._read()
        if self._played:
            log.info(
                "going on with an evaluation that was cut short: %d parts of it are there",
                len(self._played),
            )

    def find(self, world: str, agent: str) -> tuple[list[Episode], float] | None:
        """Return an agent's episodes in a world and the seconds they took, if they are there."""
        found = self._played.get(_key(world, agent))
        if found is None:
            return None
        return [Episode(**entry) for entry in found["episodes"]], float(found["seconds"])

    def keep(self, world: str, agent: str, episodes: Sequence[Episode], seconds: float) -> None:
        """Keep what an agent has played in a world."""
        entry = {"seconds": seconds, "episodes": [asdict(episode) for episode in episodes]}
        self._played[_key(world, agent)] = entry
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, json.dumps({"identity": self._identity, "played": self._played}))

    def discard(self) -> None:
        """Drop everything: the results have been written."""
        self._played = {}
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        """Return what is kept of the same evaluation; nothing if the file can't be read."""
        try:
            known = json.loads(self._path.read_text(encoding="utf8"))
            return dict(known["played"]) if known["identity"] == self._identity else {}
        except (OSError, ValueError, TypeError, KeyError):
            return {}


def _key(world: str, agent: str) -> str:
    return f"{agent}@{world}"
