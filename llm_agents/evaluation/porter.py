"""Stems of English words by Porter's algorithm of 1980, for METEOR."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

_STEP_2 = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize")),
    *(("abli", "able"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    *(("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive")),
    *(("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
)
_STEP_3 = (
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic")),
    *(("ful", ""), ("ness", "")),
)
_STEP_4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion"),
    *("ou", "ism", "ate", "iti", "ous", "ive", "ize"),
)


@lru_cache(maxsize=65536)
def porter_stem(word: str) -> str:
    """Return the stem of a lower-cased word.

    Args:
        word: A word; one of other letters than a to z is left as it is.

    Example:
        >>> [porter_stem(word) for word in ("relational", "hopping", "ponies", "effective")]
        ['relat', 'hop', 'poni', 'effect']

    References:
        Porter, "An algorithm for suffix stripping", Program 14(3), 1980.
    """
    if len(word) <= 2 or not (word.isascii() and word.isalpha()):
        return word
    word = _plurals(word)
    word = _past_and_progressive(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_2)
    word = _replace(word, _STEP_3)
    word = _without_suffix(word)
    return _tidy(word)


def _is_consonant(word: str, place: int) -> bool:
    """Return whether the letter at `place` is a consonant; y is one unless it follows one."""
    letter = word[place]
    if letter in "aeiou":
        return False
    return letter != "y" or place == 0 or not _is_consonant(word, place - 1)


def _has_vowel(stem: str) -> bool:
    """Return whether a stem has a vowel."""
    return any(not _is_consonant(stem, place) for place in range(len(stem)))


def _measure(stem: str) -> int:
    """Return m: how often a consonant follows a vowel."""
    kinds = [_is_consonant(stem, place) for place in range(len(stem))]
    return sum(second and not first for first, second in pairwise(kinds))


def _ends_double(stem: str) -> bool:
    """Return whether a stem ends in the same consonant twice."""
    return len(stem) > 1 and stem[-1] == stem[-2] and _is_consonant(stem, len(stem) - 1)


def _ends_cvc(stem: str) -> bool:
    """Return whether a stem ends in consonant, vowel, consonant, the last not w, x or y."""
    end = len(stem) - 1
    return (
        end >= 2
        and _is_consonant(stem, end)
        and not _is_consonant(stem, end - 1)
        and _is_consonant(stem, end - 2)
        and stem[end] not in "wxy"
    )


def _plurals(word: str) -> str:
    """Do step 1a."""
    for suffix, end in (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")):
        if word.endswith(suffix):
            return word.removesuffix(suffix) + end
    return word


def _past_and_progressive(word: str) -> str:
    """Do step 1b."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    stem = next((word.removesuffix(s) for s in ("ed", "ing") if word.endswith(s)), None)
    if stem is None or not _has_vowel(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if _ends_double(stem) and stem[-1] not in "lsz":
        return stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _ends_cvc(stem) else stem


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Do step 2 or 3: the first suffix that fits decides, whether or not its rule applies."""
    for suffix, end in rules:
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            return stem + end if _measure(stem) > 0 else word
    return word


def _without_suffix(word: str) -> str:
    """Do step 4."""
    for suffix in _STEP_4:
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            fits = suffix != "ion" or stem.endswith(("s", "t"))
            return stem if fits and _measure(stem) > 1 else word
    return word


def _tidy(word: str) -> str:
    """Do step 5."""
    if word.endswith("e"):
        stem = word[:-1]
        measure = _measure(stem)
        if measure > 1 or (measure == 1 and not _ends_cvc(stem)):
            word = stem
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
