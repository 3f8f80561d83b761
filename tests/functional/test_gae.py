from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional import (
    Advantages,
    archer_next_values,
    gae,
    macro_discounts,
    token_level_gae,
)
from tests.functional.exact_text import exactly
from tests.functional.online_inputs import (
    GAMMA,
    SEEDS,
    Random,
    exact,
    flags,
    random_rollout,
    settled,
    worked,
)

SHARES = st.sampled_from([0.0, 0.3, 0.95, 1.0])


def close(found: Tensor, expected: object, atol: float = 6e-7) -> None:
    torch.testing.assert_close(found.flatten().double(), exact(expected), rtol=0, atol=atol)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# --- actions --------------------------------------------------------------------------------------


def macro_inputs(end: str, durations: list[int]) -> dict[str, Any]:
    """Three macros of 3, 1 and 10 primitive steps; the boot value is 0.4."""
    return {
        "rewards": exact([[0.19305], [-0.001], [1.0]]),
        "values": exact([[0.5], [0.6], [0.7]]),
        "next_values": exact([[0.6], [0.7], [0.4]]),
        "terminated": flags([False], [False], [end == "terminated"]),
        "truncated": flags([False], [False], [end == "truncated"]),
        "discounts": macro_discounts(torch.tensor(durations)[:, None], gamma=0.99).double(),
        "gae_lambda": 0.95,
    }


@pytest.mark.parametrize(
    ("end", "durations", "expected"),
    [
        ("terminated", [3, 1, 10], [0.620115, 0.374150, 0.300000]),
        ("none", [3, 1, 10], [0.933732, 0.714379, 0.661753]),
        ("truncated", [3, 1, 10], [0.933732, 0.714379, 0.661753]),
        ("terminated", [1, 1, 1], [0.638938, 0.374150, 0.300000]),
        ("none", [1, 1, 1], [0.989216, 0.746588, 0.696000]),
    ],
)
def test_macro_actions_discount_by_their_durations(
    end: str, durations: list[int], expected: list[float]
) -> None:
    """A_3 = 1 − .7 (+ .99^10 · .4); A_2 = −.001 + .99 · .7 − .6 + .99 · .95 · A_3; λ is not raised.

    A_1 = .19305 + .99³ · .6 − .5 + .99³ · .95 · A_2. Durations of 1 are the wrong reading.
    """
    found = gae(**macro_inputs(end, durations))
    close(found.advantages, expected)
    close(found.returns, [a + v for a, v in zip(expected, (0.5, 0.6, 0.7), strict=True)])


def test_macro_discounts_are_powers() -> None:
    found = macro_discounts(torch.tensor([[1, 2, 10]]), gamma=0.99)
    close(found, [0.99, 0.9801, 0.99**10])
    close(macro_discounts(torch.tensor([[5]]), gamma=1.0), [1.0])
    close(macro_discounts(torch.tensor([[5]]), gamma=0.0), [0.0])


ACTION_LEVEL = {
    ("A", 0.9): [0.621500, 0.300000],
    ("B", 0.9): [0.946400, 0.680000],
    ("C", 0.9): [-0.300000, 0.680000],
    ("A", 1.0): [0.650000, 0.300000],
    ("B", 1.0): [1.011000, 0.680000],
    ("C", 1.0): [-0.300000, 0.680000],
    ("A", 0.0): [0.365000, 0.300000],
    ("B", 0.0): [0.365000, 0.680000],
    ("C", 0.0): [-0.300000, 0.680000],
}


@pytest.mark.parametrize("case", ACTION_LEVEL)
def test_worked_example_of_actions(case: tuple[str, float]) -> None:
    """Case A, λ = .9: 1 − .7 = .3; .2 + .95 · .7 − .5 + .95 · .9 · .3 = .6215."""
    close(gae(**worked(*case, level="actions")).advantages, ACTION_LEVEL[case])


