"""Where the knowledge of a grounded dialogue stands: in its system turn, behind ``Knowledge: ``.

A system turn outlives the truncation of long dialogues (``truncation: turns``), so the knowledge
does too.
"""

from __future__ import annotations

from collections.abc import Iterable

from llm_agents.types import Prompt, Turn

KNOWLEDGE_MARK = "Knowledge: "


def with_knowledge(knowledge: str, history: Iterable[Turn]) -> Prompt:
    """Return a dialogue that is grounded in `knowledge`.

    Example:
        >>> with_knowledge("Tea is a drink.", [Turn("user", "Tea?")])[0].text
        'Knowledge: Tea is a drink.'
    """
    return (Turn("system", KNOWLEDGE_MARK + knowledge), *history)


def knowledge_of(prompt: Prompt) -> str | None:
    """Return the knowledge that a dialogue is grounded in, or None if it has none.

    Example:
        >>> knowledge_of(with_knowledge("Tea is a drink.", []))
        'Tea is a drink.'
    """
    if prompt and prompt[0].role == "system" and prompt[0].text.startswith(KNOWLEDGE_MARK):
        return prompt[0].text.removeprefix(KNOWLEDGE_MARK)
    return None


def history_of(prompt: Prompt) -> Prompt:
    """Return a dialogue without the knowledge that it is grounded in."""
    return prompt if knowledge_of(prompt) is None else prompt[1:]
