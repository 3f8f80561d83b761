from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from llm_agents.functional import bradley_terry_loss, dpo_loss, pro_loss, regression_loss
from tests.functional.exact_text import exactly
from tests.reference import preference as reference

LOG_PROBS = st.floats(-60, 0)
settled = settings(deadline=None)


def exact(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# --- DPO ------------------------------------------------------------------------------------------


def dpo_inputs() -> dict[str, Any]:
    """The specification's three pairs: logits 1.5, −1.5 and 0."""
    return {
        "chosen": exact([-10.0, -12.0, -8.0]).requires_grad_(),
        "rejected": exact([-11.0, -9.0, -8.5]).requires_grad_(),
        "ref_chosen": exact([-10.5, -11.0, -8.0]),
        "ref_rejected": exact([-10.0, -9.5, -8.5]),
        "beta": 0.1,
    }


def test_dpo_worked_example() -> None:
    """ln(1 + e^−.15), ln(1 + e^.15), ln 2; gradient −.1 · σ(−.1 · logit) / 3 on the chosen."""
    inputs = dpo_inputs()
    found = dpo_loss(**inputs, reference_free=False)
    expected = exact([math.log1p(math.exp(-0.15)), math.log1p(math.exp(0.15)), math.log(2)])
    torch.testing.assert_close(found.per_pair, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        found.per_pair, exact([0.620957, 0.770957, 0.693147]), rtol=0, atol=6e-7
    )
    assert found.loss.item() == pytest.approx(0.695020, abs=6e-7)
    found.loss.backward()
    gradient = exact([-0.015419, -0.017914, -0.016667])
    torch.testing.assert_close(inputs["chosen"].grad, gradient, rtol=0, atol=6e-7)
    torch.testing.assert_close(inputs["rejected"].grad, -gradient, rtol=0, atol=6e-7)


def test_dpo_implicit_rewards() -> None:
    """.1 · (c − c_ref) and .1 · (r − r_ref); the third pair ties, and a tie is not a win."""
    found = dpo_loss(**dpo_inputs(), reference_free=False)
    torch.testing.assert_close(found.chosen_rewards, exact([0.05, -0.1, 0]), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.rejected_rewards, exact([-0.1, 0.05, 0]), rtol=0, atol=1e-12)
    assert found.accuracy.item() == pytest.approx(1 / 3)
    assert found.margin.item() == pytest.approx(0, abs=1e-12)
    assert not found.chosen_rewards.requires_grad
    assert not found.rejected_rewards.requires_grad


@pytest.mark.parametrize("reference_given", [True, False])
def test_dpo_reference_free_worked_example(reference_given: bool) -> None:
    """Logits 1, −3, .5; the reference is 0 in the implicit rewards as well."""
    inputs = dpo_inputs()
    if not reference_given:
        inputs["ref_chosen"] = inputs["ref_rejected"] = None
    found = dpo_loss(**inputs, reference_free=True)
    torch.testing.assert_close(
        found.per_pair, exact([0.644397, 0.854355, 0.668460]), rtol=0, atol=6e-7
    )
    assert found.loss.item() == pytest.approx(0.722404, abs=6e-7)
    expected = exact([-1.0, -1.2, -0.8])
    torch.testing.assert_close(found.chosen_rewards, expected, rtol=0, atol=1e-12)
    assert found.accuracy.item() == pytest.approx(2 / 3)


@settled
@given(numbers=hnp.arrays(np.float64, (2, 4), elements=LOG_PROBS), beta=st.floats(0.01, 2))
def test_dpo_at_the_reference_is_log_two(numbers: np.ndarray, beta: float) -> None:
    chosen, rejected = torch.from_numpy(numbers)
    found = dpo_loss(
        chosen=chosen,
        rejected=rejected,
        ref_chosen=chosen,
        ref_rejected=rejected,
        beta=beta,
        reference_free=False,
    )
    assert found.loss.item() == pytest.approx(math.log(2), abs=1e-12)


@settled
@given(numbers=hnp.arrays(np.float64, (4, 5), elements=LOG_PROBS), seed=st.integers(0, 99))
def test_dpo_equals_the_loop_in_any_order_and_in_parts(numbers: np.ndarray, seed: int) -> None:
    names = ("chosen", "rejected", "ref_chosen", "ref_rejected")
    rows = dict(zip(names, torch.from_numpy(numbers), strict=True))
    found = dpo_loss(**rows, beta=0.3, reference_free=False)
    expected = reference.dpo_losses(*numbers, beta=0.3)
    np.testing.assert_allclose(found.per_pair.numpy(), expected, atol=1e-9)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    mixed = dpo_loss(**{k: v[order] for k, v in rows.items()}, beta=0.3, reference_free=False)
    torch.testing.assert_close(mixed.per_pair, found.per_pair[order], rtol=0, atol=1e-12)
    parts = [
        dpo_loss(**{k: v[part] for k, v in rows.items()}, beta=0.3, reference_free=False).loss
        for part in (slice(0, 2), slice(2, 5))
    ]
    whole = parts[0] * 2 / 5 + parts[1] * 3 / 5
    assert found.loss.item() == pytest.approx(whole.item(), abs=1e-12)


def test_dpo_gradients() -> None:
    inputs = dpo_inputs()
    beta = inputs.pop("beta")
    for name in ("ref_chosen", "ref_rejected"):
        inputs[name].requires_grad_()
    dpo_loss(**inputs, beta=beta, reference_free=False).loss.backward()
    assert inputs["ref_chosen"].grad is None
    assert inputs["ref_rejected"].grad is None
    fixed = {name: inputs[name].detach() for name in ("ref_chosen", "ref_rejected")}
    assert gradcheck(
        lambda c, r: dpo_loss(chosen=c, rejected=r, **fixed, beta=beta, reference_free=False).loss,
        (inputs["chosen"], inputs["rejected"]),
    )


@pytest.mark.parametrize("scale", [1e4, 1e8])
def test_dpo_extreme_log_probs_stay_finite(scale: float) -> None:
    chosen = torch.tensor([-scale, 0.0], requires_grad=True)
    found = dpo_loss(
        chosen=chosen,
        rejected=torch.tensor([0.0, -scale]),
        ref_chosen=None,
        ref_rejected=None,
        beta=0.1,
        reference_free=True,
    )
    found.loss.backward()
    assert found.loss.item() == pytest.approx(scale * 0.1 / 2, rel=1e-6)
    assert chosen.grad is not None
    assert chosen.grad.tolist() == pytest.approx([-0.05, 0])


def test_dpo_errors() -> None:
    inputs = dpo_inputs()
    text = exactly(
        "expected `ref_chosen` and `ref_rejected`, got None: score both responses with the frozen "
        "reference, or set reference_free"
    )
    with pytest.raises(ValueError, match=text):
        dpo_loss(**{**inputs, "ref_chosen": None}, reference_free=False)
    text = exactly("expected `beta` above 0, got 0: A-LoL's comparison has 0.1")
    with pytest.raises(ValueError, match=text):
        dpo_loss(**{**inputs, "beta": 0}, reference_free=False)
    for name in ("rejected", "ref_chosen", "ref_rejected"):
        text = exactly(
            f"expected `{name}` of shape (3,) like the rows of `chosen`, got (3, 1): give one "
            "value for each row, call .squeeze(-1)"
        )
        with pytest.raises(ValueError, match=text):
            dpo_loss(**{**inputs, name: torch.zeros(3, 1)}, reference_free=False)


# --- PRO ------------------------------------------------------------------------------------------


def pro_two() -> dict[str, Any]:
    return {
        "sequence_log_probs": exact([[-12.0, -9.0], [-6.0, -20.0]]).requires_grad_(),
        "lengths": torch.tensor([[6, 3], [4, 8]]),
        "rewards": exact([[1.5, -0.5], [0.2, 0.9]]),
        "sft_index": 0,
        "sft_weight": 0.05,
    }


def pro_three() -> dict[str, Any]:
    return {
        "sequence_log_probs": exact([[-12.0, -9.0, -10.0]]).requires_grad_(),
        "lengths": torch.tensor([[6, 3, 5]]),
        "rewards": exact([[1.5, 0.5, -0.5]]),
        "sft_index": 0,
        "sft_weight": 0.05,
    }


def test_pro_worked_example_of_two() -> None:
    """s = [−2, −3], T = 2: ln(e⁻⁴ + e⁻⁶) + 4; s = [−1.5, −2.5], T = −.7 (the file order stays)."""
    inputs = pro_two()
    found = pro_loss(**inputs)
    terms = [
        math.log(1e-10 + math.exp(-4) + math.exp(-6)) + 4,
        math.log(1e-10 + math.exp(1.05) + math.exp(1.75)) - 1.05,
    ]
    assert terms == pytest.approx([0.126928, 1.103186], abs=6e-7)
    assert found.rank_loss.item() == pytest.approx(sum(terms) / 2, abs=1e-12)
    assert found.rank_terms.shape == (1,)
    assert found.sft_loss.item() == pytest.approx(0.05 * (12 + 6) / 2, abs=1e-12)
    assert found.loss.item() == pytest.approx(1.065057, abs=6e-7)
    found.loss.backward()
    gradient = exact([[-0.044867, 0.039734], [0.033466, -0.029233]])
    torch.testing.assert_close(inputs["sequence_log_probs"].grad, gradient, rtol=0, atol=6e-7)


def test_pro_worked_example_of_three() -> None:
    """s = [−2, −3, −2]: T_0 = 2 (against 1 and 2), then T_1 = 1; SFT .05 · 2² · 12."""
    found = pro_loss(**pro_three())
    terms = [
        math.log(1e-10 + math.exp(-4) + math.exp(-3) + math.exp(-4)) + 4,
        math.log(1e-10 + math.exp(-3) + math.exp(-2)) + 3,
    ]
    torch.testing.assert_close(found.rank_terms, exact(terms), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.rank_terms, exact([1.551445, 1.313262]), rtol=0, atol=6e-7)
    assert found.sft_loss.item() == pytest.approx(2.4, abs=1e-12)
    assert found.loss.item() == pytest.approx(5.264706, abs=6e-7)


def test_pro_accuracy_is_about_mean_log_probs() -> None:
    """By sums the first prompt's second response (−9 against −12) would lead."""
    assert pro_loss(**pro_two()).accuracy.item() == 1
    assert pro_loss(**pro_three()).accuracy.item() == 0  # s_0 and s_2 tie


def test_pro_sft_index_and_weight() -> None:
    inputs = pro_two()
    found = pro_loss(**{**inputs, "sft_index": 1, "sft_weight": 0.5})
    assert found.sft_loss.item() == pytest.approx(0.5 * (9 + 20) / 2, abs=1e-12)
    assert pro_loss(**{**inputs, "sft_weight": 0.0}).loss.item() == found.rank_loss.item()


@settled
@given(seed=st.integers(0, 9999), num_prompts=st.integers(1, 4), num_responses=st.integers(2, 5))
def test_pro_equals_the_loop_in_any_order_and_in_parts(
    seed: int, num_prompts: int, num_responses: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_prompts + 1, num_responses)
    sums = -30 * torch.rand(shape, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 20, shape, generator=generator)
    rewards = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)

    def loss(rows: Any) -> Tensor:
        return pro_loss(
            sequence_log_probs=sums[rows],
            lengths=lengths[rows],
            rewards=rewards[rows],
            sft_index=num_responses - 1,
            sft_weight=0.05,
        ).loss

    terms, sft = reference.pro(
        sums.tolist(),
        lengths.tolist(),
        rewards.tolist(),
        sft_index=num_responses - 1,
        sft_weight=0.05,
    )
    whole = loss(slice(None))
    assert whole.item() == pytest.approx(sum(terms) + sft, rel=1e-9)
    order = torch.randperm(len(sums), generator=generator)
    assert loss(order).item() == pytest.approx(whole.item(), rel=1e-12)
    parts = loss(slice(0, 1)) + num_prompts * loss(slice(1, None))
    assert parts.item() / len(sums) == pytest.approx(whole.item(), rel=1e-9)