def test_a_time_limit_bootstraps_and_an_end_does_not() -> None:
    """With a limit after step 1: .2 + .95 · V − .5, nothing of step 2; with an end: .2 − .5."""
    inputs = worked("B", level="actions") | {"next_values": exact([[0.8], [0.4]])}
    ended = flags([True], [False])
    limited = gae(**inputs | {"truncated": ended}).advantages
    close(limited, [0.2 + 0.95 * 0.8 - 0.5, 0.68], atol=1e-12)
    close(gae(**inputs | {"terminated": ended}).advantages, [-0.3, 0.68], atol=1e-12)
    both = inputs | {"terminated": ended, "truncated": ended}
    close(gae(**both).advantages, [-0.3, 0.68], atol=1e-12)


@settled
@given(seed=SEEDS, gae_lambda=SHARES)
def test_actions_equal_the_loop(seed: int, gae_lambda: float) -> None:
    rollout = random_rollout(seed, longest=1)
    found = gae(**rollout.action_inputs(), gae_lambda=gae_lambda)
    for world in range(3):
        coefficients = {"intra_action_gamma": 0.5, "intra_action_lambda": 0.5}
        loop = rollout.loop(world, gae_lambda=gae_lambda, **coefficients)
        close(found.advantages[:, world], [row[0] for row in loop], atol=1e-12)


@settled
@given(seed=SEEDS)
def test_lambda_zero_is_the_td_error_and_lambda_one_the_return(seed: int) -> None:
    rollout = random_rollout(seed, longest=1)
    inputs = rollout.action_inputs()
    bootstrap = inputs["next_values"].masked_fill(inputs["terminated"], 0)
    error = inputs["rewards"] + inputs["discounts"] * bootstrap - inputs["values"]
    same(gae(**inputs, gae_lambda=0.0).advantages, error)
    found = gae(**inputs, gae_lambda=1.0)
    done = inputs["terminated"] | inputs["truncated"]
    total = inputs["next_values"][-1]
    for t in reversed(range(7)):
        following = torch.where(done[t], bootstrap[t], total)
        total = inputs["rewards"][t] + inputs["discounts"][t] * following
        same(found.returns[t], total)


# --- tokens ---------------------------------------------------------------------------------------

NTPO = {
    ("A", 0.9): [0.428253, 0.419009, 0.180127, 0.140500, 0.100000],
    ("B", 0.9): [0.631324, 0.656519, 0.457917, 0.465400, 0.480000],
    ("C", 0.9): [-0.272000, -0.400000, 0.457917, 0.465400, 0.480000],
    ("A", 1.0): [0.504506, 0.457375, 0.202500, 0.150000, 0.100000],
    ("B", 1.0): [0.814019, 0.783177, 0.545450, 0.511000, 0.480000],
    ("C", 1.0): [-0.310000, -0.400000, 0.545450, 0.511000, 0.480000],
    ("A", 0.0): [0.070000, 0.265000, 0.060000, 0.055000, 0.100000],
    ("B", 0.0): [0.070000, 0.265000, 0.060000, 0.055000, 0.480000],
    ("C", 0.0): [0.070000, -0.400000, 0.060000, 0.055000, 0.480000],
}
POAD = {
    ("A", 0.9): [0.547035, 0.496705, 0.271000, 0.190000, 0.100000],
    ("B", 0.9): [0.783887, 0.759874, 0.578800, 0.532000, 0.480000],
    ("C", 0.9): [-0.260000, -0.400000, 0.578800, 0.532000, 0.480000],
    ("A", 1.0): [0.650000, 0.550000, 0.300000, 0.200000, 0.100000],
    ("B", 1.0): [1.011000, 0.911000, 0.680000, 0.580000, 0.480000],
    ("C", 1.0): [-0.300000, -0.400000, 0.680000, 0.580000, 0.480000],
    ("A", 0.0): [0.100000, 0.265000, 0.100000, 0.100000, 0.100000],
    ("B", 0.0): [0.100000, 0.265000, 0.100000, 0.100000, 0.480000],
    ("C", 0.0): [0.100000, -0.400000, 0.100000, 0.100000, 0.480000],
}
FULL_TRACE = {
    ("A", 0.9): [0.621500, 0.521500, 0.300000, 0.200000, 0.100000],
    ("B", 0.9): [0.946400, 0.846400, 0.680000, 0.580000, 0.480000],
    ("C", 0.9): [-0.300000, -0.400000, 0.680000, 0.580000, 0.480000],
    ("A", 1.0): POAD["A", 1.0],
    ("B", 1.0): POAD["B", 1.0],
    ("C", 1.0): POAD["C", 1.0],
    ("A", 0.0): [0.365000, 0.265000, 0.300000, 0.200000, 0.100000],
    ("B", 0.0): [0.365000, 0.265000, 0.680000, 0.580000, 0.480000],
    ("C", 0.0): [-0.300000, -0.400000, 0.680000, 0.580000, 0.480000],
}
FIRST_RELEASE = {
    ("A", 0.9): [0.515620, 0.486105, 0.258603, 0.185500, 0.100000],
    ("B", 0.9): [0.718691, 0.723615, 0.536392, 0.510400, 0.480000],
    ("C", 0.9): [-0.242000, -0.400000, 0.536392, 0.510400, 0.480000],
}
HALF_GAMMA = {
    ("A", 0.9): [-0.248982, -0.108849, -0.437250, -0.305000, 0.100000],
    ("B", 0.9): [-0.219375, -0.043056, -0.360300, -0.134000, 0.480000],
}
ARCHER = {
    ("A", 0.9): [0.590703, 0.609009, 0.180127, 0.140500, 0.100000],
    ("B", 0.9): [0.793774, 0.846519, 0.457917, 0.465400, 0.480000],
    ("C", 0.9): [-0.272000, -0.400000, 0.457917, 0.465400, 0.480000],
}
VARIANTS = ("ntpo", "poad", "full_trace", "first_release", "half_gamma")
TABLES = dict(zip(VARIANTS, (NTPO, POAD, FULL_TRACE, FIRST_RELEASE, HALF_GAMMA), strict=True))


