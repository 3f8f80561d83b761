"""Who plays the episodes that Motif's pairs are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from llm_agents.envs.nethack_explorer import KEYS, Explorer
from llm_agents.envs.nethack_tasks import ACTIONS
from llm_agents.errors import UserError
from llm_agents.policies.nethack_files import is_nethack_agent, load_nethack_network
from llm_agents.policies.nethack_player import OBSERVATION_KEYS, NetworkPlayer

Arrays = Mapping[str, NDArray[Any]]


class RecordedPlayer(Protocol):
    """Plays one game at a time.

    Attributes:
        keys: Observation keys that it looks at.
    """

    keys: tuple[str, ...]

    def begin(self, seed: int) -> None:
        """Forget the last episode; what it draws in the next one depends on the seed alone."""

    def act(self, observation: Arrays) -> int:
        """Return the action for an observation with `keys`."""


class RandomPlayer:
    """Takes each action equally often."""

    keys: tuple[str, ...] = ()

    def begin(self, seed: int) -> None:
        """Begin an episode."""
        self._generator = np.random.default_rng(seed)

    def act(self, observation: Arrays) -> int:
        """Draw an action."""
        del observation
        return int(self._generator.integers(len(ACTIONS)))


class ExplorerPlayer:
    """Plays by `Explorer`'s script, with another patience in every episode and some random actions.

    Args:
        most_patience: The patience is drawn from 0 to this.
        random_share: Share of random actions; they meet messages that the script avoids.
    """

    keys: tuple[str, ...] = KEYS

    def __init__(self, most_patience: int = 600, random_share: float = 0.05) -> None:
        self.most_patience, self.random_share = most_patience, random_share

    def begin(self, seed: int) -> None:
        """Begin an episode."""
        self._generator = np.random.default_rng(seed)
        self._explorer = Explorer(seed, int(self._generator.integers(self.most_patience + 1)))

    def act(self, observation: Arrays) -> int:
        """Follow the script, or draw an action."""
        action = self._explorer.act(observation)
        if self._generator.random() < self.random_share:
            return int(self._generator.integers(len(ACTIONS)))
        return action


class TrainedPlayer:
    """Draws from a trained agent's policy.

    Args:
        folder: Of the agent.
    """

    keys: tuple[str, ...] = OBSERVATION_KEYS

    def __init__(self, folder: Path | str) -> None:
        self._player = NetworkPlayer(load_nethack_network(folder))

    def begin(self, seed: int) -> None:
        """Begin an episode."""
        self._generator = torch.Generator().manual_seed(seed)
        self._state = self._player.initial_state(1)
        self._is_first = torch.ones(1, dtype=torch.bool)

    def act(self, observation: Arrays) -> int:
        """Draw an action."""
        seen = self._player.observe({key: observation[key][None] for key in self.keys})
        decided = self._player.act(seen, self._state, self._is_first, self._generator)
        self._state, self._is_first = decided.state, torch.zeros(1, dtype=torch.bool)
        return int(decided.actions[0])


def make_player(name: str) -> RecordedPlayer:
    """Return a player.

    Args:
        name: ``random``, ``explorer``, or the folder of a trained agent.

    Raises:
        UserError: It is none of these.
    """
    if name == "random":
        return RandomPlayer()
    if name == "explorer":
        return ExplorerPlayer()
    if is_nethack_agent(name):
        return TrainedPlayer(name)
    raise UserError(
        f"expected a player `random`, `explorer` or the folder of a NetHack agent, got `{name}`: "
        "train one by a recipe with `MotifAgent`"
    )
