"""Heating a pancake in VirtualHome, and POAD's six tasks with other nouns.

The agent finds the pancake and the microwave in the kitchen, opens the microwave, puts the pancake
in and closes it: six steps at best. A failed action costs a step and changes nothing. Reward is 1
at the end and 0 before.

Differs from the released versions: the sentences are ours, and they always say once what is in the
hand and whether the food is in the container.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from llm_agents.envs.base import Observation
from llm_agents.envs.machine import MachineWorld, Outcome
from llm_agents.envs.virtualhome import (
    BATHROOM,
    BEDROOM,
    GAMMA,
    KITCHEN,
    LIVING_ROOM,
    MAX_STEPS,
    ROOM_BITS,
    ROOMS,
    Lists,
    draw_rooms,
    other_rooms,
    room_sentence,
)

VariantName = Literal[
    "pancake", "cheese", "hamburger", "apple-pie", "pizza", "washing-plate", "laundry"
]

TO_FOOD, TO_CONTAINER, GRAB, PUT, OPEN, CLOSE = range(4, 10)
_AWAY = (LIVING_ROOM, BATHROOM, BEDROOM)


@dataclass(frozen=True)
class Variant:
    """The nouns of a task; its dynamics are those of the pancake.

    Args:
        thing: What is put into the container.
        container: Where it goes.
        verb: What happens to it there.
        is_plural: Whether the thing is many.
    """

    thing: str
    container: str = "microwave"
    verb: str = "heat up"
    is_plural: bool = False

    @property
    def be(self) -> str:
        """Return the verb that agrees with the thing."""
        return "are" if self.is_plural else "is"

    def actions(self) -> tuple[str, ...]:
        """Return the texts of the ten actions."""
        return (
            *(f"walk to the {room}" for room in ROOMS),
            f"walk to the {self.thing}",
            f"walk to the {self.container}",
            f"grab the {self.thing}",
            f"put the {self.thing} in the {self.container}",
            f"open the {self.container}",
            f"close the {self.container}",
        )


VARIANTS: dict[VariantName, Variant] = {
    "pancake": Variant("pancake"),
    "cheese": Variant("cheese"),
    "hamburger": Variant("hamburger"),
    "apple-pie": Variant("apple pie"),
    "pizza": Variant("pizza"),
    "washing-plate": Variant("dishes", "dishwasher", "wash", is_plural=True),
    "laundry": Variant("clothes", "washing machine", "wash", is_plural=True),
}


class FoodState(NamedTuple):
    """Where everything is, what the agent cannot see included.

    Args:
        room: Of the agent.
        near_food: The agent stands at the food.
        near_container: The agent stands at the container.
        holding: The food is in the hand.
        food_room: Where the food is taken to be; see `room_lag` of `FoodPreparation`.
        inside: The food is in the container.
        is_open: The container is open.
    """

    room: int = KITCHEN
    near_food: int = False
    near_container: int = False
    holding: int = False
    food_room: int = KITCHEN
    inside: int = False
    is_open: int = False


class FoodView(NamedTuple):
    """What the agent can tell of a state; all is False of things it does not see."""

    room: int
    sees_food: bool
    near_food: bool
    holding: bool
    sees_container: bool
    near_container: bool
    is_open: bool
    inside: bool

    @property
    def vector(self) -> tuple[int, ...]:
        """Return 11 bits: four rooms, three of the food, four of the container."""
        return (*(int(self.room == room) for room in ROOM_BITS), *map(int, self[1:]))


def view_food(state: FoodState) -> FoodView:
    """Return what a state shows: a closed container hides what is in it."""
    sees_food = bool(
        state.holding or (state.room == state.food_room and (not state.inside or state.is_open))
    )
    sees_container = state.room == KITCHEN
    return FoodView(
        room=state.room,
        sees_food=sees_food,
        near_food=sees_food and bool(state.near_food),
        holding=bool(state.holding),
        sees_container=sees_container,
        near_container=sees_container and bool(state.near_container),
        is_open=sees_container and bool(state.is_open),
        inside=sees_food and sees_container and bool(state.inside),
    )


def describe_food(view: FoodView, variant: Variant) -> str:
    """Return the sentences of an observation: rooms, what is noticed, hand, reach, container."""
    thing, container = f"the {variant.thing}", f"the {variant.container}"
    held = f"You hold {thing if view.holding else 'nothing'}"
    sentences = [room_sentence(view.room)]
    if view.room != KITCHEN:
        sentences += ["You notice nothing useful here.", f"{held}."]
    elif not view.sees_food:
        sentences += [
            f"You notice {container}.",
            f"{held}.",
            f"{container.capitalize()} is closed, and {thing} {variant.be} in it.",
        ]
    else:
        sentences.append(f"You notice {thing} and {container}.")
        sentences.append(f"{held}, and {_reach(view, variant)} within reach.")
        state = f"{container.capitalize()} is {'open' if view.is_open else 'not open'}"
        inside = f", and {thing} {variant.be} in it" if view.inside else ""
        sentences.append(f"{state}{inside}.")
    return " ".join(sentences)


def offered_food(view: FoodView, lists: Lists) -> tuple[int, ...]:
    """Return the actions that are offered, as the papers' tables order them.

    Args:
        view: What the agent can tell.
        lists: ``strict`` offers opening and closing together wherever the container is near, and
            walking to the food in the hand; ``fixed`` offers only what can work.
    """
    if view.room != KITCHEN:
        return other_rooms(view.room)
    doors = (OPEN, CLOSE) if lists == "strict" else ((CLOSE,) if view.is_open else (OPEN,))
    if not view.sees_food:
        return _AWAY
    if view.holding and lists == "strict":
        return (*_AWAY, TO_FOOD, *((PUT, *doors) if view.near_container else (TO_CONTAINER,)))
    if view.holding:
        put = (PUT,) if view.is_open else ()
        return (*_AWAY, *((*put, *doors) if view.near_container else (TO_CONTAINER,)))
    if view.near_food and view.near_container:
        return (*_AWAY, *doors) if view.is_open else (*_AWAY, CLOSE)
    if view.near_food:
        return (*_AWAY, TO_CONTAINER, GRAB)
    if view.near_container:
        return (*_AWAY, TO_FOOD, *doors)
    return (*_AWAY, TO_FOOD, TO_CONTAINER)


class FoodPreparation(MachineWorld[FoodState]):
    """Food preparation (v1) of TWOSOME and POAD, or one of its variants.

    Args:
        variant: Which nouns; all have the same dynamics.
        lists: Which actions are offered: as released, or without those that cannot work.
        room_lag: A thing in the hand keeps the room that the agent left last, as VirtualHome's
            graph does, so that "walk to the pancake" with the pancake in hand walks back there;
            without it the thing is where the agent is.
        fitting_verb: Name what really happens in the goal of the tasks that wash; without it they
            "heat up", as released.
        max_steps: Decisions after which an episode is cut.
        seed: Unused: nothing here is random.

    Raises:
        ValueError: There is no such variant or list.
    """

    state_type = FoodState

    def __init__(
        self,
        variant: VariantName = "pancake",
        *,
        lists: Lists = "strict",
        room_lag: bool = True,
        fitting_verb: bool = True,
        max_steps: int = MAX_STEPS,
        seed: int = 0,
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"expected a variant of {', '.join(VARIANTS)}, got {variant!r}")
        if lists not in get_args(Lists):
            raise ValueError(f"expected lists {' or '.join(get_args(Lists))}, got {lists!r}")
        super().__init__(max_steps=max_steps, seed=seed)
        task = "food-preparation" if variant == "pancake" else variant
        self.name = f"virtualhome-{task}"
        self.variant, self.lists, self.room_lag = VARIANTS[variant], lists, room_lag
        self.num_actions = 10
        self.vector_size = 11
        self.gamma = GAMMA
        self.optimal_return = GAMMA**5 if max_steps >= 6 else 0.0
        verb = self.variant.verb if fitting_verb else "heat up"
        self.goal = (
            f"To {verb} the {self.variant.thing} in the {self.variant.container}, "
            "your next step is to"
        )
        self.legend = (
            f"@ agent, * {self.variant.thing}, [ ] {self.variant.container}, without ] while open"
        )
        self._texts = self.variant.actions()

    def start(self, generator: random.Random) -> FoodState:
        """Begin in the kitchen with empty hands."""
        return FoodState()

    def outcome(self, state: FoodState, action: int) -> Outcome[FoodState]:
        """Do what the action says where that is possible; the kitchen without food is success.

        The food is out of sight in the kitchen only when it is in the closed container.
        """
        after = self._after(state, action)
        view = view_food(after)
        done = view.room == KITCHEN and not view.sees_food
        return Outcome(after, float(done), terminated=done, success=done)

    def observe(self, state: FoodState) -> Observation:
        """Describe what can be seen."""
        view = view_food(state)
        offered = offered_food(view, self.lists)
        return Observation(
            text=describe_food(view, self.variant),
            goal=self.goal,
            actions=tuple(self._texts[action] for action in offered),
            action_ids=offered,
            vector=view.vector,
        )

    def draw(self, state: FoodState) -> str:
        """Draw the rooms; the container's brackets are closed or open, the food is *."""
        container = f"[{'*' if state.inside else ' '}{' ' if state.is_open else ']'}"
        lies_about = not state.holding and not state.inside
        things = {KITCHEN: f"{'* ' if lies_about else ''}{container}"}
        near = [
            noun
            for noun, is_near in (
                (self.variant.thing, state.near_food),
                (self.variant.container, state.near_container),
            )
            if is_near
        ]
        held = self.variant.thing if state.holding else "nothing"
        return f"{draw_rooms(state.room, things)}\nhand: {held}, near: {', '.join(near) or '-'}"

    def _after(self, state: FoodState, action: int) -> FoodState:
        """Return the state after an action; the same state where it fails."""
        view = view_food(state)
        if action < len(ROOMS):
            return self._walk(state, action, near_food=state.holding, near_container=False)
        if action == TO_FOOD and view.sees_food:
            return self._walk(state, state.food_room, True, near_container=state.inside)
        if action == TO_CONTAINER and view.sees_container:
            return self._walk(state, KITCHEN, state.holding or state.inside, near_container=True)
        if action == GRAB and view.near_food and not view.holding:
            return state._replace(holding=True, inside=False, food_room=state.room)
        if action == PUT and view.holding and view.near_container and view.is_open:
            return state._replace(holding=False, inside=True)
        if action in (OPEN, CLOSE) and view.near_container and view.is_open == (action == CLOSE):
            return state._replace(is_open=action == OPEN)
        return state

    def _walk(self, state: FoodState, room: int, near_food: int, near_container: int) -> FoodState:
        """Return the state after a walk; the food in the hand comes along, a walk late or not."""
        food_room = state.food_room
        if state.holding:
            food_room = state.room if self.room_lag else room
        return state._replace(
            room=room, near_food=near_food, near_container=near_container, food_room=food_room
        )


def _reach(view: FoodView, variant: Variant) -> str:
    """Return the subject and verb of the clause about what is within reach."""
    thing, container = f"the {variant.thing}", f"the {variant.container}"
    if view.holding:
        return f"{container} {'is' if view.near_container else 'is not'}"
    if view.near_food and view.near_container:
        return f"{thing} and {container} are"
    if view.near_food:
        return f"{thing} {variant.be}"
    if view.near_container:
        return f"{container} is"
    return f"neither {thing} nor {container} is"
