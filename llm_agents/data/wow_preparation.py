"""Grounded dialogues' data: WoW, FaithDial and their audits to prompts and scored responses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from llm_agents.data.base import DropReport
from llm_agents.data.grounded import Faithfulness, GroundedTurn, read_turns
from llm_agents.data.held_out import HELD_OUT, HeldOut, SplitName, part_groups
from llm_agents.data.preparation import Preparation, digests, resolved
from llm_agents.data.prepared import PreparedFile, TaskRow
from llm_agents.data.raw_rows import Sources, as_list
from llm_agents.data.token_limit import TokenLimit
from llm_agents.errors import UserError
from llm_agents.rewards.knowledge import with_knowledge
from llm_agents.types import Reward, Turn

Task = Literal["wow", "faithdial", "faithdial_wow"]
FAITHFULNESS = "faithdial"


@dataclass(frozen=True)
class LabelScores:
    """What people's BEGIN labels are worth as a score of faithfulness.

    Args:
        entailment: The knowledge entails the response.
        uncooperative: It does, but the response does not go on with the dialogue.
        partial: Some of the response is entailed, some is not.
        unfaithful: Hallucinated, generic, or uncooperative without entailment.
    """

    entailment: float = 1.0
    uncooperative: float = 1.0
    partial: float = 0.5
    unfaithful: float = 0.0

    def of(self, label: Faithfulness) -> float:
        """Return the score of a label."""
        return {
            "entailment": self.entailment,
            "entailment uncooperative": self.uncooperative,
            "partial": self.partial,
            "unfaithful": self.unfaithful,
        }[label]


@dataclass(frozen=True)
class WowRules:
    """Which turns take part, and how.

    Args:
        require_history: Leave out responses that nothing was said before.
        history: Tokens of the history; a longer one loses its oldest utterances, the last one its
            beginning. Null keeps all.
        labels: What people's labels are worth, where the data have them; null leaves labels out.
        shuffle: Shuffle the training rows, as for a union of data sets.
        seed: Decides the shuffle.
    """

    require_history: bool = True
    history: TokenLimit | None = None
    labels: LabelScores | None = None
    shuffle: bool = False
    seed: int = 901


class WowPreparation(Preparation):
    """Makes ``train.jsonl``, ``val.jsonl`` and ``test.jsonl`` of grounded dialogues.

    Sources are in any of the layouts of `llm_agents.data.grounded`. With ``held_out``, whole
    dialogues are dealt out: turns of one dialogue, or with the same knowledge, are on one side.

    Args:
        train: ``sample``, ``sample:wow``, ``sample:faithdial``, a file, a Hub id, or a list of
            these.
        validation: The same for validation; ``held_out`` takes dialogues of `train`.
        test: The same for the test; null makes no file.
        task: Noted in the rows; ``sample`` stands for this task's bundled data.
        reward: Scores every row, beside the labels' score; null leaves it at that.
        diversity: Also score how rare a response's words are; what was fitted is kept as
            ``tfidf.json``.
        fit_on: What the diversity is fitted to, ``sample`` being WoW's; null is the training file's
            responses.
        held_out: Which share of `train` is held out where ``held_out`` asks for it.
        rules: Which turns take part, and how.
        batch_size: Rows that are scored together.
        output_folder: Where the files go; null is the run's folder.
    """

    def __init__(
        self,
        train: Sources = "sample",
        validation: Sources | None = "sample",
        test: Sources | None = "sample",
        *,
        task: Task = "wow",
        reward: Reward | None = None,
        diversity: bool = False,
        fit_on: Sources | None = None,
        held_out: HeldOut | None = None,
        rules: WowRules | None = None,
        batch_size: int = 32,
        output_folder: str | None = None,
    ) -> None:
        super().__init__(
            reward=reward,
            diversity=diversity,
            batch_size=batch_size,
            output_folder=output_folder,
            trusts_stored=False,
        )
        self.rules = rules or WowRules()
        self.held_out = held_out or HeldOut()
        self.task = task
        given = {"train": train, "validation": validation, "test": test, "fit_on": fit_on}
        self.sources = {name: _with_samples(task, name, one) for name, one in given.items()}
        if HELD_OUT in self.sources["train"] + self.sources["fit_on"]:
            raise UserError(f"expected `{HELD_OUT}` in `validation` or `test` alone")
        self._parts: dict[str, SplitName] | None = None

    def settings(self) -> Mapping[str, object]:
        """Return what the rows depend on."""
        return {
            "task": self.task,
            "sources": {name: digests(sources) for name, sources in self.sources.items()},
            "held_out": asdict(self.held_out) if self._holds_out else None,
            "rules": asdict(self.rules),
        }

    def fitting_responses(self) -> Iterator[str]:
        """Yield the responses that the diversity is fitted to."""
        name = "fit_on" if self.sources["fit_on"] else "train"
        return (turn.response for _, turn in self._turns(name, "train", DropReport()))

    def files(self) -> Sequence[PreparedFile]:
        """Return the files to make."""
        names: dict[str, SplitName] = {"train": "train", "val": "validation", "test": "test"}
        return [
            PreparedFile(name, partial(self._rows, split))
            for name, split in names.items()
            if self.sources[split]
        ]

    @property
    def _holds_out(self) -> bool:
        """Return whether a split is taken out of the training source."""
        return bool(self._wanted)

    def _rows(self, split: SplitName, report: DropReport) -> Iterator[TaskRow]:
        """Yield the rows of a file, and count what is dropped."""
        turns = self._turns(split, split, report)
        if split == "train" and self.rules.shuffle:
            shuffled = list(turns)
            random.Random(self.rules.seed).shuffle(shuffled)
            turns = iter(shuffled)
        for name, turn in turns:
            history = self._shortened(turn.history, report)
            meta = {"task": self.task, "knowledge": turn.knowledge, "dialogue": turn.dialogue}
            stored = {}
            if turn.faithfulness is not None:
                meta["label"] = turn.faithfulness
                if self.rules.labels is not None:
                    stored[FAITHFULNESS] = self.rules.labels.of(turn.faithfulness)
            yield TaskRow(
                id=name,
                prompt=with_knowledge(turn.knowledge, history),
                response=turn.response,
                meta=meta,
                stored=stored,
            )

    def _turns(
        self, name: str, split: SplitName, report: DropReport
    ) -> Iterator[tuple[str, GroundedTurn]]:
        """Yield a row's name, which no other row of the file has, and its turn."""
        for place, source in enumerate(self.sources[name]):
            is_dealt = source == HELD_OUT or (name == "train" and self._holds_out)
            number = 0
            for one in self.sources["train"] if source == HELD_OUT else [source]:
                for turn in read_turns(one, "train" if is_dealt else split, report):
                    if is_dealt and self._split_of(turn) != split:
                        report.dropped["in another file"] += 1
                    elif self.rules.require_history and not turn.history:
                        report.dropped["no history"] += 1
                    else:
                        yield f"{name}-{place}-{number}", turn
                        number += 1

    def _split_of(self, turn: GroundedTurn) -> SplitName:
        """Return the split that a turn of the training sources is dealt to."""
        if self._parts is None:
            group_of = _dialogues(self.sources["train"])
            counts = Counter(group_of[one] for one in _knowledge(self.sources["train"]))
            parts = part_groups(counts, self.held_out)
            self._parts = {
                knowledge: parts[group] if parts[group] in self._wanted else "train"
                for knowledge, group in group_of.items()
            }
        return self._parts[turn.knowledge]

    @property
    def _wanted(self) -> set[str]:
        """Return the splits that are taken out of the training sources."""
        return {name for name, sources in self.sources.items() if HELD_OUT in sources}

    def _shortened(self, history: tuple[Turn, ...], report: DropReport) -> tuple[Turn, ...]:
        """Return the newest utterances that the limit allows."""
        limit = self.rules.history
        if limit is None or limit.allows(*(turn.text for turn in history)):
            return history
        report.changed["histories shortened"] += 1
        while len(history) > 1:
            history = history[1:]
            if limit.allows(*(turn.text for turn in history)):
                return history
        words = history[0].text.split()
        low, high = 0, len(words)  # keeping the last `low` words is allowed
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if limit.allows(" ".join(words[-middle:])) else (low, middle - 1)
            )
        return (Turn(history[0].role, " ".join(words[len(words) - low :])),)


