"""Where credit goes: discounts between tokens, long actions, and the paper's case study."""

from __future__ import annotations

import pytest
import torch

from llm_agents.functional import (
    token_level_gae,
)
from tests.functional.online_inputs import (
    exact,
    flags,
)

# --- what the discount inside an action does ------------------------------------------------------

FIRST_TOKEN_GAPS = {
    0.95: (0, 0.050000, 0.097500, 0.185494, 0.369751, 0.998518),
    0.90: (0, 0.100000, 0.190000, 0.343900, 0.612580, 0.999998),
    0.80: (0, 0.200000, 0.360000, 0.590400, 0.865782, 1.000000),
    0.50: (0, 0.500000, 0.750000, 0.937500, 0.998047, 1.000000),
}


def first_return(length: int, gamma: float) -> float:
    """What an action of `length` tokens with reward 1 is worth at its first token."""
    one, no = torch.ones(1, 1, dtype=torch.float64), flags([False])
    found = token_level_gae(
        rewards=one,
        values=torch.zeros(1, 1, length, dtype=torch.float64),
        next_values=0 * one,
        mask=torch.ones(1, 1, length, dtype=torch.bool),
        terminated=~no,
        truncated=no,
        discounts=one,
        gae_lambda=1.0,
        intra_action_gamma=gamma,
        intra_action_lambda=1.0,
    )
    return float(found.returns[0, 0, 0])


@pytest.mark.parametrize("gamma", FIRST_TOKEN_GAPS)
def test_a_discount_between_tokens_hides_a_share_of_long_actions(gamma: float) -> None:
    """1 − γ_w^(n − 1) of the value is missing at the first token; with γ_w = 1 nothing is."""
    for length, gap in zip((1, 2, 3, 5, 10, 128), FIRST_TOKEN_GAPS[gamma], strict=True):
        assert 1 - first_return(length, gamma) == pytest.approx(gap, abs=6e-7)
        assert first_return(length, 1.0) == 1


def test_ntpo_prefers_short_actions() -> None:
    """Two actions of reward 1: of 2 tokens .95, of 5 tokens .814506."""
    assert first_return(2, 0.95) == pytest.approx(0.950000, abs=6e-7)
    assert first_return(5, 0.95) == pytest.approx(0.814506, abs=6e-7)


def case_study_credit(
    values: list[float], reward: float, next_value: float, gamma: float
) -> list[float]:
    """The token advantages of one action of five tokens, by the TD errors."""
    length = len(values)
    found = token_level_gae(
        rewards=exact([[reward]]),
        values=exact([[values]]),
        next_values=exact([[next_value]]),
        mask=torch.ones(1, 1, length, dtype=torch.bool),
        terminated=flags([reward > 0]),
        truncated=flags([False]),
        discounts=exact([[0.95]]),
        gae_lambda=0.0,
        intra_action_gamma=gamma,
        intra_action_lambda=0.0,
    )
    return found.advantages.flatten().tolist()


def test_case_study_puts_poads_credit_on_the_verb() -> None:
    """Three stages under the uniform policy, γ = .95, no step limit.

    V2 = ½ · 1 + ½ · γ · V2, V1 = γ · V2, V0 = ½ · γ · V1 + ½ · γ · V0; once the verb is said the
    rest of the action is settled, so that inner values are the action's.
    """
    v2 = 0.5 / (1 - 0.475)
    v1 = 0.95 * v2
    v0 = 0.475 * v1 / (1 - 0.475)
    assert (v0, v1, v2) == pytest.approx((0.818594, 0.904762, 0.952381), abs=6e-7)
    for value, next_value, reward, verb in (
        (v0, v1, 0.0, 0.040930),
        (v0, v0, 0.0, -0.040930),
        (v2, 0.0, 1.0, 0.047619),
        (v2, v2, 0.0, -0.047619),
    ):
        settled_value = reward + 0.95 * next_value
        credit = case_study_credit([value] + [settled_value] * 4, reward, next_value, 1.0)
        assert credit == pytest.approx([verb, 0, 0, 0, 0], abs=6e-7)


def test_case_study_shrinks_ntpos_values() -> None:
    """V2 = ½ γ⁴ + ½ γ⁵ V2, with γ between the five tokens too."""
    v2 = 0.5 * 0.95**4 / (1 - 0.5 * 0.95**5)
    assert v2 == pytest.approx(0.664242, abs=6e-7)
    inner = [0.857375, 0.9025, 0.95, 1.0]
    close_credit = case_study_credit([v2, *inner], 1.0, 0.0, 0.95)
    assert close_credit == pytest.approx([0.150264, 0, 0, 0, 0], abs=6e-7)
    open_credit = case_study_credit([v2] + [0.95 * v2 * v for v in inner], 0.0, v2, 0.95)
    assert open_credit == pytest.approx([-0.150264, 0, 0, 0, 0], abs=6e-7)
