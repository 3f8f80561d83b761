"""Where an answer ends, per prompt template: the strings to stop at, and the clean-up after them.

How a dialogue is written out is the policy's matter (`LanguagePolicy.encode_prompt`): ``alol`` is
the A-LoL release's layout, ``chat`` the model's own chat template, ``plain`` the bare text, ``eos``
each turn followed by the end token, ``verbatim`` the text with nothing between it and the answer.
"""

from __future__ import annotations

import re
from typing import Literal

Template = Literal["alol", "chat", "plain", "eos", "verbatim"]

_STOP_STRINGS: dict[str, tuple[str, ...]] = {
    "alol": ("### Human", "### Assistant", "\n Human:", "\nHuman:"),
    "chat": (),
    "plain": ("\n\nHuman:", "\n\nAssistant:"),
    "eos": (),
    "verbatim": (),
}


def stop_strings(template: Template) -> tuple[str, ...]:
    """Return the texts at which generation has left its own turn."""
    return _STOP_STRINGS[template]


def strip_generated(text: str, template: Template = "alol") -> str:
    r"""Clean up a generated answer: what follows a new turn goes, and so does a trailing marker.

    Only the tail is touched: the release deletes every ``###`` of an answer that ends with one, and
    with them the headings inside it.

    Args:
        text: What the policy generated.
        template: How its prompt was written.

    Returns:
        The answer alone, without blanks around it.

    Example:
        >>> strip_generated(" Plan:\n### First\nRun. ### Human: Thanks")
        'Plan:\n### First\nRun.'
        >>> strip_generated(" ### First\nRun. ###")
        '### First\nRun.'
    """
    ends = [at for stop in _STOP_STRINGS[template] if (at := text.find(stop)) >= 0]
    text = text[: min(ends)] if ends else text
    if template == "alol":
        text = re.sub(r"(\s*###)+\s*$", "", text)
    return text.strip()
