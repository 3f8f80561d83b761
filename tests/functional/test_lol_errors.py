"""What each option needs and reads, and what is refused."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from llm_agents.functional import (
    ALGORITHMS,
    Algorithm,
    a_lol_ref_free_loss,
    needs_reference,
    needs_value,
)
from tests.functional.exact_text import exactly
from tests.functional.lol_inputs import compute, exact, f1_inputs, f1_loss
from tests.reference import example_f1 as f1


def test_what_each_option_needs() -> None:
    assert get_args(Algorithm) == ALGORITHMS
    assert len(ALGORITHMS) == 8
    reference = {"r_lol", "a_lol", "a_lol_seq", "a_lol_kl"}
    value = {"a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl"}
    assert {a for a in ALGORITHMS if needs_reference(a)} == reference
    assert {a for a in ALGORITHMS if needs_value(a)} == value


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_what_is_needed_is_read(algorithm: Algorithm) -> None:
    """NaN in what an option doesn't need changes nothing, and leaving it out neither."""
    inputs = f1_inputs()
    expected = compute(algorithm, inputs).per_sequence
    for present in (True, False):
        if not needs_reference(algorithm):
            inputs.pop("ref_log_probs", None)
        if not needs_value(algorithm):
            inputs["values"] = torch.full((4,), math.nan)
            if not present:
                del inputs["values"]
        if algorithm == "nll":
            inputs["rewards"] = torch.full((4,), math.nan)
        assert torch.equal(compute(algorithm, inputs).per_sequence, expected)


def test_the_log_ratio_is_reported_wherever_a_reference_is_given() -> None:
    inputs = f1_inputs()
    found = compute("wbc", inputs).log_ratio
    assert found is not None
    torch.testing.assert_close(found.exp(), exact(f1.RATIOS), rtol=0, atol=1e-12)
    del inputs["ref_log_probs"]
    without = compute("wbc", inputs)
    assert without.log_ratio is None
    assert without.mean_log_ratio is None


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if needs_reference(a)])
def test_a_missing_reference_is_refused(algorithm: Algorithm) -> None:
    inputs = f1_inputs()
    del inputs["ref_log_probs"]
    text = exactly(
        f"expected `ref_log_probs` for {algorithm}, got None: compute them once with the frozen "
        "reference"
    )
    with pytest.raises(ValueError, match=text):
        compute(algorithm, inputs)


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if needs_value(a)])
def test_a_missing_value_is_refused(algorithm: Algorithm) -> None:
    inputs = f1_inputs()
    del inputs["values"]
    text = exactly(
        f"expected `values` for {algorithm}, got None: compute them once with the frozen reference"
    )
    with pytest.raises(ValueError, match=text):
        compute(algorithm, inputs)


@pytest.mark.parametrize(
    ("name", "algorithm", "shape", "text"),
    [
        (
            "rewards",
            "wbc",
            (4, 1),
            "expected `rewards` of shape (4,) like the rows of `log_probs`, got (4, 1): give one "
            "value for each row, call .squeeze(-1)",
        ),
        (
            "rewards",
            "r_lol",
            (3,),
            "expected `rewards` of shape (4,) like the rows of `log_probs`, got (3,): give one "
            "value for each row",
        ),
        (
            "values",
            "a_lol",
            (4, 1),
            "expected `values` of shape (4,) like the rows of `rewards`, got (4, 1): give one "
            "value for each row, call .squeeze(-1)",
        ),
        (
            "ref_log_probs",
            "a_lol_seq",
            (4, 1),
            "expected `ref_log_probs` of shape (4, 3) like `log_probs`, got (4, 1): score the same "
            "responses with the reference",
        ),
    ],
)
def test_nothing_is_broadcast(
    name: str, algorithm: Algorithm, shape: tuple[int, ...], text: str
) -> None:
    inputs = {**f1_inputs(), name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=exactly(text)):
        compute(algorithm, inputs)


def test_advantages_of_another_shape_are_refused() -> None:
    text = exactly(
        "expected `advantages` of shape (2,) like the rows of `log_probs`, got (2, 1): give one "
        "value for each row, call .squeeze(-1)"
    )
    with pytest.raises(ValueError, match=text):
        a_lol_ref_free_loss(
            log_probs=torch.zeros(2, 3),
            response_mask=torch.ones(2, 3).bool(),
            advantages=torch.zeros(2, 1),
        )


@pytest.mark.parametrize(
    ("algorithm", "options", "text"),
    [
        (
            "a_lol_ref_free",
            {"kl_coef": 0.2},
            "expected `kl_coef` 0 with a_lol_ref_free, got 0.2: choose a_lol_kl, a_lol or r_lol "
            "for a KL term",
        ),
        ("a_lol_kl", {"kl_coef": -0.1}, "expected `kl_coef` of at least 0, got -0.1"),
        ("a_lol_kl", {"kl_coef": math.nan}, "expected `kl_coef` of at least 0, got nan"),
        (
            "r_gold",
            {"gold_floor": 1.1},
            "expected `gold_floor` in [0, 1], got 1.1: the release has 0.1",
        ),
        (
            "nll",
            {"clip_epsilon": 1.0},
            "expected `clip_epsilon` in [0, 1) or None, got 1.0: 0 is a ratio of exactly 1, None "
            "no clip, and from 1 on the band would reach 0",
        ),
        (
            "a_lol_sequence",
            {},
            "expected `algorithm` to be one of nll, wbc, r_gold, r_lol, a_lol, a_lol_ref_free, "
            "a_lol_seq, a_lol_kl, got 'a_lol_sequence'",
        ),
    ],
)
def test_options_out_of_range_are_refused(
    algorithm: Algorithm, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        f1_loss(algorithm, **options)
