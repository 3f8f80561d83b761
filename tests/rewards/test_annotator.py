"""Annotators that ask no model, and the rule about equal captions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from llm_agents.rewards import RandomAnnotator, ReturnAnnotator, ScoreAnnotator
from llm_agents.rewards.annotation_report import agreement, order_report, preference_counts
from llm_agents.rewards.annotator import FIRST, SECOND, TIE, UNKNOWN, Pairs, larger_side, seed_of


def test_preferences_are_the_values_of_the_data_set() -> None:
    assert (FIRST, SECOND, TIE, UNKNOWN) == (0, 1, 2, 3)


def test_the_larger_number_wins_and_equal_ones_tie() -> None:
    values = np.array([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0], [np.nan, 1.0], [1.0, np.nan]])
    assert larger_side(values).tolist() == [0, 1, 2, 3, 3]


def test_score_and_return_compare_their_columns() -> None:
    score = np.array([[10, 4], [4, 10], [7, 7]])
    rewards = np.array([[[1.0, 1.0], [0.0, 3.0]], [[5.0, -5.0], [0.0, 0.0]], [[0.5, 0.0], [0, 0]]])
    index = np.arange(3)
    found = ScoreAnnotator().annotate(Pairs(index, columns={"score": score}))
    assert found.preferences.tolist() == [0, 1, 2]
    found = ReturnAnnotator().annotate(Pairs(index, columns={"rewards": rewards}))
    assert found.preferences.tolist() == [1, 2, 0]  # 2 < 3, 0 = 0, ½ > 0
    assert found.preferences.dtype == np.int8
    assert (ScoreAnnotator.keys, ReturnAnnotator.keys) == (("score",), ("rewards",))
    assert not ScoreAnnotator.reads_captions


def test_chance_depends_on_seed_and_pair_alone() -> None:
    captions = [(f"a{i}", f"b{i}") for i in range(400)]
    whole = RandomAnnotator(1).annotate(Pairs.of_captions(captions)).preferences
    half = RandomAnnotator(1).annotate(Pairs.of_captions(captions[200:], start=200)).preferences
    other = RandomAnnotator(2).annotate(Pairs.of_captions(captions)).preferences
    assert half.tolist() == whole[200:].tolist()
    assert 140 < int((whole != other).sum()) < 260
    assert 140 < int(whole.sum()) < 260
    assert set(whole.tolist()) == {0, 1}


def test_seeds_belong_to_numbers_in_their_order() -> None:
    seeds = {seed_of(a, b) for a in range(20) for b in range(20)}
    assert len(seeds) == 400
    assert seed_of(3, 5) == seed_of(3, 5)
    assert 0 <= min(seeds) <= max(seeds) < 2**31


def test_equal_captions_tie_by_chance_too() -> None:
    found = RandomAnnotator().annotate(Pairs.of_captions([("a", "a"), ("", ""), ("a", "b")]))
    assert found.preferences[:2].tolist() == [TIE, TIE]
    assert found.counts["equal_captions"] == 2


def test_counts_of_preferences() -> None:
    found = preference_counts(np.array([0, 0, 0, 1, 2, 3, 3], dtype=np.int8))
    assert found == {"first": 3, "second": 1, "tie": 1, "unknown": 2, "first_share": 0.75}
    ties = preference_counts(np.array([2, 2], dtype=np.int8))
    assert ties["first_share"] is None  # nothing decided is no number, not NaN


def test_agreement_leaves_unknown_pairs_out() -> None:
    one = np.array([0, 1, 2, 3, 0, 2], dtype=np.int8)
    two = np.array([0, 0, 2, 0, 3, 1], dtype=np.int8)
    # both know 0, 1, 2 and 5; same on 0 and 2; decided on both: 0 and 1, same on 0
    assert agreement(one, two) == {
        "pairs": 4,
        "agreement": 0.5,
        "decided": 2,
        "decided_agreement": 0.5,
    }
    unknown = np.full(6, 3, dtype=np.int8)
    assert agreement(one, unknown)["agreement"] is None
    ties = np.full(6, 2, dtype=np.int8)
    assert agreement(one, ties)["decided_agreement"] is None


def test_orders_are_reported_where_they_were_asked() -> None:
    assert order_report(Counter()) == {}
    counts = Counter(first_place_won=3, places_decided=4, orders_agree=1, orders_compared=2)
    assert order_report(counts) == {"first_place_share": 0.75, "order_agreement": 0.5}
    undecided = Counter(orders_compared=2)
    assert order_report(undecided) == {"first_place_share": None, "order_agreement": 0.0}
