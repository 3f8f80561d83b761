"""Policies over the tokens of offered actions: tries, and the chain rule of a list."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck

from llm_agents.functional import (
    branch_entropies,
    branch_log_probs,
    list_entropy,
    list_log_mass,
    list_log_probs,
    list_token_log_probs,
    normalize_scores,
)
from tests.functional.action_lists import offered, padded
from tests.functional.exact_text import exactly
from tests.functional.online_inputs import SEEDS, close, exact, settled
from tests.reference import action_scores as reference

# --- the trie policy ------------------------------------------------------------------------------


def test_list_policy_is_not_the_policy_whose_ratio_is_taken() -> None:
    """Two actions of two words, token probabilities (.5, .9) and (.1, .2).

    Raw mass .45 and .02, renormalized .957447 and .042553; the list by words samples √.45 : √.02.
    """
    log_probs, mask = padded([[math.log(0.5), math.log(0.9)], [math.log(0.1), math.log(0.2)]])
    close(list_log_mass(log_probs, mask).exp(), [0.47], 1e-12)
    words = torch.tensor([[2, 2]])
    for normalization, expected in (("sum", 0.957447), ("word", 0.825888)):
        scores = normalize_scores(log_probs, mask, words, normalization=normalization)
        close(list_log_probs(scores, offered(scores)).exp(), [[expected, 1 - expected]])


def test_trie_policy_by_hand() -> None:
    """They part at the first token: .5 : .1, and nothing competes after it."""
    log_probs, mask = padded([[math.log(0.5), math.log(0.9)], [math.log(0.1), math.log(0.2)]])
    ids = torch.tensor([[[1, 2], [3, 4]]])
    found = branch_log_probs(log_probs, ids, mask).exp()
    close(found, [[[5 / 6, 1.0], [1 / 6, 1.0]]], 1e-12)
    entropy = -(5 / 6 * math.log(5 / 6) + 1 / 6 * math.log(1 / 6))
    close(branch_entropies(log_probs, ids, mask), [[[entropy, 0.0]] * 2], 1e-12)


def test_a_shared_beginning_is_certain() -> None:
    """ "walk to the chips", "walk to the milk", "grab milk": shared tokens count once.

    First token .6 : .3, whatever the number of actions behind it; then the last token decides.
    """
    actions = [[0.6, 0.8, 0.1], [0.6, 0.8, 0.2], [0.3, 0.5]]
    log_probs, mask = padded([[math.log(p) for p in action] for action in actions])
    ids = torch.tensor([[[7, 8, 1], [7, 8, 2], [9, 2, 0]]])
    found = branch_log_probs(log_probs, ids, mask).exp()
    expected = [[2 / 3, 1, 1 / 3], [2 / 3, 1, 2 / 3], [1 / 3, 1, 1]]
    close(found, [expected], 1e-12)
    assert branch_log_probs(log_probs, ids, mask)[0, 2, 2].item() == 0  # padding


class RandomList(NamedTuple):
    ids: Tensor
    log_probs: Tensor
    mask: Tensor
    rows: list[tuple[int, ...]]
    row_log_probs: list[list[float]]


def random_list(seed: int) -> RandomList:
    """Distinct actions over few tokens, each ended by a mark, scored by one model of prefixes."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, 6)
    rows = sorted({(*rng.integers(0, 3, n).tolist(), 3) for n in lengths})
    rng.shuffle(rows)
    rows = [tuple(row) for row in rows]
    model: dict[tuple[int, ...], list[float]] = {}
    row_log_probs = []
    for row in rows:
        for j in range(len(row)):
            logits = torch.from_numpy(rng.normal(size=5))
            model.setdefault(row[:j], logits.log_softmax(0).tolist())
        row_log_probs.append([model[row[:j]][token] for j, token in enumerate(row)])
    log_probs, mask = padded(row_log_probs)
    ids = torch.full(mask.shape, -1)
    for a, row in enumerate(rows):
        ids[0, a, : len(row)] = torch.tensor(row)
    return RandomList(ids, log_probs, mask, rows, row_log_probs)


