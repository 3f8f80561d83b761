"""The words of Overcooked: what an observation says, and how each action is worded in it.

The text is a function of what the agent sees, so of the observation's vector, and of nothing else.
The sentences tell, in this order, the boards, the things on their own counters, what lies on the
boards, and where the agent stands with what in its hand; a goal clause that names the dish follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from llm_agents.envs.overcooked_kitchen import (
    BOARDS,
    CHOPPED,
    PLATE,
    Cell,
    Dish,
    Kitchen,
    KitchenState,
    Macro,
)

_NUM_TASKS = 7
_ORDINALS = dict(zip(BOARDS, ("first", "second"), strict=True))


class Seen(NamedTuple):
    """What the agent can tell of a state.

    Args:
        agent: Its cell.
        cells: Cells of the things that are seen.
        chops: Chop counts of the foods that are seen.
        boards: Cells of the boards that are seen, by place.
        sees_delivery: The delivery is near enough.
    """

    agent: Cell
    cells: dict[str, Cell]
    chops: dict[str, int]
    boards: dict[int, Cell]
    sees_delivery: bool

    def things_at(self, cell: Cell) -> tuple[str, ...]:
        """Return what is at a cell: a thing, or the plate and what it contains."""
        return tuple(thing for thing, at in self.cells.items() if at == cell)

    @property
    def held(self) -> tuple[str, ...]:
        """Return what the agent carries."""
        return self.things_at(self.agent)

    @property
    def sees_filled_plate(self) -> bool:
        """Return whether the plate is seen with something in it."""
        return PLATE in self.cells and len(self.things_at(self.cells[PLATE])) > 1


def look(kitchen: Kitchen, state: KitchenState) -> Seen:
    """Return what the agent sees."""
    things = (*kitchen.dish.foods, PLATE)
    cells = {thing: kitchen.cell_of(state, thing) for thing in things}
    cells = {thing: cell for thing, cell in cells.items() if kitchen.is_seen(state, cell)}
    return Seen(
        agent=state.agent,
        cells=cells,
        chops={food: state.chops(food) for food in kitchen.dish.foods if food in cells},
        boards={b: cell for b, cell in kitchen.boards.items() if kitchen.is_seen(state, cell)},
        sees_delivery=kitchen.is_seen(state, kitchen.delivery),
    )


def vector(kitchen: Kitchen, seen: Seen) -> tuple[int, ...]:
    """Return the observation as whole numbers.

    Row and column of every food (and its chop count), the plate, the boards, the delivery and the
    agent, then the task as a one-hot; what is not seen is 0 0 (0), a cell where nothing can be.
    """
    numbers: list[int] = []
    for food in kitchen.dish.foods:
        numbers += [*seen.cells.get(food, (0, 0)), seen.chops.get(food, 0)]
    numbers += seen.cells.get(PLATE, (0, 0))
    for board in kitchen.boards:
        numbers += seen.boards.get(board, (0, 0))
    numbers += kitchen.delivery if seen.sees_delivery else (0, 0)
    numbers += seen.agent
    numbers += [int(task == kitchen.dish.task) for task in range(_NUM_TASKS)]
    return tuple(numbers)


def describe(kitchen: Kitchen, seen: Seen) -> str:
    """Return the sentences of an observation."""
    count = len(kitchen.boards)
    boards = "one fixed cutting board" if count == 1 else "two fixed cutting boards"
    sentences = [f"The room has {boards}."]
    at_home = [thing for thing, cell in seen.cells.items() if cell == kitchen.homes[thing]]
    if at_home:
        where = "the table" if len(at_home) == 1 else "different tables"
        sentences.append(f"You see {_join(_a(_noun(thing)) for thing in at_home)} on {where}.")
    for board, cell in seen.boards.items():
        if things := seen.things_at(cell):
            sentences.append(f"{_load(things, seen).capitalize()} is on {_board(board, count)}.")
    before = kitchen.board_before(seen.agent)
    stand = "" if before is None else f"stand in front of {_board(before, count)} and "
    sentences.append(f"You {stand}carry {_load(seen.held, seen) if seen.held else 'nothing'}.")
    return " ".join(sentences)


def goal(dish: Dish) -> str:
    """Return the unfinished clause that names the dish."""
    wanted = _contents(food for food in dish.foods if food in dish.wanted)
    return f"To serve a bowl with only {wanted} in it, you should first"


def word_actions(kitchen: Kitchen, seen: Seen) -> tuple[str, ...]:
    """Return the texts of all macros, by number."""
    return tuple(_word(kitchen, seen, macro) for macro in kitchen.macros)


def _word(kitchen: Kitchen, seen: Seen, macro: Macro) -> str:
    """Return the text of a macro in a situation."""
    held = seen.held
    has_plate = PLATE in held
    if macro.kind == "get" and macro.thing != PLATE:
        return f"put the {macro.thing} in the bowl" if has_plate else f"pick up the {macro.thing}"
    if macro.kind == "get":
        is_empty = "empty " if len(kitchen.boards) > 1 and not seen.sees_filled_plate else ""
        return f"take the {is_empty}bowl"
    if macro.kind == "go":
        board = _board(macro.board, len(kitchen.boards))
        if has_plate:
            return f"put the bowl on {board}"
        if held and seen.chops[held[0]] < CHOPPED:
            return f"put the {held[0]} on {board}"
        return f"walk to {board}"
    if macro.kind == "deliver":
        return "serve the dish" if held else "serve nothing"
    before = kitchen.board_before(seen.agent)
    lying = () if before is None else seen.things_at(kitchen.boards[before])
    is_food = len(lying) == 1 and lying[0] != PLATE
    return f"chop the {lying[0]}" if is_food else "chop nothing"


def _board(board: int, count: int) -> str:
    """Return the name of a board; the only one needs no number."""
    return f"the {_ORDINALS[board]} cutting board" if count > 1 else "the cutting board"


def _load(things: Sequence[str], seen: Seen) -> str:
    """Return what is in the hand or on a board as a noun with its article."""
    foods = [thing for thing in things if thing != PLATE]
    if PLATE in things:
        return f"a bowl with {_contents(foods)} in it" if foods else "a bowl"
    return _a(f"{'chopped' if seen.chops[foods[0]] == CHOPPED else 'unchopped'} {foods[0]}")


def _contents(foods: Iterable[str]) -> str:
    """Return the foods in a plate, which are all chopped."""
    return _join(f"a chopped {food}" for food in foods)


def _noun(thing: str) -> str:
    """Return the word for a thing."""
    return "bowl" if thing == PLATE else thing


def _a(noun: str) -> str:
    """Return a noun with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _join(nouns: Iterable[str]) -> str:
    """Return nouns as a list in prose."""
    *most, last = nouns
    return f"{', '.join(most)} and {last}" if most else last
