"""An evening on the sofa in VirtualHome: chips and milk from the kitchen, the TV on.

The agent brings the chips and the milk to the living room, turns the TV on, which takes a free
hand, and sits down on the sofa with both within reach: eleven steps at best. A failed action costs
a step and changes nothing. Reward is 1 at the end and 0 before.

Differs from the released versions: the sentences are ours, and they always say once what is in the
hands.
"""

from __future__ import annotations

import random
from typing import NamedTuple, get_args

from llm_agents.envs.base import Observation
from llm_agents.envs.machine import MachineWorld, Outcome
from llm_agents.envs.virtualhome import (
    GAMMA,
    KITCHEN,
    LIVING_ROOM,
    MAX_STEPS,
    ROOM_BITS,
    ROOMS,
    Lists,
    draw_rooms,
    join,
    other_rooms,
    room_sentence,
)

CHIPS, MILK, TABLE, TV, SOFA = range(5)
_FULL_HANDS = 1 << CHIPS | 1 << MILK
THINGS = ("the chips", "the milk", "the coffee table", "the TV", "the sofa")
"""By number; the action 4 + number walks to it."""

TO_CHIPS, TO_MILK, TO_TABLE, TO_TV, TO_SOFA = range(4, 9)
GRAB_CHIPS, GRAB_MILK, PUT_CHIPS, PUT_MILK, TURN_ON, TURN_OFF, SIT, STAND = range(9, 17)

_TEXTS = (
    *(f"walk to the {room}" for room in ROOMS),
    *(f"walk to {thing}" for thing in THINGS),
    "grab the chips",
    "grab the milk",
    "put the chips on the coffee table",
    "put the milk on the coffee table",
    "turn on the TV",
    "turn off the TV",
    "sit on the sofa",
    "stand up from the sofa",
)


class EveningState(NamedTuple):
    """Where everything is, what the agent cannot see included; sets are bits by thing.

    Args:
        room: Of the agent.
        near: Things at which the agent stands, those in the hands included.
        held: Which of the chips and the milk are in the hands.
        on_table: Which of them lie on the coffee table.
        chips_room: Where the chips are taken to be; see `room_lag` of `Entertainment`.
        milk_room: The same for the milk.
        tv_on: The TV is on.
        is_sitting: The agent's posture.
        on_sofa: What the observation says of it; see `sofa_sticks` of `Entertainment`.
        facing: The agent looks at the TV.
    """

    room: int = KITCHEN
    near: int = 0
    held: int = 0
    on_table: int = 0
    chips_room: int = KITCHEN
    milk_room: int = KITCHEN
    tv_on: int = False
    is_sitting: int = False
    on_sofa: int = False
    facing: int = False

    def item_room(self, item: int) -> int:
        """Return where the chips or the milk are taken to be."""
        return self.milk_room if item == MILK else self.chips_room

    def sees(self, thing: int) -> bool:
        """Return whether the agent sees a thing."""
        if thing in (CHIPS, MILK):
            return _has(self.held, thing) or self.item_room(thing) == self.room
        return self.room == LIVING_ROOM

    @property
    def seen(self) -> int:
        """Return the set of the things that the agent sees."""
        return sum(1 << thing for thing in range(len(THINGS)) if self.sees(thing))


class EveningView(NamedTuple):
    """What the agent can tell of a state; sets are bits by thing."""

    room: int
    seen: int
    near: int
    held: int
    on_table: int
    tv_on: bool
    on_sofa: bool
    facing: bool

    @property
    def vector(self) -> tuple[int, ...]:
        """Return 21 bits: 4 rooms, 4 of the chips, 4 of the milk, 4 TV, 3 sofa, 2 table."""
        bits = [self.room == room for room in ROOM_BITS]
        for item in (CHIPS, MILK):
            bits += [_has(of, item) for of in (self.seen, self.near, self.held, self.on_table)]
        bits += [_has(self.seen, TV), _has(self.near, TV), self.facing, self.tv_on]
        bits += [_has(self.seen, SOFA), _has(self.near, SOFA), self.on_sofa]
        bits += [_has(self.seen, TABLE), _has(self.near, TABLE)]
        return tuple(map(int, bits))


