"""Words, distinct n-grams, and fragments of the knowledge."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.evaluation import coverage, density, distinct_n, num_words
from llm_agents.evaluation.text_metrics import shared_fragments

CORPUS = ["I like blue", "I like the Blue sky", "i like blue"]


@pytest.mark.parametrize(("n", "expected"), [(1, 5 / 11), (2, 5 / 8), (3, 4 / 5)])
def test_distinct_n_of_the_worked_example(n: int, expected: float) -> None:
    assert distinct_n(CORPUS, n) == pytest.approx(expected, abs=0)


def test_texts_shorter_than_n_contribute_nothing() -> None:
    assert distinct_n([*CORPUS, "one two", "", "  "], 3) == distinct_n(CORPUS, 3)


@pytest.mark.parametrize("corpus", [[], [""], ["one", "two"]])
def test_a_corpus_without_n_grams_has_no_share(corpus: list[str]) -> None:
    assert distinct_n(corpus, 2) is None


def test_n_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        distinct_n(CORPUS, 0)


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab c\n"), max_size=20)), st.integers(1, 4))
def test_distinct_n_counts_like_a_plain_loop(corpus: list[str], n: int) -> None:
    grams = []
    for text in corpus:
        words = text.lower().split()
        for start in range(len(words)):
            if start + n <= len(words):
                grams.append(" ".join(words[start : start + n]))
    assert distinct_n(corpus, n) == (len(set(grams)) / len(grams) if grams else None)
    assert distinct_n(reversed(corpus), n) == distinct_n(corpus, n)


@pytest.mark.parametrize(("text", "words"), [("", 0), (" a  b\nc\t", 3), ("one", 1)])
def test_words_are_split_on_blanks(text: str, words: int) -> None:
    assert num_words(text) == words


KNOWLEDGE = "blue is one of the three primary colours of pigments"
RESPONSE = "well blue is one of my three favourite primary colours"


def test_fragments_of_the_worked_example() -> None:
    """One word is a fragment too: `three` counts."""
    assert shared_fragments(KNOWLEDGE.split(), RESPONSE.split()) == [4, 1, 2]
    assert coverage(KNOWLEDGE, RESPONSE) == pytest.approx(0.7, abs=0)
    assert density(KNOWLEDGE, RESPONSE) == pytest.approx(2.1, abs=0)


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("a b", "", (0.0, 0.0)),
        ("", "a b", (0.0, 0.0)),
        ("a b", "A B", (0.0, 0.0)),
        ("a b a b c", "a b c", (1.0, 3.0)),  # not the first match, the longest
        ("a b c", "a b c", (1.0, 3.0)),
        ("a b c", "a c b", (1.0, 1.0)),
    ],
)
def test_coverage_and_density(source: str, text: str, expected: tuple[float, float]) -> None:
    assert (coverage(source, text), density(source, text)) == expected


def longest_fragment(source: list[str], text: list[str]) -> int:
    """Return how many first words of `text` stand in `source` together."""
    length = 0
    while length < len(text) and any(
        source[start : start + length + 1] == text[: length + 1] for start in range(len(source))
    ):
        length += 1
    return length


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abcd"), max_size=9))
def test_fragments_are_found_like_by_a_plain_search(source: list[str], text: list[str]) -> None:
    expected, rest = [], text
    while rest:
        length = longest_fragment(source, rest)
        expected += [length] if length else []
        rest = rest[max(1, length) :]
    assert shared_fragments(source, text) == expected


FOLDER = os.environ.get("LLM_AGENTS_WOW_DATA")


@pytest.mark.skipif(not FOLDER, reason="the WoW audit: set LLM_AGENTS_WOW_DATA to its folder")
@pytest.mark.parametrize(
    ("file", "knowledge", "response", "expected"),
    [
        ("gold/wow.csv", "evidence", "response", (0.3988, 2.4488)),
        ("model/ctrl_wow.csv", "knowledge", "ctrl", (0.6389, 7.4537)),
        ("model/doha_wow.csv", "knowledge", "doha", (0.4188, 2.5785)),
        ("model/gpt2_wow.csv", "knowledge", "gpt2", (0.3903, 2.2219)),
    ],
)
def test_coverage_and_density_of_the_wow_audit(
    file: str, knowledge: str, response: str, expected: tuple[float, float]
) -> None:
    with (Path(FOLDER or "") / file).open(encoding="utf8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 200
    pairs = [(row[knowledge], row[response]) for row in rows]
    found = [sum(metric(*pair) for pair in pairs) / 200 for metric in (coverage, density)]
    assert [round(value, 4) for value in found] == list(expected)
