"""Games with NetHack's observations that a small network learns in seconds, and what plays them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_agents.envs.nethack import NetHackEpisode
from llm_agents.envs.nethack_vector import COUNT_KEY, VectorStep
from llm_agents.functional.shaping import RewardStatistics
from llm_agents.policies.message_scorer import MessageScorer
from llm_agents.policies.nethack import NetHackNetwork, SmallNetwork
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.rewards.motif import MessageReward, ShapingConfig
from llm_agents.rollouts.nethack import NetHackRollouts
from llm_agents.types import MessageObservations

NUM_ACTIONS = 4
MESSAGES = (b"Nothing happens.", b"You take the gold.", b"Hello.", b"You are done.")
WORTH = (-1.0, 1.0, 0.5, 2.0)
"""Raw rewards of the messages."""


class ByteScorer(MessageScorer):
    """Says `WORTH` of `MESSAGES`."""

    hidden_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.asked = 0

    def hidden_states(self, observations: MessageObservations) -> Tensor:
        return self(observations).unsqueeze(-1)

    def forward(self, observations: MessageObservations) -> Tensor:
        self.asked += len(observations)
        texts = [bytes(row.tolist()).rstrip(b"\0") for row in observations.message]
        return torch.tensor([WORTH[MESSAGES.index(text)] for text in texts])

    def describe(self) -> dict[str, object]:
        return {}

    def save(self, folder: Any) -> None:
        raise NotImplementedError


def toy_reward(exponent: float = 3.0, cache: Path | None = None) -> MessageReward:
    """Return a reward of the toy's messages with mean 0, variance 1 and threshold 0.25."""
    quantiles = tuple(0.25 + 0.1 * (place - 9) for place in range(19))
    shaping = ShapingConfig(threshold_quantile=0.5, count_exponent=exponent)
    statistics = RewardStatistics(0.0, 1.0, quantiles)
    return MessageReward(ByteScorer(), statistics, shaping=shaping, cache=cache)