def test_pro_gradients() -> None:
    inputs = pro_three()
    sums = inputs.pop("sequence_log_probs")
    rewards = inputs.pop("rewards").requires_grad_()
    pro_loss(sequence_log_probs=sums, rewards=rewards, **inputs).loss.backward()
    assert rewards.grad is None
    fixed = rewards.detach()
    assert gradcheck(
        lambda x: pro_loss(sequence_log_probs=x, rewards=fixed, **inputs).loss, (sums,)
    )


@pytest.mark.parametrize("scale", [1e3, 1e6])
@pytest.mark.parametrize("sign", [1, -1])
def test_pro_extreme_log_probs_stay_finite(scale: float, sign: int) -> None:
    """e^(s · T) under- and overflows; its logarithm does neither."""
    sums = torch.tensor([[-scale, -1.0, -scale / 2]], requires_grad=True)
    found = pro_loss(
        sequence_log_probs=sums,
        lengths=torch.tensor([[1, 1, 1]]),
        rewards=sign * torch.tensor([[3.0, 0.0, -3.0]]),
        sft_index=0,
        sft_weight=0.05,
    )
    found.loss.backward()
    assert found.loss.isfinite()
    assert sums.grad is not None
    assert sums.grad.isfinite().all()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"lengths": torch.tensor([6, 3])},
            "expected `lengths` of shape (2, 2) like `sequence_log_probs`, got (2,): count the "
            "scored tokens of each response",
        ),
        (
            {"rewards": torch.zeros(2, 1)},
            "expected `rewards` of shape (2, 2) like `sequence_log_probs`, got (2, 1): give one "
            "reward for each response",
        ),
        (
            {"sequence_log_probs": torch.zeros(4)},
            "expected `sequence_log_probs` of shape [B, K], got (4,): give it 2 axes",
        ),
        (
            {"lengths": torch.tensor([[6, 0], [4, 8]])},
            "expected `lengths` of at least 1, got 0: drop empty responses",
        ),
        ({"sft_index": 2}, "expected `sft_index` in [0, 2), got 2"),
        ({"sft_index": -1}, "expected `sft_index` in [0, 2), got -1"),
        (
            {
                "sequence_log_probs": torch.zeros(2, 1),
                "lengths": torch.ones(2, 1),
                "rewards": torch.ones(2, 1),
            },
            "expected at least 2 responses a prompt, got 1: PRO ranks them",
        ),
    ],
)
def test_pro_errors(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        pro_loss(**{**pro_two(), **changed})


# --- Bradley–Terry and regression -----------------------------------------------------------------


def test_bradley_terry_by_hand() -> None:
    """Labels 1, 0, ½ and ¾ on differences 1, 1, 1 and −2."""
    first = exact([2.0, 2.0, 2.0, 1.0])
    second = exact([1.0, 1.0, 1.0, 3.0])
    found = bradley_terry_loss(
        first_scores=first, second_scores=second, labels=exact([1.0, 0.0, 0.5, 0.75])
    )
    win, lose = math.log1p(math.exp(-1)), math.log1p(math.exp(1))
    last = 0.75 * math.log1p(math.exp(2)) + 0.25 * math.log1p(math.exp(-2))
    expected = exact([win, lose, (win + lose) / 2, last])
    torch.testing.assert_close(found.per_pair, expected, rtol=0, atol=1e-12)
    assert found.loss.item() == pytest.approx(expected.mean().item(), abs=1e-12)
    assert found.accuracy.item() == (1 + 0 + 0.5 + 0) / 4


def test_bradley_terry_accuracy_counts_a_tied_score_half() -> None:
    tied = exact([1.0])
    found = bradley_terry_loss(first_scores=tied, second_scores=tied, labels=exact([1.0]))
    assert found.accuracy.item() == 0.5


scores_and_labels = st.tuples(
    hnp.arrays(np.float64, (2, 4), elements=st.floats(-8, 8)),
    hnp.arrays(np.float64, 4, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])),
)


