"""What the tiny overlay needs in place of a reward model."""

from __future__ import annotations

from collections.abc import Sequence

from llm_agents.types import Prompt


def letters(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    """Return the share of letters and blanks in each response: a reward that costs nothing.

    Example:
        >>> letters([()], ["no 5"])
        [0.75]
    """
    del prompts
    return [sum(c.isalpha() or c == " " for c in text) / max(1, len(text)) for text in responses]
