"""What a judge's free text says about a pair.

The verdict stands behind the key ``best_description`` or ``best_message``, written more or less as
asked. `read_verdict` reads it as Motif's release does, quirks included, or strictly.
"""

from __future__ import annotations

import re
from typing import Literal

from llm_agents.rewards.annotator import FIRST, SECOND, TIE

Noun = Literal["description", "message"]
Match = Literal["first", "last"]

_VERDICTS = {"1": FIRST, "2": SECOND, "none": TIE}
_KEY = r"(?i:best[_\s]*{noun})\W*"
# As released: any word may stand before the answer, digits of a longer number included.
_LOOSE = _KEY + r"\w*\s*(1|2|None|none)"
_STRICT = _KEY + r"[^\W\d]*\s*(?<!\d)(1(?!\d)|2(?!\d)|None\b|none\b)"


def read_verdict(reply: str, noun: Noun, match: Match = "first") -> int | None:
    """Return the preference that a reply states: `FIRST`, `SECOND`, `TIE`, or None.

    Args:
        reply: The judge's words.
        noun: What the two texts were called in the question.
        match: ``first`` takes the first statement and reads ``12`` as 2, as Motif's release does;
            ``last`` takes the last one whose number stands alone, which is the conclusion of a
            reply that first repeats what it was asked for.

    Example:
        >>> read_verdict('So ("best_description": 2)', "description")
        1
    """
    pattern = (_LOOSE if match == "first" else _STRICT).format(noun=noun)
    found = re.findall(pattern, reply)
    if not found:
        return None
    return _VERDICTS[found[0 if match == "first" else -1].lower()]
