"""What readers hand over: examples, the count of what was dropped and changed, padded batches."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from llm_agents.types import Prompt, PromptBatch, TokenBatch
from llm_agents.whole_files import write_json


@dataclass(frozen=True)
class Example:
    """One prompt with its candidate responses.

    Args:
        prompt: Dialogue up to where the assistant is to speak.
        responses: Candidate answers in file order; empty for a prompt to be answered only.
        rewards: One stored score a response, as the file has it; None where it has none.
        preferred: Index of the response that the data call good; −1 if they call none good.
        meta: Where the example comes from, as plain text.
    """

    prompt: Prompt
    responses: tuple[str, ...]
    rewards: tuple[float, ...] | None
    preferred: int
    meta: Mapping[str, str]

    @property
    def good_response(self) -> str | None:
        """Return the response that the data call good, or None."""
        return self.responses[self.preferred] if self.responses and self.preferred >= 0 else None

    def reordered(self, order: Sequence[int]) -> Example:
        """Return the example with its responses in `order`; the preferred one stays preferred."""
        return Example(
            prompt=self.prompt,
            responses=tuple(self.responses[i] for i in order),
            rewards=None if self.rewards is None else tuple(self.rewards[i] for i in order),
            preferred=list(order).index(self.preferred) if self.preferred >= 0 else -1,
            meta=self.meta,
        )


@dataclass
class DropReport:
    """Counts what happened to the rows of one split, by reason.

    Args:
        rows: Rows read.
        dropped: Reason → rows left out.
        changed: Reason → prompts or responses kept in another form, or worth knowing of.
        layouts: Layout, with the keys that were read → rows read so.
        unread: Key → rows with a value that nothing reads.
    """

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)

    @property
    def kept(self) -> int:
        """Return the rows that are left."""
        return self.rows - sum(self.dropped.values())

    def __add__(self, other: DropReport) -> DropReport:
        """Return the counts of both."""
        return DropReport(
            self.rows + other.rows,
            self.dropped + other.dropped,
            self.changed + other.changed,
            self.layouts + other.layouts,
            self.unread + other.unread,
        )

    def include(self, other: DropReport) -> None:
        """Add the counts of `other`."""
        self.rows += other.rows
        self.dropped += other.dropped
        self.changed += other.changed
        self.layouts += other.layouts
        self.unread += other.unread

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """Return plain numbers for JSON."""
        found: dict[str, int | dict[str, int]] = {
            "rows": self.rows,
            "kept": self.kept,
            "dropped": dict(sorted((+self.dropped).items())),
            "changed": dict(sorted((+self.changed).items())),
        }
        for name, counts in (("layouts", self.layouts), ("unread", self.unread)):
            if counts:
                found[name] = dict(sorted(counts.items()))
        return found

    def __str__(self) -> str:
        """Say it in one line."""
        parts = [f"{self.kept} of {self.rows} rows kept"]
        parts += [
            f"{count} dropped ({reason})" for reason, count in sorted((+self.dropped).items())
        ]
        parts += [f"{count} {reason}" for reason, count in sorted((+self.changed).items())]
        parts += [f"{count} read as {name}" for name, count in sorted((+self.layouts).items())]
        if unread := sorted((+self.unread).items()):
            named = ", ".join(f"`{name}` ({count} rows)" for name, count in unread)
            parts.append(f"keys not read: {named}")
        return "; ".join(parts)


def save_reports(reports: Mapping[str, DropReport], path: Path) -> None:
    """Write the reports of all splits to `path` as JSON."""
    write_json(path, {name: report.as_dict() for name, report in reports.items()})


class Ragged:
    """Many id sequences of different lengths in one tensor.

    Args:
        sequences: Token ids, one list a row.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        flat, lengths = array("i"), array("q")  # a list of Python integers takes eight times more
        for ids in sequences:
            flat.extend(ids)
            lengths.append(len(ids))
        self.flat = torch.tensor(flat, dtype=torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int64)
        self._ends = self.lengths.cumsum(0)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tensor:
        """Return the ids of `row`, ``[L]`` int64."""
        end = int(self._ends[row])
        return self.flat[end - int(self.lengths[row]) : end].long()


def pad(rows: Sequence[Tensor], *, left: bool) -> tuple[Tensor, Tensor]:
    """Stack id sequences of different lengths.

    Padding is id 0 and False in the mask: what it holds is never looked at, so that a tokenizer
    whose padding token is its end token changes nothing.

    Args:
        rows: ``B`` tensors ``[L]`` int64.
        left: Pad on the left (prompts) or on the right (responses).

    Returns:
        Ids ``[B, max L]`` int64 and mask ``[B, max L]`` bool, True = real token.
    """
    width = max((len(row) for row in rows), default=0)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, where] = row
        mask[i, where] = True
    return ids, mask


def collate_tokens(
    prompts: Sequence[Tensor], responses: Sequence[Tensor], rows: Sequence[int]
) -> TokenBatch:
    """Build a ``TokenBatch`` of ``B`` prompts and their responses, each ``[L]`` int64."""
    prompt_ids, prompt_mask = pad(prompts, left=True)
    response_ids, response_mask = pad(responses, left=False)
    return TokenBatch(
        prompt_ids, prompt_mask, response_ids, response_mask, torch.tensor(rows, dtype=torch.int64)
    )


def collate_prompts(
    prompts: Sequence[Prompt], ids: Sequence[Tensor], rows: Sequence[int]
) -> PromptBatch:
    """Build a ``PromptBatch`` of ``B`` dialogues and their ids, each ``[L]`` int64."""
    prompt_ids, prompt_mask = pad(ids, left=True)
    return PromptBatch(
        tuple(prompts), prompt_ids, prompt_mask, torch.tensor(rows, dtype=torch.int64)
    )
