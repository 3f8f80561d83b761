"""COMET: what follows from an event, as head, relation and tail; readers and data module.

Raw data come in four layouts, told by their content:

- ATOMIC 10x: JSON lines with ``head``, ``relation``, ``tail``, ``split`` (train, val, test) and the
  critic's score ``p_valid_model``.
- ATOMIC 2020: lines of head, relation and tail, parted by tabs.
- its evaluation file: lines of ``head @@ relation``, a tab, and tails parted by ``|``.
- COMET-BART's outputs: a JSON array with ``head``, ``relation``, ``tails`` and ``generations``.

Tab-separated files are read raw: their stray quotes join no lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from llm_agents.data.dataset_rows import Role
from llm_agents.data.encoding import Truncation
from llm_agents.data.module import OfflineDataModule
from llm_agents.data.raw_rows import RawRow, is_tsv, number_field, raw_rows, text_field, tsv_rows
from llm_agents.data.reading import Sources
from llm_agents.data.selection import PromptSplit, RowRules
from llm_agents.data.templates import Template
from llm_agents.errors import UserError
from llm_agents.types import Prompt, Turn

RELATIONS = ("xNeed", "xWant", "xIntent", "xReact", "xAttr", "xEffect", "HinderedBy")
"""The relations that the COMET critic knows."""

STORED_SCORE = "p_valid_model"
_SPLITS: dict[str, Role] = {"train": "train", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Triple:
    """A head, a relation and a tail.

    Args:
        head: An event, such as ``PersonX runs``.
        relation: What is asked about it.
        tail: The answer.
        split: Where the data say that it belongs; None where they say nothing.
        score: The critic's stored score; None where there is none.
    """

    head: str
    relation: str
    tail: str
    split: Role | None = None
    score: float | None = None


def comet_prompt(head: str, relation: str) -> Prompt:
    """Return the prompt of a head and a relation; the blank at its end is part of it.

    Example:
        >>> comet_prompt("PersonX runs", "xEffect")[0].text
        '<head> PersonX runs </head> <relation> xEffect </relation> [GEN] '
    """
    text = f"<head> {head} </head> <relation> {relation} </relation> [GEN] "
    return (Turn("user", text),)


def read_triples(
    source: str, role: Role = "train", *, machine_tails: bool = False
) -> Iterator[Triple]:
    """Yield the triples of a source in any of the layouts, in order.

    Args:
        source: A file, a folder or a Hub id.
        role: Which split of a data set without a named one.
        machine_tails: Of COMET-BART's outputs, yield what the model generated rather than the tails
            that people wrote.

    Raises:
        UserError: The source is not found, or a row is in none of the layouts.
    """
    if is_tsv(source) and Path(source).expanduser().is_file():
        for where, fields in tsv_rows(Path(source).expanduser()):
            yield from _from_fields(fields, where)
        return
    for where, row in raw_rows(source, role):
        if "tails" in row:
            yield from _from_outputs(row, where, "generations" if machine_tails else "tails")
        else:
            yield _from_object(row, where)


def _from_fields(fields: list[str], where: str) -> Iterator[Triple]:
    """Yield the triples of a tab-separated line."""
    if len(fields) == 3:
        head, relation, tail = (field.strip() for field in fields)
        yield Triple(head, relation, tail)
        return
    head, marks, relation = fields[0].rpartition(" @@ ")
    if len(fields) != 2 or not marks:
        raise UserError(
            f"{where}: expected head, relation and tail, or `head @@ relation` and tails, with "
            f"tabs between them, got {len(fields)} fields"
        )
    for tail in fields[1].split("|"):
        yield Triple(head.strip(), relation.strip(), tail.strip())


def _from_object(row: RawRow, where: str) -> Triple:
    """Return the triple of a JSON object."""
    split = None
    if row.get("split") is not None:
        split = _SPLITS.get(text_field(row, "split", where))
        if split is None:
            raise UserError(f"{where}: expected `split` train, val or test, got {row['split']!r}")
    scored = row.get(STORED_SCORE) is not None
    return Triple(
        head=text_field(row, "head", where),
        relation=text_field(row, "relation", where),
        tail=text_field(row, "tail", where),
        split=split,
        score=number_field(row, STORED_SCORE, where) if scored else None,
    )


def _from_outputs(row: RawRow, where: str, key: str) -> Iterator[Triple]:
    """Yield the triples of an object with several tails."""
    tails = row.get(key)
    if not isinstance(tails, list) or not all(isinstance(tail, str) for tail in tails):
        raise UserError(f"{where}: expected a list of texts in `{key}`, got {tails!r:.80}")
    head, relation = text_field(row, "head", where), text_field(row, "relation", where)
    for tail in tails:
        yield Triple(head, relation, tail.strip())


class CometData(OfflineDataModule):
    """Heads and relations with tails, as `CometPreparation` or the A-LoL release writes them.

    The defaults are the release's: prompts as they stand, 512 prompt and 30 response tokens, no end
    token after a tail, so that generation has to stop at a period.

    Args:
        train: Training data: ``sample``, a JSON-lines file, a Hub id, or a list of these.
        validation: Prompts to answer during training; ``held_out`` takes those held out of `train`,
            and so does ``sample`` where `train` is data of your own.
        test: Test sets, each evaluated by itself; ``held_out`` and ``sample`` as in `validation`.
        template: How prompts are written out.
        max_prompt_tokens: Longest prompt; None leaves it to the model's window.
        max_response_tokens: Longest response; a longer one loses its end and its end token.
        truncation: What a long prompt loses: its left end, or its oldest turns.
        append_eos: End tails with the end token, so that stopping is learnt.
        batch_size: Rows (scored) or prompts (ranked) of a micro-batch.
        eval_batch_size: Prompts of a validation or test batch.
        reward_transform: Whether stored rewards are logits that a sigmoid brings to 0 … 1.
        split_by_prompt: Hold prompts of `train` out; None trains on all.
        rules: What becomes of malformed, unfit and long rows.
        seed: Decides the order of the data; None takes the run's `seed_everything`, else 0.
    """

    samples: ClassVar[str] = "comet"
    replaces_samples: ClassVar[bool] = True

    def __init__(
        self,
        train: Sources = "sample",
        validation: Sources | None = "sample",
        test: Sources | None = "sample",
        *,
        template: Template = "verbatim",
        max_prompt_tokens: int | None = 512,
        max_response_tokens: int = 30,
        truncation: Truncation = "left",
        append_eos: bool = False,
        batch_size: int = 16,
        eval_batch_size: int = 32,
        reward_transform: Literal["sigmoid", "none"] = "none",
        split_by_prompt: PromptSplit | None = None,
        rules: RowRules | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            train,
            validation,
            test,
            template=template,
            max_prompt_tokens=max_prompt_tokens,
            max_response_tokens=max_response_tokens,
            truncation=truncation,
            append_eos=append_eos,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            reward_transform=reward_transform,
            reward_range=(0.0, 1.0),
            split_by_prompt=split_by_prompt,
            rules=rules,
            seed=seed,
        )
