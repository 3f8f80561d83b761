"""METEOR: how well a response matches a reference, word by word, stems and order included."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llm_agents.evaluation.porter import porter_stem

Synonyms = Callable[[str], Collection[str]]

_TOKEN = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_MOST_STATES = 64  # alignments that are followed at once; few texts repeat words often enough


@dataclass(frozen=True)
class MeteorWeights:
    """Numbers of the score.

    Args:
        alpha: Weight of recall against precision.
        beta: Exponent of the penalty.
        gamma: Highest penalty.
    """

    alpha: float = 0.9
    beta: float = 3.0
    gamma: float = 0.5


@dataclass(frozen=True)
class Alignment:
    """A response's words beside a reference's.

    Args:
        matches: Pairs of words.
        chunks: Runs of pairs that are neighbours on both sides.
    """

    matches: int
    chunks: int


class _State(NamedTuple):
    """A partial alignment; what is better sorts first: more pairs, fewer chunks, more equal words.

    Args:
        missing: Minus the pairs.
        chunks: Runs of pairs.
        unequal: Minus the pairs of equal words.
        used: Reference places taken, a bit each.
        last: Place that the last word took; −2 if it took none.
    """

    missing: int
    chunks: int
    unequal: int
    used: int
    last: int


def tokens_of(text: str) -> list[str]:
    """Return the lower-cased words and punctuation marks of a text.

    Example:
        >>> tokens_of("It's late, Anna.")
        ["it's", 'late', ',', 'anna', '.']
    """
    return _TOKEN.findall(text.lower())


def align(
    response: Sequence[str], reference: Sequence[str], synonyms: Synonyms | None = None
) -> Alignment:
    """Pair the words of two texts.

    Two words may be paired if they are equal, have one Porter stem, or are synonyms. Of all sets of
    pairs with each word in one pair at most, the largest is taken, of these the one in the fewest
    chunks.

    Args:
        response: Words.
        reference: Words.
        synonyms: Words that mean the same as a word; None knows none.

    Example:
        >>> align("the cat sat".split(), "the dog sat".split())
        Alignment(matches=2, chunks=2)
    """
    stems = [porter_stem(word) for word in reference]
    states = [_State(0, 0, 0, 0, -2)]
    for word in response:
        partners = _partners(word, reference, stems, synonyms)
        best: dict[tuple[int, int], _State] = {}
        for state in states:
            for following in _following(state, partners):
                key = (following.used, following.last)
                if key not in best or following < best[key]:
                    best[key] = following
        states = sorted(best.values())[:_MOST_STATES]
    found = min(states)
    return Alignment(-found.missing, found.chunks)


def meteor_score(
    response: str,
    references: str | Iterable[str],
    *,
    weights: MeteorWeights | None = None,
    synonyms: Synonyms | None = None,
) -> float:
    """Return the METEOR score of a response.

        P = m / |response|,   R = m / |reference|,   F = P R / (α P + (1 − α) R)
        score = F · (1 − γ (chunks / m)^β)

    Without `synonyms` the score is a little lower than one that looks words up in WordNet.

    Args:
        response: What was generated.
        references: What is right; the best of several counts.
        weights: α, β and γ; by default those of the first METEOR.
        synonyms: Words that mean the same as a word.

    Returns:
        A number from 0 to 1; 0 if no word matches.

    Example:
        >>> round(meteor_score("the cat sat on the mat", "the cat sat on the mat"), 6)
        0.997685

    References:
        Banerjee and Lavie, 2005; Lavie and Agarwal, 2007; Denkowski and Lavie, 2011 (alignment).
        Differs from A-LoL's release, which reports the score of its last batch alone.
    """
    weights = weights or MeteorWeights()
    words = tokens_of(response)
    best = 0.0
    for reference in [references] if isinstance(references, str) else references:
        others = tokens_of(reference)
        found = align(words, others, synonyms)
        if not found.matches:
            continue
        precision, recall = found.matches / len(words), found.matches / len(others)
        mean = precision * recall / (weights.alpha * precision + (1 - weights.alpha) * recall)
        penalty = weights.gamma * (found.chunks / found.matches) ** weights.beta
        best = max(best, mean * (1 - penalty))
    return best


def _partners(
    word: str, reference: Sequence[str], stems: Sequence[str], synonyms: Synonyms | None
) -> list[tuple[int, bool]]:
    """Return the places of the words that `word` may be paired with, and whether they are equal."""
    stem = porter_stem(word)
    others = set(synonyms(word)) if synonyms is not None else set()
    return [
        (place, other == word)
        for place, other in enumerate(reference)
        if stems[place] == stem or other in others
    ]


def _following(state: _State, partners: Sequence[tuple[int, bool]]) -> Iterator[_State]:
    """Yield the states after one more word, which takes a partner or none."""
    yield state._replace(last=-2)
    for place, is_equal in partners:
        if not state.used >> place & 1:
            yield _State(
                state.missing - 1,
                state.chunks + (place != state.last + 1),
                state.unequal - is_equal,
                state.used | 1 << place,
                place,
            )
