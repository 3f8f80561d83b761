"""Toy worlds: each is solved in seconds and asks one thing of an agent.

| world | asks |
|---|---|
| `Lamp` | to read: one step, the right action repeats a word of the observation |
| `Corridor` | to look ahead: the reward comes at the exit; macros take several steps |
| `Chest` | a sequence with action lists that change, shared first words, one forced step |
| `Clock` | nothing: it never ends by itself, so only a limit cuts it |
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from llm_agents.envs.base import Observation
from llm_agents.envs.machine import MachineWorld, Outcome

_COLORS = ("red", "green", "blue", "yellow", "white", "orange")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class LampState(NamedTuple):
    """The color of the lamp, and the button that was pressed (-1 before)."""

    color: int
    pressed: int


class Lamp(MachineWorld[LampState]):
    """A lamp shines in a random color; pressing the button of that color earns 1 and ends.

    Args:
        num_colors: Colors and buttons, 2 to 6.
        seed: Begins the world's random numbers.
    """

    state_type = LampState

    def __init__(self, num_colors: int = 3, *, seed: int = 0) -> None:
        if not 2 <= num_colors <= len(_COLORS):
            raise ValueError(f"expected 2 to {len(_COLORS)} colors, got {num_colors}")
        super().__init__(max_steps=None, seed=seed)
        self.name = "toy-lamp"
        self.num_actions = self.vector_size = num_colors
        self.gamma = 0.99
        self.optimal_return = 1.0

    def start(self, generator: random.Random) -> LampState:
        """Choose a color."""
        return LampState(generator.randrange(self.num_actions), -1)

    def outcome(self, state: LampState, action: int) -> Outcome[LampState]:
        """End the episode, with reward 1 for the button of the lamp's color."""
        right = action == state.color
        return Outcome(LampState(state.color, action), float(right), terminated=True, success=right)

    def observe(self, state: LampState) -> Observation:
        """Name the lamp's color."""
        colors = _COLORS[: self.num_actions]
        return Observation(
            text=f"A lamp on the wall shines {colors[state.color]}.",
            goal="To match the lamp, your next step is to",
            actions=tuple(f"press the {color} button" for color in colors),
            action_ids=tuple(range(self.num_actions)),
            vector=tuple(int(color == state.color) for color in range(self.num_actions)),
        )

    def draw(self, state: LampState) -> str:
        """Draw the lamp above the buttons; the pressed one in capital letters."""
        buttons = (
            f"[{color.upper() if number == state.pressed else color}]"
            for number, color in enumerate(_COLORS[: self.num_actions])
        )
        return f"({_COLORS[state.color]})\n{' '.join(buttons)}"


class CorridorState(NamedTuple):
    """Steps from the middle (left is negative), and the side of the exit (-1 or 1)."""

    position: int
    exit_side: int