def coefficients(variant: str, gae_lambda: float) -> dict[str, float]:
    gamma, trace = {
        "ntpo": (GAMMA, gae_lambda),
        "poad": (1.0, gae_lambda),
        "full_trace": (1.0, 1.0),
        "first_release": (1.0, GAMMA * gae_lambda),
        "half_gamma": (0.5, gae_lambda),
    }[variant]
    return {"intra_action_gamma": gamma, "intra_action_lambda": trace}


def of_tokens(found: Tensor, inputs: dict[str, Any]) -> Tensor:
    return found[inputs["mask"]]


@pytest.mark.parametrize(
    ("variant", "case"), [(variant, case) for variant in VARIANTS for case in TABLES[variant]]
)
def test_worked_example_of_tokens(variant: str, case: tuple[str, float]) -> None:
    """Case A, λ = .9, POAD: .1 = 1 − .9; .19 = .9 − .8 + .9 · .1; .271 = .8 − .7 + .9 · .19.

    Then the boundary, .2 + .95 · .7 − .6 + .95 · .9 · .271 = .496705, and inside once more,
    .6 − .5 + .9 · .496705 = .547035.
    """
    inputs = worked(*case)
    found = token_level_gae(**inputs, **coefficients(variant, case[1]))
    close(of_tokens(found.advantages, inputs), TABLES[variant][case])
    same(found.returns, (found.advantages + inputs["values"]).masked_fill(~inputs["mask"], 0))


def test_the_tables_are_whole() -> None:
    assert [len(TABLES[variant]) for variant in VARIANTS] == [9, 9, 9, 3, 2]


@pytest.mark.parametrize("case", ARCHER)
def test_worked_example_of_archer(case: tuple[str, float]) -> None:
    """The first action bootstraps from .9, before the last token of the second, instead of .7."""
    inputs = worked(*case)
    names = ("values", "mask", "next_values", "terminated", "truncated")
    bootstrap = archer_next_values(**{name: inputs[name] for name in names})
    close(bootstrap, [0.7 if case[0] == "C" else 0.9, 0.4])
    found = token_level_gae(**inputs | {"next_values": bootstrap}, **coefficients("ntpo", 0.9))
    close(of_tokens(found.advantages, inputs), ARCHER[case])


