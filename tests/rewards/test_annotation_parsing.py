"""Verdicts in free text: the release's measured table, and the strict way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.rewards.annotation_parsing import read_verdict

# (reply with the key's noun as {noun}, first match as released, last match that stands alone)
TABLE = [
    ('("best_{noun}": 1)', 0, 0),
    ('("best_{noun}": 2)', 1, 1),
    ('("best_{noun}": None)', 2, 2),
    ('("best_{noun}": none)', 2, 2),
    ("Best {Noun}: 2", 1, 1),
    ("BEST__{NOUN} = 1", 0, 0),
    ("best {noun} is 1", 0, 0),
    ('"best_{noun}": "{noun}_2"', 1, 1),
    ('"best_{noun}":\n\n2', 1, 1),
    ("best{noun} 2", 1, 1),
    ("best_{noun}_1", 0, 0),
    ("best_{noun}: NONE", None, None),
    ("best_{noun}: 0", None, None),
    ("best_{noun}: one", None, None),
    ("best_{noun}: Neither", None, None),
    ("The best {noun} is number 2", None, None),
    ("I think {noun} 1 is best", None, None),
    ("best_{noun}s: 1", None, None),
    ("best_{noun}: 12", 1, None),
    ("best_{noun}: 21", 0, None),
    ("best_{noun}: None, but 2", 2, 2),
    ("", None, None),
    (
        'I answer ("best_{noun}": 1), ("best_{noun}": 2) or None. So: ("best_{noun}": 2)',
        0,
        1,
    ),
]


@pytest.mark.parametrize("noun", ["description", "message"])
@pytest.mark.parametrize(("reply", "first", "last"), TABLE)
def test_verdicts_are_read(reply: str, first: int | None, last: int | None, noun: str) -> None:
    text = reply.format(noun=noun, Noun=noun.capitalize(), NOUN=noun.upper())
    assert read_verdict(text, noun) == first  # type: ignore[arg-type]
    assert read_verdict(text, noun, "last") == last  # type: ignore[arg-type]


@pytest.mark.parametrize("match", ["first", "last"])
def test_the_other_wordings_key_does_not_count(match: str) -> None:
    assert read_verdict('("best_message": 1)', "description", match) is None  # type: ignore[arg-type]
    assert read_verdict('("best_description": 1)', "message", match) is None  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.text(max_size=40), st.sampled_from(["1", "2", "None"]))
def test_whatever_comes_before_the_last_verdict_does_not_matter(text: str, value: str) -> None:
    reply = f'{text} ("best_description": {value})'
    expected = {"1": 0, "2": 1, "None": 2}[value]
    assert read_verdict(reply, "description", "last") == expected
