"""What the last games of an agent were like."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from llm_agents.errors import UserError
from llm_agents.policies.nethack_types import PlayedGame

MEANS = {
    "score": "score_mean",
    "episode_return": "return_mean",
    "intrinsic_return": "intrinsic_return_mean",
    "depth": "depth_mean",
    "max_depth": "max_depth_mean",
    "experience_level": "experience_level_mean",
    "turns": "turns_mean",
    "num_steps": "length_mean",
    "num_messages": "messages_mean",
    "gold": "gold_mean",
    "explored": "explored_mean",
    "success": "success_rate",
}
"""What is averaged, and its name in the log."""


class GameStatistics:
    """Means over the last finished games, and their number over the whole run.

    Args:
        window: Games that the means are over.

    Attributes:
        num_games: Games of the run that have finished.
    """

    def __init__(self, window: int = 100) -> None:
        if window < 1:
            raise UserError(f"expected `window` of at least 1, got {window}")
        self.num_games = 0
        self._last: deque[PlayedGame] = deque(maxlen=window)

    def add(self, games: Iterable[PlayedGame]) -> None:
        """Count games in, in the order in which they ended."""
        for game in games:
            self.num_games += 1
            self._last.append(game)

    def summary(self) -> dict[str, float]:
        """Return means by their names in the log; only the number before the first game ended."""
        found = {"rollout/episodes": float(self.num_games)}
        if self._last:
            for field, name in MEANS.items():
                found[f"rollout/{name}"] = fmean(float(getattr(game, field)) for game in self._last)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"num_games": self.num_games, "last": [vars(game).copy() for game in self._last]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from a saved state."""
        self.num_games = int(state["num_games"])
        self._last.clear()
        self._last.extend(PlayedGame(**game) for game in state["last"])
