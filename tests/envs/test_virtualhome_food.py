"""Food preparation: golden episodes, quirks and their switches, offered lists, the variants."""

from __future__ import annotations

import pytest

from llm_agents.envs.base import Step
from llm_agents.envs.planning import optimal_prospects, reachable_states, start_state
from llm_agents.envs.virtualhome_food import (
    CLOSE,
    OPEN,
    VARIANTS,
    FoodPreparation,
    FoodState,
    VariantName,
    offered_food,
    view_food,
)


def do(world: FoodPreparation, *actions: int) -> Step:
    world.reset()
    for action in actions:
        step = world.take(action)
    return step


def bits(step: Step) -> str:
    return "".join(map(str, step.observation.vector))


BEST = {4: "10001101000", 6: "10001111000", 5: "10001111100", 8: "10001111110", 7: "10001101111"}
OTHER = {
    5: "10001001100",
    8: "10001001110",
    4: "10001101010",
    6: "10001111010",
}


@pytest.mark.parametrize(
    "golden",
    [
        [*BEST.items(), (9, "10000001100")],
        [*OTHER.items(), (5, "10001111110"), (7, "10001101111"), (9, "10000001100")],
    ],
)
def test_golden_episodes(golden: list[tuple[int, str]]) -> None:
    world = FoodPreparation()
    assert "".join(map(str, world.reset().vector)) == "10001001000"
    for action, vector in golden:
        assert action in world.observe(world.state).action_ids
        step = world.take(action)
        assert bits(step) == vector
    assert (step.reward, step.terminated, step.observation.actions) == (1.0, True, ())
    assert step.episode is not None
    assert step.episode.success
    assert step.episode.discounted_return == pytest.approx(0.95 ** (len(golden) - 1), abs=1e-12)


def test_the_best_return_is_the_papers() -> None:
    assert FoodPreparation().optimal_return == pytest.approx(0.7737809375, abs=1e-10)


@pytest.mark.parametrize(
    ("actions", "vector"),
    [
        ((4, 6, 0), "00011110000"),
        ((4, 6, 0, 4), "10001111000"),  # back to where the agent was before
        ((4, 6, 0, 2, 4), "00011110000"),
        ((4, 6, 0, 1, 4), "00011110000"),
    ],
)
def test_what_is_in_the_hand_lags_a_walk_behind(actions: tuple[int, ...], vector: str) -> None:
    assert bits(do(FoodPreparation(), *actions)) == vector


@pytest.mark.parametrize(
    ("actions", "vector"), [((4, 6, 0, 4), "00011110000"), ((4, 6, 0, 1, 4), "10001111000")]
)
def test_without_the_lag_it_is_where_the_agent_is(actions: tuple[int, ...], vector: str) -> None:
    assert bits(do(FoodPreparation(room_lag=False), *actions)) == vector


def test_the_wrong_one_of_open_and_close_costs_a_step_and_nothing_else() -> None:
    world = FoodPreparation()
    assert bits(do(world, 5)) == "10001001100"
    for action, vector in ((9, "10001001100"), (8, "10001001110"), (8, "10001001110")):
        step = world.take(action)
        assert (bits(step), step.reward, step.terminated) == (vector, 0.0, False)
    assert step.observation.action_ids == (0, 2, 3, 4, 8, 9)


def test_the_same_walk_shows_what_no_observation_had_told() -> None:
    world = FoodPreparation()
    in_the_bathroom = [(2,), (5, 8, 2), (4, 6, 5, 8, 7, 2)]
    shown = {do(world, *actions).observation for actions in in_the_bathroom}
    assert len(shown) == 1
    assert len({bits(do(world, *actions, 1)) for actions in in_the_bathroom}) == 3


@pytest.mark.parametrize(
    ("actions", "strict", "fixed"),
    [
        ((), (0, 2, 3, 4, 5), (0, 2, 3, 4, 5)),
        ((4,), (0, 2, 3, 5, 6), (0, 2, 3, 5, 6)),
        ((5,), (0, 2, 3, 4, 8, 9), (0, 2, 3, 4, 8)),
        ((5, 8), (0, 2, 3, 4, 8, 9), (0, 2, 3, 4, 9)),
        ((4, 6), (0, 2, 3, 4, 5), (0, 2, 3, 5)),
        ((4, 6, 5), (0, 2, 3, 4, 7, 8, 9), (0, 2, 3, 8)),
        ((4, 6, 5, 8), (0, 2, 3, 4, 7, 8, 9), (0, 2, 3, 7, 9)),
        ((4, 6, 5, 8, 7), (0, 2, 3, 8, 9), (0, 2, 3, 9)),
        ((4, 6, 5, 8, 7, 0, 1), (0, 2, 3, 4, 5), (0, 2, 3, 4, 5)),
        ((2,), (0, 1, 3), (0, 1, 3)),
        ((3,), (0, 1, 2), (0, 1, 2)),
        ((4, 6, 0), (1, 2, 3), (1, 2, 3)),
    ],
)
def test_offered_lists(
    actions: tuple[int, ...], strict: tuple[int, ...], fixed: tuple[int, ...]
) -> None:
    for lists, expected in (("strict", strict), ("fixed", fixed)):
        world = FoodPreparation(lists=lists)  # type: ignore[arg-type]  # one of the two
        shown = do(world, *actions).observation if actions else world.reset()
        assert shown.action_ids == expected


