"""The kitchen of Overcooked as a machine: what lies where, a primitive step, a macro action.

Map A of the macro-action kitchen that TWOSOME (arXiv 2401.14151) and POAD (arXiv 2405.15821) use:
one agent, a 5 × 5 floor inside counters. Positions are (row, column). Bumping into a counter, a
board or the delivery interacts with it; a macro walks to its target and bumps until it is done, and
nothing interrupts it. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from llm_agents.envs.machine import Outcome

DishName = Literal["tomato-salad", "tomato-lettuce-salad"]
Cell = tuple[int, int]

FOODS = ("tomato", "lettuce", "onion")
PLATE = "plate"
CHOPPED = 3  # bumps until a food is chopped

HOME, HAND, IN_PLATE, BOARD_1, BOARD_2, SERVED = range(6)
BOARDS = (BOARD_1, BOARD_2)
"""The places of a thing: its own counter, the hand, the plate, the boards, the delivery."""

_MARKS = {"T": "tomato", "L": "lettuce", "O": "onion", "P": PLATE, "D": "delivery", "@": "agent"}
_TOMATO_MAP = """
#####T#
B...@.#
#.....#
D.....#
#.....#
#.....#
#####P#
"""
_TOMATO_LETTUCE_MAP = """
#####T#
B...@.L
B.....O
D.....#
#.....#
#.....#
#####P#
"""


@dataclass(frozen=True)
class Dish:
    """A task: its kitchen, and what the plate must hold, no more and no less.

    Args:
        map: The kitchen at the start; # counter, B board, D delivery, @ agent, T L O P things.
        foods: What the kitchen has, in the order of the vector.
        wanted: What belongs in the plate; chopping one of them earns the subtask reward.
        task: Index of the task among the seven that the vector can tell.
    """

    map: str
    foods: tuple[str, ...]
    wanted: frozenset[str]
    task: int


DISHES: dict[DishName, Dish] = {
    "tomato-salad": Dish(_TOMATO_MAP, FOODS[:1], frozenset({"tomato"}), 0),
    "tomato-lettuce-salad": Dish(_TOMATO_LETTUCE_MAP, FOODS, frozenset({"tomato", "lettuce"}), 3),
}


class KitchenState(NamedTuple):
    """Where everything is; the foods that a kitchen lacks stay at home.

    Args:
        row: Of the agent.
        column: Of the agent.
        tomato: Place of the tomato, as of the other foods.
        tomato_chops: Bumps that it has had, 0 to 3, as of the other foods.
        lettuce: See `tomato`.
        lettuce_chops: See `tomato_chops`.
        onion: See `tomato`.
        onion_chops: See `tomato_chops`.
        plate: Place of the plate.
    """

    row: int
    column: int
    tomato: int = HOME
    tomato_chops: int = 0
    lettuce: int = HOME
    lettuce_chops: int = 0
    onion: int = HOME
    onion_chops: int = 0
    plate: int = HOME

    @property
    def agent(self) -> Cell:
        """Return the agent's cell."""
        return self.row, self.column

    def place(self, thing: str) -> int:
        """Return the place of a food or the plate."""
        return int(getattr(self, thing))

    def chops(self, food: str) -> int:
        """Return how often a food was chopped."""
        return int(getattr(self, f"{food}_chops"))

    def is_raw(self, thing: str) -> bool:
        """Return whether a thing is a food that is not chopped yet."""
        return thing != PLATE and self.chops(thing) < CHOPPED

    @property
    def held(self) -> str | None:
        """Return what is in the hand; a filled plate is the plate."""
        return self.lying_at(HAND)

    def lying_at(self, place: int) -> str | None:
        """Return the thing in the hand or on a board, not what it contains."""
        return next((thing for thing in (PLATE, *FOODS) if self.place(thing) == place), None)

    @property
    def plated(self) -> frozenset[str]:
        """Return the foods in the plate."""
        return frozenset(food for food in FOODS if self.place(food) == IN_PLATE)

    def put(self, thing: str, place: int) -> KitchenState:
        """Return the state with a thing at a place."""
        return self._replace(**{thing: place})

    def put_back(self, thing: str) -> KitchenState:
        """Return the state with a thing at home, and what it contains; foods are whole again."""
        if thing != PLATE:
            return self._replace(**{thing: HOME, f"{thing}_chops": 0})
        state = self.put(PLATE, HOME)
        for food in self.plated:
            state = state.put_back(food)
        return state


