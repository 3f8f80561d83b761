"""What a judge of grounded dialogue needs of a prompt: the knowledge, and the turns without it.

Prompts come as turns, the knowledge in a system turn, or as A-LoL's released files have them, as
one text whose parts end in the end token: ``Knowledge: …<eos>first turn<eos>…<eos>``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from llm_agents.rewards.knowledge import KNOWLEDGE_MARK, history_of, knowledge_of
from llm_agents.types import Prompt, Turn

_END_TOKENS = re.compile(r"<\|endoftext\|>|<\|im_end\|>|</s>|<eos>")


class GroundedDialogue(NamedTuple):
    """A prompt taken apart.

    Args:
        knowledge: What the response is to be faithful to; None where the prompt has none.
        history: The turns without it, oldest first.
    """

    knowledge: str | None
    history: Prompt


def without_end_tokens(text: str) -> str:
    """Return `text` without end tokens written in it, and without blanks around it.

    Example:
        >>> without_end_tokens("Me too!<|endoftext|>")
        'Me too!'
    """
    return _END_TOKENS.sub(" ", text).strip()


def take_apart(prompt: Prompt) -> GroundedDialogue:
    """Return the knowledge and the history of a prompt.

    A text that holds end tokens is cut at them: its last part was said by the user, the one before
    by the assistant, and so on.

    Args:
        prompt: The dialogue.

    Example:
        >>> found = take_apart((Turn("user", "Knowledge: Cats purr.<|endoftext|>Hi<|endoftext|>"),))
        >>> found.knowledge, [turn.text for turn in found.history]
        ('Cats purr.', ['Hi'])
    """
    turns = tuple(piece for turn in prompt for piece in _pieces(turn))
    knowledge = knowledge_of(turns)
    history = tuple(turn for turn in history_of(turns) if turn.role != "system")
    return GroundedDialogue(None if knowledge is None else knowledge.strip(), history)


def _pieces(turn: Turn) -> list[Turn]:
    """Return the turns that are written in one, cut at end tokens."""
    texts = [text.strip() for text in _END_TOKENS.split(turn.text) if text.strip()]
    pieces = []
    for position, text in enumerate(texts):
        if position == 0 and text.startswith(KNOWLEDGE_MARK):
            pieces.append(Turn("system", text))
        elif len(texts) == 1:
            pieces.append(Turn(turn.role, text))
        else:
            is_users = (len(texts) - 1 - position) % 2 == 0
            pieces.append(Turn("user" if is_users else "assistant", text))
    return pieces
