"""Minigrid's engine: what is used of it, and how a level's engine is made.

The engines differ from minigrid's own in two things that no world shows: they print nothing when a
draw is rejected, and they leave the view to `babyai_view`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeVar

from llm_agents.envs.babyai_view import Thing
from llm_agents.errors import UserError

ElementT = TypeVar("ElementT")


class Room(Protocol):
    """A room of minigrid's; its neighbours are to the right, below, to the left and above."""

    neighbors: Sequence[Room | None]


class Engine(Protocol):
    """What is used of minigrid's ``RoomGridLevel``, which is typed in part only."""

    width: int
    height: int
    num_cols: int
    num_rows: int
    max_steps: int
    step_count: int
    mission: str
    agent_pos: Any
    agent_dir: int
    carrying: Any
    grid: Any
    instrs: Any
    np_random: Any

    def reset(self, *, seed: int | None = None) -> object:
        """Begin an episode."""

    def step(self, action: int) -> tuple[object, float, bool, bool, object]:
        """Take an action."""

    def pprint_grid(self) -> str:
        """Draw the grid."""

    def get_room(self, i: int, j: int) -> Room:
        """Return a room."""

    def room_from_pos(self, x: int, y: int) -> Room:
        """Return the room of a cell."""

    def add_door(self, i: int, j: int, door_idx: int, color: str, locked: bool) -> object:
        """Put a door into a wall."""

    def add_object(self, i: int, j: int, kind: str, color: str) -> object:
        """Put an object into a room."""

    def add_distractors(
        self,
        i: int | None = None,
        j: int | None = None,
        num_distractors: int = 10,
        all_unique: bool = True,
    ) -> list[Thing]:
        """Put objects into a room, or into rooms drawn at random."""

    def connect_all(self) -> object:
        """Add doors until all rooms are connected."""

    def place_agent(self) -> object:
        """Put the agent into a room drawn at random."""

    def check_objs_reachable(self, raise_exc: bool = True) -> bool:
        """Return whether no object has to be moved to reach another."""

    def _rand_int(self, low: int, high: int) -> int: ...

    def _rand_elem(self, iterable: Sequence[ElementT]) -> ElementT: ...

    def _rand_subset(self, iterable: Sequence[ElementT], num_elems: int) -> list[ElementT]: ...


Generate = Callable[[Engine], None]


@dataclass(frozen=True)
class Level:
    """How an engine is made.

    Args:
        generate: Fills the rooms; None where minigrid's class does it.
        num_cols: Rooms side by side, where minigrid's class does not say.
        num_rows: Rows of rooms, likewise.
        entry_point: Minigrid's class as ``module:Class``; empty for levels of our own.
        options: Its arguments.
        names_colors: Whether every goal says its objects' colors, where ``LevelGen`` draws goals.
    """

    generate: Generate | None = None
    num_cols: int = 1
    num_rows: int = 1
    entry_point: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    names_colors: bool = False


def rooms() -> ModuleType:
    """Return minigrid's rooms; imported by name, since minigrid is typed in part only."""
    return import_module("minigrid.core.roomgrid")


def verifier() -> ModuleType:
    """Return minigrid's instructions."""
    return import_module("minigrid.envs.babyai.core.verifier")


def need_minigrid() -> None:
    """Raise where minigrid is missing."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # or it greets on standard output
    try:
        import minigrid  # noqa: F401  (registers its levels)
    except ImportError as error:
        raise UserError(
            "expected the package `minigrid` for BabyAI's worlds, and it is not installed: "
            "run pip install 'llm-agents[babyai]'"
        ) from error


@cache
def minigrid_levels() -> dict[str, Level]:
    """Return minigrid's BabyAI levels by the name between ``BabyAI-`` and the version."""
    need_minigrid()
    from gymnasium.envs.registration import registry

    found: dict[str, tuple[int, Level]] = {}
    for identifier, spec in registry.items():
        match = re.fullmatch(r"BabyAI-(.+)-v(\d+)", identifier)
        if match is None:
            continue
        name, version = match[1], int(match[2])
        if version >= found.get(name, (-1, None))[0]:
            level = Level(entry_point=str(spec.entry_point), options=dict(spec.kwargs))
            found[name] = version, level
    return {name: level for name, (_, level) in found.items()}


