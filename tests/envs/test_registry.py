"""Worlds by name: what there is, options, a world of one's own, and refusals."""

from __future__ import annotations

import doctest
import subprocess
import sys
import types

import pytest

from llm_agents.envs import Overcooked, TextEnv, make_world, registry, world_names
from llm_agents.envs.registry import check_world
from llm_agents.errors import UserError

NAMES = (
    "overcooked-tomato-salad",
    "overcooked-tomato-lettuce-salad",
    "virtualhome-food-preparation",
    "virtualhome-entertainment",
    "virtualhome-cheese",
    "virtualhome-hamburger",
    "virtualhome-apple-pie",
    "virtualhome-pizza",
    "virtualhome-washing-plate",
    "virtualhome-laundry",
    "case-study",
    "errands",
    "toy-lamp",
    "toy-corridor",
    "toy-chest",
    "toy-clock",
)


def test_the_names() -> None:
    engines = ("babyai-", "nethack-")  # these have tests of their own
    assert tuple(name for name in world_names() if not name.startswith(engines)) == NAMES


def test_the_example_runs() -> None:
    assert doctest.testmod(registry).failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_world_bears_its_name_and_shows_what_it_declares(name: str) -> None:
    world = make_world(name, seed=3)
    assert world.name == name
    observation = world.reset()
    assert len(observation.vector) == world.vector_size
    assert 0 < len(observation.actions) <= world.num_actions
    assert world is not make_world(name)


@pytest.mark.parametrize(
    ("name", "optimum"),
    [
        ("overcooked-tomato-salad", 0.920518),
        ("overcooked-tomato-lettuce-salad", 0.947656),
        ("virtualhome-food-preparation", 0.773781),
        ("virtualhome-entertainment", 0.598737),
    ],
)
def test_the_papers_optima(name: str, optimum: float) -> None:
    assert make_world(name).optimal_return == pytest.approx(optimum, abs=5e-7)


def test_options_reach_the_world() -> None:
    world = make_world("overcooked-tomato-salad", radius=10, finish_macro=False, step_penalty=0)
    assert isinstance(world, Overcooked)
    assert world.kitchen.radius == 10
    assert not world.finish_macro


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("overcooked-tomato-sald", {}, "do you mean `overcooked-tomato-salad`?"),
        (
            "minecraft",
            {},
            r"expected a world, got `minecraft`: .*\n  overcooked-…  tomato-salad, tomato-l",
        ),
        ("overcooked-tomato-salad", {"radious": 3}, "got `radious`; do you mean `radius`?"),
        ("overcooked-tomato-salad", {"dish": "tomato-salad"}, "got `dish`"),
        ("virtualhome-cheese", {"variant": "pizza"}, "got `variant`"),
        ("overcooked-tomato-salad", {"finish_macro": "False"}, "to be bool, got 'False'"),
        ("overcooked-tomato-salad", {"radius": True}, "to be int, got True"),
        ("overcooked-tomato-salad", {"gamma": "0.9"}, "to be float, got '0.9'"),
        ("virtualhome-pizza", {"lists": "loose"}, "to be 'strict' or 'fixed', got 'loose'"),
        ("case-study", {"limit": "5"}, r"to be int \| None, got '5'"),
        ("overcooked-tomato-salad", {"gamma": 1.5}, r"refuses its options: .* got 2, 200 and 1.5"),
        ("no_such_module:World", {}, "No module named 'no_such_module'"),
        ("llm_agents.envs:Kitchen", {}, "has no attribute 'Kitchen'"),
        (":Kitchen", {}, "as `package.module:Class`"),
        ("llm_agents.envs:registry", {}, "to be a class of worlds"),
    ],
)
def test_refusals(name: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        make_world(name, **options)
    if ":" not in name:  # what is not in the table is not imported for a check
        with pytest.raises(UserError, match=message.replace("?", r"\?")):
            check_world(name, options)


@pytest.mark.parametrize("name", NAMES)
def test_a_check_passes_what_can_be_made(name: str) -> None:
    check_world(name, {"seed": 3})
    with pytest.raises(UserError, match="got `sead`; do you mean `seed`"):
        check_world(name, {"sead": 3})


def test_worlds_are_looked_up_without_a_network() -> None:
    code = (
        "import sys; from llm_agents.envs.registry import check_world, world_names\n"
        "for name in world_names(): check_world(name)\n"
        "print([m for m in ('torch', 'minigrid', 'nle', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_world_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Big(Overcooked):
        def __init__(self, *, rooms: int = 1) -> None:
            super().__init__(radius=rooms * 5)

    def anything(**options: object) -> TextEnv:
        return Overcooked(radius=len(options))

    module = types.ModuleType("my_worlds")
    module.Big, module.anything = Big, anything  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_worlds", module)
    big = make_world("my_worlds:Big", rooms=2)
    assert isinstance(big, Overcooked)
    assert big.kitchen.radius == 10
    other = make_world("my_worlds:anything", one=1, two=2, three=3)
    assert isinstance(other, Overcooked)
    assert other.kitchen.radius == 3
    with pytest.raises(UserError, match="out of rooms, got `room`; do you mean `rooms`"):
        make_world("my_worlds:Big", room=2)
