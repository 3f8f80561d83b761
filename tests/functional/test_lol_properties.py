"""What holds for every option of the A-LoL family on random inputs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional import ALGORITHMS, Algorithm, LolLoss, lol_loss
from tests.reference import lol as reference

CLIPS = st.sampled_from([None, 0.0, 0.2, 0.9])
JUNK = st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e300])
SEEDS = st.integers(0, 10_000)
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
settled = settings(deadline=None, max_examples=15)


def inputs_of(seed: int, scale: float = 2.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 6, (), generator=generator))
    length = int(torch.randint(1, 6, (), generator=generator))

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    return {
        "log_probs": (-scale * uniform(rows, length)).requires_grad_(),
        "ref_log_probs": -scale * uniform(rows, length),
        "response_mask": torch.arange(length) < lengths,
        "rewards": uniform(rows),
        "values": uniform(rows),
    }


def compute(
    algorithm: Algorithm, inputs: dict[str, Tensor], clip_epsilon: float | None, **options: Any
) -> LolLoss:
    chosen: dict[str, Any] = {
        "kl_coef": 0.3 if algorithm == "a_lol_kl" else 0.0,
        "gold_floor": 0.1,
        "clamp_advantages": True,
        **options,
    }
    return lol_loss(algorithm, **inputs, clip_epsilon=clip_epsilon, **chosen)


@every_algorithm
@settled
@given(seed=SEEDS, clip_epsilon=CLIPS, clamp=st.booleans(), kl_coef=st.sampled_from([0.0, 0.3]))
def test_equals_the_loop(
    algorithm: Algorithm, seed: int, clip_epsilon: float | None, clamp: bool, kl_coef: float
) -> None:
    if algorithm not in ("a_lol_kl", "a_lol", "r_lol"):
        kl_coef = 0.0
    inputs = inputs_of(seed)
    found = compute(algorithm, inputs, clip_epsilon, clamp_advantages=clamp, kl_coef=kl_coef)
    expected = reference.losses(
        algorithm,
        inputs["log_probs"].detach().numpy(),
        inputs["ref_log_probs"].numpy(),
        inputs["response_mask"].numpy(),
        inputs["rewards"].numpy(),
        inputs["values"].numpy(),
        epsilon=clip_epsilon,
        beta=kl_coef,
        floor=0.1,
        clamp_advantages=clamp,
    )
    np.testing.assert_allclose(found.per_sequence.detach().numpy(), expected, atol=1e-10)
    assert found.loss.item() == pytest.approx(expected.mean(), abs=1e-10)


@every_algorithm
@settled
@given(seed=SEEDS, clip_epsilon=CLIPS, junk=JUNK, ref_junk=JUNK)
def test_what_is_masked_never_matters(
    algorithm: Algorithm, seed: int, clip_epsilon: float | None, junk: float, ref_junk: float
) -> None:
    inputs = inputs_of(seed)
    clean = compute(algorithm, inputs, clip_epsilon)
    (expected,) = torch.autograd.grad(clean.loss, inputs["log_probs"])
    mask = inputs["response_mask"]
    spoiled = inputs["log_probs"].detach().masked_fill(~mask, junk).requires_grad_()
    ref_spoiled = inputs["ref_log_probs"].masked_fill(~mask, ref_junk)
    changed = {**inputs, "log_probs": spoiled, "ref_log_probs": ref_spoiled}
    found = compute(algorithm, changed, clip_epsilon)
    (gradient,) = torch.autograd.grad(found.loss, spoiled)
    for left, right in zip(found, clean, strict=True):
        assert left is not None
        assert right is not None
        assert torch.equal(left, right)
    assert torch.equal(gradient, expected)
    assert (gradient[~mask] == 0).all()


@every_algorithm
@settled
@given(seed=SEEDS, clip_epsilon=CLIPS)
def test_permuting_the_batch_permutes_the_losses(
    algorithm: Algorithm, seed: int, clip_epsilon: float | None
) -> None:
    inputs = inputs_of(seed)
    order = torch.randperm(
        len(inputs["rewards"]), generator=torch.Generator().manual_seed(seed + 1)
    )
    whole = compute(algorithm, inputs, clip_epsilon)
    permuted = compute(algorithm, {k: v[order] for k, v in inputs.items()}, clip_epsilon)
    assert torch.equal(permuted.per_sequence, whole.per_sequence[order])
    assert permuted.loss.item() == pytest.approx(whole.loss.item(), abs=1e-12)


@every_algorithm
@settled
@given(seed=SEEDS, clip_epsilon=CLIPS, data=st.data())
def test_two_parts_recombine_to_the_whole(
    algorithm: Algorithm, seed: int, clip_epsilon: float | None, data: st.DataObject
) -> None:
    inputs = inputs_of(seed)
    rows = len(inputs["rewards"])
    cut = data.draw(st.integers(1, max(1, rows - 1)))
    whole = compute(algorithm, inputs, clip_epsilon).loss
    total = torch.zeros(())
    for part in (slice(0, cut), slice(cut, rows)):
        if size := len(range(rows)[part]):
            piece = compute(algorithm, {k: v[part] for k, v in inputs.items()}, clip_epsilon)
            total = total + piece.loss * size / rows
    assert total.item() == pytest.approx(whole.item(), abs=1e-12)


@every_algorithm
@settled
@given(seed=SEEDS, clip_epsilon=CLIPS, scale=st.sampled_from([1e2, 1e4, 1e6]))
def test_extreme_log_probs_stay_finite(
    algorithm: Algorithm, seed: int, clip_epsilon: float | None, scale: float
) -> None:
    inputs = {
        key: value.detach().float() if value.is_floating_point() else value
        for key, value in inputs_of(seed, scale).items()
    }
    inputs["log_probs"].requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = compute(algorithm, inputs, clip_epsilon)
    (gradient,) = torch.autograd.grad(found.loss, inputs["log_probs"])
    assert found.loss.isfinite()
    assert gradient.isfinite().all()
    assert found.weights.isfinite().all()
