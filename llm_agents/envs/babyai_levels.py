"""BabyAI's levels: those of GLAM that minigrid lacks, and by name all that it has.

A level is a function that fills an engine's rooms and sets its instruction. Order and number of the
random draws are part of it: they make a seed show the worlds that the release showed.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Final, Literal, Protocol

from llm_agents.envs.babyai_engine import Engine, Level, Room, minigrid_levels, rooms, verifier
from llm_agents.envs.babyai_mazes import MAZES
from llm_agents.envs.babyai_view import Thing
from llm_agents.errors import UserError

Kind = Literal["goto", "pickup", "open", "putnext", "seq"]
KINDS: Final[tuple[Kind, ...]] = ("goto", "pickup", "open", "putnext", "seq")

HELD_OUT: Final = ("yellow box", "red key", "red door", "green ball", "grey door")
"""Pairs that no goal of training names; they still lie about."""

_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_NOT_HELD_OUT = tuple(
    pair
    for color in _COLORS
    for noun in ("box", "key", "ball", "door")
    if (pair := f"{color} {noun}") not in HELD_OUT
)
_NUM_OBJECTS: dict[Kind, int] = {"goto": 9, "pickup": 9, "open": 8, "putnext": 10, "seq": 10}


Order = Literal["before", "after"]


class Description(Protocol):
    """What minigrid's descriptions of objects offer."""

    type: str
    color: str | None


@dataclass(frozen=True)
class Goals:
    """Which goals a mixed level may set.

    Args:
        forbidden: Colors with nouns that no goal may name.
        door_colors: Of the locked door.
        may_hide_color: Whether a goal may say "the door" and leave its colour out.
    """

    forbidden: tuple[str, ...]
    door_colors: tuple[str, ...]
    may_hide_color: bool


TRAIN = Goals(HELD_OUT, ("yellow", "green", "blue", "purple"), may_hide_color=True)
TEST = Goals(_NOT_HELD_OUT, ("red", "grey"), may_hide_color=False)


# --- the rooms of GLAM's levels


def _clear(engine: Engine) -> None:
    """Empty all rooms; door positions are drawn anew."""
    rooms().RoomGrid._gen_grid(engine, engine.width, engine.height)


def _same(first: Thing, second: Thing) -> bool:
    """Return whether two objects have one description."""
    return bool(first.type == second.type and first.color == second.color)


def _two_objects(engine: Engine, objects: list[Thing]) -> tuple[Thing, Thing]:
    """Draw two objects, which have one description only where several objects have it."""
    first, second = engine._rand_elem(objects), engine._rand_elem(objects)
    if _same(first, second) and sum(_same(first, each) for each in objects) < 2:
        while _same(first, second):
            second = engine._rand_elem(objects)
    return first, second


def _locked_door(engine: Engine, goals: Goals) -> tuple[str, Room]:
    """Lock a room behind a door and put the key outside; return the colour and the room."""
    color = engine._rand_elem(goals.door_colors)
    while True:
        column, row = engine._rand_int(0, engine.num_cols), engine._rand_int(0, engine.num_rows)
        wall = engine._rand_int(0, 4)
        locked = engine.get_room(column, row)
        if locked.neighbors[wall] is not None:
            engine.add_door(column, row, wall, color, locked=True)
            break
    while True:
        column, row = engine._rand_int(0, engine.num_cols), engine._rand_int(0, engine.num_rows)
        if engine.get_room(column, row) is not locked:
            engine.add_object(column, row, "key", color)
            return color, locked


def _fill_open(engine: Engine, goals: Goals) -> list[Description]:
    """Fill two rooms with a locked door between them; return what the goal is about."""
    color, locked = _locked_door(engine, goals)
    engine.connect_all()
    for row in range(engine.num_rows):
        for column in range(engine.num_cols):
            if engine.get_room(column, row) is not locked:
                engine.add_distractors(column, row, _NUM_OBJECTS["open"], all_unique=False)
    while True:
        engine.place_agent()
        if engine.room_from_pos(*engine.agent_pos) is not locked:
            break
    named = engine._rand_elem([None, color]) if goals.may_hide_color else color
    door = verifier().ObjDesc("door", named)
    engine.instrs = verifier().OpenInstr(door)
    return [door]


