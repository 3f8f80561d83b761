"""Motif's first stage: play NetHack and keep pairs of moments for a language model to compare.

Paper: arXiv 2310.00166, section 3; its release has no script for this. Differs: where the authors'
observations come from agents trained on the score, any mixture of players can play here.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from llm_agents.data.motif_layout import CaptionTable, MotifPairs, caption_table
from llm_agents.data.motif_players import make_player
from llm_agents.data.motif_recording import (
    EpisodeRecorder,
    RecordedEpisodes,
    RecordingPlan,
    write_pairs,
)
from llm_agents.envs.nethack_tasks import TASKS, check_keys
from llm_agents.envs.worker_processes import WorkerProcesses
from llm_agents.errors import UserError
from llm_agents.types import Job
from llm_agents.whole_files import write_json

_log = logging.getLogger(__name__)
_REPORT_EVERY_SECONDS = 20.0


class MotifCollection(Job):
    """Record episodes and draw pairs from them.

    Episodes are kept beside the pairs. A run that was stopped plays those that are missing; the
    pairs depend on the settings alone, not on interruptions or the number of workers.

    Args:
        output: Folder of the data set; None is ``pairs`` in the run's folder.
        num_pairs: Pairs.
        players: Take turns at the episodes: ``random``, ``explorer``, or folders of agents.
        sources: Folders of recorded episodes whose moments are pooled with those played here.
        keys: Observation keys to keep.
        length: Consecutive steps on each side of a pair.
        task: Says what the rewards are and when an episode ends.
        max_steps: Actions after which an episode is cut.
        seed: Another seed plays other games.
        num_workers: Processes that play; 0 plays in this one.
    """

    def __init__(
        self,
        output: str | None = None,
        *,
        num_pairs: int = 10_000,
        players: Sequence[str] = ("explorer", "random"),
        sources: Sequence[str] = (),
        keys: Sequence[str] = ("message", "blstats"),
        length: int = 1,
        task: str = "NetHackScore-v1",
        max_steps: int = 5000,
        seed: int = 0,
        num_workers: int = 2,
    ) -> None:
        if min(num_pairs, length, max_steps, num_workers + 1) < 1:
            raise UserError(
                "expected `num_pairs`, `length` and `max_steps` of at least 1 and `num_workers` of "
                f"at least 0, got {num_pairs}, {length}, {max_steps} and {num_workers}"
            )
        if task not in TASKS:
            raise UserError(f"expected a task out of {', '.join(TASKS)}, got `{task}`")
        if "message" not in keys:
            raise UserError(f"expected `message` among the keys, got {', '.join(keys)}")
        if not players and not sources:
            raise UserError("expected players or sources of episodes, got neither")
        try:
            check_keys(keys)
        except ValueError as error:
            raise UserError(str(error)) from error
        self.output = output
        self.num_pairs, self.length, self.num_workers = num_pairs, length, num_workers
        self.sources = tuple(sources)
        self.plan = RecordingPlan(tuple(players), seed, tuple(keys), task, max_steps)

    def run(self, folder: Path) -> Mapping[str, object]:
        """Record what is missing and write the pairs.

        Returns:
            Counts, and what the players achieved.

        Raises:
            UserError: The output belongs to other settings, or another process writes it.
        """
        output = folder / "pairs" if self.output is None else Path(self.output)
        output.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(output / ".lock", timeout=0):
                return self._run(output)
        except Timeout as error:
            raise UserError(
                f"another process collects into `{output}`: wait for it, or choose another folder"
            ) from error

    def _run(self, output: Path) -> Mapping[str, object]:
        """Do the work as the only process."""
        began = time.perf_counter()
        self._claim(output)
        sources = [RecordedEpisodes.open(Path(source)) for source in self.sources]
        own = self._record(output / "episodes", sources)
        recorded = time.perf_counter()
        if not (output / "pairs.json").is_file():
            # Left by a run that was killed while it gave the arrays their names.
            for part in ("data", "info"):
                for path in (output / part).glob("*.npy*"):
                    path.unlink()
                for path in (output / part).glob(".*.npy.*"):
                    path.unlink()
            write_pairs(
                output,
                [*sources, own],
                num_pairs=self.num_pairs,
                length=self.length,
                keys=self.plan.keys,
                seed=self.plan.seed,
            )
            write_json(output / "pairs.json", self._identity(), indent=1)
        table = caption_table(MotifPairs.open(output))
        return {
            **_achieved(own),
            "pairs": len(table.index),
            "distinct_captions": len(table.texts),
            "empty_captions": _share_of(table, ""),
            "tied_captions": float((table.index[:, 0] == table.index[:, 1]).mean()),
            "seconds_recording": recorded - began,
            "seconds_in_all": time.perf_counter() - began,
        }

    # --- whose folder it is

    def _identity(self) -> dict[str, object]:
        """Return what decides the pairs."""
        plan = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self.plan).items()}
        return {
            **plan,
            "num_pairs": self.num_pairs,
            "length": self.length,
            "sources": list(self.sources),
        }

    def _claim(self, output: Path) -> None:
        """Mark a folder as this collection's.

        Raises:
            UserError: It is another one's, or holds pairs of unknown origin.
        """
        path, own = output / "collection.json", self._identity()
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf8"))
            other = [key for key in own if own[key] != found.get(key)]
            if other:
                raise UserError(
                    f"expected a collection into `{output}` with "
                    + ", ".join(f"`{key}`: {found.get(key)}" for key in other)
                    + f" as it was begun, got {', '.join(str(own[key]) for key in other)}: restore "
                    "them, choose another folder, or delete it"
                )
        elif any((output / "data").glob("*.npy")):
            raise UserError(
                f"the folder `{output}` holds pairs that were not collected here: choose another"
            )
        write_json(path, own, indent=1)
        (output / "episodes").mkdir(exist_ok=True)

    # --- recording

    def _record(self, folder: Path, sources: Sequence[RecordedEpisodes]) -> RecordedEpisodes:
        """Play episodes until those of the sources and the first of these hold the pairs."""
        needed = 2 * self.num_pairs
        needed -= sum(facts["steps"] // self.length for s in sources for facts in s.facts)
        if needed <= 0 or not self.plan.players:
            return RecordedEpisodes(folder, ())
        for name in self.plan.players:
            make_player(name)  # an unknown one is told of before anybody plays
        known = self._known(folder)
        reported = time.perf_counter()
        steps, began = 0, time.perf_counter()
        for facts in self._play(folder, known, needed):
            known[facts["number"]] = facts
            RecordedEpisodes(folder, tuple(known[n] for n in sorted(known))).write_list()
            steps += facts["steps"]
            if time.perf_counter() > reported + _REPORT_EVERY_SECONDS:
                reported = time.perf_counter()
                share = min(1.0, sum(_stretches(known, self.length)) / needed)
                rate = steps / (reported - began)
                _log.info("recorded %.0f %% of the moments, %.0f steps/s", 100 * share, rate)
        number = self._enough(known, needed)
        assert number is not None
        return RecordedEpisodes(folder, tuple(known[n] for n in range(number)))

    def _known(self, folder: Path) -> dict[int, Mapping[str, Any]]:
        """Return the episodes that are recorded already, by number."""
        if not (folder / "info.json").is_file():
            return {}
        found = RecordedEpisodes.open(folder)
        return {facts["number"]: facts for facts in found.facts if found.has_file(facts)}

    def _enough(self, known: Mapping[int, Mapping[str, Any]], needed: int) -> int | None:
        """Return how many of the first episodes are enough; None where more must be played."""
        total = 0
        for number in count():
            if total >= needed:
                return number
            if number not in known:
                return None
            total += known[number]["steps"] // self.length
        raise AssertionError

    def _play(
        self, folder: Path, known: Mapping[int, Mapping[str, Any]], needed: int
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the facts of each episode as it is recorded; the caller adds them to `known`."""
        waiting = (number for number in count() if number not in known)
        if self._enough(known, needed) is not None:
            return
        if self.num_workers == 0:
            recorder = EpisodeRecorder(self.plan, folder)
            try:
                while self._enough(known, needed) is None:
                    yield recorder.play(next(waiting))
            finally:
                recorder.close()
            return
        arguments = [{"plan": self.plan, "folder": folder}] * self.num_workers
        workers = WorkerProcesses(EpisodeRecorder, arguments, "nethack")
        try:
            busy = list(range(self.num_workers))
            for worker in busy:
                workers.tell(worker, "play", next(waiting))
            while self._enough(known, needed) is None:
                for worker in workers.ready(busy):
                    yield workers.answer(worker)
                    workers.tell(worker, "play", next(waiting))
        finally:
            workers.close()


def _stretches(known: Mapping[int, Mapping[str, Any]], length: int) -> list[int]:
    """Return how many stretches each episode gives."""
    return [facts["steps"] // length for facts in known.values()]


def _share_of(table: CaptionTable, text: str) -> float:
    """Return how often a caption occurs, from 0 to 1."""
    if text not in table.texts:
        return 0.0
    return float(table.counts[table.texts.index(text)] / table.counts.sum())


def _achieved(episodes: RecordedEpisodes) -> dict[str, object]:
    """Return what the players did, together and by player."""
    names = sorted({str(facts["player"]) for facts in episodes.facts})
    found: dict[str, object] = {
        "episodes": len(episodes.facts),
        "steps": sum(facts["steps"] for facts in episodes.facts),
    }
    for name in names:
        own = [facts for facts in episodes.facts if facts["player"] == name]
        found[name] = {
            "episodes": len(own),
            **{
                f"{key}_mean": float(np.mean([facts[key] for facts in own]))
                for key in ("score", "steps", "max_depth", "experience_level", "num_messages")
            },
        }
    return found
