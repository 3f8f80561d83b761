"""What the last episodes were like, and how many there were."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any, Generic, TypeVar

from llm_agents.errors import UserError
from llm_agents.types import Episode

E = TypeVar("E")


class LastEpisodes(Generic[E]):
    """The last finished episodes, and the count over the whole run.

    Args:
        window: Episodes that are held.

    Attributes:
        num_episodes: Episodes of the run that have finished.
    """

    def __init__(self, window: int = 100) -> None:
        if window < 1:
            raise UserError(f"expected `window` of at least 1, got {window}")
        self.num_episodes = 0
        self._last: deque[E] = deque(maxlen=window)

    def add(self, episodes: Iterable[E]) -> None:
        """Count episodes in, in the order in which they ended."""
        for episode in episodes:
            self.num_episodes += 1
            self._last.append(episode)

    def _restore(self, num_episodes: int, last: Iterable[E]) -> None:
        """Go on counting from there."""
        self.num_episodes = num_episodes
        self._last.clear()
        self._last.extend(last)


class EpisodeStatistics(LastEpisodes[Episode]):
    """Means over the last finished episodes of all worlds, and counts over the whole run."""

    def summary(self) -> dict[str, float]:
        """Return means by name, to be logged below ``rollout/``; empty before the first episode."""
        count = len(self._last)
        if not count:
            return {}
        return {
            "discounted_return_mean": sum(e.discounted_return for e in self._last) / count,
            "return_mean": sum(e.undiscounted_return for e in self._last) / count,
            "success_rate": sum(e.success for e in self._last) / count,
            "length_mean": sum(e.num_decisions for e in self._last) / count,
            "primitive_length_mean": sum(e.num_primitive_steps for e in self._last) / count,
            "num_episodes": float(self.num_episodes),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {"num_episodes": self.num_episodes, "last": [astuple(e) for e in self._last]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from a saved state."""
        last = (Episode(*numbers) for numbers in state["last"])
        self._restore(int(state["num_episodes"]), last)