def view_evening(state: EveningState) -> EveningView:
    """Return what a state shows: what is in the agent's room or in the hands."""
    seen = state.seen
    at_home = state.room == LIVING_ROOM
    return EveningView(
        room=state.room,
        seen=seen,
        near=state.near & seen,
        held=state.held,
        on_table=state.on_table & seen if at_home else 0,
        tv_on=at_home and bool(state.tv_on),
        on_sofa=at_home and bool(state.on_sofa),
        facing=at_home and bool(state.facing),
    )


def describe_evening(view: EveningView) -> str:
    """Return the sentences of an observation: the rooms, what is noticed, reach, TV, hands."""
    sentences = [room_sentence(view.room)]
    lying = [item for item in (CHIPS, MILK) if _has(view.seen & ~view.held & ~view.on_table, item)]
    noticed = [THINGS[item] for item in lying]
    if view.room == LIVING_ROOM:
        noticed += [THINGS[thing] for thing in (TABLE, TV, SOFA)]
    sentences.append(f"You notice {join(noticed) if noticed else 'nothing useful here'}.")
    close = [item for item in lying if _has(view.near, item)]
    if close:
        be = "is" if close == [MILK] else "are"
        sentences.append(f"{_start(join([THINGS[item] for item in close]))} {be} within reach.")
    if view.room == LIVING_ROOM:
        sentences += _living_room(view)
    held = _items(view.held)
    sentences.append(f"You hold {held or 'nothing'}.")
    return " ".join(sentences)


def offered_evening(view: EveningView, lists: Lists) -> tuple[int, ...]:
    """Return the actions that are offered, as the papers' tables order them.

    Args:
        view: What the agent can tell.
        lists: ``strict`` as released: where only one of the chips and the milk is seen, walking to
            the *other* is offered, and whoever sits cannot stand up. ``fixed`` cures both, and
            leaves out what cannot work.
    """
    rooms = other_rooms(view.room)
    if view.room == LIVING_ROOM:
        choose = _strict_living_room if lists == "strict" else _fixed_living_room
        return (*rooms, *choose(view))
    if view.room != KITCHEN:
        return rooms
    seen = [item for item in (CHIPS, MILK) if _has(view.seen, item)]
    chosen = []
    for item in seen:
        if _has(view.held, item):
            continue
        if _has(view.near, item):
            chosen.append(GRAB_CHIPS + item)
        elif lists == "strict" and len(seen) == 1:
            chosen.append(TO_MILK if item == CHIPS else TO_CHIPS)
        else:
            chosen.append(TO_CHIPS + item)
    return (*rooms, *sorted(chosen))


