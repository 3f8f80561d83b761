"""Where answers end."""

from __future__ import annotations

import pytest

from llm_agents.data import stop_strings, strip_generated


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" Sure. ### Human: And you?", "Sure."),
        (" Sure.\n### Human", "Sure."),
        (" Sure.\nHuman: hm", "Sure."),
        (" Sure.\n Human: hm", "Sure."),
        (" Sure. ###", "Sure."),
        (" Sure.\n### \n", "Sure."),
        ("### First\nRun.\n### Then\nStop. ###", "### First\nRun.\n### Then\nStop."),
        (" Human beings: yes", "Human beings: yes"),
        ("", ""),
        (" ### Human: x", ""),
    ],
)
def test_only_the_tail_of_an_answer_is_stripped(text: str, answer: str) -> None:
    assert strip_generated(text) == answer
    assert strip_generated(text, "alol") == answer


def test_the_other_templates_keep_their_own_marks() -> None:
    assert strip_generated(" a ###\n\nHuman: b", "plain") == "a ###"
    assert strip_generated(" a ### Human: b ", "chat") == "a ### Human: b"


@pytest.mark.parametrize("template", ["alol", "plain"])
def test_no_stop_string_is_left_after_stripping(template: str) -> None:
    for stop in stop_strings(template):
        assert strip_generated(f"x{stop} y", template) == "x"
    assert stop_strings("chat") == ()
