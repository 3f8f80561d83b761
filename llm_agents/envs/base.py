"""What every text world offers: observations with the actions they admit, and its state as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from llm_agents.types import Episode


@dataclass(frozen=True)
class Observation:
    """What a world shows between two actions.

    Args:
        text: Sentences about the situation.
        goal: The unfinished clause that an action completes, without punctuation at its end.
        actions: Distinct texts of the admissible actions; empty only after an episode's end.
        action_ids: Their global numbers: the text of an action may change, its number does not.
        vector: The same situation as whole numbers, for symbolic agents.
    """

    text: str
    goal: str
    actions: tuple[str, ...]
    action_ids: tuple[int, ...]
    vector: tuple[int, ...]


class Step(NamedTuple):
    """What an action led to.

    Args:
        observation: After the action; of the old episode where it ended.
        reward: Of the action; of all its primitive steps where it is a macro.
        terminated: The world ended.
        truncated: A limit cut the episode.
        duration: Primitive steps that the action took, ≥ 1.
        episode: Summary of the episode if it ended, else None.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    duration: int
    episode: Episode | None


class TextEnv(Protocol):
    """A world of text.

    Attributes:
        name: Short name for logs and tables.
        num_actions: Global action numbers are below this.
        vector_size: Length of an observation's `vector`.
        gamma: Discount per primitive step of the return that the world's paper reports.
        optimal_return: Best `discounted_return` there is; None where nobody knows it.
    """

    name: str
    num_actions: int
    vector_size: int
    gamma: float
    optimal_return: float | None

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode; a seed begins the world's own random numbers anew."""

    def step(self, index: int) -> Step:
        """Take the action at `index` of the last observation's list.

        Raises:
            ValueError: There is no such action, or the episode has ended.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs to go on alike: plain numbers and strings."""

    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        """Return to a state; give the observation that was last shown."""

    def render(self) -> str:
        """Return the situation as a few lines of text for people."""