class Entertainment(MachineWorld[EveningState]):
    """Entertainment (v2) of TWOSOME and POAD.

    Args:
        lists: Which actions are offered: as released, or with the defects cured.
        room_lag: A thing in the hand keeps the room that the agent left last, as VirtualHome's
            graph does; without it the thing is where the agent is.
        sofa_sticks: Whoever sat once counts as on the sofa for the rest of the episode, as
            VirtualHome's graph does; without it standing up ends that.
        max_steps: Decisions after which an episode is cut.
        seed: Unused: nothing here is random.

    Raises:
        ValueError: There are no such lists.
    """

    state_type = EveningState
    legend = "@ agent, c chips, m milk, [ ] coffee table"

    def __init__(
        self,
        *,
        lists: Lists = "strict",
        room_lag: bool = True,
        sofa_sticks: bool = True,
        max_steps: int = MAX_STEPS,
        seed: int = 0,
    ) -> None:
        if lists not in get_args(Lists):
            raise ValueError(f"expected lists {' or '.join(get_args(Lists))}, got {lists!r}")
        super().__init__(max_steps=max_steps, seed=seed)
        self.name = "virtualhome-entertainment"
        self.lists, self.room_lag, self.sofa_sticks = lists, room_lag, sofa_sticks
        self.num_actions = len(_TEXTS)
        self.vector_size = 21
        self.gamma = GAMMA
        self.optimal_return = GAMMA**10 if max_steps >= 11 else 0.0
        self.goal = "To enjoy the chips and the milk while watching TV, your next step is to"

    def start(self, generator: random.Random) -> EveningState:
        """Begin in the kitchen with empty hands."""
        return EveningState()

    def outcome(self, state: EveningState, action: int) -> Outcome[EveningState]:
        """Do what the action says where that is possible; sitting with all of it is success."""
        after = self._after(state, action)
        supplied = all(_has(after.near & after.seen | after.on_table, i) for i in (CHIPS, MILK))
        settled = after.room == LIVING_ROOM and after.facing and after.tv_on and after.on_sofa
        done = bool(settled and supplied)
        return Outcome(after, float(done), terminated=done, success=done)

    def observe(self, state: EveningState) -> Observation:
        """Describe what can be seen."""
        view = view_evening(state)
        offered = offered_evening(view, self.lists)
        return Observation(
            text=describe_evening(view),
            goal=self.goal,
            actions=tuple(_TEXTS[action] for action in offered),
            action_ids=offered,
            vector=view.vector,
        )

    def draw(self, state: EveningState) -> str:
        """Draw the rooms: c chips, m milk, the table's load in brackets, the TV on or off."""
        table = "".join("cm"[item] for item in (CHIPS, MILK) if _has(state.on_table, item))
        things = {LIVING_ROOM: f"[{table}] TV {'on' if state.tv_on else 'off'} sofa"}
        loose = [
            "cm"[item] for item in (CHIPS, MILK) if not _has(state.held | state.on_table, item)
        ]
        if loose:
            things[KITCHEN] = " ".join(loose)
        near = [THINGS[thing] for thing in range(len(THINGS)) if _has(state.near, thing)]
        posture = "sitting" if state.is_sitting else "standing"
        held = _items(state.held) or "nothing"
        body = f"{posture}, hands: {held}, near: {', '.join(near) or '-'}"
        return f"{draw_rooms(state.room, things)}\n{body}"

    def _after(self, state: EveningState, action: int) -> EveningState:
        """Return the state after an action; the same state where it fails."""
        if action == STAND:
            on_sofa = state.on_sofa and self.sofa_sticks
            return state._replace(is_sitting=False, on_sofa=on_sofa) if state.is_sitting else state
        if action <= TO_SOFA:
            return self._walk(state, action)
        if action in (GRAB_CHIPS, GRAB_MILK):
            return _grab(state, action - GRAB_CHIPS)
        at_home = state.room == LIVING_ROOM
        if action in (PUT_CHIPS, PUT_MILK):
            item = action - PUT_CHIPS
            if not (at_home and _has(state.held, item) and _has(state.near, TABLE)):
                return state
            return state._replace(
                held=state.held & ~(1 << item), on_table=state.on_table | 1 << item
            )
        if action in (TURN_ON, TURN_OFF):
            off = action == TURN_OFF
            has_free_hand = state.held != _FULL_HANDS
            if at_home and _has(state.near, TV) and has_free_hand and bool(state.tv_on) == off:
                return state._replace(tv_on=not off)
            return state
        if at_home and _has(state.near, SOFA) and not state.is_sitting:
            return state._replace(is_sitting=True, on_sofa=True, facing=True)
        return state

    def _walk(self, state: EveningState, action: int) -> EveningState:
        """Return the state after a walk to a room (0–3) or to a thing that is seen (4–8)."""
        if state.is_sitting:
            return state
        if action < TO_CHIPS:
            return self._move(state, action, near=0)
        thing = action - TO_CHIPS
        if not state.sees(thing):
            return state
        near = 1 << thing
        if thing in (CHIPS, MILK):
            near |= (1 << TABLE) if _has(state.on_table, thing) else 0
            return self._move(state, state.item_room(thing), near)
        return self._move(state, LIVING_ROOM, near)

    def _move(self, state: EveningState, room: int, near: int) -> EveningState:
        """Return the state in another room; what is in the hands comes along, or a walk late."""
        left = state.room if self.room_lag else room
        return state._replace(
            room=room,
            near=state.held | near,
            facing=False,
            chips_room=left if _has(state.held, CHIPS) else state.chips_room,
            milk_room=left if _has(state.held, MILK) else state.milk_room,
        )


