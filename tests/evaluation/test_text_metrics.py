"""Words and distinct n-grams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_agents.evaluation import distinct_n, num_words

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
