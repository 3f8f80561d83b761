from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from llm_agents.functional import (
    NORMALIZATIONS,
    Normalization,
    branch_log_probs,
    list_entropy,
    list_kl,
    list_log_probs,
    normalize_scores,
)
from tests.functional.action_lists import offered, padded
from tests.functional.exact_text import exactly
from tests.functional.online_inputs import SEEDS, close, exact, settled
from tests.reference import action_scores as reference

# Three actions: 4 tokens in 4 words, 3 in 3, 9 in 6 (two words are split, in 3 and in 2).
WORKED = [
    [-2.0, -0.5, -0.3, -1.2],
    [-1.5, -0.4, -0.9],
    [-2.2, -0.3, -3.0, -0.05, -0.02, -0.6, -0.4, -1.1, -0.03],
]
WORDS = torch.tensor([[4, 3, 6]])


# --- the list policy ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normalization", "scores", "probs", "entropy"),
    [
        ("sum", [-4.0, -2.8, -7.7], [0.230158, 0.764152, 0.005690], 0.573061),
        ("token", [-1.0, -0.933333, -0.855556], [0.310141, 0.331522, 0.358337], 1.096866),
        ("word", [-1.0, -0.933333, -1.283333], [0.354333, 0.378760, 0.266908], 1.087893),
    ],
)
def test_worked_example(
    normalization: Normalization, scores: list[float], probs: list[float], entropy: float
) -> None:
    """Sums −4, −2.8, −7.7; by tokens over 4, 3, 9; by words over 4, 3, 6."""
    found = normalize_scores(*padded(WORKED), WORDS, normalization=normalization)
    close(found, [scores])
    lengths = {"sum": (1, 1, 1), "token": (4, 3, 9), "word": (4, 3, 6)}[normalization]
    by_hand = [s / n for s, n in zip((-4.0, -2.8, -7.7), lengths, strict=True)]
    close(found, [by_hand], 1e-12)
    log_probs = list_log_probs(found, offered(found))
    close(log_probs.exp(), [probs])
    close(list_entropy(log_probs, offered(found)), [entropy])
    close(log_probs.exp()[0], reference.list_policy(WORKED, [4, 3, 6], normalization), 1e-12)


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("sum", [-1.468989, -0.268989, -5.168989]),
        ("token", [-1.170727, -1.104061, -1.026283]),
        ("word", [-1.037519, -0.970853, -1.320853]),
    ],
)
def test_worked_log_probs(normalization: Normalization, expected: list[float]) -> None:
    scores = normalize_scores(*padded(WORKED), WORDS, normalization=normalization)
    close(list_log_probs(scores, offered(scores)), [expected])


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("sum", [-0.230158, -0.764152, 0.994310]),
        ("token", [-0.077535, -0.110507, 0.071296]),
        ("word", [-0.088583, -0.126253, 0.122182]),
    ],
)
def test_every_token_of_an_action_gets_the_same_gradient(
    normalization: Normalization, expected: list[float]
) -> None:
    """d ln π(C) / d log_probs[i, j] = (δ_iC − π_i) / L_i for all j; 0 in the padding."""
    token_log_probs, mask = padded(WORKED)
    token_log_probs.requires_grad_()
    scores = normalize_scores(token_log_probs, mask, WORDS, normalization=normalization)
    list_log_probs(scores, offered(scores))[0, 2].backward()
    assert token_log_probs.grad is not None
    wanted = exact(expected)[None, :, None].expand(mask.shape).masked_fill(~mask, 0)
    torch.testing.assert_close(token_log_probs.grad, wanted, rtol=0, atol=6e-7)


def test_the_length_divides_the_logarithm() -> None:
    """Probabilities over lengths would give 0.183898, 0.814082 and 0.002021."""
    wrong = exact([math.exp(-4) / 4, math.exp(-2.8) / 3, math.exp(-7.7) / 9])
    close(wrong / wrong.sum(), [0.183898, 0.814082, 0.002021])
    found = normalize_scores(*padded(WORKED), WORDS, normalization="token")
    close(list_log_probs(found, offered(found)).exp(), [[0.310141, 0.331522, 0.358337]])


def test_one_token_actions_of_one_word_score_alike() -> None:
    log_probs, mask = padded([[-1.0], [-2.0], [-0.5]])
    found = [
        normalize_scores(log_probs, mask, torch.ones(1, 3).long(), normalization=normalization)
        for normalization in NORMALIZATIONS
    ]
    assert len(found) == 3
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


def test_where_no_action_is_the_score_is_minus_infinity() -> None:
    """In a batch, lists are of different lengths."""
    mask = torch.tensor([[[True, True], [True, False]], [[True, False], [False, False]]])
    log_probs = torch.full((2, 2, 2), -1.0).masked_fill(~mask, torch.nan)
    words = torch.tensor([[2, 1], [1, 0]])
    for normalization in NORMALIZATIONS:
        found = normalize_scores(log_probs, mask, words, normalization=normalization)
        assert found[1].tolist() == [-1.0, -math.inf]
        assert bool(found[0].isfinite().all())


def test_sampling_temperature_changes_the_log_probs() -> None:
    """2, 1, 0 as they are, and doubled at temperature ½: keep those that were sampled from."""
    logits = exact([[2.0, 1.0, 0.0]])
    mask = offered(logits)
    close(list_log_probs(logits, mask), [[-0.407606, -1.407606, -2.407606]])
    close(list_log_probs(logits / 0.5, mask), [[-0.142932, -2.142932, -4.142932]])


