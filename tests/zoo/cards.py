"""The code on a card."""

from __future__ import annotations

import re


def python_of(card: str) -> str:
    """Return the card's Python that uses this project."""
    (block,) = re.findall(r"```python\n(from llm_agents.*?|import numpy.*?)```", card, re.DOTALL)
    assert isinstance(block, str)
    return block
