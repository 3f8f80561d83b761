"""V-trace against arithmetic done by hand, its definition, and what it reduces to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_agents.functional.policy_gradient import normalize_advantages
from llm_agents.functional.vtrace import RolloutEnd, VTrace, vtrace

NO = [False, False, False]


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def of_three(
    terminated: list[bool],
    ratios: tuple[float, float, float] = (1, 1, 1),
    bootstrap: float | None = None,
    truncated: list[bool] = NO,
    beyond: tuple[float, float, float] = (0, 0, 0),
) -> VTrace:
    """V = [1, 2, 3], r = [0.1, 0, 1], γ = 0.99."""
    end: RolloutEnd = "self" if bootstrap is None else "bootstrap"
    following = column(*beyond)
    if bootstrap is not None:
        following[-1] = bootstrap
    return vtrace(
        rewards=column(0.1, 0, 1),
        values=column(1, 2, 3),
        next_values=following,
        terminated=torch.tensor(terminated).unsqueeze(1),
        truncated=torch.tensor(truncated).unsqueeze(1),
        importance_ratio=column(*ratios),
        gamma=0.99,
        rho_clip=1.0,
        c_clip=1.0,
        rollout_end=end,
    )


def expect(found: VTrace, targets: tuple[float, ...], advantages: tuple[float, ...]) -> None:
    torch.testing.assert_close(found.targets, column(*targets), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.advantages, column(*advantages), rtol=0, atol=1e-9)


def test_as_released_the_last_advantage_is_zero() -> None:
    """V_3 = (3 − 1) / 0.99; vs_1 = 2 + 0.97 = 0.99 · 3; vs_0 = 0.1 + 0.99 · 2.97 = 3.0403."""
    expect(of_three(NO), (3.0403, 2.97, 3.0), (2.0403, 0.97, 0.0))


def test_a_bootstrap_gives_the_last_step_an_advantage() -> None:
    """A_2 = 1 + 0.99 · 4 − 3 = 1.96; A_1 = 0.99 · 4.96 − 2; A_0 = 0.1 + 0.99² · 4.96 − 1."""
    expect(
        of_three(NO, bootstrap=4.0),
        (0.1 + 0.99**2 * 4.96, 0.99 * 4.96, 4.96),
        (3.961296, 2.9104, 1.96),
    )


@pytest.mark.parametrize("bootstrap", [None, 4.0])
def test_nothing_follows_an_end(bootstrap: float | None) -> None:
    expect(
        of_three([False, False, True], bootstrap=bootstrap),
        (1.0801, 0.99, 1.0),
        (0.0801, -1.01, -2.0),
    )


def test_ratios_and_an_end_in_the_middle() -> None:
    expect(of_three([False, True, False], ratios=(0.5, 2, 1)), (0.55, 0.0, 3.0), (-0.45, -2.0, 0.0))


def test_a_limit_cuts_the_trace_but_not_the_value() -> None:
    """vs_1 = 0 + 0.99 · 5 = 4.95, whatever comes after; vs_0 = 0.1 + 0.99 · 4.95."""
    found = of_three(NO, bootstrap=7.0, truncated=[False, True, False], beyond=(0.0, 5.0, 0.0))
    expect(found, (5.0005, 4.95, 7.93), (4.0005, 2.95, 4.93))


def test_a_limit_at_the_last_step_is_bootstrapped_as_released_too() -> None:
    found = of_three(NO, truncated=[False, False, True], beyond=(0.0, 0.0, 5.0))
    assert float(found.advantages[-1]) == pytest.approx(1 + 0.99 * 5 - 3)


def test_normalized_advantages_of_the_released_case() -> None:
    advantages = of_three(NO).advantages
    whole = torch.ones_like(advantages, dtype=torch.bool)
    found = normalize_advantages(advantages, whole, unbiased=True, epsilon=0.0, floor=1e-3)
    torch.testing.assert_close(found, column(1.015977, -0.032760, -0.983218), rtol=0, atol=1e-6)


def defined(  # the sum of IMPALA's equation 1, term by term
    r: np.ndarray, v: np.ndarray, last: float, done: np.ndarray, ratio: np.ndarray
) -> list[float]:
    gamma, rho_clip, c_clip = 0.9, 1.2, 0.8
    values = [*v, last]
    found = []
    for s in range(len(r)):
        total, factor = values[s], 1.0
        for t in range(s, len(r)):
            d = gamma * (1 - done[t])
            delta = min(rho_clip, ratio[t]) * (r[t] + d * values[t + 1] - values[t])
            total += factor * delta
            factor *= d * min(c_clip, ratio[t])
        found.append(total)
    return found


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))
def test_equals_the_definition(seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    r, v, ratio = rng.normal(size=steps), rng.normal(size=steps), rng.uniform(0.2, 3, steps)
    done, last = rng.random(steps) < 0.3, float(rng.normal())
    found = vtrace(
        rewards=column(*r),
        values=column(*v),
        next_values=column(*[0.0] * (steps - 1), last),
        terminated=torch.from_numpy(done).unsqueeze(1),
        truncated=torch.zeros(steps, 1, dtype=torch.bool),
        importance_ratio=column(*ratio),
        gamma=0.9,
        rho_clip=1.2,
        c_clip=0.8,
        rollout_end="bootstrap",
    )
    wanted = defined(r, v, last, done, ratio)
    torch.testing.assert_close(found.targets, column(*wanted))
    nexts = [*wanted[1:], last]
    gains = [
        min(1.2, ratio[t]) * (r[t] + 0.9 * (1 - done[t]) * nexts[t] - v[t]) for t in range(steps)
    ]
    torch.testing.assert_close(found.advantages, column(*gains))


def test_no_gradient_passes() -> None:
    values = column(1, 2, 3).requires_grad_()
    no = torch.zeros(3, 1, dtype=torch.bool)
    found = vtrace(
        rewards=column(0, 0, 0), values=values, next_values=values, terminated=no, truncated=no,
        importance_ratio=values, gamma=0.9, rho_clip=1.0, c_clip=1.0, rollout_end="bootstrap",
    )  # fmt: skip
    assert not found.targets.requires_grad
    assert not found.advantages.requires_grad


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gamma": 1.5}, "expected `gamma` from 0 to 1"),
        ({"rho_clip": 0.0}, "`rho_clip` and `c_clip` above 0"),
        ({"rollout_end": "none"}, "expected `rollout_end` 'bootstrap' or 'self'"),
        ({"rollout_end": "self", "gamma": 0.0}, "expected `gamma` above 0"),
        ({"rewards": column(1, 2)}, "expected `rewards` of shape"),
        ({"values": torch.zeros(3)}, "expected `values` of shape"),
    ],
)
def test_what_is_refused(change: dict[str, object], text: str) -> None:
    no = torch.zeros(3, 1, dtype=torch.bool)
    given: dict[str, object] = {
        "rewards": column(0, 0, 0), "values": column(1, 2, 3), "next_values": column(0, 0, 0),
        "terminated": no, "truncated": no, "importance_ratio": column(1, 1, 1), "gamma": 0.9,
        "rho_clip": 1.0, "c_clip": 1.0, "rollout_end": "bootstrap",
    }  # fmt: skip
    with pytest.raises(ValueError, match=text):
        vtrace(**{**given, **change})  # type: ignore[arg-type]


def test_a_mask_of_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match="`terminated`"):
        of_three([0, 0, 0])  # type: ignore[list-item]
