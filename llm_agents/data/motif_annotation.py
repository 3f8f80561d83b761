"""Annotating a data set of pairs: the stage between collection and reward training.

Preferences go to ``preference/<name>.npy`` beside the pairs, with ``<name>.json`` that says how
they come about. Chunks may run one after another, at once or on several machines that share the
folder; a run goes on with the pairs of its chunk that are unknown. Paper: arXiv 2310.00166.
"""

from __future__ import annotations

import logging
import string
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_agents.data.motif_layout import MotifPairs, caption_table, preference_path
from llm_agents.data.motif_preferences import PreferenceFile, claimed, record_digest
from llm_agents.errors import UserError
from llm_agents.job_progress import job_progress
from llm_agents.rewards.annotation_report import agreement, preference_counts
from llm_agents.rewards.annotator import UNKNOWN, Annotated, Annotator, Pairs, Preferences
from llm_agents.types import Job

log = logging.getLogger(__name__)

_ROWS_READ_TOGETHER = 4096


class MotifAnnotation(Job):
    """Writes an annotator's preferences over a data set's pairs.

    Args:
        directory: Root of the data set.
        annotator: Says which side of a pair is better.
        name: Name of the preferences, in which ``{model}``, ``{captions}``, ``{goal}``,
            ``{version}``, ``{mode}`` and ``{digest}`` are filled in; the digest changes with
            everything that the preferences depend on. By default all of these; ``score`` and
            ``return`` for annotators that compare numbers.
        stats: Captions also tell depth, gold, hit points, level and hunger.
        num_chunks: Parts that the pairs are cut into, as equal as can be.
        chunk: Which of them this run annotates, from 0.
        batch_size: Pairs that are looked at together. By default 256, or 4,096 for annotators that
            ask about captions, not pairs. Answers are kept as they come, whatever it is.
        flush_every: Batches after which the file is forced to disk.
        start_over: Forget this chunk's preferences first, once no other process is at work on it.
        log_folder: Keep the conversation about each pair there, as ``<pair>.txt``.
        progress: Show how far it is.
    """

    def __init__(
        self,
        directory: Path,
        annotator: Annotator,
        *,
        name: str | None = None,
        stats: bool = False,
        num_chunks: int = 1,
        chunk: int = 0,
        batch_size: int | None = None,
        flush_every: int = 1,
        start_over: bool = False,
        log_folder: Path | None = None,
        progress: bool = True,
    ) -> None:
        batch_size = annotator.pairs_together if batch_size is None else batch_size
        for key, value in (("batch_size", batch_size), ("flush_every", flush_every)):
            if value < 1:
                raise UserError(f"expected `{key}` of at least 1, got {value}")
        if not 0 <= chunk < num_chunks:
            raise UserError(
                f"expected `chunk` from 0 to `num_chunks` − 1 = {num_chunks - 1}, got {chunk}"
            )
        self.directory, self.annotator, self.name, self.stats = directory, annotator, name, stats
        self.num_chunks, self.chunk = num_chunks, chunk
        self.batch_size, self.flush_every = batch_size, flush_every
        self.start_over, self.log_folder, self.progress = start_over, log_folder, progress

    def run(self, folder: Path) -> Mapping[str, object]:
        """Annotate the chunk's unknown pairs.

        Args:
            folder: Not used: preferences lie beside their pairs.

        Returns:
            What was preferred how often, and how far it can be trusted.
        """
        begin = time.perf_counter()
        pairs = MotifPairs.open(self.directory, self._keys())
        part = chunk_range(pairs.num_pairs, self.num_chunks, self.chunk)
        record = self._record(pairs)
        path = preference_path(Path(self.directory), self._file_name(record))
        with claimed(path, part):  # before anything is touched
            file = PreferenceFile.open(
                path, pairs.num_pairs, record, start_over=part if self.start_over else None
            )
            unknown = part.start + np.flatnonzero(file.read()[part.start : part.stop] == UNKNOWN)
            if len(unknown):
                # Answers under other circumstances are of no use here.
                answers = f"{path.stem}.{record_digest(record)}.answers.jsonl"
                self.annotator.keep_answers(path.with_name(answers))
            counts = self._annotate(pairs, file, unknown)
            preferences = file.read()
        seconds = time.perf_counter() - begin
        return {
            "annotator": path.stem,
            "pairs": pairs.num_pairs,
            "chunk": [part.start, part.stop],
            "annotated": len(unknown),
            "seconds": seconds,
            "pairs_per_second": len(unknown) / seconds,
            **preference_counts(preferences[part.start : part.stop]),
            **self.annotator.report(counts),
            "equal_captions": counts["equal_captions"],
            "agreement": self._agreement(path, preferences),
        }

    def _keys(self) -> tuple[str, ...]:
        """Return the arrays that are read."""
        keys = [*self.annotator.keys]
        if self.annotator.reads_captions:
            keys += ["message", *(["blstats"] if self.stats else [])]
        return tuple(dict.fromkeys(keys))

    def _record(self, pairs: MotifPairs) -> dict[str, object]:
        """Return everything that the preferences depend on."""
        captions = self._captions() if self.annotator.reads_captions else None
        return {
            "format": 1,
            "annotator": self.annotator.identity(),
            "captions": captions,
            "pairs": {"number": pairs.num_pairs, "sha256": pairs.fingerprint()},
        }

    def _captions(self) -> str:
        """Return what captions are made of, as Motif's file names call it."""
        return "msg_minbl" if self.stats else "msg"

    def _file_name(self, record: Mapping[str, object]) -> str:
        """Return the name of the preferences."""
        known = {
            **self.annotator.name_parts(),
            "captions": self._captions(),
            "digest": record_digest(record),
        }
        template = self.name
        if template is None:
            is_model = "model" in known
            template = (
                "{model}_{captions}_{goal}_{version}_{mode}-{digest}" if is_model else "{mode}"
            )
        asked = [
            field for _, field, _, _ in string.Formatter().parse(template) if field is not None
        ]
        if unknown := [field for field in asked if field not in known]:
            raise UserError(
                f"`name` asks for {unknown}, this annotator knows {sorted(known)}: leave them out"
            )
        name = template.format(**known)
        if not name or any(sign in name for sign in "./\\"):
            raise UserError(
                f"expected a `name` without dots and slashes, got {name!r}: the name of an array "
                "ends at its first dot"
            )
        return name

    def _annotate(
        self, pairs: MotifPairs, file: PreferenceFile, index: NDArray[np.int64]
    ) -> Counter[str]:
        """Annotate the pairs `index`, write each preference as it comes, and return the counts."""
        counts: Counter[str] = Counter()
        captions = self._caption_sides(pairs, index)
        total = self.annotator.num_questions(captions) if captions else len(index)
        what = "questions answered" if captions else "pairs annotated"
        with job_progress(what, total, is_shown=self.progress) as advance:
            for number, start in enumerate(range(0, len(index), self.batch_size), start=1):
                places = slice(start, start + self.batch_size)
                batch = self._batch(pairs, index[places], captions, places)
                for part, found, answers in self.annotator.annotate_each(batch):
                    self._keep_conversations(found)
                    file.write(batch.index[part], found.preferences)
                    counts += found.counts
                    advance(answers)
                if number % self.flush_every == 0:
                    file.flush()
        file.flush()
        return counts

    def _caption_sides(self, pairs: MotifPairs, index: NDArray[np.int64]) -> Pairs | None:
        """Return the pairs `index` with their captions alone, or None if none are read."""
        if not self.annotator.reads_captions:
            return None
        texts: dict[str, int] = {}
        sides = np.zeros((len(index), 2), dtype=np.int64)
        with job_progress("captions read", len(index), is_shown=self.progress) as advance:
            for start in range(0, len(index), _ROWS_READ_TOGETHER):
                rows = index[start : start + _ROWS_READ_TOGETHER]
                table = caption_table(pairs, rows, with_stats=self.stats)
                known = [texts.setdefault(text, len(texts)) for text in table.texts]
                places = np.array(known, dtype=np.int64)
                sides[start : start + len(rows)] = places[table.index]
                advance(len(rows))
        return Pairs(index, tuple(texts), sides)

    def _batch(
        self, pairs: MotifPairs, rows: NDArray[np.int64], captions: Pairs | None, places: slice
    ) -> Pairs:
        """Return what the annotator is to see of the pairs `rows`, which are at `places`."""
        arrays = {**pairs.data, **pairs.info}
        columns = {key: np.asarray(arrays[key][rows]) for key in self.annotator.keys}
        if captions is None:
            return Pairs(rows, columns=columns)
        return Pairs(rows, captions.texts, captions.sides[places], columns)

    def _keep_conversations(self, found: Annotated) -> None:
        """Write what was said about each pair, if that is wanted."""
        if self.log_folder is None:
            return
        folder = Path(self.log_folder)
        folder.mkdir(parents=True, exist_ok=True)
        for pair, text in found.conversations.items():
            (folder / f"{pair}.txt").write_text(text, encoding="utf8")

    def _agreement(self, path: Path, preferences: Preferences) -> dict[str, dict[str, object]]:
        """Return how far other annotations of these pairs agree, by their names."""
        found: dict[str, dict[str, object]] = {}
        names = {other.name.split(".")[0] for other in path.parent.glob("*.npy")}
        for name in sorted(names - {path.stem}):
            try:
                others = MotifPairs.open(self.directory, (), (name,)).preferences[name]
            except UserError as error:
                log.warning("not compared with: %s", error)
                continue
            if len(others) == len(preferences):
                found[name] = agreement(preferences, np.asarray(others).astype(np.int8))
        return found


def chunk_range(num_pairs: int, num_chunks: int, chunk: int) -> range:
    """Return the pairs of a chunk; sizes differ by one at most, and are 0 where pairs run out.

    Example:
        >>> [list(chunk_range(7, 3, chunk)) for chunk in range(3)]
        [[0, 1], [2, 3], [4, 5, 6]]
    """
    return range(chunk * num_pairs // num_chunks, (chunk + 1) * num_pairs // num_chunks)