@settled
@given(seed=SEEDS)
def test_trie_policy_equals_the_loop(seed: int) -> None:
    drawn = random_list(seed)
    found = branch_log_probs(drawn.log_probs, drawn.ids, drawn.mask)
    entropies = branch_entropies(drawn.log_probs, drawn.ids, drawn.mask)
    expected, expected_entropies = reference.branches(drawn.row_log_probs, drawn.rows)
    close(found[drawn.mask], list(itertools.chain(*expected)), 1e-12)
    close(entropies[drawn.mask], list(itertools.chain(*expected_entropies)), 1e-12)
    assert not found[~drawn.mask].any()
    assert not entropies[~drawn.mask].any()


@settled
@given(seed=SEEDS)
def test_trie_policy_is_a_distribution_with_the_chain_rules_entropy(seed: int) -> None:
    """Σ_a π(a) = 1, and Σ_a π(a) Σ_j H_j(a) = −Σ_a π(a) ln π(a)."""
    drawn = random_list(seed)
    log_probs = branch_log_probs(drawn.log_probs, drawn.ids, drawn.mask).sum(-1)
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-12)
    entropies = branch_entropies(drawn.log_probs, drawn.ids, drawn.mask)
    chained = (log_probs.exp() * entropies.sum(-1)).sum().item()
    whole = list_entropy(log_probs, offered(log_probs)).item()
    assert chained == pytest.approx(whole, abs=1e-12)
    assert entropies.max().item() <= math.log(len(drawn.rows)) + 1e-12
    mass = list_log_mass(drawn.log_probs, drawn.mask).item()
    raw = math.log(sum(math.exp(sum(row)) for row in drawn.row_log_probs))
    assert mass == pytest.approx(raw, abs=1e-12)
    assert mass <= 1e-12


@settled
@given(seed=SEEDS)
def test_lists_of_a_batch_do_not_touch_each_other(seed: int) -> None:
    lists = [random_list(seed), random_list(seed + 1)]
    width = max(drawn.mask.shape[1] for drawn in lists)
    length = max(drawn.mask.shape[2] for drawn in lists)

    def widened(tensor: Tensor, filler: float) -> Tensor:
        wide = tensor.new_full((1, width, length), filler)
        wide[:, : tensor.shape[1], : tensor.shape[2]] = tensor
        return wide

    batch = (
        torch.cat([widened(drawn.log_probs, math.nan) for drawn in lists]),
        torch.cat([widened(drawn.ids, 0) for drawn in lists]),
        torch.cat([widened(drawn.mask, False) for drawn in lists]),
    )
    for function in (branch_log_probs, branch_entropies):
        found = function(*batch)
        for b, drawn in enumerate(lists):
            alone = function(drawn.log_probs, drawn.ids, drawn.mask)
            torch.testing.assert_close(found[b][batch[2][b]], alone[drawn.mask], rtol=0, atol=1e-12)
            assert not found[b][~batch[2][b]].any()


def test_trie_gradients() -> None:
    """A shared token's gradient is spread over its copies; padding has none."""
    ids = torch.tensor([[[7, 8, 1], [7, 8, 2], [9, 2, 0]]])
    base, mask = padded([[-0.5, -0.2, -2.3], [-0.5, -0.2, -1.6], [-1.2, -0.7]], filler=-1.0)

    def loss(free: Tensor) -> Tensor:
        # Copies move together: they are one number of the model.
        first, last = free[0].expand(2), free[1:3]
        moved = base.clone()
        moved[0, :2, 0], moved[0, :2, 2] = first, last
        restricted = branch_log_probs(moved, ids, mask)
        return restricted[0, 0].sum() + branch_entropies(moved, ids, mask).sum()

    assert gradcheck(loss, (exact([-0.5, -2.3, -1.6]).requires_grad_(),))
    dirty = base.masked_fill(~mask, math.nan).requires_grad_()
    (
        branch_log_probs(dirty, ids, mask)[0, 0].sum() + branch_entropies(dirty, ids, mask).sum()
    ).backward()
    assert dirty.grad is not None
    assert bool(dirty.grad.isfinite().all())
    assert not dirty.grad[~mask].any()


