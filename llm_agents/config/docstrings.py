"""The ``Args`` of a Google docstring."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"(Args|Arguments|Parameters|Attributes):\s*$")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s?(.*)$")


def arguments(docstring: str | None) -> dict[str, str]:
    r"""Return what a docstring says about each argument, on one line each.

    Example:
        >>> arguments("Do it.\n\nArgs:\n    lr: Learning\n        rate.\n    n (int): Count.")
        {'lr': 'Learning rate.', 'n': 'Count.'}
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    found: dict[str, str] = {}
    name, indent = "", 0
    inside = False
    for line in lines:
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if text and depth == 0:
            inside, name, indent = bool(_SECTION.match(text)), "", 0
            continue
        if not inside or not text:
            continue
        indent = indent or depth
        entry = _ENTRY.match(text) if depth == indent else None
        if entry:
            name = entry[1]
            found[name] = entry[2].strip()
        elif name:
            found[name] = f"{found[name]} {text}".strip()
    return found


def summary(docstring: str | None) -> str:
    """Return a docstring's first line."""
    return inspect.cleandoc(docstring or "").partition("\n")[0]
