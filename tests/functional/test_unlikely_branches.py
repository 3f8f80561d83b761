"""Policies over lists in which one branch is far less likely than another: values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_agents.functional import (
    NORMALIZATIONS,
    branch_entropies,
    branch_log_probs,
    clipped_surrogate_loss,
    kl_per_unit,
    list_entropy,
    list_kl,
    list_log_mass,
    list_log_probs,
    list_token_log_probs,
    logit_scores,
    normalize_scores,
    probability_policy,
)

GAPS = [0.0, 89.0, 120.0, 1e4]
# "stop", and two calls that begin alike and part at the third token, one of them longer.
TOKENS = ((9, 4), (7, 1, 3, 4), (7, 1, 5))
WORDS = torch.tensor([[1, 2, 2]])
LENGTH = max(map(len, TOKENS))
IDS = torch.tensor([[[*row, *[0] * (LENGTH - len(row))] for row in TOKENS]])
MASK = torch.tensor([[[j < len(row) for j in range(LENGTH)] for row in TOKENS]])
EVERY = torch.ones(1, len(TOKENS), dtype=torch.bool)


def by_hand(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """The chain rule over `log_probs` ``[A]`` in float64, from sets of actions: one set a sum."""

    def mass(prefix: tuple[int, ...]) -> Tensor:
        members = [a for a, row in enumerate(TOKENS) if row[: len(prefix)] == prefix]
        return torch.stack([log_probs[a] for a in members]).logsumexp(0)

    tokens, entropies = [], []
    for row in TOKENS:
        for j in range(LENGTH):
            if j >= len(row):
                tokens.append(torch.zeros((), dtype=torch.float64))
                entropies.append(torch.zeros((), dtype=torch.float64))
                continue
            before = row[:j]
            tokens.append(mass(row[: j + 1]) - mass(before))
            nexts = {other[: j + 1] for other in TOKENS if other[:j] == before and len(other) > j}
            terms = [mass(following) - mass(before) for following in sorted(nexts)]
            entropies.append(-torch.stack([t.exp() * t for t in terms]).sum())
    shape = (len(TOKENS), LENGTH)
    return torch.stack(tokens).reshape(shape), torch.stack(entropies).reshape(shape)


def scores(gap: float, lower: str, dtype: torch.dtype) -> Tensor:
    """Scores of which one branch lies `gap` below the other, exact in bfloat16 too."""
    values = torch.tensor([[0.0, -1.0, 0.5]], dtype=torch.float64)
    if lower == "stop":
        values[0, 0] -= gap
    elif lower == "calls":
        values[0, 1:] -= gap
    else:
        values[0, 1] -= gap
    return values.to(dtype)


def weights(shape: torch.Size) -> Tensor:
    """Fixed weights, so that every entry has a gradient of its own."""
    return torch.arange(1, 1 + math.prod(shape), dtype=torch.float64).reshape(shape) / 7


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("lower", ["stop", "calls", "one of the calls"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("part", [0, 1], ids=["log_probs", "entropies"])
def test_decomposed_tokens_however_unlikely_a_branch_is(
    gap: float, lower: str, dtype: torch.dtype, part: int
) -> None:
    given = scores(gap, lower, dtype).requires_grad_()
    found = list_token_log_probs(list_log_probs(given, EVERY), IDS, MASK)[part]
    loss = (found * weights(found.shape).to(found.dtype) * MASK).sum()
    (gradient,) = torch.autograd.grad(loss, given)

    exact = given.detach().double().requires_grad_()
    wanted = by_hand(exact.log_softmax(-1)[0])[part]
    (wanted_gradient,) = torch.autograd.grad((wanted * weights(wanted.shape)).sum(), exact)

    rounding = torch.finfo(found.dtype).eps
    # Differences of sums as large as the gap round to it; so do gradients given back in bfloat16.
    torch.testing.assert_close(found[0].double(), wanted, rtol=0, atol=16 * rounding * (1 + gap))
    coarse = torch.finfo(dtype).eps
    size = float(wanted_gradient.abs().max()) + 1
    slack = 16 * (coarse + rounding * gap) * size
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=0, atol=slack)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_of_token_log_probs_are_finite_and_0_where_nothing_is(
    gap: float, normalization: Any, dtype: torch.dtype
) -> None:
    """All three behaviours of POAD, from log-probs whose padding holds no number."""
    for row, token in ((0, 0), (1, 3), (2, 2)):
        values = torch.full((1, len(TOKENS), LENGTH), -1.0, dtype=dtype)
        values[0, row, token] -= gap
        values = values.masked_fill(~MASK, torch.nan).requires_grad_()
        actions = list_log_probs(
            normalize_scores(values, MASK, WORDS, normalization=normalization), EVERY
        )
        decomposed = list_token_log_probs(actions, IDS, MASK)
        trie = branch_log_probs(values, IDS, MASK)
        parts = {
            "decomposed": decomposed.log_probs,
            "decomposed entropies": decomposed.entropies,
            "trie": trie,
            "trie entropies": branch_entropies(values, IDS, MASK),
            "list": list_entropy(actions, EVERY),
            "mass": list_log_mass(values, MASK),
            "kl": list_kl(
                log_probs=actions, ref_log_probs=actions.detach().roll(1, -1), mask=EVERY
            ),
        }
        for name, part in parts.items():
            assert bool(part.isfinite().all()), name
            (gradient,) = torch.autograd.grad(part.sum(), values, retain_graph=True)
            assert bool(gradient.isfinite().all()), name
            assert bool((gradient[~MASK] == 0).all()), name


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ratios_and_divergences_are_finite_however_far_the_policy_moved(
    gap: float, sign: float
) -> None:
    new = torch.tensor([[-1.0, -2.0, torch.nan]]).requires_grad_()
    old = torch.tensor([[-1.0, -2.0 + sign * gap, torch.inf]])
    mask = torch.tensor([[True, True, False]])
    for gain in (1.0, -1.0):
        found = clipped_surrogate_loss(
            log_probs=new,
            old_log_probs=old,
            advantages=torch.tensor([[gain, gain, torch.nan]]),
            mask=mask,
            clip_epsilon=0.2,
            reduction="units",
        )
        divergence = kl_per_unit(
            log_probs=new, other_log_probs=old, mask=mask, estimator="k3"
        ).sum()
        for loss in (found.loss, divergence):
            (gradient,) = torch.autograd.grad(loss, new, retain_graph=True)
            assert bool(gradient.isfinite().all())
            assert gradient[0, 2] == 0


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize(
    "rule",
    [
        lambda values: probability_policy(values.masked_fill(~MASK, 0).sum(-1), EVERY),
        lambda values: list_log_probs(logit_scores(values, MASK, pad_value=1.0, group=3), EVERY),
    ],
    ids=["probabilities", "logits"],
)
def test_the_releases_of_glam_have_finite_gradients(
    gap: float, rule: Callable[[Tensor], Tensor]
) -> None:
    values = torch.full((1, len(TOKENS), LENGTH), -1.0)
    values[0, 0, 0] -= gap
    values = values.masked_fill(~MASK, torch.nan).requires_grad_()
    found = rule(values)
    assert bool(found.isfinite().all())
    (gradient,) = torch.autograd.grad((found * torch.tensor([1.0, 2.0, 3.0])).sum(), values)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[~MASK] == 0).all())
