r"""Dialogues written in one text with marks, as hh-rlhf's: ``\n\nHuman: …\n\nAssistant: …``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from llm_agents.types import Prompt, Turn

_MARK = re.compile(r"(Human|Assistant):")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_ROLES: dict[str, Literal["user", "assistant"]] = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True)
class Marked:
    """A dialogue that was written with marks.

    Args:
        turns: Its turns; a last mark with nothing behind it is an empty turn.
        lost_paragraphs: Whether paragraphs that begin with no role were dropped.
    """

    turns: Prompt
    lost_paragraphs: bool


def split_dialogue(text: str, keep_paragraphs: bool = True) -> Prompt:
    r"""Split an hh-rlhf dialogue into turns; see `read_dialogue`.

    Example:
        >>> text = "\n\nHuman: Hi\n\nAssistant: Hello\n\nmore"
        >>> split_dialogue(text)[1].text
        'Hello\n\nmore'
        >>> split_dialogue(text, keep_paragraphs=False)
        (Turn(role='user', text='Hi'), Turn(role='assistant', text='Hello'))
    """
    return read_dialogue(text, keep_paragraphs).turns


def read_dialogue(text: str, keep_paragraphs: bool) -> Marked:
    """Split a dialogue at its marks.

    A mark is ``Human:`` or ``Assistant:`` at the beginning of a paragraph: behind one blank line or
    more, however the text before it ends, or at the very beginning. Turns of one role in a row are
    joined by a line break, and blanks around a turn are dropped, as in PRO's conversion.

    Args:
        text: The dialogue.
        keep_paragraphs: Whether a turn keeps all its paragraphs, and text before the first mark
            becomes the system turn; PRO's conversion keeps each turn's first paragraph alone.
    """
    marks = _marks(text)
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    before = text[: marks[0].start()].strip() if marks else ""
    turns = [Turn("system", before)] if before and keep_paragraphs else []
    lost = bool(before) and not keep_paragraphs
    for mark, end in zip(marks, ends, strict=False):  # no mark, no turn
        words = text[mark.end() : end].rstrip()
        if not keep_paragraphs:
            first = _BLANK_LINE.split(words, maxsplit=1)
            lost = lost or len(first) > 1
            words = first[0]
        role, words = _ROLES[mark[1]], words.strip()
        if turns and turns[-1].role == role:
            turns[-1] = Turn(role, f"{turns[-1].text}\n{words}".strip())
        else:
            turns.append(Turn(role, words))
    return Marked(tuple(turns), lost)


def has_marks(text: str) -> bool:
    """Return whether there is any mark in a text."""
    return bool(_marks(text))


def is_marked(text: str) -> bool:
    r"""Return whether a whole text is a dialogue with marks rather than a text that mentions one.

    It begins with a mark, and has a blank line before it or another mark behind it.

    Example:
        >>> is_marked("\n\nHuman: Hi\n\nAssistant:"), is_marked("Human: is that a name?")
        (True, False)
    """
    marks = _marks(text)
    if not marks or text[: marks[0].start()].strip():
        return False
    return len(marks) > 1 or _BLANK_LINE.match(text.lstrip(" \t\r")) is not None


def _marks(text: str) -> list[re.Match[str]]:
    """Return the marks that stand at the beginning of a paragraph."""
    found = []
    for mark in _MARK.finditer(text):
        before = text[: mark.start()]
        gap = before[len(before.rstrip()) :]
        if gap == before or gap.count("\n") > 1:
            found.append(mark)
    return found