@pytest.mark.parametrize(
    ("ids", "lengths", "shorter", "longer"),
    [
        ([[1, 2, 0], [1, 2, 3]], (2, 3), 0, 1),
        ([[1, 2, 3], [1, 0, 0]], (3, 1), 1, 0),
        ([[1, 2, 3], [1, 2, 3]], (3, 3), 1, 0),
    ],
)
def test_an_action_that_begins_another_is_refused(
    ids: list[list[int]], lengths: tuple[int, int], shorter: int, longer: int
) -> None:
    mask = torch.arange(3) < torch.tensor(lengths)[:, None]
    text = (
        f"expected no action to begin another, but in row 0 the tokens of action {shorter} begin "
        f"action {longer}: end each action's text with a mark of its own"
    )
    for function in (branch_log_probs, branch_entropies):
        with pytest.raises(ValueError, match=exactly(text)):
            function(torch.zeros(1, 2, 3), torch.tensor([ids]), mask[None])


# --- the list's softmax, token by token


def by_enumeration(
    pi: dict[tuple[int, ...], float], action: tuple[int, ...]
) -> tuple[list[float], list[float]]:
    """Return the log-prob and the entropy at each token of an action, by summing over actions."""
    log_probs, entropies = [], []
    for place in range(len(action)):
        alike = {other: p for other, p in pi.items() if other[:place] == action[:place]}
        total = sum(alike.values())
        tokens: dict[int, float] = {}
        for other, p in alike.items():
            tokens[other[place]] = tokens.get(other[place], 0.0) + p / total
        log_probs.append(math.log(tokens[action[place]]))
        entropies.append(-sum(p * math.log(p) for p in tokens.values()))
    return log_probs, entropies


LISTS = [
    ((7, 1, 3), (7, 2), (8,), (7, 1, 4)),
    ((5,),),
    ((1, 2), (3, 4)),
    ((1, 2, 3), (1, 2, 4), (1, 2, 5)),
]


@pytest.mark.parametrize("actions", LISTS)
def test_tokens_of_the_list_are_those_of_enumeration(actions: tuple[tuple[int, ...], ...]) -> None:
    raw = torch.randn(len(actions), generator=torch.Generator().manual_seed(3)).double()
    probabilities = raw.softmax(0)
    pi = dict(zip(actions, probabilities.tolist(), strict=True))
    width = max(map(len, actions)) + 1  # a column of padding
    ids = torch.zeros(1, len(actions) + 1, width, dtype=torch.int64)  # and a row without an action
    mask = ids.bool()
    for row, action in enumerate(actions):
        ids[0, row, : len(action)] = torch.tensor(action)
        mask[0, row, : len(action)] = True
    log_probs = torch.full((1, len(actions) + 1), -math.inf, dtype=torch.float64)
    log_probs[0, :-1] = probabilities.log()
    log_probs.requires_grad_(True)
    found = list_token_log_probs(log_probs, ids, mask)
    for row, action in enumerate(actions):
        expected, entropies = by_enumeration(pi, action)
        close(found.log_probs[0, row, : len(action)], expected, 1e-12)
        close(found.entropies[0, row, : len(action)], entropies, 1e-12)
    assert found.log_probs[~mask].abs().sum() == 0
    assert found.entropies[~mask].abs().sum() == 0
    close(found.log_probs.sum(-1)[0, :-1], probabilities.log().tolist(), 1e-12)
    found.log_probs.sum().backward()
    assert log_probs.grad is not None
    assert bool(log_probs.grad.isfinite().all())


def test_tokens_of_the_list_need_a_place_to_stop() -> None:
    ids, mask = torch.tensor([[[1, 2], [1, 0]]]), torch.tensor([[[True, True], [True, False]]])
    with pytest.raises(ValueError, match="expected no action to begin another"):
        list_token_log_probs(torch.zeros(1, 2), ids, mask)
    with pytest.raises(ValueError, match="action_log_probs"):
        list_token_log_probs(torch.zeros(1, 3), ids, mask)
