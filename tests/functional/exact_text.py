"""Match an error's whole text, in which brackets and dots are themselves."""

from __future__ import annotations

import re


def exactly(text: str) -> str:
    """Return the pattern for `pytest.raises(match=…)`."""
    return f"^{re.escape(text)}$"