def bradley_terry(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    return bradley_terry_loss(first_scores=first, second_scores=second, labels=labels).per_pair


@settled
@given(drawn=scores_and_labels, constant=st.floats(-50, 50))
def test_bradley_terry_symmetries(drawn: tuple[np.ndarray, np.ndarray], constant: float) -> None:
    """Equal to the loop; unmoved by a constant, and by swapping the pair and the label."""
    first, second = torch.from_numpy(drawn[0])
    labels = torch.from_numpy(drawn[1])
    found = bradley_terry(first, second, labels)
    expected = reference.bradley_terry_losses(*drawn[0], drawn[1])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-8)
    moved = bradley_terry(first + constant, second + constant, labels)
    torch.testing.assert_close(moved, found, rtol=0, atol=1e-10)
    torch.testing.assert_close(bradley_terry(second, first, 1 - labels), found, rtol=0, atol=1e-12)


def test_bradley_terry_gradients() -> None:
    first, second = torch.randn(2, 4, dtype=torch.float64)
    labels = exact([0.0, 0.5, 0.75, 1.0]).requires_grad_()
    first.requires_grad_()
    second.requires_grad_()
    bradley_terry_loss(first_scores=first, second_scores=second, labels=labels).loss.backward()
    assert labels.grad is None
    fixed = labels.detach()
    assert gradcheck(lambda a, b: bradley_terry(a, b, fixed), (first, second))