class Corridor(MachineWorld[CorridorState]):
    """A corridor with the exit at one of its ends: reaching it earns 1, the rest nothing.

    Args:
        distance: Steps from the middle, where an episode begins, to either end, 1 to 9.
        macros: Offer to run to an end, which takes as many primitive steps as walking there.
        show_distance: Say how far the exit is; without it only its side and whether it is near.
        max_steps: Decisions after which an episode is cut.
        seed: Begins the world's random numbers.
    """

    state_type = CorridorState

    def __init__(
        self,
        distance: int = 3,
        *,
        macros: bool = False,
        show_distance: bool = True,
        max_steps: int = 20,
        seed: int = 0,
    ) -> None:
        if not 1 <= distance < len(_NUMBERS):
            raise ValueError(f"expected a distance of 1 to {len(_NUMBERS) - 1}, got {distance}")
        if max_steps < (1 if macros else distance):
            raise ValueError(f"the exit is {distance} steps away, `max_steps` is {max_steps}")
        super().__init__(max_steps=max_steps, seed=seed)
        self.name = "toy-corridor"
        self.distance, self.macros, self.show_distance = distance, macros, show_distance
        self.num_actions = 4 if macros else 2
        self.vector_size = 2
        self.gamma = 0.95
        self.optimal_return = self.gamma ** (distance - 1)

    def start(self, generator: random.Random) -> CorridorState:
        """Begin in the middle and choose the side of the exit."""
        return CorridorState(0, generator.choice((-1, 1)))

    def outcome(self, state: CorridorState, action: int) -> Outcome[CorridorState]:
        """Walk a step (0 left, 1 right) or run to an end (2 left, 3 right)."""
        side = -1 if action % 2 == 0 else 1
        end = side * self.distance
        target = (
            end if action >= 2 else max(-self.distance, min(self.distance, state.position + side))
        )
        duration = max(1, abs(target - state.position))
        out = target == state.exit_side * self.distance
        reward = self.gamma ** (duration - 1) if out else 0.0
        return Outcome(state._replace(position=target), reward, out, out, duration)

    def observe(self, state: CorridorState) -> Observation:
        """Say on which side the exit is and, if asked for, how far."""
        side = "left" if state.exit_side < 0 else "right"
        steps = abs(state.exit_side * self.distance - state.position)
        if self.show_distance and steps < len(_NUMBERS):
            where = f"{_NUMBERS[steps]} {'step' if steps == 1 else 'steps'} away"
        else:
            where = "close" if steps == 1 else "far away"
        actions = ["walk to the left", "walk to the right"]
        if self.macros:
            actions += ["run to the end on the left", "run to the end on the right"]
        return Observation(
            text=f"You stand in a long corridor. The exit is on the {side}, {where}.",
            goal="To leave through the exit, your next step is to",
            actions=tuple(actions),
            action_ids=tuple(range(self.num_actions)),
            vector=(state.position + self.distance, (state.exit_side + 1) // 2),
        )

    def draw(self, state: CorridorState) -> str:
        """Draw the corridor: E is the exit, @ the agent."""
        cells = ["."] * (2 * self.distance + 1)
        cells[(state.exit_side + 1) * self.distance] = "E"
        cells[state.position + self.distance] = "@"
        return f"|{''.join(cells)}|"


class ChestState(NamedTuple):
    """The key in the hand (-1 none), the chest (0 closed, 1 open, 2 empty), the key that fits."""

    hand: int
    is_open: int
    key: int


class Chest(MachineWorld[ChestState]):
    """A locked chest with a coin in it: the key, the lid, the coin, and reward 1.

    One of two keys fits, and a note on the chest says which. The lists change with the situation,
    the two keys' actions share their first words, and at the open chest there is one action only.

    Args:
        max_steps: Decisions after which an episode is cut, at least the 3 that the coin takes.
        seed: Begins the world's random numbers.
    """

    state_type = ChestState
    _TEXTS = (
        "pick up the silver key",
        "pick up the golden key",
        "put the key back on the table",
        "open the chest",
        "take the coin",
        "kick the chest",
    )

    def __init__(self, *, max_steps: int = 10, seed: int = 0) -> None:
        if max_steps < 3:
            raise ValueError(f"the coin is three steps away, `max_steps` is {max_steps}")
        super().__init__(max_steps=max_steps, seed=seed)
        self.name = "toy-chest"
        self.num_actions = len(self._TEXTS)
        self.vector_size = 4
        self.gamma = 0.95
        self.optimal_return = self.gamma**2

    def start(self, generator: random.Random) -> ChestState:
        """Lay both keys on the table and choose the one that fits (0 silver, 1 golden)."""
        return ChestState(hand=-1, is_open=0, key=generator.randrange(2))

    def outcome(self, state: ChestState, action: int) -> Outcome[ChestState]:
        """Do what the text says where that is possible."""
        closed = not state.is_open
        if action in (0, 1) and closed and state.hand < 0:
            return Outcome(state._replace(hand=action))
        if action == 2 and closed:
            return Outcome(state._replace(hand=-1))
        if action == 3 and state.hand == state.key:
            return Outcome(state._replace(is_open=1))
        if action == 4 and state.is_open:
            return Outcome(state._replace(is_open=2), 1.0, terminated=True, success=True)
        return Outcome(state)

    def observe(self, state: ChestState) -> Observation:
        """Say which key fits, what is in the hand and whether the chest is open."""
        key = ("silver", "golden")[state.key]
        if state.is_open:
            text = "The chest is open. " + (
                "There is a coin in it." if state.is_open == 1 else "The coin is yours."
            )
            offered: tuple[int, ...] = (4,)
        elif state.hand < 0:
            text = f"A note on the closed chest says: the {key} key. Two keys lie on the table."
            offered = (0, 1, 3, 5)
        else:
            held = ("silver", "golden")[state.hand]
            text = f"A note on the closed chest says: the {key} key. You hold the {held} key."
            offered = (2, 3, 5)
        return Observation(
            text=text,
            goal="To get the coin, your next step is to",
            actions=tuple(self._TEXTS[action] for action in offered),
            action_ids=offered,
            vector=(int(state.hand == 0), int(state.hand == 1), state.is_open, state.key),
        )

    def draw(self, state: ChestState) -> str:
        """Draw the hand, the note and the chest."""
        held = {-1: "nothing", 0: "silver key", 1: "golden key"}[state.hand]
        chest = ("[####]", "[_o__]", "[____]")[state.is_open]
        return f"hand: {held}\n{chest} fits: {('silver', 'golden')[state.key]}"


class ClockState(NamedTuple):
    """Whether the clock runs."""

    running: int


class Clock(MachineWorld[ClockState]):
    """A clock to be wound again and again: reward 1 for winding, and no end but the limit.

    Whoever takes the limit for an end finds values that depend on a step number nobody sees; the
    right value of winding for ever is 1 / (1 − γ). The observation is the same at every step.

    Args:
        max_steps: Decisions after which an episode is cut.
        penalty: Taken from the reward for letting the clock stop.
        seed: Unused: nothing here is random.
    """

    state_type = ClockState

    def __init__(self, *, max_steps: int = 8, penalty: float = 0.0, seed: int = 0) -> None:
        super().__init__(max_steps=max_steps, seed=seed)
        self.name = "toy-clock"
        self.penalty = penalty
        self.num_actions = 2
        self.vector_size = 1
        self.gamma = 0.9
        self.optimal_return = (1 - self.gamma**max_steps) / (1 - self.gamma)

    def start(self, generator: random.Random) -> ClockState:
        """Begin with a clock that runs."""
        return ClockState(1)

    def outcome(self, state: ClockState, action: int) -> Outcome[ClockState]:
        """Wind the clock (0) or wait (1)."""
        if action == 0:
            return Outcome(ClockState(1), 1.0, success=True)
        return Outcome(ClockState(0), -self.penalty)

    def observe(self, state: ClockState) -> Observation:
        """Show the clock, which looks the same whether it runs or not."""
        return Observation(
            text="An old clock hangs on the wall.",
            goal="To keep the clock running, your next step is to",
            actions=("wind the clock", "wait for a minute"),
            action_ids=(0, 1),
            vector=(1,),
        )

    def draw(self, state: ClockState) -> str:
        """Draw the clock."""
        return "(|) tick" if state.running else "(|)"


Toy = Literal["toy-lamp", "toy-corridor", "toy-chest", "toy-clock"]
TOYS: dict[Toy, type[Lamp] | type[Corridor] | type[Chest] | type[Clock]] = {
    "toy-lamp": Lamp,
    "toy-corridor": Corridor,
    "toy-chest": Chest,
    "toy-clock": Clock,
}
