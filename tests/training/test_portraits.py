"""Pictures of what an agent did: the tokens of each unit of credit."""

from __future__ import annotations

import pytest

from llm_agents.training.portraits import _unit_ids

LISTED = [[1, 2, 3], [1, 2, 4, 5], [6, 7], []]


@pytest.mark.parametrize(
    ("taken", "num_units", "expected"),
    [
        (0, 2, [[1, 2], [3]]),  # parts from the others at its first and third token
        (1, 2, [[1, 2], [4, 5]]),
        (2, 1, [[6, 7]]),  # one unit is the whole action
        (1, 1, [[1, 2, 4, 5]]),
        (1, 4, [[1], [2], [4], [5]]),
    ],
)
def test_units_are_cut_where_actions_part(
    taken: int, num_units: int, expected: list[list[int]]
) -> None:
    assert _unit_ids(LISTED, taken, num_units) == expected