def make_engine(level: Level, max_steps: int | None = None) -> Engine:
    """Return a new engine of a level, not yet reset.

    Args:
        level: The level.
        max_steps: Horizon; None is BabyAI's own, 64 steps for each room and part of the goal.
    """
    need_minigrid()
    engine: Engine = _engine_class(level.entry_point)(level, max_steps)
    return engine


class _Generating:
    """What generates rooms as minigrid does, draw for draw, but faster."""

    grid: Any
    width: int
    height: int
    agent_pos: Any
    np_random: Any

    def _rand_int(self, low: int, high: int) -> int:
        """Draw a number."""
        return int(self.np_random.integers(low, high))

    def place_obj(
        self,
        obj: Any,  # noqa: ANN401  (minigrid's)
        top: tuple[int, int] | None = None,
        size: tuple[int, int] | None = None,
        reject_fn: Callable[[Any, tuple[int, int]], bool] | None = None,
        max_tries: float = math.inf,
    ) -> tuple[int, int]:
        """Put something, or nothing, into an empty cell; as minigrid does, but faster."""
        left, upper = (0, 0) if top is None else (max(top[0], 0), max(top[1], 0))
        width, height = (self.width, self.height) if size is None else size
        right, lower = min(left + width, self.width), min(upper + height, self.height)
        agent = tuple(self.agent_pos)
        tries = 0
        while tries <= max_tries:
            tries += 1
            place = self._rand_int(left, right), self._rand_int(upper, lower)
            taken = self.grid.get(*place) is not None or place == agent
            if not taken and not (reject_fn and reject_fn(self, place)):
                self.grid.set(*place, obj)
                if obj is not None:
                    obj.init_pos = obj.cur_pos = place
                return place
        raise RecursionError("no cell was found")

    def check_objs_reachable(self, raise_exc: bool = True) -> bool:
        """Return whether no object has to be moved to reach another."""
        cells, width = self.grid.grid, self.width
        reached: set[int] = set()
        waiting = [int(self.agent_pos[0]) + int(self.agent_pos[1]) * width]
        while waiting:
            place = waiting.pop()
            if place in reached:
                continue
            reached.add(place)
            thing = cells[place]
            if thing is None or thing.type == "door":  # walls are all around
                waiting += (place + 1, place - 1, place + width, place - width)
        are_reached = all(
            thing is None or thing.type == "wall" or place in reached
            for place, thing in enumerate(cells)
        )
        if raise_exc and not are_reached:
            raise _core().RejectSampling("an object is out of reach")
        return are_reached


def _core() -> ModuleType:
    """Return minigrid's base of all levels."""
    return import_module("minigrid.envs.babyai.core.roomgrid_level")


@cache
def _engine_class(entry_point: str) -> type:
    """Return minigrid's class of a level, silent and without its own view."""
    module, _, name = entry_point.partition(":")
    base: Any = getattr(import_module(module), name) if entry_point else _core().RoomGridLevel

    class TextEngine(_Generating, base):  # type: ignore[misc]  # a class that is known at run time only
        """A level's engine."""

        def __init__(self, level: Level, max_steps: int | None) -> None:
            self._level = level
            own_size = {"num_rows": level.num_rows, "num_cols": level.num_cols}
            size: dict[str, Any] = {} if entry_point else own_size
            if max_steps is not None:
                size["max_steps"] = max_steps
            super().__init__(**{**size, **level.options})

        def gen_mission(self) -> None:
            """Fill the rooms and set the instruction."""
            if self._level.generate is None:
                super().gen_mission()
            else:
                self._level.generate(self)

        def _gen_grid(self, width: int, height: int) -> None:
            """Generate until nothing is rejected, in silence."""
            while True:
                try:
                    rooms().RoomGrid._gen_grid(self, width, height)
                    self.gen_mission()
                    self.validate_instrs(self.instrs)
                except (RecursionError, _core().RejectSampling):
                    continue
                break
            self.surface = self.mission = self.instrs.surface(self)

        def rand_obj(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  (minigrid's)
            """Describe an object that there is."""
            while True:
                found = super().rand_obj(*arguments, **options)
                if found.color is not None or not self._level.names_colors:
                    return found

        def gen_obs(self) -> dict[str, Any]:
            """Leave the view to whoever wants it."""
            return {}

    return TextEngine
