"""The eight options are one family: what turns one into another, and where gradients flow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from llm_agents.functional import (
    ALGORITHMS,
    Algorithm,
    LolLoss,
    a_lol_kl_loss,
    a_lol_loss,
    a_lol_ref_free_loss,
    a_lol_seq_loss,
    leftover_advantages,
    lol_loss,
    nll_loss,
    r_gold_loss,
    r_lol_loss,
    wbc_loss,
)
from tests.functional.lol_inputs import OPTIONS, compute, exact, f1_inputs, f1_loss, random_inputs


def same_loss(left: LolLoss, right: LolLoss, log_probs: Tensor) -> None:
    torch.testing.assert_close(left.per_sequence, right.per_sequence, rtol=0, atol=1e-12)
    (of_left,) = torch.autograd.grad(left.loss, log_probs, retain_graph=True)
    (of_right,) = torch.autograd.grad(right.loss, log_probs, retain_graph=True)
    torch.testing.assert_close(of_left, of_right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip_epsilon", [None, 0.2])
@pytest.mark.parametrize(
    ("algorithm", "reduced"),
    [("r_lol", "wbc"), ("a_lol", "a_lol_ref_free"), ("a_lol_seq", "a_lol_ref_free")],
)
def test_a_ratio_of_one_needs_no_reference(
    algorithm: Algorithm, reduced: Algorithm, clip_epsilon: float | None, seed: int
) -> None:
    inputs = random_inputs(seed)
    inputs["ref_log_probs"] = inputs["log_probs"].detach()
    found = compute(algorithm, inputs, clip_epsilon=clip_epsilon)
    same_loss(found, compute(reduced, inputs), inputs["log_probs"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("algorithm", "reduced"),
    [("r_lol", "wbc"), ("a_lol", "a_lol_ref_free"), ("a_lol_seq", "a_lol_ref_free")],
)
def test_a_clip_of_zero_is_a_ratio_of_one(
    algorithm: Algorithm, reduced: Algorithm, seed: int
) -> None:
    inputs = random_inputs(seed)
    found = compute(algorithm, inputs, clip_epsilon=0.0)
    same_loss(found, compute(reduced, inputs), inputs["log_probs"])
    assert f1_loss("a_lol_seq", clip_epsilon=0.0)[0].loss.item() == pytest.approx(
        0.344329, abs=6e-7
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_kl_coefficient_makes_a_lol_kl_reference_free(seed: int) -> None:
    inputs = random_inputs(seed)
    found = compute("a_lol_kl", inputs, kl_coef=0.0)
    same_loss(found, compute("a_lol_ref_free", inputs), inputs["log_probs"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip_epsilon", [None, 0.2, 0.9])
def test_a_lol_without_value_is_r_lol(clip_epsilon: float | None, seed: int) -> None:
    inputs = random_inputs(seed)
    inputs["values"] = torch.zeros_like(inputs["values"])
    found = compute("a_lol", inputs, clip_epsilon=clip_epsilon)
    same_loss(found, compute("r_lol", inputs, clip_epsilon=clip_epsilon), inputs["log_probs"])


@pytest.mark.parametrize("seed", range(3))
def test_wbc_with_rewards_of_one_is_nll(seed: int) -> None:
    inputs = random_inputs(seed)
    inputs["rewards"] = torch.ones_like(inputs["rewards"])
    same_loss(compute("wbc", inputs), compute("nll", inputs), inputs["log_probs"])


@pytest.mark.parametrize("seed", range(3))
def test_r_gold_with_a_floor_of_one_is_wbc(seed: int) -> None:
    inputs = random_inputs(seed)
    found = compute("r_gold", inputs, gold_floor=1.0)
    same_loss(found, compute("wbc", inputs), inputs["log_probs"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip_epsilon", [None, 0.2])
def test_one_token_responses_make_a_lol_seq_equal_a_lol(
    clip_epsilon: float | None, seed: int
) -> None:
    inputs = random_inputs(seed)
    inputs["response_mask"] = torch.arange(4).expand(5, 4) < 1
    found = compute("a_lol_seq", inputs, clip_epsilon=clip_epsilon)
    same_loss(found, compute("a_lol", inputs, clip_epsilon=clip_epsilon), inputs["log_probs"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("algorithm", ["a_lol", "r_lol"])
def test_a_kl_term_means_a_ratio_of_one(algorithm: Algorithm, seed: int) -> None:
    """As released: KL comes with the clip at 0; the same holds under any clip here."""
    inputs = random_inputs(seed)
    weights = inputs["rewards"]
    if algorithm == "a_lol":
        weights = leftover_advantages(inputs["rewards"], inputs["values"])
    shared = {key: inputs[key] for key in ("log_probs", "ref_log_probs", "response_mask")}
    expected = a_lol_kl_loss(**shared, advantages=weights, kl_coef=0.3)
    for clip_epsilon in (0.0, 0.9, None):
        found = compute(algorithm, inputs, kl_coef=0.3, clip_epsilon=clip_epsilon)
        same_loss(found, expected, inputs["log_probs"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_option_has_its_own_function(algorithm: Algorithm) -> None:
    inputs = f1_inputs()
    scored = {key: inputs[key] for key in ("log_probs", "response_mask")}
    with_reference = {**scored, "ref_log_probs": inputs["ref_log_probs"]}
    rewards = inputs["rewards"]
    advantages = leftover_advantages(rewards, inputs["values"])
    own = {
        "nll": lambda: nll_loss(**scored),
        "wbc": lambda: wbc_loss(**scored, rewards=rewards),
        "r_gold": lambda: r_gold_loss(**scored, rewards=rewards, gold_floor=0.1),
        "r_lol": lambda: r_lol_loss(**with_reference, rewards=rewards, clip_epsilon=0.9),
        "a_lol": lambda: a_lol_loss(**with_reference, advantages=advantages, clip_epsilon=0.9),
        "a_lol_ref_free": lambda: a_lol_ref_free_loss(**scored, advantages=advantages),
        "a_lol_seq": lambda: a_lol_seq_loss(
            **with_reference, advantages=advantages, clip_epsilon=0.9
        ),
        "a_lol_kl": lambda: a_lol_kl_loss(**with_reference, advantages=advantages, kl_coef=0.2),
    }[algorithm]()
    kl_coef = 0.2 if algorithm == "a_lol_kl" else 0.0
    same_loss(own, compute(algorithm, inputs, kl_coef=kl_coef), inputs["log_probs"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradcheck_where_the_weights_stand_still(algorithm: Algorithm) -> None:
    """Ratios far outside the band and probabilities below the floor are constant weights."""
    inputs = random_inputs(1)
    log_probs = (inputs.pop("log_probs").detach() - 3).requires_grad_()
    inputs["ref_log_probs"] = inputs["ref_log_probs"] - torch.tensor([0, 9, 0, 9, 0])[:, None]
    kl_coef = 0.2 if algorithm == "a_lol_kl" else 0.0
    options = {**OPTIONS, "clip_epsilon": 0.2, "kl_coef": kl_coef, "gold_floor": 0.2}
    assert gradcheck(
        lambda lp: lol_loss(algorithm, log_probs=lp, **inputs, **options)[:2], (log_probs,)
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("clip_epsilon", [None, 0.9])
def test_nothing_but_the_log_probs_has_a_gradient(
    algorithm: Algorithm, clip_epsilon: float | None
) -> None:
    inputs = f1_inputs()
    frozen = ("ref_log_probs", "rewards", "values")
    for name in frozen:
        inputs[name].requires_grad_()
    kl_coef = 0.2 if algorithm == "a_lol_kl" else 0.0
    compute(algorithm, inputs, clip_epsilon=clip_epsilon, kl_coef=kl_coef).loss.backward()
    assert inputs["log_probs"].grad is not None
    for name in frozen:
        assert inputs[name].grad is None, name


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if a != "a_lol_kl"])
def test_a_small_step_raises_a_good_response(algorithm: Algorithm) -> None:
    logits = torch.zeros(1, 2, 3, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[0, 2]])

    def likelihood() -> Tensor:
        return logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)

    before = likelihood()
    found = lol_loss(
        algorithm,
        log_probs=before,
        ref_log_probs=before.detach() - 0.1,
        response_mask=torch.ones(1, 2).bool(),
        rewards=exact([0.9]),
        values=exact([0.6]),
        **OPTIONS,
    )
    (gradient,) = torch.autograd.grad(found.loss, logits)
    with torch.no_grad():
        logits -= 0.01 * gradient
    assert (likelihood() > before).all()
