"""Numbers about texts that need no model: words, distinct n-grams, fragments of a source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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


def shared_fragments(source: Sequence[str], text: Sequence[str]) -> list[int]:
    """Return the lengths of the fragments of `text` that `source` has too, greedily from the left.

    From each word on, the longest run of words that stands in `source` is a fragment, and the
    search goes on behind it.

    Args:
        source: Words to take fragments from.
        text: Words to cover.

    References:
        Grusky, Naaman, Artzi (2018), figure 3. Differs from A-LoL's release, which compares with
        the best length minus one and so loses fragments of one word.
    """
    places: dict[str, list[int]] = {}
    for place, word in enumerate(source):
        places.setdefault(word, []).append(place)
    lengths = []
    start = 0
    while start < len(text):
        best = 0
        for place in places.get(text[start], ()):
            length = 1
            while (
                start + length < len(text)
                and place + length < len(source)
                and text[start + length] == source[place + length]
            ):
                length += 1
            best = max(best, length)
        if best:
            lengths.append(best)
        start += max(best, 1)
    return lengths


def coverage(source: str, text: str) -> float:
    """Return the share of a text's words that lie in fragments of `source`.

        coverage = Σ|f| / |text|,   words split on blanks, case told apart

    Args:
        source: The knowledge that the text is grounded in.
        text: The response; without a word its coverage is 0.

    Example:
        >>> coverage("blue is one of the three primary colours of pigments",
        ...          "well blue is one of my three favourite primary colours")
        0.7

    References:
        Grusky, Naaman, Artzi (2018), equation 1.
    """
    words = text.split()
    return sum(shared_fragments(source.split(), words)) / len(words) if words else 0.0


def density(source: str, text: str) -> float:
    """Return the mean length of the fragment of `source` that a word of the text belongs to.

        density = Σ|f|² / |text|,   words split on blanks, case told apart

    Args:
        source: The knowledge that the text is grounded in.
        text: The response; without a word its density is 0.

    Example:
        >>> density("blue is one of the three primary colours of pigments",
        ...         "well blue is one of my three favourite primary colours")
        2.1

    References:
        Grusky, Naaman, Artzi (2018), equation 2.
    """
    words = text.split()
    lengths = shared_fragments(source.split(), words)
    return sum(length * length for length in lengths) / len(words) if words else 0.0
