"""Numbers about texts that need no model: words, distinct n-grams."""

from __future__ import annotations

from collections.abc import Iterable


def num_words(text: str) -> int:
    """Return the number of words of `text`, split on blanks."""
    return len(text.split())


def distinct_n(texts: Iterable[str], n: int) -> float | None:
    """Return the share of a corpus's n-grams that are distinct.

        distinct-n = |{n-grams}| / number of n-grams,   over the lower-cased, blank-split words

    It falls with the size of a corpus, so only corpora of similar size may be compared. A text of
    fewer than n words contributes no n-gram.

    Args:
        texts: The corpus.
        n: Words in an n-gram, at least 1.

    Returns:
        A number in (0, 1], or None if the corpus has no n-gram.

    Example:
        >>> distinct_n(["I like blue", "I like the Blue sky", "i like blue"], 3)
        0.8

    References:
        Li et al. 2016; A-LoL's evaluation.
    """
    if n < 1:
        raise ValueError(f"expected n of at least 1, got {n}")
    seen: set[tuple[str, ...]] = set()
    total = 0
    for text in texts:
        words = text.lower().split()
        grams = list(zip(*(words[start:] for start in range(n)), strict=False))
        seen.update(grams)
        total += len(grams)
    return len(seen) / total if total else None
