"""The sources of a data module: read once, their rows parted into training and held-out ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Literal, cast

from llm_agents.data.base import DropReport, Example
from llm_agents.data.dataset_rows import Role
from llm_agents.data.held_out import HELD_OUT
from llm_agents.data.reading import (
    Source,
    Sources,
    as_sources,
    read_examples,
    shown,
    source_name,
)
from llm_agents.data.selection import PromptSplit, RowRules, hold_out, split_by_prompt
from llm_agents.errors import UserError

_SHARE = 0.1
_LEAST_PROMPTS = 10  # of own data, from which some are held out without having been asked for
_logger = logging.getLogger(__name__)

Paragraphs = Literal["drop", "keep"]
UnseenRole = Literal["validation", "test"]


class SourceParts:
    """Training, validation and test sources, and what is held out of the first for the others.

    ``held_out`` among the validation or test sources stands for prompts of the training source:
    those of `split`, or where that is None a tenth for each, by a hash of the prompts' text.

    Args:
        train: Training data.
        validation: Validation data; None is none.
        test: Test data; None is none.
        samples: Which bundled data ``sample`` stands for.
        rules: What becomes of malformed rows and of paragraphs without a role.
        split: Which prompts of `train` are held out.
        replaces_samples: Whether ``sample`` as validation or test data gives way to ``held_out``
            where no training data are bundled ones and they have ten different prompts or more.
        paragraphs: The rule for paragraphs without a role where `rules` has none.
    """

    def __init__(
        self,
        train: Sources,
        validation: Sources | None,
        test: Sources | None,
        *,
        samples: str,
        rules: RowRules,
        split: PromptSplit | None,
        replaces_samples: bool = False,
        paragraphs: Paragraphs = "keep",
    ) -> None:
        self.train = _as_list(train)
        self.samples, self.rules, self.split = samples, rules, split
        self.paragraphs = paragraphs
        self._unseen: dict[UnseenRole, list[Source]] = {
            "validation": _as_list(validation),
            "test": _as_list(test),
        }
        is_own = not any(isinstance(one, str) and _is_sample(one) for one in self.train)
        self._open: list[UnseenRole] = []
        if replaces_samples and is_own:
            self._open = [role for role, found in self._unseen.items() if "sample" in _words(found)]
        self._parts: tuple[list[Example], Mapping[str, list[Example]], DropReport] | None = None

    def training(self) -> tuple[list[Example], DropReport]:
        """Return the training rows, and what was left out."""
        examples, _, report = self._parted()
        return examples, report

    def validation(self) -> tuple[list[Example], DropReport]:
        """Read all validation rows; none if there is no source."""
        examples: list[Example] = []
        report = DropReport()
        for one in self.unseen("validation"):
            found, counts = self._read_unseen("validation", one)
            examples, report = examples + found, report + counts
        return examples, report

    def tests(self) -> Iterator[tuple[str, list[Example], DropReport]]:
        """Read the test sets one by one; yields the name, the rows and what was left out."""
        names: set[str] = set()
        for one in self.unseen("test"):
            name = source_name(one)
            while name in names:
                name += "-again"
            names.add(name)
            yield name, *self._read_unseen("test", one)

    def unseen(self, role: UnseenRole) -> list[Source]:
        """Return the sources of validation or test rows, once it is clear what is held out."""
        if role in self._open:
            self._parted()
        return self._unseen[role]

    def _read_unseen(self, role: UnseenRole, one: Source) -> tuple[list[Example], DropReport]:
        """Read validation or test rows, from their own source or from the held-out part."""
        if not isinstance(one, str) or one != HELD_OUT:
            return self._read([one] if isinstance(one, str) else one, role)
        found = list(self._parted()[1][role])
        if not found:
            raise UserError(
                f"expected held-out prompts of {shown(self.train)} for {role}, got none: set a "
                "larger share data.split_by_prompt.held_out"
            )
        return found, DropReport(rows=len(found))

    def forget(self) -> None:
        """Let go of the training rows."""
        self._parts = None

    def _parted(self) -> tuple[list[Example], Mapping[str, list[Example]], DropReport]:
        """Read the training source once, and part it."""
        if self._parts is None:
            examples, report = self._read(cast(Sources, self.train), "train")
            num_read = len(examples)
            self._replace_samples(len({example.prompt for example in examples}))
            held_out: dict[str, list[Example]] = {}
            roles = [role for role, found in self._unseen.items() if HELD_OUT in _words(found)]
            if self.split is not None:
                examples, found = split_by_prompt(examples, self.split)
                held_out = dict.fromkeys(("validation", "test"), found)
            elif roles:
                examples, held_out = hold_out(examples, roles, _SHARE, shown(self.train))
                _logger.info(
                    "held out of the %s rows of %s, all rows of a prompt together: %s",
                    num_read,
                    shown(self.train),
                    ", ".join(f"{len(held_out[role])} for {role}" for role in roles),
                )
            if len(examples) < num_read:
                report.dropped["held out"] += num_read - len(examples)
            self._parts = examples, held_out, report
        return self._parts

    def _replace_samples(self, num_prompts: int) -> None:
        """Let own data be validated and tested on a part of them, if there are enough."""
        for role in self._open:
            found = self._unseen[role]
            if num_prompts >= _LEAST_PROMPTS:
                kept = [one for one in found if not isinstance(one, str) or one != "sample"]
                self._unseen[role] = [HELD_OUT, *(one for one in kept if one != HELD_OUT)]
                done = f"so some prompts of {shown(self.train)} are held out for it"
            else:
                done = (
                    f"and {shown(self.train)} has too few different prompts ({num_prompts}) to "
                    f"hold some out for it: the bundled sample `{self.samples}` is taken"
                )
            _logger.info(
                "%s: no data of your own are named, %s (name a file with data.%s, none with null, "
                "the bundled sample with sample:%s)",
                *(role, done, role, self.samples),
            )
        self._open = []

    def _read(self, source: Sources, role: Role) -> tuple[list[Example], DropReport]:
        """Read a source under the rules."""
        return read_examples(
            source,
            role=role,
            samples=self.samples,
            on_malformed=self.rules.on_malformed,
            roleless_paragraphs=self.rules.roleless_paragraphs or self.paragraphs,
        )


def _as_list(source: Sources | None) -> list[Source]:
    """Return sources as a list of rows that can be read twice."""
    return [list(one) if isinstance(one, Iterator) else one for one in as_sources(source)]


def _words(sources: list[Source]) -> list[str]:
    """Return the sources that are names."""
    return [one for one in sources if isinstance(one, str)]


def _is_sample(source: str) -> bool:
    """Return whether a source is a bundled sample."""
    return source.partition(":")[0] == "sample"
