"""Dialogue turns that are grounded in knowledge, from the files that hold them.

Layouts, told by their content:

- Wizard of Wikipedia: a JSON array of dialogues, ``dialog`` a list of turns with ``speaker``,
  ``text`` and, of the wizard, ``checked_sentence``.
- FaithDial: rows, or lists of ``utterances`` in rows, with ``knowledge``, ``history`` and
  ``response``.
- FaithDial's audits: CSV of ``evidence`` or ``knowledge``, one utterance of ``history``, a response
  and its BEGIN labels, which say how faithful it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_agents.data.base import DropReport
from llm_agents.data.dataset_rows import Role
from llm_agents.data.raw_rows import RawRow, raw_rows, text_field
from llm_agents.errors import UserError
from llm_agents.types import Turn

Faithfulness = Literal["entailment", "entailment uncooperative", "partial", "unfaithful"]

_NO_PASSAGE = "no_passages_used"
_LABELS = {
    "entail": "entailment",
    "partial": "partial",
    "halluc": "hallucination",
    "generic": "generic",
    "uncoop": "uncooperative",
}
_AUDIT_COLUMNS = {"evidence", "knowledge", "history", "begin_label", "vrm_label", "BEGIN", "VRM"}


@dataclass(frozen=True)
class GroundedTurn:
    """A response to a dialogue, with the knowledge that it is to be faithful to.

    Args:
        knowledge: What the response is grounded in.
        history: The turns before it, oldest first.
        response: The response.
        dialogue: Which dialogue it is of, as far as the data say.
        faithfulness: What people said of it; None where nobody did.
    """

    knowledge: str
    history: tuple[Turn, ...]
    response: str
    dialogue: str
    faithfulness: Faithfulness | None = None


def read_turns(source: str, role: Role, report: DropReport) -> Iterator[GroundedTurn]:
    """Yield the grounded turns of a source, in order.

    Args:
        source: A file, a folder or a Hub id.
        role: Which split of a data set without a named one.
        report: Counts the turns that could be an example, and why some are not.

    Raises:
        UserError: The source is not found, or a row is in none of the layouts.
    """
    name = Path(source).name.partition(".")[0]
    segment = 0
    for number, (where, row) in enumerate(raw_rows(source, role)):
        if "dialog" in row:
            found = _wizard(row, where, f"{name}-{number}", report)
        elif "utterances" in row:
            found = _utterances(row, where, f"{name}-{number}", report)
        elif "evidence" in row or "begin_label" in row:
            # A row without a history begins a dialogue; those behind it may go on with it.
            segment += not _audit_history(row)
            found = _audit(row, where, f"{name}-{segment}" if segment else "", report)
        else:
            found = _faithdial(row, where, f"{name}-{row.get('dialog_idx', number)}", report)
        yield from found


def _wizard(row: RawRow, where: str, dialogue: str, report: DropReport) -> Iterator[GroundedTurn]:
    """Yield the wizard's turns of a dialogue of Wizard of Wikipedia.

    A turn without a checked sentence is no example, but stays in the history of those after it.
    """
    history: list[Turn] = []
    turns = row["dialog"]
    if not isinstance(turns, list):
        raise UserError(f"{where}: expected a list of turns in `dialog`, got {turns!r:.80}")
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise UserError(f"{where}: expected a turn to be an object, got {turn!r:.80}")
        text = text_field(turn, "text", where)
        if "wizard" not in text_field(turn, "speaker", where).lower():
            history.append(Turn("user", text))
            continue
        report.rows += 1
        knowledge = _checked_sentence(turn)
        if knowledge is None:
            report.dropped["no knowledge was chosen"] += 1
        else:
            yield GroundedTurn(knowledge, tuple(history), text, dialogue)
        history.append(Turn("assistant", text))


def _checked_sentence(turn: RawRow) -> str | None:
    """Return the sentence that the wizard chose, or None."""
    checked = turn.get("checked_sentence")
    if not isinstance(checked, Mapping) or not checked:
        return None
    sentence = str(next(iter(checked.values()))).strip()
    return None if not sentence or _NO_PASSAGE in (sentence, *checked) else sentence


def _utterances(
    row: RawRow, where: str, dialogue: str, report: DropReport
) -> Iterator[GroundedTurn]:
    """Yield the turns of a dialogue of FaithDial's JSON files."""
    utterances = row["utterances"]
    if not isinstance(utterances, list):
        raise UserError(f"{where}: expected a list in `utterances`, got {utterances!r:.80}")
    for utterance in utterances:
        yield from _faithdial(utterance, where, dialogue, report)


