from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from llm_agents.functional import (
    Algorithm,
    a_lol_ref_free_loss,
    leftover_advantages,
    lol_loss,
    nll_loss,
    sampling_weights,
)
from tests.functional.lol_inputs import OPTIONS, exact, f1_inputs, f1_loss, random_inputs
from tests.reference import example_f1 as f1

KL = {"kl_coef": 0.2}
CLIP_02, UNCLIPPED = {"clip_epsilon": 0.2}, {"clip_epsilon": None}
LN10, LN_36, LN_0005, LN_6 = (math.log(x) for x in (0.1, 0.36, 0.0005, 0.6))  # S(lp) of F1

CASES: list[tuple[Algorithm, dict[str, Any], list[float], float]] = [
    ("nll", {}, [2.302585, 1.021651, 7.600902, 0.510826], 2.858991),
    ("wbc", {}, [2.072327, 0.817321, 5.320632, 0.153248], 2.090882),
    ("r_gold", {}, [0.784496, 0.369073, 0.726144, 0.091949], 0.492915),
    ("r_lol", {}, [1.295204, 1.552910, 0.532063, 0.183897], 0.891019),
    ("r_lol", CLIP_02, [1.657861, 0.980785, 4.256505, 0.183897], 1.769762),
    ("r_lol", UNCLIPPED, [1.295204, 4.903926, 0.053206, 0.183897], 1.609058),
    ("a_lol", {}, [0.431735, 0.582341, 0.038005, 0], 0.263020),
    ("a_lol", CLIP_02, [0.552620, 0.367794, 0.304036, 0], 0.306113),
    ("a_lol", UNCLIPPED, [0.431735, 1.838972, 0.003800, 0], 0.568627),
    ("a_lol_ref_free", {}, [0.690776, 0.306495, 0.380045, 0], 0.344329),
    ("a_lol_seq", {}, [0.534817, 0.582341, 0.100388, 0], 0.304387),
    ("a_lol_seq", CLIP_02, [0.649187, 0.367794, 0.317899, 0], 0.333720),
    ("a_lol_seq", UNCLIPPED, [0.534817, 0.644599, 0.094073, 0], 0.318372),
    ("a_lol_kl", KL, [0.596775, 0.664847, -0.540989, 0.036464], 0.189274),
    ("a_lol", KL, [0.596775, 0.664847, -0.540989, 0.036464], 0.189274),
    ("r_lol", KL, [1.978326, 1.175673, 4.399598, 0.189712], 1.935827),
]


@pytest.mark.parametrize(("algorithm", "options", "per_sequence", "mean"), CASES)
def test_the_worked_example(
    algorithm: Algorithm, options: dict[str, Any], per_sequence: list[float], mean: float
) -> None:
    """The specification's table: six digits of each sequence and of the mean."""
    found, _ = f1_loss(algorithm, **options)
    torch.testing.assert_close(found.per_sequence, exact(per_sequence), rtol=0, atol=6e-7)
    assert found.loss.item() == pytest.approx(mean, abs=6e-7)


@pytest.mark.parametrize(
    ("algorithm", "options", "per_sequence"),
    [
        ("nll", {}, [-LN10, -LN_36, -LN_0005, -LN_6]),
        ("wbc", {}, [-0.9 * LN10, -0.8 * LN_36, -0.7 * LN_0005, -0.3 * LN_6]),
        (
            "r_gold",
            {},
            [
                -0.9 * (0.5 * math.log(0.5) + 0.25 * math.log(0.25) + 0.8 * math.log(0.8)),
                -0.8 * (0.9 * math.log(0.9) + 0.4 * math.log(0.4)),
                -0.7 * (0.1 * math.log(0.05) + 0.1 * math.log(0.02) + 0.5 * math.log(0.5)),
                -0.3 * 0.6 * LN_6,
            ],
        ),
        (
            "r_lol",
            {},
            [-0.9 * 0.625 * LN10, -0.8 * 1.9 * LN_36, -0.7 * 0.1 * LN_0005, -0.3 * 1.2 * LN_6],
        ),
        ("a_lol", {}, [-0.3 * 0.625 * LN10, -0.3 * 1.9 * LN_36, -0.05 * 0.1 * LN_0005, 0]),
        (
            "a_lol_seq",
            {},
            [
                -0.3 * (1.25 * math.log(0.5) + 0.5 * math.log(0.25) + math.log(0.8)),
                -0.3 * (1.9 * math.log(0.9) + 1.9 * math.log(0.4)),
                -0.05 * (0.1 * math.log(0.05) + 0.1 * math.log(0.02) + 1.9 * math.log(0.5)),
                0,
            ],
        ),
        (
            "a_lol_kl",
            KL,
            [
                -0.3 * LN10 + 0.2 * math.log(0.625),
                -0.3 * LN_36 + 0.2 * math.log(6),
                -0.05 * LN_0005 + 0.2 * math.log(0.01),
                0.2 * math.log(1.2),
            ],
        ),
    ],
)
def test_the_worked_example_as_arithmetic(
    algorithm: Algorithm, options: dict[str, Any], per_sequence: list[float]
) -> None:
    found, _ = f1_loss(algorithm, **options)
    torch.testing.assert_close(found.per_sequence, exact(per_sequence), rtol=0, atol=1e-12)