def test_archer_bootstraps_from_the_observation_at_a_time_limit() -> None:
    inputs = worked("B") | {"truncated": flags([True], [False])}
    names = ("values", "mask", "next_values", "terminated", "truncated")
    close(archer_next_values(**{name: inputs[name] for name in names}), [0.7, 0.4])


@pytest.mark.parametrize(
    ("variant", "case", "expected"),
    [
        ("poad", ("A", 0.9), [1.047035, 1.096705, 0.971, 0.99, 1.0]),
        ("ntpo", ("A", 0.9), [0.928253, 1.019009, 0.880127, 0.9405, 1.0]),
        ("poad", ("B", 0.9), [1.283887, 1.359874, 1.2788, 1.332, 1.38]),
        ("ntpo", ("B", 0.9), [1.131324, 1.256519, 1.157917, 1.2654, 1.38]),
        ("poad", ("A", 1.0), [1.15, 1.15, 1.0, 1.0, 1.0]),
        ("poad", ("B", 1.0), [1.511, 1.511, 1.38, 1.38, 1.38]),
    ],
)
def test_worked_example_of_returns(
    variant: str, case: tuple[str, float], expected: list[float]
) -> None:
    inputs = worked(*case)
    found = token_level_gae(**inputs, **coefficients(variant, case[1]))
    close(of_tokens(found.returns, inputs), expected)


@settled
@given(seed=SEEDS, gae_lambda=SHARES, gamma=SHARES, trace=SHARES)
def test_tokens_equal_the_loop(seed: int, gae_lambda: float, gamma: float, trace: float) -> None:
    """Padding holds NaN here; it must reach nothing."""
    rollout = random_rollout(seed)
    given_ = {
        "gae_lambda": gae_lambda,
        "intra_action_gamma": gamma,
        "intra_action_lambda": trace,
    }
    found = token_level_gae(**rollout.inputs, **given_)
    mask = rollout.inputs["mask"]
    assert not found.advantages[~mask].any()
    assert not found.returns[~mask].any()
    for world in range(3):
        for t, row in enumerate(rollout.loop(world, **given_)):
            close(found.advantages[t, world][mask[t, world]], row, atol=1e-12)
    same(found.returns[mask], (found.advantages + rollout.inputs["values"])[mask])


def td_errors(rollout: Random) -> Tensor:
    inputs = rollout.action_inputs()
    bootstrap = inputs["next_values"].masked_fill(inputs["terminated"], 0)
    return inputs["rewards"] + inputs["discounts"] * bootstrap - inputs["values"]


def poad(rollout: Random, gae_lambda: float, trace: float) -> Advantages:
    given_ = {"intra_action_gamma": 1.0, "intra_action_lambda": trace}
    return token_level_gae(**rollout.inputs, gae_lambda=gae_lambda, **given_)


@settled
@given(seed=SEEDS, gae_lambda=SHARES)
def test_with_a_full_trace_the_first_token_has_the_actions_advantage(
    seed: int, gae_lambda: float
) -> None:
    """Whatever the inner values are, and all tokens of an action have one return."""
    rollout = random_rollout(seed)
    found = poad(rollout, gae_lambda, 1.0)
    expected = gae(**rollout.action_inputs(), gae_lambda=gae_lambda).advantages
    same(found.advantages[..., 0], expected)
    mask = rollout.inputs["mask"]
    same(found.returns[mask], found.returns[..., :1].expand(mask.shape)[mask])


def test_with_a_shorter_trace_it_has_not() -> None:
    """0.547035 against 0.621500: the boundary's trace shrinks with the number of tokens."""
    found = token_level_gae(**worked("A"), **coefficients("poad", 0.9)).advantages[0, 0, 0]
    expected = gae(**worked("A", level="actions")).advantages[0, 0]
    assert float(expected - found) == pytest.approx(0.6215 - 0.547035, abs=1e-6)