def _has(things: int, thing: int) -> bool:
    """Return whether a set of bits has a thing."""
    return bool(things >> thing & 1)


def _start(sentence: str) -> str:
    """Return the sentence with a capital letter; the others stay."""
    return sentence[0].upper() + sentence[1:]


def _items(items: int) -> str:
    """Return the chips and the milk of a set in prose; nothing where it is empty."""
    return join([THINGS[item] for item in (CHIPS, MILK) if _has(items, item)]) if items else ""


def _grab(state: EveningState, item: int) -> EveningState:
    """Return the state with the chips or the milk in a hand, if it is seen and within reach."""
    on_near_table = _has(state.on_table, item) and _has(state.near, TABLE)
    reachable = state.sees(item) and (_has(state.near, item) or on_near_table)
    if not reachable or _has(state.held, item):
        return state
    bit = 1 << item
    taken = state._replace(
        held=state.held | bit, on_table=state.on_table & ~bit, near=state.near | bit
    )
    if item == CHIPS:
        return taken._replace(chips_room=state.room)
    return taken._replace(milk_room=state.room)


def _living_room(view: EveningView) -> list[str]:
    """Return the sentences on reach, sofa, TV and coffee table."""
    close = [THINGS[thing] for thing in (TABLE, TV, SOFA) if _has(view.near, thing)]
    wanted = _wanted(view)
    if not close:
        reach = "None of them is within reach"
    elif wanted is not None and not _has(view.near, wanted):
        reach = f"{_start(join(close))} is within reach, but {THINGS[wanted]} is not"
    else:
        reach = f"{_start(join(close))} is within reach"
    sentences = [f"{reach}."]
    if view.on_sofa:
        sentences.append(f"You sit on the sofa{' and face the TV' if view.facing else ''}.")
    sentences.append(f"The TV is {'on' if view.tv_on else 'off'}.")
    if view.on_table:
        be = "is" if view.on_table == 1 << MILK else "are"
        sentences.append(f"{_start(_items(view.on_table))} {be} on the coffee table.")
    return sentences


def _wanted(view: EveningView) -> int | None:
    """Return the thing that is useful next: the TV with one hand free, then the sofa."""
    if view.tv_on:
        return None if view.on_sofa else SOFA
    is_ready = view.on_table and view.held and view.on_table | view.held == _FULL_HANDS
    return TV if is_ready else None


def _puts(view: EveningView) -> tuple[int, ...]:
    """Return the puts that are offered at the table: not the second, a hand is free already."""
    return tuple(
        PUT_CHIPS + item
        for item, other in ((CHIPS, MILK), (MILK, CHIPS))
        if _has(view.held, item) and not _has(view.on_table, other)
    )


def _strict_living_room(view: EveningView) -> tuple[int, ...]:
    """Return what is offered in the living room beside the other rooms, as released."""
    if _has(view.near, TABLE):
        return (TO_TV, TO_SOFA, *_puts(view)) if view.held else ()
    if _has(view.near, TV):
        return (TO_TABLE, TO_SOFA) if view.tv_on else (TO_TABLE, TO_SOFA, TURN_ON, TURN_OFF)
    if not _has(view.near, SOFA):
        return (TO_TABLE, TO_TV, TO_SOFA)
    if view.on_sofa:
        return ()
    return (TO_TABLE, TO_TV, SIT, STAND) if view.tv_on else (TO_TABLE, TO_TV)


def _fixed_living_room(view: EveningView) -> tuple[int, ...]:
    """Return what can work in the living room beside the other rooms, without a dead end."""
    if _has(view.near, TABLE):
        return (TO_TV, TO_SOFA, *_puts(view))
    if _has(view.near, TV):
        switch = (TURN_ON,) if view.held != _FULL_HANDS and not view.tv_on else ()
        return (TO_TABLE, TO_SOFA, *switch)
    if not _has(view.near, SOFA):
        return (TO_TABLE, TO_TV, TO_SOFA)
    if view.facing:
        return (TO_TABLE, TO_TV, STAND)
    return (TO_TABLE, TO_TV, SIT) if view.tv_on else (TO_TABLE, TO_TV)