@settled
@given(
    scores=st.lists(st.floats(-50, 0), min_size=1, max_size=6), seed=SEEDS, spare=st.integers(0, 3)
)
def test_order_and_padding_change_no_probability(
    scores: list[float], seed: int, spare: int
) -> None:
    row = exact([scores])
    expected = list_log_probs(row, offered(row))[0]
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
    wide = torch.cat([row[:, order], exact([[math.nan] * spare])], dim=1)
    mask = torch.arange(len(scores) + spare)[None] < len(scores)
    found = list_log_probs(wide, mask)
    torch.testing.assert_close(found[0, : len(scores)], expected[order], rtol=0, atol=1e-12)
    assert bool((found[0, len(scores) :] == -torch.inf).all())
    assert found.exp().sum().item() == pytest.approx(1, abs=1e-12)
    entropy = list_entropy(found, mask).item()
    assert entropy == pytest.approx(float(-(expected.exp() * expected).sum()), abs=1e-12)
    assert -1e-12 <= entropy <= math.log(len(scores)) + 1e-12


def test_a_single_action_is_certain_and_teaches_nothing() -> None:
    scores = exact([[-7.0, math.nan]]).requires_grad_()
    mask = torch.tensor([[True, False]])
    log_probs = list_log_probs(scores, mask)
    assert log_probs[0, 0].item() == 0
    entropy = list_entropy(log_probs, mask)
    assert entropy.tolist() == [0]
    (log_probs[0, 0] + entropy.sum()).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[0, 0]]


def test_gradients_of_ragged_lists_are_finite_and_right() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    scores = exact([[-1.0, -2.0, 0.0], [-0.5, -3.0, -1.0]]).requires_grad_()

    def loss(scores: Tensor) -> Tensor:
        log_probs = list_log_probs(scores, mask)
        return log_probs[:, 0].sum() + list_entropy(log_probs, mask).sum()

    assert gradcheck(loss, (scores,))


def test_impossible_actions_have_no_entropy() -> None:
    scores = exact([[0.0, -math.inf, 0.0]]).requires_grad_()
    log_probs = list_log_probs(scores, offered(scores))
    entropy = list_entropy(log_probs, offered(scores))
    close(entropy, [math.log(2)], 1e-12)
    entropy.sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())


def test_a_vocabulary_has_more_entropy_than_a_list() -> None:
    """ln 32000 = 10.37 nats a token against ln 5 = 1.61 an action."""
    for size, expected in ((32000, 10.373491), (5, 1.609438)):
        even = torch.zeros(1, size, dtype=torch.float64)
        close(list_entropy(list_log_probs(even, offered(even)), offered(even)), [expected])


def test_exact_divergence() -> None:
    """.7 ln(.7/.3) + .3 ln(.3/.7); none of a policy from itself."""
    mask = torch.tensor([[True, True, False]])
    p = exact([[0.7, 0.3, math.nan]]).log().requires_grad_()
    q = exact([[0.3, 0.7, math.nan]]).log().requires_grad_()
    found = list_kl(log_probs=p, ref_log_probs=q, mask=mask)
    close(found, [0.7 * math.log(7 / 3) + 0.3 * math.log(3 / 7)], 1e-12)
    assert list_kl(log_probs=p, ref_log_probs=p, mask=mask).item() == 0
    found.sum().backward()
    assert q.grad is None
    assert p.grad is not None
    assert p.grad[0, 2].item() == 0


@settled
@given(seed=SEEDS)
def test_exact_divergence_is_the_gradient_free_references(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, other = (torch.from_numpy(rng.normal(size=(2, 4))) for _ in range(2))
    mask = offered(scores)
    p, q = list_log_probs(scores, mask), list_log_probs(other, mask)
    found = list_kl(log_probs=p, ref_log_probs=q, mask=mask)
    expected = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert bool((found >= -1e-12).all())


# --- errors ---------------------------------------------------------------------------------------


def test_errors() -> None:
    log_probs, mask = padded(WORKED)
    with pytest.raises(ValueError, match=r"`normalization` sum, token, word, got 'words'"):
        normalize_scores(log_probs, mask, WORDS, normalization="words")  # type: ignore[arg-type]  # the fault
    with pytest.raises(ValueError, match=r"`num_words` of shape \(1, 3\) like the actions, got"):
        normalize_scores(log_probs, mask, WORDS[0], normalization="word")
    with pytest.raises(ValueError, match="`num_words` of at least 1 for every action, got 0"):
        normalize_scores(log_probs, mask, 0 * WORDS, normalization="word")
    with pytest.raises(ValueError, match=r"`token_log_probs` of shape \[B, A, L\], got"):
        normalize_scores(log_probs[0], mask[0], WORDS, normalization="sum")
    text = (
        "expected at least one action in every row of `mask`, got none in row(s) 1: a choice after "
        "an episode's end is not asked for"
    )
    some = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match=exactly(text)):
        list_log_probs(torch.zeros(2, 2), some)
    with pytest.raises(ValueError, match=r"`ref_log_probs` of shape \(1, 2\) like `log_probs`"):
        list_kl(log_probs=torch.zeros(1, 2), ref_log_probs=torch.zeros(2), mask=some[:1])
    with pytest.raises(TypeError, match=r"`mask` of dtype torch\.bool, got torch\.int64"):
        list_entropy(torch.zeros(1, 2), torch.ones(1, 2).long())
    with pytest.raises(ValueError, match=r"`token_ids` of shape \(1, 3, 9\) like"):
        branch_log_probs(log_probs, torch.zeros(1, 3, 8).long(), mask)