GRADIENTS: list[tuple[Algorithm, dict[str, Any], list[list[float]]]] = [
    ("nll", {}, [[-0.25] * 3, [-0.25, -0.25, 0], [-0.25] * 3, [-0.25, 0, 0]]),
    ("wbc", {}, [[-0.225] * 3, [-0.2, -0.2, 0], [-0.175] * 3, [-0.075, 0, 0]]),
    (
        "r_gold",
        {},
        [
            [-0.1125, -0.05625, -0.18],
            [-0.18, -0.08, 0],
            [-0.0175, -0.0175, -0.0875],
            [-0.045, 0, 0],
        ],
    ),
    ("r_lol", {}, [[-0.140625] * 3, [-0.38, -0.38, 0], [-0.0175] * 3, [-0.09, 0, 0]]),
    ("r_lol", CLIP_02, [[-0.18] * 3, [-0.24, -0.24, 0], [-0.14] * 3, [-0.09, 0, 0]]),
    ("r_lol", UNCLIPPED, [[-0.140625] * 3, [-1.2, -1.2, 0], [-0.00175] * 3, [-0.09, 0, 0]]),
    ("a_lol", {}, [[-0.046875] * 3, [-0.1425, -0.1425, 0], [-0.00125] * 3, [0, 0, 0]]),
    ("a_lol", CLIP_02, [[-0.06] * 3, [-0.09, -0.09, 0], [-0.01] * 3, [0, 0, 0]]),
    ("a_lol", UNCLIPPED, [[-0.046875] * 3, [-0.45, -0.45, 0], [-0.000125] * 3, [0, 0, 0]]),
    ("a_lol_ref_free", {}, [[-0.075] * 3, [-0.075, -0.075, 0], [-0.0125] * 3, [0, 0, 0]]),
    (
        "a_lol_seq",
        {},
        [
            [-0.09375, -0.0375, -0.075],
            [-0.1425, -0.1425, 0],
            [-0.00125, -0.00125, -0.02375],
            [0] * 3,
        ],
    ),
    (
        "a_lol_seq",
        CLIP_02,
        [[-0.09, -0.06, -0.075], [-0.09, -0.09, 0], [-0.01, -0.01, -0.015], [0] * 3],
    ),
    (
        "a_lol_seq",
        UNCLIPPED,
        [[-0.09375, -0.0375, -0.075], [-0.225, -0.15, 0], [-0.00125, -0.000625, -0.025], [0] * 3],
    ),
    ("a_lol_kl", KL, [[-0.025] * 3, [-0.025, -0.025, 0], [0.0375] * 3, [0.05, 0, 0]]),
    ("a_lol", KL, [[-0.025] * 3, [-0.025, -0.025, 0], [0.0375] * 3, [0.05, 0, 0]]),
    ("r_lol", KL, [[-0.175] * 3, [-0.15, -0.15, 0], [-0.125] * 3, [-0.025, 0, 0]]),
]


@pytest.mark.parametrize(("algorithm", "options", "expected"), GRADIENTS)
def test_the_worked_examples_gradient(
    algorithm: Algorithm, options: dict[str, Any], expected: list[list[float]]
) -> None:
    """−weight · mask / 4: ratios and probabilities are detached, pads get nothing.

    Undetached, row 1 of `a_lol` would be +.061059; PPO's surrogate would give row 2 nothing.
    """
    found, gradient = f1_loss(algorithm, **options)
    torch.testing.assert_close(gradient, exact(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.token_weights / -4, gradient, rtol=0, atol=1e-12)


def test_the_ratio_of_policy_to_reference_has_the_right_sign() -> None:
    found, _ = f1_loss("a_lol", clip_epsilon=None)
    assert found.log_ratio is not None
    torch.testing.assert_close(found.log_ratio.exp(), exact(f1.RATIOS), rtol=0, atol=1e-12)
    assert found.mean_log_ratio is not None
    expected = math.log(0.625 * 6 * 0.01 * 1.2) / 4
    assert found.mean_log_ratio.item() == pytest.approx(expected, rel=1e-12)


def test_outside_the_band_the_loss_still_learns() -> None:
    """PPO's min(ρA, clip(ρ)A) would be −.1895 here, without gradient on row 2 (ρ = 6)."""
    found, gradient = f1_loss("a_lol")
    assert found.loss.item() == pytest.approx(0.263020, abs=6e-7)
    assert gradient[1, 0].item() == pytest.approx(-0.1425, abs=1e-12)


def test_a_huge_ratio_with_no_advantage_is_zero() -> None:
    """exp(1000) · 0 would be NaN."""
    for algorithm in ("a_lol", "a_lol_seq"):
        log_probs = torch.tensor([[0.0]], requires_grad=True)
        found = lol_loss(
            algorithm,
            log_probs=log_probs,
            ref_log_probs=torch.tensor([[-1000.0]]),
            response_mask=torch.tensor([[True]]),
            rewards=torch.tensor([0.5]),
            values=torch.tensor([0.9]),
            **OPTIONS,
        )
        found.loss.backward()
        assert found.loss.item() == 0
        assert log_probs.grad is not None
        assert log_probs.grad.item() == 0


def test_the_kl_term_does_not_see_the_reference() -> None:
    """Its gradient is that of `a_lol_ref_free` with weights A⁺ − β; only the report moves."""
    inputs = f1_inputs()
    shifted = leftover_advantages(inputs["rewards"], inputs["values"]) - 0.2
    plain = a_lol_ref_free_loss(
        log_probs=inputs["log_probs"],
        response_mask=inputs["response_mask"],
        advantages=shifted,
    )
    (expected,) = torch.autograd.grad(plain.loss, inputs["log_probs"])
    losses = []
    for factor in (1.0, 0.3):
        inputs["ref_log_probs"] = exact(f1.REF_PROBS).mul(factor).log()
        found = lol_loss("a_lol_kl", **inputs, **{**OPTIONS, "kl_coef": 0.2})
        (gradient,) = torch.autograd.grad(found.loss, inputs["log_probs"])
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.weights, shifted, rtol=0, atol=1e-12)
        losses.append(found.loss.item())
    assert abs(losses[0] - losses[1]) > 0.1


