"""How far annotations can be trusted: favor for a place, agreement between annotations."""

from __future__ import annotations

from collections import Counter

from llm_agents.rewards.annotator import FIRST, SECOND, TIE, UNKNOWN, Preferences


def order_report(counts: Counter[str]) -> dict[str, object]:
    """Return what asking in both orders shows; nothing where that was not done.

    Args:
        counts: ``first_place_won`` of ``places_decided`` answers, and ``orders_agree`` of
            ``orders_compared`` pairs.

    Returns:
        ``first_place_share``, ½ without favor for a place, and ``order_agreement``, the share of
        pairs on which both orders say the same; None where nothing was decided or compared.
    """
    if not counts["orders_compared"]:
        return {}
    return {
        "first_place_share": share(counts["first_place_won"], counts["places_decided"]),
        "order_agreement": share(counts["orders_agree"], counts["orders_compared"]),
    }


def share(part: int, whole: int) -> float | None:
    """Return a share, or None of nothing."""
    return part / whole if whole else None


def preference_counts(preferences: Preferences) -> dict[str, object]:
    """Return how often each preference comes, and the share of first sides among the decided.

    Sides are in random order, so a share far from ½ shows favor for a place.
    """
    first, second, tie, unknown = (
        int((preferences == value).sum()) for value in (FIRST, SECOND, TIE, UNKNOWN)
    )
    return {
        "first": first,
        "second": second,
        "tie": tie,
        "unknown": unknown,
        "first_share": share(first, first + second),
    }


def agreement(one: Preferences, two: Preferences) -> dict[str, object]:
    """Return how far two annotations of the same pairs agree.

    Args:
        one: ``[N]`` int8.
        two: ``[N]`` int8.

    Returns:
        ``pairs`` that both know, ``agreement`` over these, ties included, ``decided`` pairs on
        which neither is undecided, and ``decided_agreement`` over those; None over nothing.
    """
    known = (one != UNKNOWN) & (two != UNKNOWN)
    decided = known & (one != TIE) & (two != TIE)
    same = one == two
    return {
        "pairs": int(known.sum()),
        "agreement": share(int((same & known).sum()), int(known.sum())),
        "decided": int(decided.sum()),
        "decided_agreement": share(int((same & decided).sum()), int(decided.sum())),
    }


def extremes(scores: dict[str, float], number: int = 20) -> dict[str, list[tuple[str, float]]]:
    """Return the captions with the highest and with the lowest scores, most extreme first."""
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return {"highest": ordered[:number], "lowest": ordered[::-1][:number]}