@settled
@given(seed=SEEDS)
def test_without_a_trace_tokens_sum_to_the_actions_td_error(seed: int) -> None:
    """POAD telescopes as it is, NTPO with each token weighed by γ^(j − 1)."""
    rollout = random_rollout(seed)
    error = td_errors(rollout)
    same(poad(rollout, 0.0, 0.0).advantages.sum(-1), error)
    gamma, lengths = 0.9, torch.from_numpy(rollout.lengths)
    found = token_level_gae(
        **rollout.inputs, gae_lambda=0.0, intra_action_gamma=gamma, intra_action_lambda=0.0
    ).advantages
    weights = gamma ** torch.arange(4, dtype=torch.float64)
    first = rollout.inputs["values"][..., 0]
    expected = gamma ** (lengths.double() - 1) * (error + first) - first
    same((weights * found).sum(-1), expected)


@settled
@given(seed=SEEDS, gae_lambda=SHARES, gamma=SHARES, trace=SHARES)
def test_one_token_actions_are_actions(
    seed: int, gae_lambda: float, gamma: float, trace: float
) -> None:
    rollout = random_rollout(seed, longest=1)
    given_ = {"intra_action_gamma": gamma, "intra_action_lambda": trace}
    found = token_level_gae(**rollout.inputs, gae_lambda=gae_lambda, **given_)
    expected = gae(**rollout.action_inputs(), gae_lambda=gae_lambda)
    same(found.advantages[..., 0], expected.advantages)
    same(found.returns[..., 0], expected.returns)


@settled
@given(seed=SEEDS, gae_lambda=SHARES)
def test_ntpo_is_gae_on_the_flat_token_sequence(seed: int, gae_lambda: float) -> None:
    """Rewards and ends lie on last tokens; every other step leads to the next token's value."""
    rollout = random_rollout(seed, shape=(7, 1))
    inputs = rollout.inputs | {"discounts": torch.full((7, 1), GAMMA, dtype=torch.float64)}
    found = token_level_gae(
        **inputs, gae_lambda=gae_lambda, intra_action_gamma=GAMMA, intra_action_lambda=gae_lambda
    )
    mask = inputs["mask"][:, 0]
    last = torch.arange(4) == torch.from_numpy(rollout.lengths) - 1
    flat = {}
    for name in ("rewards", "terminated", "truncated"):
        flat[name] = (inputs[name] * last).to(inputs[name].dtype)[mask][:, None]
    values = inputs["values"][:, 0]
    following = torch.cat([values[:, 1:], values[:, :1]], dim=1)
    next_values = torch.where(last, inputs["next_values"], following)
    expected = gae(
        **flat,
        values=values[mask][:, None],
        next_values=next_values[mask][:, None],
        discounts=torch.full((int(mask.sum()), 1), GAMMA, dtype=torch.float64),
        gae_lambda=gae_lambda,
    )
    same(found.advantages[:, 0][mask], expected.advantages[:, 0])


@settled
@given(seed=SEEDS, gae_lambda=SHARES, factor=st.sampled_from([-2.0, 0.5, 10.0]))
def test_advantages_scale_with_rewards_and_values(
    seed: int, gae_lambda: float, factor: float
) -> None:
    rollout = random_rollout(seed)
    scaled = dict(rollout.inputs)
    for name in ("rewards", "values", "next_values"):
        scaled[name] = factor * scaled[name]
    found = poad(Random(scaled, rollout.lengths), gae_lambda, gae_lambda).advantages
    same(found, factor * poad(rollout, gae_lambda, gae_lambda).advantages)


@settled
@given(seed=SEEDS, start=st.integers(1, 6))
def test_what_follows_an_end_changes_nothing_before_it(seed: int, start: int) -> None:
    """Nor does what stands as the next value where the world ended."""
    rollout = random_rollout(seed)
    inputs = {name: tensor.clone() for name, tensor in rollout.inputs.items()}
    inputs["terminated"][start - 1] = True
    before = poad(Random(inputs, rollout.lengths), 0.9, 0.9).advantages[:start]
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    for name in ("rewards", "values", "next_values"):
        changed[name][start:] += 100
    changed["next_values"][start - 1] = torch.nan
    after = poad(Random(changed, rollout.lengths), 0.9, 0.9).advantages[:start]
    assert torch.equal(before, after)


