from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_agents.functional import BootstrapInterval, bootstrap_interval, distinct_n
from tests.functional.exact_text import exactly
from tests.reference import statistics as reference


def interval(
    values: object, seed: int = 0, num_resamples: int = 4000, confidence: float = 0.9
) -> BootstrapInterval:
    return bootstrap_interval(
        torch.tensor(values, dtype=torch.float64),
        num_resamples=num_resamples,
        confidence=confidence,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize(("n", "expected"), [(1, 5 / 11), (2, 5 / 8), (3, 4 / 5)])
def test_distinct_n_of_the_specification(n: int, expected: float) -> None:
    """Case does not count; a case-sensitive count divided by words would be .636, .545, .455."""
    texts = ["I like blue", "I like the Blue sky", "i like blue"]
    assert distinct_n(texts, n) == expected


def test_short_texts_contribute_nothing_and_an_empty_corpus_is_zero() -> None:
    assert distinct_n(["", "one", "a b"], 2) == 1
    assert distinct_n([], 1) == 0
    assert distinct_n(["one", "  "], 2) == 0


def test_blanks_of_any_kind_split_words() -> None:
    assert distinct_n([" a\tb\n a  b "], 2) == 2 / 3


@given(texts=st.lists(st.text("abAB ", max_size=12), max_size=5), n=st.integers(1, 3))
def test_repeating_a_corpus_halves_its_diversity(texts: list[str], n: int) -> None:
    assert distinct_n(texts * 2, n) == pytest.approx(distinct_n(texts, n) / 2)


def test_distinct_n_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=exactly("expected `n` of at least 1, got 0")):
        distinct_n(["a"], 0)


def test_the_interval_is_that_of_all_resamples() -> None:
    """Five values have 5⁵ equally likely resamples, whose quantiles are known without drawing."""
    values = [0.0, 1.0, 2.5, 7.0, 20.0]
    means = reference.all_resampled_means(values)
    found = interval(values, num_resamples=200_000, confidence=0.9)
    assert found.mean == pytest.approx(6.1, rel=1e-12)
    assert found.low == pytest.approx(reference.quantile(means, 0.05), abs=0.1)
    assert found.high == pytest.approx(reference.quantile(means, 0.95), abs=0.1)
    assert found.low < found.mean < found.high


def test_a_large_sample_has_the_normal_interval() -> None:
    values = torch.randn(4000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = interval(values.tolist(), num_resamples=2000, confidence=0.95)
    width = 2 * 1.959964 * values.std().item() / math.sqrt(4000)
    assert found.high - found.low == pytest.approx(width, rel=0.08)


@settings(deadline=None, max_examples=20)
@given(
    values=st.lists(st.floats(-100, 100), min_size=1, max_size=8),
    shift=st.floats(-10, 10),
    seed=st.integers(0, 99),
)
def test_same_seed_same_interval_and_a_shift_shifts_it(
    values: list[float], shift: float, seed: int
) -> None:
    found = interval(values, seed, num_resamples=200)
    assert found == interval(values, seed, num_resamples=200)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    moved = interval([x + shift for x in values], seed, num_resamples=200)
    expected = BootstrapInterval(*(x + shift for x in found))
    assert moved == pytest.approx(expected, abs=1e-9)


def test_another_seed_draws_differently() -> None:
    values = [0.0, 1.0, 2.5, 7.0, 20.0]
    assert interval(values, 0, num_resamples=50) != interval(values, 1, num_resamples=50)


def test_more_confidence_is_a_wider_interval() -> None:
    values = list(range(20))
    narrow, wide = interval(values, confidence=0.5), interval(values, confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_one_value_is_its_own_interval() -> None:
    assert interval([3.0]) == BootstrapInterval(3.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("values", "options", "text"),
    [
        ([], {}, "expected `values` of shape [N] with N ≥ 1, got (0,)"),
        ([[1.0]], {}, "expected `values` of shape [N] with N ≥ 1, got (1, 1)"),
        (
            [1.0, math.nan],
            {},
            "expected finite `values`, got NaN or infinity: drop or repair these rows",
        ),
        (
            [1.0],
            {"num_resamples": 0},
            "expected `num_resamples` of at least 1 and `confidence` in (0, 1), got 0 and 0.9",
        ),
        (
            [1.0],
            {"confidence": 1.0},
            "expected `num_resamples` of at least 1 and `confidence` in (0, 1), got 4000 and 1.0",
        ),
    ],
)
def test_bootstrap_errors(values: object, options: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        interval(values, **options)  # type: ignore[arg-type]  # one option of either type