def test_bradley_terry_extreme_scores_stay_finite() -> None:
    first = torch.tensor([1e30, -1e30], requires_grad=True)
    found = bradley_terry(first, torch.zeros(2), torch.tensor([1.0, 1.0]))
    found.sum().backward()
    assert found.tolist() == [0, pytest.approx(1e30)]
    assert first.grad is not None
    assert first.grad.tolist() == [0, -1]


def test_bradley_terry_errors() -> None:
    text = exactly(
        "expected `labels` in [0, 1], got -1.0 to 1.0: give the probability that the first "
        "response is better"
    )
    with pytest.raises(ValueError, match=text):
        bradley_terry(torch.zeros(2), torch.zeros(2), torch.tensor([-1.0, 1.0]))
    with pytest.raises(ValueError, match=r"^expected `labels` in \[0, 1\], got nan to nan"):
        bradley_terry(torch.zeros(1), torch.zeros(1), torch.tensor([math.nan]))
    text = exactly(
        "expected `second_scores` of shape (2,) like the rows of `first_scores`, got (2, 1): give "
        "one value for each row, call .squeeze(-1)"
    )
    with pytest.raises(ValueError, match=text):
        bradley_terry(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2))
    text = exactly(
        "expected `labels` of shape (2,) like the rows of `first_scores`, got (1,): give one value "
        "for each row"
    )
    with pytest.raises(ValueError, match=text):
        bradley_terry(torch.zeros(2), torch.zeros(2), torch.zeros(1))


def test_regression_by_hand() -> None:
    """(1 − 3)² and (2 − 1)², mean 2.5; gradient 2 · difference / 2."""
    predictions, targets = exact([1.0, 2.0]).requires_grad_(), exact([3.0, 1.0]).requires_grad_()
    found = regression_loss(predictions=predictions, targets=targets)
    assert found.per_row.tolist() == [4, 1]
    assert found.loss.item() == 2.5
    found.loss.backward()
    assert predictions.grad is not None
    assert predictions.grad.tolist() == [-2, 1]
    assert targets.grad is None


@pytest.mark.parametrize(
    "function",
    [
        lambda: regression_loss(predictions=torch.zeros(3), targets=torch.zeros(3, 1)),
        lambda: regression_loss(predictions=torch.zeros(3), targets=torch.zeros(1)),
    ],
)
def test_regression_does_not_broadcast(function: Callable[[], object]) -> None:
    with pytest.raises(
        ValueError, match=r"^expected `targets` of shape \(3,\) like the rows of `predictions`"
    ):
        function()
