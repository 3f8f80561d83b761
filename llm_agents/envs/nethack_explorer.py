"""A scripted NetHack player: it explores, fights what stands beside it and goes down the stairs.

It knows the map that it is shown and what it did before, nothing else, and is meant to be better
than random play at little cost, not to play well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_agents.envs.nethack_screen import Stat
from llm_agents.envs.nethack_tasks import ACTION_NAMES, EATING, NORTHWEST

KEYS = ("glyphs", "blstats", "message")
"""Observation keys that it looks at."""

_WIDTH = 81  # of a row of the map with a blank column on either side
_HEIGHT = 23
_STEPS = {
    "north": -_WIDTH,
    "east": 1,
    "south": _WIDTH,
    "west": -1,
    "northeast": 1 - _WIDTH,
    "southeast": 1 + _WIDTH,
    "southwest": _WIDTH - 1,
    "northwest": -1 - _WIDTH,
}
_ACTION_OF = {step: ACTION_NAMES.index(f"go {name}") for name, step in _STEPS.items()}
_DOWN, _KICK, _EAT, _SEARCH, _SAY_NO, _CONTINUE = (
    ACTION_NAMES.index(name)
    for name in ("go down the stairs", "kick", "eat", "search", "go southeast", "continue")
)  # "go southeast" presses n

# Kinds of cells.
_STONE, _BLOCKED, _FLOOR, _DOOR, _CORRIDOR, _DOWNWARD, _TREASURE, _MONSTER, _TRAP = range(9)
_WALKABLE = frozenset((_FLOOR, _DOOR, _CORRIDOR, _DOWNWARD, _TREASURE, _MONSTER))
_BOULDER, _INVISIBLE = 2353, 762
_PETS, _OBJECTS, _MAP, _EXPLOSIONS = 381, 1906, 2359, 2446
_LEFT_ALONE = frozenset((27, 28, 55, 156, 157, 158, 159))
"""Gas spores, floating eyes, blue jellies and molds harm whoever strikes them."""


def _kinds() -> NDArray[np.int8]:
    """Return the kind of cell that each glyph stands for."""
    kinds = np.full(8192, _BLOCKED, dtype=np.int8)
    kinds[:_PETS] = _MONSTER
    kinds[list(_LEFT_ALONE)] = _BLOCKED
    kinds[_PETS:_INVISIBLE] = _FLOOR  # the hero and a pet change places
    kinds[_INVISIBLE] = _MONSTER
    kinds[1144:_OBJECTS] = _FLOOR  # bodies
    kinds[_OBJECTS:_MAP] = _TREASURE
    kinds[_BOULDER] = _BLOCKED
    for kind, places in {
        _STONE: (0,),
        _FLOOR: (12, 19, 20, 23, 25, 27, 28, 29, 30, 31, 33),
        _DOOR: (13, 14, 15, 16),
        _CORRIDOR: (21, 22),
        _DOWNWARD: (24, 26),
        _TRAP: tuple(range(42, 64)),
    }.items():
        kinds[[_MAP + place for place in places]] = kind
    kinds[_EXPLOSIONS:5595] = _FLOOR  # what is under an explosion is not known
    return kinds


_KIND_OF = _kinds()


@dataclass
class _Level:
    """What is remembered of a level.

    Args:
        visits: How often each cell was stood on.
        searches: How often the cells around each cell were searched.
        blocked: Steps from cell to cell that did not work, with how often.
        walks: How often each cell was the aim of a walk.
        stairs: Cells with stairs or a ladder down.
        num_searches: Times at which nothing was left but to search.
        steps: Actions taken here.
    """

    visits: dict[int, int] = field(default_factory=dict)
    searches: dict[int, int] = field(default_factory=dict)
    blocked: dict[tuple[int, int], int] = field(default_factory=dict)
    walks: dict[int, int] = field(default_factory=dict)
    stairs: set[int] = field(default_factory=set)
    num_searches: int = 0
    steps: int = 0


class Explorer:
    """Plays one game; same observations and seed, same actions.

    Args:
        seed: Of its few random choices.
        patience: Steps on a level after which it takes known stairs down; before that it explores
            while there is anything to explore. 0 goes down at once.
    """

    def __init__(self, seed: int = 0, patience: int = 0) -> None:
        self.seed, self.patience = seed, patience
        self.reset()

    def reset(self) -> None:
        """Forget everything: a new episode begins."""
        self._generator = np.random.default_rng(self.seed)
        self._levels: dict[tuple[int, int], _Level] = {}
        self._plan: deque[int] = deque()
        self._last: tuple[int, int] | None = None
        self._peaceful: dict[int, int] = {}
        self._last_meal = -1000
        self._queue: deque[int] = deque()

    def act(self, observation: Mapping[str, NDArray[Any]]) -> int:
        """Return the action for an observation with `KEYS`."""
        stats = observation["blstats"].tolist()
        message = observation["message"].tobytes()
        place = (stats[Stat.Y] + 1) * _WIDTH + stats[Stat.X] + 1
        level = self._levels.setdefault((stats[Stat.DUNGEON], stats[Stat.LEVEL]), _Level())
        level.steps += 1
        answer = self._answer(message, stats)
        if answer is not None:
            return answer
        if self._queue:
            return self._queue.popleft()
        self._learn(level, place, message)
        kinds = self._map(observation["glyphs"], level, place)
        action = self._decide(level, kinds, place, stats, message)
        self._last = None
        for step, name in _ACTION_OF.items():
            if name == action:
                self._last = (place, place + step)
        return action

    # --- parts of a decision

    def _answer(self, message: bytes, stats: list[int]) -> int | None:
        """Return the answer to a question, if one is asked; one that is answered ends in a key."""
        shown = message.rstrip(b"\0")
        if b"? " not in shown or not shown.endswith(b" "):
            return None
        if EATING in message or b"eat it?" in message or b"eat one?" in message:
            return NORTHWEST
        if b"Really attack" in message:
            if self._last is not None:
                self._peaceful[self._last[1]] = stats[Stat.TURN]
                self._plan.clear()
            return _SAY_NO
        if b"In what direction" in message and self._queue:
            return self._queue.popleft()
        return _CONTINUE

    def _learn(self, level: _Level, place: int, message: bytes) -> None:
        """Remember where the hero stands, and a step that did not work."""
        level.visits[place] = level.visits.get(place, 0) + 1
        if self._last is None:
            return
        origin, target = self._last
        if place == target:
            return
        self._plan.clear()
        if place == origin:
            level.blocked[self._last] = level.blocked.get(self._last, 0) + 1
            if b"locked" in message:
                self._queue.extend([_KICK, _ACTION_OF[target - origin]])

    def _map(self, glyphs: NDArray[np.int16], level: _Level, place: int) -> list[int]:
        """Return the kind of every cell of the padded map."""
        padded = np.full((_HEIGHT, _WIDTH), _BLOCKED, dtype=np.int8)
        padded[1:22, 1:80] = _KIND_OF[glyphs]
        kinds: list[int] = padded.ravel().tolist()
        level.stairs |= {cell for cell, kind in enumerate(kinds) if kind == _DOWNWARD}
        for cell in level.stairs:
            if kinds[cell] in (_TREASURE, _FLOOR):
                kinds[cell] = _DOWNWARD
        if level.num_searches >= 20:  # there may be no way but over them
            kinds = [_FLOOR if kind == _TRAP else kind for kind in kinds]
        kinds[place] = _FLOOR if kinds[place] == _MONSTER else kinds[place]
        return kinds

    def _decide(
        self, level: _Level, kinds: list[int], place: int, stats: list[int], message: bytes
    ) -> int:
        """Return the action where nothing is asked."""
        turn = stats[Stat.TURN]
        if stats[Stat.HUNGER] >= 2 and turn > self._last_meal + 30:
            self._last_meal = turn
            return _EAT
        fight = self._fight(level, kinds, place, turn)
        if fight is not None:
            self._plan.clear()
            return fight
        is_weak = 3 * stats[Stat.HP] < stats[Stat.MAX_HP]
        if is_weak and stats[Stat.HUNGER] < 3 and _MONSTER not in kinds and level.steps < 3000:
            return _SEARCH  # rests until it is healed
        if place in level.stairs and self._leaves(level):
            return _DOWN
        if b"solid stone" in message or b"no way" in message:
            self._plan.clear()
        if not self._plan or not self._is_open(level, kinds, place, self._plan[0]):
            self._plan = self._new_plan(level, kinds, place)
        if self._plan:
            step = self._plan.popleft() - place
            if step in _ACTION_OF:
                return _ACTION_OF[step]
            self._plan.clear()
        if place in level.stairs:
            return _DOWN
        level.searches[place] = level.searches.get(place, 0) + 1
        if self._generator.random() < 0.1:
            return int(self._generator.choice(list(_ACTION_OF.values())))
        return _SEARCH

    def _leaves(self, level: _Level) -> bool:
        """Return whether the level has had its time."""
        return level.steps >= self.patience

    def _fight(self, level: _Level, kinds: list[int], place: int, turn: int) -> int | None:
        """Return the blow against a monster beside the hero, if there is one to be struck."""
        for step, action in _ACTION_OF.items():
            cell = place + step
            known = self._peaceful.get(cell)
            is_peaceful = known is not None and turn < known + 10
            if kinds[cell] == _MONSTER and not is_peaceful:
                is_diagonal = abs(step) not in (1, _WIDTH)
                if is_diagonal and _DOOR in (kinds[place], kinds[cell]):
                    continue
                if level.blocked.get((place, cell), 0) < 30:
                    return action
        return None

    # --- walking

    def _is_open(self, level: _Level, kinds: list[int], origin: int, target: int) -> bool:
        """Return whether a step between neighbors may work."""
        step = target - origin
        if step not in _ACTION_OF or kinds[target] not in _WALKABLE:
            return False
        if level.blocked.get((origin, target), 0) >= (8 if kinds[target] == _DOOR else 2):
            return False
        is_diagonal = abs(step) not in (1, _WIDTH)
        return not (is_diagonal and _DOOR in (kinds[origin], kinds[target]))

    def _new_plan(self, level: _Level, kinds: list[int], place: int) -> deque[int]:
        """Return the cells of a way to the best target, empty to search here."""
        parents = self._reach(level, kinds, place)
        stairs = next((cell for cell in parents if cell in level.stairs), None)
        if stairs is not None and self._leaves(level):
            return _way(parents, stairs)
        for wanted in (self._is_treasure, self._is_frontier):
            cell = next((cell for cell in parents if wanted(level, kinds, cell)), None)
            if cell is not None:
                level.walks[cell] = level.walks.get(cell, 0) + 1
                return _way(parents, cell)
        if stairs is not None:
            return _way(parents, stairs)
        level.num_searches += 1
        if level.num_searches % 40 == 0:  # what was in the way may have gone
            level.blocked.clear()
            level.walks.clear()
        return self._search_plan(level, kinds, parents)

    def _reach(self, level: _Level, kinds: list[int], place: int) -> dict[int, int]:
        """Return every cell that can be reached, nearest first, with the one before it."""
        parents = {place: place}
        waiting = deque([place])
        while waiting:
            cell = waiting.popleft()
            for step in _ACTION_OF:
                target = cell + step
                if target not in parents and self._is_open(level, kinds, cell, target):
                    parents[target] = cell
                    waiting.append(target)
        return parents

    def _is_treasure(self, level: _Level, kinds: list[int], cell: int) -> bool:
        """Return whether a thing lies in a cell where the hero hasn't been."""
        return kinds[cell] == _TREASURE and _is_new(level, cell)

    def _is_frontier(self, level: _Level, kinds: list[int], cell: int) -> bool:
        """Return whether something new may be seen from a cell where the hero hasn't been."""
        if not _is_new(level, cell):
            return False
        if kinds[cell] in (_CORRIDOR, _DOOR):
            return True
        return any(kinds[cell + step] == _STONE for step in _ACTION_OF)

    def _search_plan(self, level: _Level, kinds: list[int], parents: dict[int, int]) -> deque[int]:
        """Return a way to the cell that is best to look for hidden doors from; empty is here.

        Dead ends come first, then cells beside much wall; cells that were searched come last.
        """
        is_wall: Callable[[int], bool] = lambda kind: kind in (_STONE, _BLOCKED)  # noqa: E731 - short
        costs: dict[int, float] = {}
        for distance, cell in enumerate(parents):
            walls = sum(is_wall(kinds[cell + step]) for step in _ACTION_OF)
            searched = level.searches.get(cell, 0)
            bonus = 12.0 if walls >= 7 else 4.0 if walls >= 3 else 0.0
            costs[cell] = searched // 8 * 8.0 + distance / 20 - bonus
        best = min(costs, key=lambda cell: costs[cell])
        return _way(parents, best)


def _is_new(level: _Level, cell: int) -> bool:
    """Return whether a cell is worth a walk: the hero hasn't been there, and tried seldom."""
    return cell not in level.visits and level.walks.get(cell, 0) < 4


def _way(parents: Mapping[int, int], target: int) -> deque[int]:
    """Return the cells after the first on the way to a target."""
    cells: deque[int] = deque()
    while parents[target] != target:
        cells.appendleft(target)
        target = parents[target]
    return cells
