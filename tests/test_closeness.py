"""The bound on rounding: above what orders of summation do, below what faults do."""

from __future__ import annotations

import pytest
import torch

from tests.closeness import assert_rounding, rounding


@pytest.mark.parametrize("terms", [16, 128, 1000])
def test_orders_of_a_sum_stay_within_it(terms: int) -> None:
    """In float32, 200 sums in 20 orders each, against the same sums in float64."""
    generator = torch.Generator().manual_seed(terms)
    numbers = torch.randn(200, terms, generator=generator)
    sums = numbers.double().sum(-1)
    bound = rounding(numbers.norm(dim=-1), terms=terms, stages=1)
    for _ in range(20):
        order = torch.randperm(terms, generator=generator)
        total = torch.zeros(200)
        for column in numbers[:, order].unbind(-1):
            total = total + column
        assert float((total.double() - sums).abs().max()) < bound


def test_it_grows_with_size_terms_stages_and_format() -> None:
    by_hand = 2 * 10 * 16 * 2.0**-24 * 3  # √256 = 16; the epsilon of float32 is 2⁻²³
    assert rounding(torch.tensor([[1.0, -3.0]]), terms=256, stages=10) == pytest.approx(by_hand)
    assert rounding([1.0, (torch.tensor(2.0), -3.0)], terms=256, stages=10) == pytest.approx(
        by_hand
    )
    coarse = rounding(3.0, terms=256, stages=10, dtype=torch.bfloat16)
    assert coarse == pytest.approx(by_hand * 2**16)
    assert rounding(torch.tensor([-torch.inf, 3.0]), terms=256) == pytest.approx(by_hand)
    assert rounding(torch.empty(0)) == 0


def test_faults_lie_beyond_it() -> None:
    expected = torch.tensor([-7.0, -2.5], dtype=torch.float64)
    assert_rounding(expected.float(), expected)
    for wrong in (expected + 1e-3, expected[:1], torch.tensor([-7.0, -torch.inf])):
        with pytest.raises(AssertionError):
            assert_rounding(wrong, expected)
