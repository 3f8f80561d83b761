"""Prompts taken apart: knowledge and history, as turns or as one text with end tokens."""

from __future__ import annotations

import pytest

from llm_agents.rewards.dialogue import take_apart, without_end_tokens
from llm_agents.rewards.knowledge import with_knowledge
from llm_agents.types import Turn

HISTORY = (Turn("user", "Hi"), Turn("assistant", "Hello"), Turn("user", "Tell me"))


def test_knowledge_in_a_system_turn() -> None:
    assert take_apart(with_knowledge("Cats purr.", HISTORY)) == ("Cats purr.", HISTORY)


@pytest.mark.parametrize("end", ["<|endoftext|>", "</s>", "<|im_end|>"])
def test_a_released_prompt_is_cut_at_its_end_tokens(end: str) -> None:
    text = end.join(("Knowledge: Cats purr.", "Hi", "Hello", "Tell me", ""))
    assert take_apart((Turn("user", text),)) == ("Cats purr.", HISTORY)


def test_a_dialogue_without_knowledge() -> None:
    assert take_apart(HISTORY) == (None, HISTORY)
    assert take_apart((Turn("system", "Be kind."), *HISTORY)) == (None, HISTORY)
    assert take_apart((Turn("user", "parent<|endoftext|>"),)) == (None, (Turn("user", "parent"),))
    assert take_apart(()) == (None, ())


def test_end_tokens_leave_a_text() -> None:
    assert without_end_tokens(" a<|endoftext|>b</s>") == "a b"