def _faithdial(
    row: RawRow, where: str, dialogue: str, report: DropReport
) -> Iterator[GroundedTurn]:
    """Yield the turn of a row of FaithDial."""
    report.rows += 1
    knowledge, response = (text_field(row, name, where) for name in ("knowledge", "response"))
    history = row.get("history")
    texts = [history] if isinstance(history, str) else history
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: expected texts in `history`, got {history!r:.80}")
    if not response:
        report.dropped["no response"] += 1
    elif not knowledge:
        report.dropped["no knowledge was chosen"] += 1
    else:
        yield GroundedTurn(knowledge, _alternating(texts), response, dialogue)


def _alternating(texts: Sequence[str]) -> tuple[Turn, ...]:
    """Return a history whose last turn is the user's."""
    kept = [text.strip() for text in texts if text.strip()]
    return tuple(
        Turn("user" if (len(kept) - place) % 2 else "assistant", text)
        for place, text in enumerate(kept)
    )


def _audit(row: RawRow, where: str, segment: str, report: DropReport) -> Iterator[GroundedTurn]:
    """Yield the turn of a row of an audit."""
    report.rows += 1
    knowledge = text_field(row, "evidence" if "evidence" in row else "knowledge", where)
    columns = ["response"] if "response" in row else [n for n in row if n not in _AUDIT_COLUMNS]
    if len(columns) != 1:
        raise UserError(
            f"{where}: expected one column with the response, got {', '.join(columns) or 'none'}"
        )
    response = text_field(row, columns[0], where)
    label = text_field(row, "BEGIN" if "BEGIN" in row else "begin_label", where)
    if not label:
        report.dropped["no label"] += 1
    elif not response:
        report.dropped["no response"] += 1
    else:
        yield GroundedTurn(
            knowledge,
            _audit_history(row),
            response,
            segment,
            faithfulness_of(label, where),
        )


def _audit_history(row: RawRow) -> tuple[Turn, ...]:
    """Return the one utterance before a response, or nothing."""
    text = str(row.get("history", "")).strip()
    return () if text in ("", "[]") else (Turn("user", text),)


def faithfulness_of(label: str, where: str = "label") -> Faithfulness:
    """Return what BEGIN labels say about a response; several are parted by commas or periods.

    Args:
        label: The labels as people wrote them: case and typing errors don't matter.
        where: For messages.

    Raises:
        UserError: A label is unknown.

    Example:
        >>> faithfulness_of("Entailmentt, hallucination"), faithfulness_of("entailment")
        ('partial', 'entailment')
    """
    labels = set()
    for word in re.split(r"[,.;\n]+", label.lower()):
        known = next(
            (name for start, name in _LABELS.items() if word.strip().startswith(start)), ""
        )
        if word.strip() and not known:
            raise UserError(
                f"{where}: expected BEGIN labels (entailment, hallucination, partial "
                f"hallucination, generic, uncooperative), got {label!r}"
            )
        labels |= {known} - {""}
    if "partial" in labels or {"entailment", "hallucination"} <= labels:
        return "partial"
    if "entailment" in labels:
        return "entailment uncooperative" if "uncooperative" in labels else "entailment"
    return "unfaithful"