class Macro(NamedTuple):
    """What an action does.

    Args:
        kind: Get a thing, go to a board, deliver, or chop.
        thing: What to get: a food or the plate.
        board: Which board to go to.
    """

    kind: Literal["get", "go", "deliver", "chop"]
    thing: str = ""
    board: int = HOME


class _Primitive(NamedTuple):
    """What a primitive step led to."""

    state: KitchenState
    reward: float
    is_served: bool = False


@dataclass(frozen=True)
class Rewards:
    """What a primitive step earns.

    Args:
        subtask: A food that the dish wants is chopped.
        delivery: The dish is delivered.
        wrong_delivery: Taken for anything else that is delivered.
        step: Taken for every primitive step.
    """

    subtask: float = 0.2
    delivery: float = 1.0
    wrong_delivery: float = 0.1
    step: float = 0.001


class Kitchen:
    """A dish's kitchen.

    Args:
        dish: The task.
        rewards: What a primitive step earns.
        gamma: Discount per primitive step inside a macro.
        radius: Cells that the agent sees in each direction, diagonals included.

    Attributes:
        homes: Cell of every thing's own counter.
        boards: Cell of each board, by its place.
        delivery: Cell of the delivery.
        macros: The actions by number.
    """

    def __init__(self, dish: Dish, rewards: Rewards, gamma: float, radius: int) -> None:
        self.dish, self.rewards, self.gamma, self.radius = dish, rewards, gamma, radius
        self.rows = dish.map.split()
        found: dict[str, list[Cell]] = {}
        for row, line in enumerate(self.rows):
            for column, mark in enumerate(line):
                found.setdefault(_MARKS.get(mark, mark), []).append((row, column))
        self.homes = {thing: found[thing][0] for thing in (*dish.foods, PLATE)}
        self.boards = dict(zip(BOARDS, found["B"], strict=False))
        self.delivery = found["delivery"][0]
        self._start = found["agent"][0]
        self._floor = {*found["."], self._start}
        targets = (*self.homes.values(), *self.boards.values(), self.delivery)
        self._access = {cell: self._beside(cell) for cell in targets}
        self.macros = (
            *(Macro("get", thing) for thing in (*dish.foods, PLATE)),
            *(Macro("go", board=board) for board in self.boards),
            Macro("deliver"),
            Macro("chop"),
        )

    def start(self) -> KitchenState:
        """Return the state in which every episode begins."""
        return KitchenState(*self._start)

    def run(
        self, state: KitchenState, action: int, limit: int | None = None
    ) -> Outcome[KitchenState]:
        """Carry out a macro.

            reward = Σ_i γ^i · r_i over its primitive steps

        Args:
            state: Before it.
            action: Its number.
            limit: Primitive steps after which it is broken off; None never does.
        """
        reward, duration, last = 0.0, 0, _Primitive(state, 0.0)
        for last in self._primitives(state, self.macros[action]):
            reward += self.gamma**duration * last.reward
            duration += 1
            if duration == limit:
                break
        return Outcome(last.state, reward, last.is_served, last.is_served, duration)

    def cell_of(self, state: KitchenState, thing: str) -> Cell:
        """Return the cell of a thing; what is in the plate is where the plate is."""
        place = state.place(thing)
        if place == IN_PLATE:
            return self.cell_of(state, PLATE)
        if place == HAND:
            return state.agent
        if place == SERVED:
            return self.delivery
        return self.homes[thing] if place == HOME else self.boards[place]

    def is_seen(self, state: KitchenState, cell: Cell) -> bool:
        """Return whether a cell is near enough to be seen."""
        row, column = cell
        return max(abs(row - state.row), abs(column - state.column)) <= self.radius

    def board_before(self, cell: Cell) -> int | None:
        """Return the board that an agent in a cell stands in front of."""
        return next((b for b, at in self.boards.items() if self._access[at] == cell), None)

    def _beside(self, cell: Cell) -> Cell:
        """Return the only floor cell beside a counter, a board or the delivery."""
        (access,) = (near for near in self._floor if _distance(near, cell) == 1)
        return access

    def _primitives(self, state: KitchenState, macro: Macro) -> Iterator[_Primitive]:
        """Yield the primitive steps of a macro."""
        if macro.kind == "chop":
            yield from self._chop(state)
            return
        is_done = False
        while not is_done:
            step, is_done = self._approach(state, macro)
            yield step
            state = step.state

    def _chop(self, state: KitchenState) -> Iterator[_Primitive]:
        """Yield three bumps at the board in front if a raw food lies on it, else one idle step.

        A full hand cannot chop: the bumps are wasted.
        """
        board = self.board_before(state.agent)
        lying = None if board is None else state.lying_at(board)
        if board is None or lying is None or not state.is_raw(lying):
            yield self._stay(state)
            return
        for _ in range(CHOPPED):
            step = self._bump(state, self.boards[board])
            yield step
            state = step.state

    def _approach(self, state: KitchenState, macro: Macro) -> tuple[_Primitive, bool]:
        """Return one step of getting a thing, going to a board or delivering; whether it is done.

        Two of the steps look odd and are the game's: a food in the plate is only looked for, and
        whoever fetches the plate with a chopped food in the hand fills it first.
        """
        target = self._target(state, macro)
        in_plate = macro.kind == "get" and state.place(macro.thing) == IN_PLATE
        if target == state.agent or (in_plate and self.is_seen(state, target)):
            return self._stay(state), True
        if _distance(state.agent, target) > 1:
            walked = self._walk(state, self._access[target])
            arrived = _distance(walked.agent, target) == 1
            return self._stay(walked), arrived and self._is_idle(walked, macro)
        held = state.held
        fetches_plate = macro == Macro("get", PLATE) and held is not None and held != PLATE
        if self._is_idle(state, macro) or (fetches_plate and state.is_raw(held or "")):
            return self._stay(state), True
        return self._bump(state, target), not fetches_plate

    def _target(self, state: KitchenState, macro: Macro) -> Cell:
        """Return the cell that a macro makes for."""
        if macro.kind == "get":
            return self.cell_of(state, macro.thing)
        return self.delivery if macro.kind == "deliver" else self.boards[macro.board]

    def _is_idle(self, state: KitchenState, macro: Macro) -> bool:
        """Return whether there is nothing to do at the target: it only stands there."""
        if macro.kind == "get":
            return state.place(macro.thing) in BOARDS and state.is_raw(macro.thing)
        return state.held is None

    def _walk(self, state: KitchenState, goal: Cell) -> KitchenState:
        """Return the state one step nearer to a floor cell, rows before columns."""
        rows, columns = goal[0] - state.row, goal[1] - state.column
        if rows:
            return state._replace(row=state.row + (1 if rows > 0 else -1))
        return state._replace(column=state.column + (1 if columns > 0 else -1))

    def _stay(self, state: KitchenState, reward: float = 0.0) -> _Primitive:
        """Return a primitive step that ends in a state."""
        return _Primitive(state, reward - self.rewards.step)

    def _bump(self, state: KitchenState, cell: Cell) -> _Primitive:
        """Return what bumping into a thing's counter, a board or the delivery does.

        Macros of this map never bump into a counter on which nothing lies.
        """
        if cell == self.delivery:
            return self._deliver(state)
        board = next((place for place, at in self.boards.items() if at == cell), None)
        held = state.held
        lying = self._lying_at_home(state, cell) if board is None else state.lying_at(board)
        if held is None and lying is not None:
            if board is None or not state.is_raw(lying):
                return self._stay(state.put(lying, HAND))
            chops = state.chops(lying) + 1
            earned = chops == CHOPPED and lying in self.dish.wanted
            chopped = state._replace(**{f"{lying}_chops": chops})
            return self._stay(chopped, self.rewards.subtask if earned else 0.0)
        if held is not None and lying is None and board is not None:
            return self._stay(state.put(held, board))
        if held == PLATE and lying is not None and not state.is_raw(lying):
            return self._stay(state.put(lying, IN_PLATE))
        if held is not None and lying == PLATE and not state.is_raw(held):
            filled = state.put(held, IN_PLATE)
            return self._stay(filled if board is None else filled.put(PLATE, HAND))
        return self._stay(state)

    def _lying_at_home(self, state: KitchenState, cell: Cell) -> str | None:
        """Return the thing on a counter."""
        at_home = (t for t, home in self.homes.items() if home == cell and state.place(t) == HOME)
        return next(at_home, None)

    def _deliver(self, state: KitchenState) -> _Primitive:
        """Return what handing over does: the dish ends the episode, anything else goes home."""
        held = state.held
        if held is None:
            return self._stay(state)
        if held == PLATE and state.plated == self.dish.wanted:
            served = self._stay(state.put(PLATE, SERVED), self.rewards.delivery)
            return served._replace(is_served=True)
        return self._stay(state.put_back(held), -self.rewards.wrong_delivery)


def _distance(one: Cell, other: Cell) -> int:
    """Return the steps between two cells."""
    return abs(one[0] - other[0]) + abs(one[1] - other[1])
