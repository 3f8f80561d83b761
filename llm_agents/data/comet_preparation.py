"""COMET's data: triples to prompts and tails with the critic's score."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from llm_agents.data.base import DropReport
from llm_agents.data.comet import RELATIONS, STORED_SCORE, Triple, comet_prompt, read_triples
from llm_agents.data.held_out import HELD_OUT, HeldOut, SplitName, part_groups
from llm_agents.data.preparation import Preparation, digests, resolved
from llm_agents.data.prepared import PreparedFile, TaskRow
from llm_agents.data.raw_rows import Sources
from llm_agents.errors import UserError
from llm_agents.types import Reward

SAMPLE = ("raw_comet.jsonl",)


@dataclass(frozen=True)
class CometRules:
    """Which triples take part.

    Args:
        relations: The relations to keep, by default those that the critic knows; null keeps all.
        drop_none: Leave out tails that are the word ``none``.
        drop_repeated: Leave out what the same file has had already.
        max_validation: Use this many validation rows, chosen by a hash; null uses all.
        machine_tails: Of COMET-BART's outputs, take those rather than the tails of people.
        best_test_tail: Of the test tails of a prompt keep the one with the highest score.
        seed: Decides the choice of validation rows.

    Raises:
        UserError: A number is below its range.
    """

    relations: tuple[str, ...] | None = RELATIONS
    drop_none: bool = True
    drop_repeated: bool = True
    max_validation: int | None = None
    machine_tails: bool = False
    best_test_tail: bool = True
    seed: int = 901

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_validation is not None and self.max_validation < 1:
            raise UserError(f"expected `max_validation` of at least 1, got {self.max_validation}")


class CometPreparation(Preparation):
    """Makes ``train.jsonl``, ``val.jsonl`` and ``test.jsonl`` of COMET triples.

    A triple that has the critic's score already (ATOMIC 10x) keeps it as ``p_valid_model``; the
    others get the reward's. With ``held_out``, whole heads are dealt out, so that no event is on
    two sides.

    Args:
        train: ``sample``, or files in any of the layouts of `llm_agents.data.comet`; of rows that
            name their split, those of training.
        validation: The same for validation; ``held_out`` takes heads of `train` that are held out.
        test: The same for the test; null makes no file.
        own_test: Rows of these files whose split is the test go to ``train_test.jsonl``, as ATOMIC
            10x's own test, beside that of ATOMIC 2020.
        reward: Scores what has no stored score; null leaves it without.
        held_out: Which share of `train` is held out where ``held_out`` asks for it.
        rules: Which triples take part.
        batch_size: Rows that are scored together.
        output_folder: Where the files go; null is the run's folder.
    """

    def __init__(
        self,
        train: Sources = "sample",
        validation: Sources | None = "sample",
        test: Sources | None = "sample",
        *,
        own_test: Sources | None = None,
        reward: Reward | None = None,
        held_out: HeldOut | None = None,
        rules: CometRules | None = None,
        batch_size: int = 32,
        output_folder: str | None = None,
    ) -> None:
        super().__init__(
            reward=reward,
            diversity=False,
            batch_size=batch_size,
            output_folder=output_folder,
            trusts_stored=True,
        )
        self.rules = rules or CometRules()
        self.held_out = held_out or HeldOut()
        self.sources: dict[str, list[str]] = {
            "train": resolved(train, "sample", SAMPLE),
            "validation": resolved(validation, "sample", SAMPLE),
            "test": resolved(test, "sample", SAMPLE),
            "own_test": resolved(own_test, "sample", SAMPLE),
        }
        if HELD_OUT in self.sources["train"] + self.sources["own_test"]:
            raise UserError(f"expected `{HELD_OUT}` in `validation` or `test` alone")
        self._parts: dict[str, SplitName] | None = None

    def settings(self) -> Mapping[str, object]:
        """Return what the rows depend on."""
        return {
            "task": "comet",
            "sources": {name: digests(sources) for name, sources in self.sources.items()},
            "held_out": asdict(self.held_out) if self._holds_out else None,
            "rules": asdict(self.rules),
        }

    def fitting_responses(self) -> Iterator[str]:
        """Yield the training tails."""
        return (row.response for row in self._rows("train", "train", DropReport()))

    def files(self) -> Sequence[PreparedFile]:
        """Return the files to make."""
        made = [PreparedFile("train", partial(self._rows, "train", "train"))]
        if self.sources["validation"]:
            made.append(PreparedFile("val", partial(self._rows, "validation", "validation")))
        if self.sources["test"]:
            best = self.rules.best_test_tail
            made.append(PreparedFile("test", partial(self._rows, "test", "test"), best))
        if self.sources["own_test"]:
            made.append(PreparedFile("train_test", partial(self._rows, "own_test", "test")))
        return made

    @property
    def _holds_out(self) -> bool:
        """Return whether a split is taken out of the training source."""
        return any(HELD_OUT in sources for sources in self.sources.values())

    def _rows(self, name: str, split: SplitName, report: DropReport) -> Iterator[TaskRow]:
        """Yield the rows of a file, and count what is dropped."""
        triples: Iterator[Triple] = self._triples(name, split, report)
        if split == "validation" and self.rules.max_validation is not None:
            triples = self._chosen(name, split, report)
        for number, triple in enumerate(triples):
            scored = triple.score is not None
            yield TaskRow(
                id=f"{name}-{number}",
                prompt=comet_prompt(triple.head, triple.relation),
                response=triple.tail,
                meta={"task": "comet", "head": triple.head, "relation": triple.relation},
                stored={STORED_SCORE: float(triple.score or 0.0)} if scored else {},
            )

    def _triples(self, name: str, split: SplitName, report: DropReport) -> Iterator[Triple]:
        """Yield the triples of a file that the rules keep."""
        keep = _Filter(self.rules, report)
        for source in self.sources[name]:
            if source == HELD_OUT or (name == "train" and self._holds_out):
                parts = self._head_parts()
                for one in self.sources["train"] if source == HELD_OUT else [source]:
                    found = self._read(one, "train")
                    yield from keep(triple for triple in found if parts[triple.head] == split)
            else:
                yield from keep(self._read(source, split))

    def _read(self, source: str, split: SplitName) -> Iterator[Triple]:
        """Yield the triples of one source that are of a split, or of none."""
        for triple in read_triples(source, split, machine_tails=self.rules.machine_tails):
            if triple.split in (None, split):
                yield triple

    def _head_parts(self) -> dict[str, SplitName]:
        """Return the split of each head of the training source."""
        if self._parts is None:
            counts: Counter[str] = Counter()
            for source in self.sources["train"]:
                for triple in _Filter(self.rules, DropReport())(self._read(source, "train")):
                    counts[triple.head] += 1
            parts: defaultdict[str, SplitName] = defaultdict(lambda: "train")
            parts.update(part_groups(counts, self.held_out))
            wanted = {name for name in ("validation", "test") if HELD_OUT in self.sources[name]}
            for head, split in parts.items():
                if split not in wanted:
                    parts[head] = "train"
            self._parts = parts
        return self._parts

    def _chosen(self, name: str, split: SplitName, report: DropReport) -> Iterator[Triple]:
        """Yield the validation triples with the smallest hashes, in the order they came in."""
        most = self.rules.max_validation or 0
        keys = (
            (_digest(triple, self.rules.seed), number)
            for number, triple in enumerate(self._triples(name, split, DropReport()))
        )
        kept = {number for _, number in heapq.nsmallest(most, keys)}
        for number, triple in enumerate(self._triples(name, split, report)):
            if number in kept:
                yield triple
            else:
                report.dropped["over the limit"] += 1


class _Filter:
    """Leaves out triples that the rules don't want, and counts them.

    Args:
        rules: The rules.
        report: Where rows are counted.
    """

    def __init__(self, rules: CometRules, report: DropReport) -> None:
        self.rules, self.report = rules, report
        self.relations = None if rules.relations is None else set(rules.relations)
        self.seen: set[bytes] = set()

    def __call__(self, triples: Iterator[Triple]) -> Iterator[Triple]:
        """Yield what is kept."""
        for triple in triples:
            self.report.rows += 1
            reason = self._reason(triple)
            if reason:
                self.report.dropped[reason] += 1
            else:
                yield triple

    def _reason(self, triple: Triple) -> str | None:
        """Return why a triple is left out, or None."""
        if self.relations is not None and triple.relation not in self.relations:
            return "another relation"
        if not triple.head or not triple.tail:
            return "no head or no tail"
        if self.rules.drop_none and triple.tail.lower() == "none":
            return "the tail is none"
        if self.rules.drop_repeated:
            key = _digest(triple, 0)
            if key in self.seen:
                return "repeated"
            self.seen.add(key)
        return None


def _digest(triple: Triple, seed: int) -> bytes:
    """Return eight bytes that stand for a triple."""
    text = f"{seed}\x1d{triple.head}\x1d{triple.relation}\x1d{triple.tail}"
    return hashlib.sha256(text.encode()).digest()[:8]