def test_the_values_place_decides_the_inner_errors() -> None:
    """With the token's place as its value, every inner POAD error is exactly 1 (read before it)."""
    inputs = worked("A") | {"values": torch.arange(3.0).expand(2, 1, 3).double()}
    inputs |= {"mask": torch.ones(2, 1, 3, dtype=torch.bool), "gae_lambda": 0.0}
    found = token_level_gae(**inputs, **coefficients("poad", 0.0)).advantages
    assert found[..., :2].unique().tolist() == [1.0]


@settled
@given(seed=SEEDS, order=st.permutations(range(3)))
def test_worlds_do_not_touch_each_other(seed: int, order: list[int]) -> None:
    rollout = random_rollout(seed)
    mixed = {name: tensor[:, order] for name, tensor in rollout.inputs.items()}
    expected = poad(rollout, 0.9, 0.9).advantages[:, order]
    same(poad(Random(mixed, rollout.lengths[:, order]), 0.9, 0.9).advantages, expected)
    for world in range(3):
        one = {name: tensor[:, world : world + 1] for name, tensor in rollout.inputs.items()}
        alone = poad(Random(one, rollout.lengths), 0.9, 0.9).advantages
        same(alone[:, 0], poad(rollout, 0.9, 0.9).advantages[:, world])


# --- gradients, precision, errors -----------------------------------------------------------------


def test_no_gradient_comes_out() -> None:
    inputs = worked("B")
    for name in ("rewards", "values", "next_values", "discounts"):
        inputs[name].requires_grad_()
    found = token_level_gae(**inputs, **coefficients("poad", 0.9))
    assert not found.advantages.requires_grad
    assert not found.returns.requires_grad
    actions = gae(**worked("B", level="actions") | {"values": inputs["values"][..., 0]})
    assert not actions.advantages.requires_grad


def test_half_precision_is_computed_in_single() -> None:
    inputs = worked("A")
    for name in ("rewards", "values", "next_values", "discounts"):
        inputs[name] = inputs[name].bfloat16()
    found = token_level_gae(**inputs, **coefficients("poad", 0.9))
    assert found.advantages.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"rewards": torch.zeros(2)},
            "expected `rewards` of shape (2, 1) like the steps and worlds of `values`, got (2,): "
            "give one for each action",
        ),
        (
            {"mask": torch.tensor([[[True, False, True]], [[True, True, True]]])},
            "expected right-padded actions of at least one token in `mask`, got holes: mask by the "
            "actions' lengths, not by what the ids or values are",
        ),
        (
            {"mask": torch.tensor([[[False, False, False]], [[True, True, True]]])},
            "expected right-padded actions of at least one token in `mask`, got an action without "
            "a token: mask by the actions' lengths, not by what the ids or values are",
        ),
        ({"intra_action_gamma": 1.5}, "expected `intra_action_gamma` in [0, 1], got 1.5"),
        ({"gae_lambda": -0.1}, "expected `gae_lambda` in [0, 1], got -0.1"),
        (
            {"values": torch.zeros(2, 3)},
            "expected `values` of shape [T, E, L], got (2, 3): give it 3 axes",
        ),
        (
            {"truncated": flags([False, False])},
            "expected `truncated` of shape (2, 1) like `rewards`, got (1, 2): give one mask entry "
            "for each value",
        ),
    ],
)
def test_errors(changes: dict[str, Any], text: str) -> None:
    inputs = worked("A") | coefficients("poad", 0.9) | changes
    with pytest.raises(ValueError, match=exactly(text)):
        token_level_gae(**inputs)


def test_flags_must_be_boolean() -> None:
    inputs = worked("A", level="actions") | {"terminated": torch.zeros(2, 1)}
    with pytest.raises(TypeError, match=r"`terminated` of dtype torch\.bool, got torch\.float32"):
        gae(**inputs)


def test_a_duration_is_at_least_one() -> None:
    text = (
        "expected `durations` of at least 1, got 0: an action takes a primitive step even where it "
        "fails"
    )
    with pytest.raises(ValueError, match=exactly(text)):
        macro_discounts(torch.tensor([[1, 0]]), gamma=0.9)
    with pytest.raises(ValueError, match=exactly("expected `gamma` in [0, 1], got 1.1")):
        macro_discounts(torch.tensor([[1]]), gamma=1.1)