def _with_samples(task: Task, name: str, sources: Sources | None) -> list[str]:
    """Return the sources with bundled files for ``sample``.

    The test is always FaithDial's, and the diversity is always fitted to WoW, as in the paper.
    """
    split = name
    if name == "fit_on":
        split, task = "train", "wow"
    both = ["faithdial"] if split == "test" else ["wow", "faithdial"]
    own = both if task == "faithdial_wow" else [both[0] if split == "test" else task]
    found = sources
    for word, parts in {"sample": own, **{f"sample:{one}": [one] for one in both}}.items():
        found = resolved(found, word, [f"raw_{part}_{split}.json" for part in parts])
    return as_list(found)


def _knowledge(sources: Sequence[str]) -> Iterator[str]:
    """Yield the knowledge of every turn of the sources."""
    for source in sources:
        yield from (turn.knowledge for turn in read_turns(source, "train", DropReport()))


def _dialogues(sources: Sequence[str]) -> dict[str, str]:
    """Return the group of each piece of knowledge: pieces of one dialogue are in one group."""
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while above.setdefault(name, name) != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    found: set[str] = set()
    for place, source in enumerate(sources):
        for turn in read_turns(source, "train", DropReport()):
            found.add(turn.knowledge)
            ends = [top(turn.knowledge)]
            if turn.dialogue:
                ends.append(top(f"\x1d{place}/{turn.dialogue}"))
            above[ends[-1]] = ends[0]
    # A group is called after its smallest piece: the order of the sources does not matter.
    names: dict[str, str] = {}
    for knowledge in sorted(found):
        names.setdefault(top(knowledge), knowledge)
    return {knowledge: names[top(knowledge)] for knowledge in found}
