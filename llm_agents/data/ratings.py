"""Scores that preference sets keep beside their answers, under the names that these use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from llm_agents.data.row_fields import Row, RowError, describe, number

_PAIRS = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen-rating", "rejected-rating"),
    ("chosen_rating", "rejected_rating"),
    ("rating_chosen", "rating_rejected"),
    ("reward_chosen", "reward_rejected"),
    ("chosen_reward", "rejected_reward"),
)
_TEXTS = ("response", "completion", "content", "text")
_SCORES = ("overall_score", "score", "rating", "reward", "fine-grained_score")
_LISTS = ("rewards", "scores", "ratings")


def pair_scores(row: Row) -> tuple[float, float] | None:
    """Return the scores of `chosen` and `rejected`, or None if the row has none."""
    for names in _PAIRS:
        if not any(name in row for name in names):
            continue
        values = [row.number(name) for name in names]
        if values[0] is None or values[1] is None:
            raise RowError(f"expected `{names[0]}` and `{names[1]}`, got one of them")
        return values[0], values[1]
    return None


def completion_texts(
    row: Row, changed: Counter[str]
) -> tuple[tuple[str, ...], tuple[float, ...] | None]:
    """Return the texts of `completions` and their scores, if every one of them has one.

    A completion is a text, its score in a list beside it (``rewards``, ``scores`` or ``ratings``);
    or an object with ``response`` and ``overall_score`` (or ``score``, ``rating``, ``reward``,
    ``fine-grained_score``, else the mean of its annotations' ratings), as in UltraFeedback.

    Args:
        row: The row.
        changed: Where rows are counted whose completions aren't all rated.

    Raises:
        RowError: A completion is neither of them.
    """
    items = row.take("completions", list)
    if all(isinstance(item, str) for item in items):
        if "labels" in row:
            raise RowError(
                "expected `completions` to be answers of their own, got steps with `labels`: "
                "supervision by steps is not read"
            )
        for name in _LISTS:
            if name in row:
                return tuple(items), row.numbers(name, len(items))
        return tuple(items), None
    texts, scores = [], []
    for item in items:
        fields = item if isinstance(item, Mapping) else {}
        text = next((fields[name] for name in _TEXTS if isinstance(fields.get(name), str)), None)
        if text is None:
            raise RowError(
                "expected `completions` to hold texts, or objects with `response`, got "
                f"{describe(item)}"
            )
        texts.append(text)
        scores.append(_score(fields))
    known = [score for score in scores if score is not None]
    if known and len(known) < len(scores):
        changed["rows of which some completions are not rated: none of their ratings is read"] += 1
    return tuple(texts), tuple(known) if known and len(known) == len(scores) else None


def _score(fields: Mapping[str, object]) -> float | None:
    """Return the score of a completion."""
    for name in _SCORES:
        if fields.get(name) is not None:
            return number(_as_number(fields[name]), f"completions.{name}")
    annotations = fields.get("annotations")
    ratings = [
        rating
        for part in (annotations.values() if isinstance(annotations, Mapping) else ())
        if isinstance(part, Mapping) and (rating := _as_number(part.get("Rating"))) is not None
    ]
    return (
        sum(number(r, "completions.annotations.Rating") for r in ratings) / len(ratings)
        if ratings
        else None
    )


def _as_number(value: object) -> object:
    """Return a number that is written as text, ``N/A`` as None."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None if value.strip().upper() in ("N/A", "NA", "") else value
    return value