def test_lists_of_situations_that_no_list_leads_to() -> None:
    shut = FoodState(near_food=True, near_container=True, inside=True, is_open=True)
    view = view_food(shut)._replace(is_open=False)
    assert offered_food(view, "strict") == offered_food(view, "fixed") == (0, 2, 3, 9)
    assert offered_food(view_food(shut._replace(is_open=False)), "strict") == (0, 2, 3)


def test_all_that_fixed_lists_offer_works() -> None:
    world = FoodPreparation(lists="fixed")
    for state in reachable_states(world, start_state(world)):
        for action in world.observe(state).action_ids:
            after = world.outcome(state, action).state
            if action in (OPEN, CLOSE):
                assert after.is_open != state.is_open
            else:
                assert after != state


@pytest.mark.parametrize(
    ("variant", "put", "words"),
    [
        ("cheese", "put the cheese in the microwave", 6),
        ("hamburger", "put the hamburger in the microwave", 6),
        ("apple-pie", "put the apple pie in the microwave", 7),
        ("pizza", "put the pizza in the microwave", 6),
        ("washing-plate", "put the dishes in the dishwasher", 6),
        ("laundry", "put the clothes in the washing machine", 7),
    ],
)
def test_variants_change_nouns_only(variant: VariantName, put: str, words: int) -> None:
    world, pancake = FoodPreparation(variant), FoodPreparation()
    assert world.name == f"virtualhome-{variant}"
    assert VARIANTS[variant].actions()[7] == put
    assert len(put.split()) == words
    states = reachable_states(world, start_state(world), "all")
    assert states == reachable_states(pancake, start_state(pancake), "all")
    for state in states:
        ours, theirs = world.observe(state), pancake.observe(state)
        assert (ours.vector, ours.action_ids) == (theirs.vector, theirs.action_ids)
        assert "pancake" not in f"{ours.text} {ours.goal} {' '.join(ours.actions)}"
    assert optimal_prospects(world, start_state(world)).discounted_return == pytest.approx(0.95**5)


def test_there_are_six_variants() -> None:
    assert len(VARIANTS) == 7
    assert FoodPreparation().name == "virtualhome-food-preparation"


def test_the_goal_names_what_happens_or_what_the_release_says() -> None:
    assert FoodPreparation("laundry").goal == (
        "To wash the clothes in the washing machine, your next step is to"
    )
    assert FoodPreparation("laundry", fitting_verb=False).goal == (
        "To heat up the clothes in the washing machine, your next step is to"
    )
    texts = {
        FoodPreparation("laundry").observe(state).text
        for state in (FoodState(inside=True, is_open=True), FoodState(near_food=True))
    }
    assert all(" the clothes are " in text for text in texts)


def test_the_text_of_the_start() -> None:
    shown = FoodPreparation().reset()
    assert shown.text == (
        "This home has a living room, a kitchen, a bathroom and a bedroom, and you are in the "
        "kitchen. You notice the pancake and the microwave. You hold nothing, and neither the "
        "pancake nor the microwave is within reach. The microwave is not open."
    )
    assert shown.goal == "To heat up the pancake in the microwave, your next step is to"
    assert shown.actions[-1] == "walk to the microwave"


def test_the_drawing() -> None:
    world = FoodPreparation()
    do(world, 4, 6, 5, 8, 7)
    assert world.render() == (
        "| living room: - | @ kitchen: [*  | bathroom: - | bedroom: - |\n"
        "hand: nothing, near: pancake, microwave\n"
        "@ agent, * pancake, [ ] microwave, without ] while open\n"
        "step 5, return 0.0000"
    )


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a variant of pancake, cheese"):
        FoodPreparation("soup")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected lists strict or fixed, got 'loose'"):
        FoodPreparation(lists="loose")  # type: ignore[arg-type]