def _fill(engine: Engine, kind: str, orders: tuple[Order, ...]) -> list[Description]:
    """Fill one room; return what the goal is about.

    Args:
        engine: The engine.
        kind: A kind other than `open`, or `pickups` for two objects to pick up.
        orders: Of the two parts of a sequence, to draw from.
    """
    words = verifier()
    engine.place_agent()
    number = 10 if kind == "pickups" else _NUM_OBJECTS[kind]  # type: ignore[index]
    objects = engine.add_distractors(num_distractors=number, all_unique=False)
    if kind in ("goto", "pickup"):
        drawn = engine._rand_elem(objects)
        target = words.ObjDesc(drawn.type, drawn.color)
        engine.instrs = (words.GoToInstr if kind == "goto" else words.PickupInstr)(target)
        return [target]
    first, second = (words.ObjDesc(each.type, each.color) for each in _two_objects(engine, objects))
    if kind == "putnext":
        engine.instrs = words.PutNextInstr(first, second)
        return [first, second]
    begin = words.PickupInstr(first)
    end = (words.PickupInstr if kind == "pickups" else words.GoToInstr)(second)
    if engine._rand_elem(orders) == "before":
        engine.instrs = words.BeforeInstr(begin, end)
    else:
        engine.instrs = words.AfterInstr(end, begin)
    return [first, second]


def _mixed(
    engine: Engine,
    *,
    kind: str,
    goals: Goals = TRAIN,
    orders: tuple[Order, ...] = ("before", "after"),
) -> None:
    """Fill the rooms again and again until the goal is allowed and all can be reached."""
    while True:
        _clear(engine)
        named = _fill_open(engine, goals) if kind == "open" else _fill(engine, kind, orders)
        is_allowed = not any(f"{each.color} {each.type}" in goals.forbidden for each in named)
        if is_allowed and engine.check_objs_reachable(raise_exc=False):
            return


def _mixed_level(kind: Kind, goals: Goals) -> Level:
    """Return one kind of a mixed level."""
    return Level(partial(_mixed, kind=kind, goals=goals), num_cols=2 if kind == "open" else 1)


MIXED: Final[dict[str, dict[Kind, Level]]] = {
    "MixedTrainLocal": {kind: _mixed_level(kind, TRAIN) for kind in KINDS},
    "MixedTestLocal": {kind: _mixed_level(kind, TEST) for kind in KINDS},
}
"""Levels of several kinds."""

_GO_TO = "minigrid.envs.babyai.goto:GoToLocal"
OWN: Final[dict[str, Level]] = {
    "PickUpSeqPickUpLocal": Level(partial(_mixed, kind="pickups")),
    "PickUpSeqGoToLocal": Level(partial(_mixed, kind="seq")),
    "PickUpThenGoToLocal": Level(partial(_mixed, kind="seq", orders=("before",))),
    "GoToAfterPickUpLocal": Level(partial(_mixed, kind="seq", orders=("after",))),
    "GoToLocalS8N16": Level(entry_point=_GO_TO, options={"room_size": 8, "num_dists": 16}),
}
"""Levels of GLAM's experiments that minigrid lacks."""


def find_level(name: str) -> Level:
    """Return a level of ours, or minigrid's newest of the id ``BabyAI-{name}``.

    Raises:
        UserError: There is none, or minigrid is missing.
    """
    own = {**OWN, **MAZES}
    if name in own:
        return own[name]
    known = minigrid_levels()
    if name not in known:
        names = [*MIXED, *own, *known]
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"do you mean {' or '.join(f'`{each}`' for each in near)}?" if near else "see docs"
        raise UserError(f"expected a level out of {len(names)} of BabyAI, got `{name}`: {hint}")
    return known[name]
