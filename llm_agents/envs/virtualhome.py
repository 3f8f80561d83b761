"""What the VirtualHome tasks share: the rooms, the limit, and the words for them.

The tasks of TWOSOME (arXiv 2401.14151) and POAD (arXiv 2405.15821) play in one flat of VirtualHome,
of which only a few facts matter; `virtualhome_food` and `virtualhome_entertainment` are those
facts as small machines, without the simulator. Nothing in them is random: a seed changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

MAX_STEPS = 50  # decisions an episode, both papers
GAMMA = 0.95  # per step, of the return that both papers report

LIVING_ROOM, KITCHEN, BATHROOM, BEDROOM = range(4)
ROOMS = ("living room", "kitchen", "bathroom", "bedroom")
"""By number; the action of that number walks there."""

ROOM_BITS = (KITCHEN, BATHROOM, BEDROOM, LIVING_ROOM)
"""The order of the rooms in an observation's vector."""

Lists = Literal["strict", "fixed"]
"""Which actions are offered: as released, defects included, or with the defects cured."""


def room_sentence(room: int) -> str:
    """Return the first sentence of every observation: the rooms, and the one the agent is in."""
    rooms = join([f"a {name}" for name in ROOMS])
    return f"This home has {rooms}, and you are in the {ROOMS[room]}."


def join(nouns: Sequence[str]) -> str:
    """Return the nouns as a list in prose.

    Example:
        >>> join(["the coffee table", "the TV", "the sofa"])
        'the coffee table, the TV and the sofa'
    """
    return " and ".join([", ".join(nouns[:-1]), nouns[-1]] if len(nouns) > 1 else nouns)


def other_rooms(room: int) -> tuple[int, ...]:
    """Return the actions that walk to the rooms the agent is not in."""
    return tuple(number for number in range(len(ROOMS)) if number != room)


def draw_rooms(room: int, things: dict[int, str]) -> str:
    """Draw the four rooms side by side: @ where the agent is, and the things in each."""
    cells = [
        f"{'@ ' if number == room else ''}{name}: {things.get(number, '-')}"
        for number, name in enumerate(ROOMS)
    ]
    return f"| {' | '.join(cells)} |"
