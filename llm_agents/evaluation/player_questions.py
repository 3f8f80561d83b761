"""Questions that a model answers in words to play a world, and how its replies are read.

Reading is strict: a reply counts if it is the number of an action on the list, that number with
the action's own text, or an action's text, and nothing else. A block ``<think>…</think>`` before it
doesn't matter, nor do blanks, capital letters, a full stop, and quotes or emphasis around it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from llm_agents.types import Choice, Prompt, Turn

AskingMode = Literal["choose", "write"]
Order = Literal["shuffled", "listed", "both"]

QUESTIONS_VERSION = "1"  # raise it when the wording changes: kept replies are then asked anew

_TASKS: dict[AskingMode, str] = {
    "choose": "Which action do you choose? Answer with its number and nothing else.",
    "write": "Which action do you choose? Answer with its words and nothing else.",
}
_REMINDERS: dict[AskingMode, str] = {
    "choose": "That is no number of the list. Answer with one number from 1 to {count} and nothing "
    "else.",
    "write": "That is no action of the list. Answer with the words of one of the {count} actions, "
    "as they are written there, and nothing else.",
}
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_AROUND = " \t\n\r\"'`*_“”‘’«»"
_NUMBERED = re.compile(r"\(?(?P<number>\d{1,6})\)?(?:[.:)]|\s-)?(?:\s+(?P<text>.+))?", re.DOTALL)


def question(choice: Choice, order: Sequence[int], mode: AskingMode) -> Prompt:
    """Return the one turn that a model is asked with.

    Args:
        choice: Prompt and actions.
        order: Indices of the actions as they are listed.
        mode: Whether a number or the action's words are asked for.

    Example:
        >>> print(question(Choice("You should", ("sit", "go")), (1, 0), "choose")[0].text)
        You should …
        <BLANKLINE>
        The possible actions are:
        1. go
        2. sit
        <BLANKLINE>
        Which action do you choose? Answer with its number and nothing else.
    """
    marks = [f"{place}." if mode == "choose" else "-" for place in range(1, len(order) + 1)]
    listed = [f"{mark} {choice.actions[index]}" for mark, index in zip(marks, order, strict=True)]
    text = "\n".join(
        [
            f"{choice.prompt} …",
            "",
            "The possible actions are:",
            *listed,
            "",
            _TASKS[mode],
        ]
    )
    return (Turn("user", text),)


def repeated(dialogue: Prompt, reply: str, num_actions: int, mode: AskingMode) -> Prompt:
    """Return the dialogue that asks once more, after a reply that could not be read."""
    reminder = _REMINDERS[mode].format(count=num_actions)
    said = _THOUGHT.sub("", reply).strip() or "…"  # many servers refuse an empty turn
    return (*dialogue, Turn("assistant", said), Turn("user", reminder))


def read_reply(
    reply: str, actions: Sequence[str], order: Sequence[int], mode: AskingMode
) -> int | None:
    """Return the index of the action that a reply names, or None.

    Args:
        reply: The model's words.
        actions: Texts of the actions, by index.
        order: Indices of the actions as they were listed.
        mode: Whether numbers count, too.

    Example:
        >>> read_reply("2.", ("sit", "go"), (1, 0), "choose")
        0
        >>> read_reply("I would go.", ("sit", "go"), (1, 0), "write") is None
        True
    """
    said = _THOUGHT.sub("", reply).strip(_AROUND)
    if mode == "choose" and (found := _NUMBERED.fullmatch(said)):
        place = int(found["number"]) - 1
        if 0 <= place < len(order):
            index = order[place]
            if found["text"] is None or _plain(found["text"]) == _plain(actions[index]):
                return index
    if mode == "write":
        said = said.removeprefix("- ")
    return _named(said, actions)


def _named(said: str, actions: Sequence[str]) -> int | None:
    """Return the one action that has this text; where several differ in capitals, the exact one."""
    plain = _plain(said)
    near = [index for index, action in enumerate(actions) if plain and _plain(action) == plain]
    if len(near) > 1:
        near = [index for index in near if actions[index] == said]
    return near[0] if len(near) == 1 else None


def _plain(text: str) -> str:
    """Return a text without what doesn't count: capitals, blanks, marks around it, a full stop."""
    text = " ".join(text.strip(_AROUND).removesuffix(".").strip(_AROUND).split())
    return text.casefold()
