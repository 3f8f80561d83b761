"""Entertainment: golden episodes, quirks and their switches, offered lists, dead ends."""

from __future__ import annotations

import pytest

from llm_agents.envs.base import Step
from llm_agents.envs.planning import reachable_states, start_state
from llm_agents.envs.virtualhome_entertainment import (
    CHIPS,
    MILK,
    SOFA,
    STAND,
    TABLE,
    TV,
    Entertainment,
    EveningState,
    view_evening,
)


def do(world: Entertainment, *actions: int) -> Step:
    world.reset()
    for action in actions:
        step = world.take(action)
    return step


def bits(step: Step) -> str:
    return "".join(map(str, step.observation.vector))


FIRST = [
    (0, "000100000000100010010"),
    (7, "000100000000110010010"),
    (13, "000100000000110110010"),
    (1, "100010001000000000000"),
    (4, "100011001000000000000"),
    (9, "100011101000000000000"),
    (5, "100011101100000000000"),
    (10, "100011101110000000000"),
    (0, "000111101110100110010"),
    (8, "000111101110100111010"),
    (15, "000111101110101111110"),
]
SECOND = [
    *FIRST[4:8],
    (0, "000111101110100010010"),
    (6, "000111101110100010011"),
    (11, "000111011110100010011"),
    (7, "000110011110110010010"),
    (13, "000110011110110110010"),
    (8, "000110011110100111010"),
    (15, "000110011110101111110"),
]


@pytest.mark.parametrize("golden", [FIRST, SECOND])
@pytest.mark.parametrize("lists", ["strict", "fixed"])
def test_golden_episodes(golden: list[tuple[int, str]], lists: str) -> None:
    world = Entertainment(lists=lists)  # type: ignore[arg-type]  # one of the two
    assert "".join(map(str, world.reset().vector)) == "100010001000000000000"
    for action, vector in golden:
        assert action in world.observe(world.state).action_ids
        step = world.take(action)
        assert bits(step) == vector
    assert (step.reward, step.terminated, step.observation.actions) == (1.0, True, ())
    assert step.episode is not None
    assert step.episode.success
    assert step.episode.discounted_return == pytest.approx(0.598736939, abs=1e-9)
    assert step.episode.discounted_return == pytest.approx(world.optimal_return, abs=1e-12)


def test_full_hands_cannot_turn_on_the_tv() -> None:
    world = Entertainment()
    before = do(world, 4, 9, 5, 10, 0, 7)
    after = world.take(13)
    assert bits(before) == bits(after) == "000111101110110010010"
    assert after.reward == 0.0


def test_sitting_down_too_early_is_a_dead_end_of_the_released_lists() -> None:
    world = Entertainment()
    step = do(world, 0, 7, 13, 8, 15)
    for count in range(45):
        assert step.observation.action_ids == (1, 2, 3)
        step = world.step(count % 3)
    assert step.truncated


def test_standing_up_leaves_the_sofa_bit() -> None:
    world = Entertainment()
    stuck = do(world, 0, 7, 13, 8, 15, 1)
    assert stuck.observation.vector[18] == 1
    assert world.state.room == 0
    stood = world.take(STAND)
    assert stood.observation.vector[18] == 1
    assert world.state.is_sitting is False
    assert bits(world.take(1)) == "100010001000000000000"
    assert world.take(0).observation.vector[18] == 1
    assert do(Entertainment(sofa_sticks=False), 0, 7, 13, 8, 15, 16).observation.vector[18] == 0


def test_swapped_walks_make_a_second_trip_impossible() -> None:
    world = Entertainment()
    step = do(world, 5, 10, 0, 6, 12, 1)
    assert bits(step) == "100010000000000000000"
    assert step.observation.action_ids == (0, 2, 3, 5)
    saved = world.state_dict()
    assert bits(world.take(5)) == "100010000000000000000"
    world.load_state_dict(saved)
    assert bits(world.take(4)) == "100011000000000000000"
    assert do(Entertainment(lists="fixed"), 5, 10, 0, 6, 12, 1).observation.action_ids == (
        0,
        2,
        3,
        4,
    )
    assert do(world, 4, 9, 0, 6, 11, 1).observation.action_ids == (0, 2, 3, 4)
    assert do(Entertainment(lists="fixed"), 4, 9, 0, 6, 11, 1).observation.action_ids[-1] == 5