class ToyGames:
    """Gold lies in one of four directions; going there pays 1 and says so.

    Where it lies next is drawn anew at every step. The first message of an episode is a greeting,
    the last one a farewell.

    Args:
        num_games: E.
        length: Steps of an episode; game e's are longer by e modulo `spread`.
        spread: See `length`.
        is_limit: Whether episodes end by a limit.
        seed: Of all.
        memory: Show the direction at an episode's start only, the same in all of it.
    """

    def __init__(
        self,
        num_games: int,
        length: int = 8,
        *,
        spread: int = 1,
        is_limit: bool = False,
        seed: int = 0,
        memory: bool = False,
    ) -> None:
        self.num_games, self.seed, self.is_limit, self.memory = num_games, seed, is_limit, memory
        self.lengths = [length + game % spread for game in range(num_games)]
        self.places = [(0, 0) for _ in range(num_games)]  # episode and step of each game
        self.counts: list[dict[bytes, int]] = [{} for _ in range(num_games)]
        self.returns = [0.0] * num_games
        self.messages = [b""] * num_games
        self.closed = 0

    def direction(self, game: int) -> int:
        """Return where the gold lies."""
        episode, step = self.places[game]
        when = 0 if self.memory else step
        mixed = (self.seed * 1_000_003 + game * 10_007 + episode * 101 + when) * 2_654_435_761
        return (mixed % 2**32 >> 13) % NUM_ACTIONS

    def _say(self, game: int, message: bytes) -> None:
        self.messages[game] = message
        self.counts[game][message] = self.counts[game].get(message, 0) + 1

    def _begin(self, game: int) -> None:
        self.counts[game], self.returns[game] = {}, 0.0
        self._say(game, b"Hello.")

    def _show(self, games: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        chars = np.full((len(games), 12, 12), 32, np.uint8)
        colors = np.zeros((len(games), 12, 12), np.uint8)
        blstats = np.zeros((len(games), 27), np.int64)
        message = np.zeros((len(games), 256), np.uint8)
        count = np.zeros(len(games), np.int32)
        for row, game in enumerate(games):
            text = self.messages[game]
            message[row, : len(text)] = list(text)
            count[row] = self.counts[game][text]
            if not self.memory or self.places[game][1] == 0:
                y, x = ((6, 6), (7, 7), (8, 6), (7, 5))[self.direction(game)]
                chars[row, y, x], colors[row, y, x] = ord("$"), 11
            blstats[row, 20] = self.places[game][1]
        return {
            "window_chars": chars, "window_colors": colors, "blstats": blstats,
            "message": message, COUNT_KEY: count,
        }  # fmt: skip

    def reset(self) -> dict[str, np.ndarray[Any, Any]]:
        for game in range(self.num_games):
            self._begin(game)
        return self._show(range(self.num_games))

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.actions = actions.copy()

    def receive(self) -> VectorStep:
        rewards = np.zeros(self.num_games, np.float32)
        over = np.zeros(self.num_games, np.bool_)
        episodes = []
        for game in range(self.num_games):
            rewards[game] = float(self.actions[game] == self.direction(game))
            self.returns[game] += float(rewards[game])
            episode, step = self.places[game]
            over[game] = step + 1 == self.lengths[game]
            self.places[game] = (episode, step + 1)
            says = b"You are done." if over[game] else MESSAGES[int(rewards[game])]
            self._say(game, says)
        ended = np.flatnonzero(over)
        final = self._show(ended.tolist())
        for game in ended.tolist():
            episodes.append(self._episode(game))
            self.places[game] = (self.places[game][0] + 1, 0)
            self._begin(game)
        no = np.zeros_like(over)
        return VectorStep(
            observations=self._show(range(self.num_games)),
            rewards=rewards,
            terminated=no if self.is_limit else over,
            truncated=over if self.is_limit else no,
            ended=ended,
            final_observations=final,
            episodes=tuple(episodes),
        )

    def _episode(self, game: int) -> NetHackEpisode:
        return NetHackEpisode(
            score=int(self.returns[game]), episode_return=self.returns[game],
            num_steps=self.lengths[game], turns=self.lengths[game], depth=1, max_depth=1,
            experience_level=1, gold=0, num_messages=len(self.counts[game]), explored=0,
            end="limit" if self.is_limit else "death", success=False, seed=game,
            number=self.places[game][0],
        )  # fmt: skip

    def state_dict(self) -> list[dict[str, Any]]:
        return [
            {
                "place": self.places[game], "counts": dict(self.counts[game]),
                "return": self.returns[game], "message": self.messages[game],
            }
            for game in range(self.num_games)
        ]  # fmt: skip

    def load_state_dict(
        self, states: Sequence[Mapping[str, Any]]
    ) -> dict[str, np.ndarray[Any, Any]]:
        for game, state in enumerate(states):
            self.places[game], self.counts[game] = tuple(state["place"]), dict(state["counts"])
            self.returns[game], self.messages[game] = state["return"], state["message"]
        return self._show(range(self.num_games))

    def close(self) -> None:
        self.closed += 1


class ToyLearner:
    """A network that something else trains."""

    def __init__(self, network: NetHackNetwork, recurrence: int | None = None) -> None:
        self.network, self.recurrence = network, recurrence

    def player(self) -> NetworkPlayer:
        return NetworkPlayer(self.network)


class ToyRollouts(NetHackRollouts):
    """`NetHackRollouts` with toy games in place of NetHack's."""

    def __init__(self, *, toy: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(num_workers=0, **options)
        self.toy = dict(toy or {})

    def make_vector(self, seed: int, num_games: int) -> Any:
        return ToyGames(num_games, seed=seed % 1000, **self.toy)


def toy_network(seed: int = 0, **options: Any) -> SmallNetwork:
    """Return a small network for the toy."""
    torch.manual_seed(seed)
    return SmallNetwork(16, num_actions=NUM_ACTIONS, **options)
