"""What the last games of an agent were like."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from llm_agents.policies.nethack_types import PlayedGame
from llm_agents.rollouts.statistics import LastEpisodes

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


class GameStatistics(LastEpisodes[PlayedGame]):
    """Means over the last finished games, and their number over the whole run."""

    def summary(self) -> dict[str, float]:
        """Return means by their names in the log; only the number before the first game ended."""
        found = {"rollout/episodes": float(self.num_episodes)}
        if self._last:
            for field, name in MEANS.items():
                found[f"rollout/{name}"] = fmean(float(getattr(game, field)) for game in self._last)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"num_games": self.num_episodes, "last": [vars(game).copy() for game in self._last]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from a saved state."""
        last = (PlayedGame(**game) for game in state["last"])
        self._restore(int(state["num_games"]), last)