@pytest.mark.parametrize(
    ("actions", "strict", "fixed"),
    [
        ((4,), (0, 2, 3, 5, 9), None),
        ((5,), (0, 2, 3, 4, 10), None),
        ((4, 9), (0, 2, 3, 5), None),
        ((4, 9, 5), (0, 2, 3, 10), None),
        ((5, 10), (0, 2, 3, 4), None),
        ((5, 10, 4), (0, 2, 3, 9), None),
        ((4, 9, 5, 10), (0, 2, 3), None),
        ((4, 9, 0, 6, 11, 1, 5), (0, 2, 3, 10), None),
        ((5, 10, 0, 6, 12, 1, 4), (0, 2, 3, 9), None),
        ((0,), (1, 2, 3, 6, 7, 8), None),
        ((0, 6), (1, 2, 3), (1, 2, 3, 7, 8)),
        ((4, 9, 0, 6), (1, 2, 3, 7, 8, 11), None),
        ((5, 10, 0, 6), (1, 2, 3, 7, 8, 12), None),
        ((4, 9, 5, 10, 0, 6), (1, 2, 3, 7, 8, 11, 12), None),
        ((4, 9, 5, 10, 0, 6, 11), (1, 2, 3, 7, 8), None),
        ((4, 9, 5, 10, 0, 6, 12), (1, 2, 3, 7, 8), None),
        ((0, 7), (1, 2, 3, 6, 8, 13, 14), (1, 2, 3, 6, 8, 13)),
        ((0, 7, 13), (1, 2, 3, 6, 8), None),
        ((4, 9, 5, 10, 0, 7), (1, 2, 3, 6, 8, 13, 14), (1, 2, 3, 6, 8)),
        ((0, 8), (1, 2, 3, 6, 7), None),
        ((0, 7, 13, 8), (1, 2, 3, 6, 7, 15, 16), (1, 2, 3, 6, 7, 15)),
        ((0, 7, 13, 8, 15), (1, 2, 3), (1, 2, 3, 6, 7, 16)),
        ((0, 7, 13, 8, 15, 16, 1, 0, 8), (1, 2, 3), (1, 2, 3, 6, 7, 15)),
        ((3,), (0, 1, 2), None),
        ((2,), (0, 1, 3), None),
    ],
)
def test_offered_lists(
    actions: tuple[int, ...], strict: tuple[int, ...], fixed: tuple[int, ...] | None
) -> None:
    assert do(Entertainment(), *actions).observation.action_ids == strict
    cured = do(Entertainment(lists="fixed"), *actions).observation.action_ids
    assert cured == (strict if fixed is None else fixed)


def test_neither_item_seen_offers_the_rooms_only() -> None:
    world = Entertainment()
    away = EveningState(on_table=1 << CHIPS | 1 << MILK, chips_room=0, milk_room=0)
    assert world.observe(away).action_ids == (0, 2, 3)


def can_succeed(world: Entertainment) -> set[EveningState]:
    """Return the states from which the offered lists still lead to the end."""
    states = reachable_states(world, start_state(world))
    following = {
        state: [world.outcome(state, action) for action in world.observe(state).action_ids]
        for state in states
    }
    good: set[EveningState] = set()
    while True:
        found = {
            state
            for state, outcomes in following.items()
            if any(each.terminated or each.state in good for each in outcomes)
        }
        if found == good:
            return good
        good = found


@pytest.mark.parametrize("sofa_sticks", [True, False])
def test_fixed_lists_have_no_dead_end(sofa_sticks: bool) -> None:
    world = Entertainment(lists="fixed", sofa_sticks=sofa_sticks)
    assert can_succeed(world) == set(reachable_states(world, start_state(world)))


def test_strict_lists_have_dead_ends() -> None:
    world = Entertainment()
    assert len(can_succeed(world)) < len(reachable_states(world, start_state(world)))


def test_what_every_reachable_state_has() -> None:
    world = Entertainment()
    for state in reachable_states(world, start_state(world), "all"):
        view = view_evening(state)
        assert sum(view.near >> thing & 1 for thing in (TABLE, TV, SOFA)) <= 1
        assert all(view.seen >> thing & 1 == (view.room == 0) for thing in (TABLE, TV, SOFA))


def test_things_in_the_hand_lag_a_walk_behind() -> None:
    assert do(Entertainment(), 4, 9, 0, 4).observation.vector[:4] == (1, 0, 0, 0)
    assert do(Entertainment(room_lag=False), 4, 9, 0, 4).observation.vector[:4] == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ((2,), "You notice nothing useful here. You hold nothing."),
        ((5,), "You notice the chips and the milk. The milk is within reach. You hold nothing."),
        (
            (4, 9, 5),
            "You notice the milk. The milk is within reach. You hold the chips.",
        ),
        (
            (4, 9, 5, 10, 0, 6, 12),
            "You notice the coffee table, the TV and the sofa. The coffee table is within reach, "
            "but the TV is not. The TV is off. The milk is on the coffee table. "
            "You hold the chips.",
        ),
        (
            (0, 7, 13),
            "You notice the coffee table, the TV and the sofa. The TV is within reach, but the "
            "sofa is not. The TV is on. You hold nothing.",
        ),
        (
            (0, 7, 13, 8, 15),
            "You notice the coffee table, the TV and the sofa. The sofa is within reach. "
            "You sit on the sofa and face the TV. The TV is on. You hold nothing.",
        ),
    ],
)
def test_texts(actions: tuple[int, ...], text: str) -> None:
    assert do(Entertainment(), *actions).observation.text.split(". ", 1)[1] == text


def test_the_drawing() -> None:
    world = Entertainment()
    do(world, 4, 9, 0, 6, 11)
    assert world.render() == (
        "| @ living room: [c] TV off sofa | kitchen: m | bathroom: - | bedroom: - |\n"
        "standing, hands: nothing, near: the chips, the coffee table\n"
        "@ agent, c chips, m milk, [ ] coffee table\n"
        "step 5, return 0.0000"
    )


def test_unknown_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="expected lists strict or fixed, got 'loose'"):
        Entertainment(lists="loose")  # type: ignore[arg-type]