def test_drawing_and_weighting_by_advantage_is_weighting_by_its_square() -> None:
    advantages = leftover_advantages(exact(f1.REWARDS), exact(f1.VALUES))
    weights = sampling_weights(
        "good_priority",
        advantages=advantages,
        rewards=exact(f1.REWARDS),
        preferred=torch.ones(4).bool(),
        by="advantage",
    )
    probabilities = weights / weights.sum()
    expected = exact([0.461538, 0.461538, 0.076923, 0])
    torch.testing.assert_close(probabilities, expected, rtol=0, atol=6e-7)
    expected = exact([0.138462, 0.138462, 0.003846, 0])
    torch.testing.assert_close(probabilities * advantages, expected, rtol=0, atol=6e-7)


def test_unclamped_advantages_make_bad_responses_unlikelier() -> None:
    found, gradient = f1_loss("a_lol_ref_free", clamp_advantages=False)
    assert found.loss.item() == pytest.approx(0.312402, abs=6e-7)
    assert gradient[3].tolist() == pytest.approx([0.0625, 0, 0], abs=1e-12)
    found, gradient = f1_loss("a_lol_ref_free")
    assert found.loss.item() == pytest.approx(0.344329, abs=6e-7)
    assert gradient[3].tolist() == [0, 0, 0]


def test_tokens_are_summed_not_averaged() -> None:
    """With token means `a_lol` on F1 would be .111938; a response twice as long weighs double."""
    assert f1_loss("a_lol")[0].loss.item() == pytest.approx(0.263020, abs=6e-7)
    log_probs, mask = torch.full((1, 4), -0.5), torch.ones(1, 4).bool()
    once = nll_loss(log_probs=log_probs, response_mask=mask).loss
    twice = nll_loss(log_probs=log_probs.repeat(1, 2), response_mask=mask.repeat(1, 2)).loss
    assert twice.item() == 2 * once.item() == 4


def test_the_clamp_does_not_revive_padding() -> None:
    """A pad's ratio of 0, clamped to .1, would give .307062 and a gradient of −.0075 there."""
    found, gradient = f1_loss("a_lol_seq")
    assert found.loss.item() == pytest.approx(0.304387, abs=6e-7)
    mask = torch.tensor(f1.MASK).bool()
    assert gradient[~mask].tolist() == [0, 0, 0]
    assert found.token_weights[~mask].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("algorithm", "options", "expected"),
    [
        ("r_lol", {}, 2 / 4),  # 6 and .01
        ("a_lol", {"clip_epsilon": 0.3}, 3 / 4),  # .625 too
        ("a_lol", UNCLIPPED, 0),
        ("a_lol_seq", {"clip_epsilon": 0.3}, 6 / 9),  # all but 1.25, 1 and 1.2
        ("wbc", {}, 0),
        ("a_lol_kl", KL, 0),
    ],
)
def test_the_share_of_clipped_ratios(
    algorithm: Algorithm, options: dict[str, Any], expected: float
) -> None:
    found, _ = f1_loss(algorithm, **options)
    assert found.clip_fraction.item() == pytest.approx(expected, abs=1e-12)


def test_ratios_beyond_the_cap_count_as_clipped() -> None:
    inputs = random_inputs(0)
    inputs["ref_log_probs"] = inputs["ref_log_probs"] - 30
    with pytest.warns(RuntimeWarning, match="capped"):
        found = lol_loss("r_lol", **inputs, **{**OPTIONS, "clip_epsilon": None})
    assert found.clip_fraction.item() == 1


def test_weights_are_means_over_the_tokens() -> None:
    found, _ = f1_loss("a_lol_seq")
    expected = [0.3 * 2.75 / 3, 0.3 * 1.9, 0.05 * 2.1 / 3, 0]
    torch.testing.assert_close(found.weights, exact(expected), rtol=0, atol=1e-12)
    assert not found.weights.requires_grad
    assert not found.token_weights.requires_grad
