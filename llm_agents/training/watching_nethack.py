"""Episodes of NetHack for `lightning watch`, whoever plays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from llm_agents.envs.nethack import NetHackEpisode, NetHackGame
from llm_agents.envs.nethack_explorer import KEYS as EXPLORER_KEYS
from llm_agents.envs.nethack_explorer import Explorer
from llm_agents.envs.nethack_tasks import ACTION_NAMES
from llm_agents.evaluation.replay_frames import ROWS, EpisodeRecord, Frame
from llm_agents.evaluation.replay_nethack import (
    MessageTally,
    MessageWorth,
    Order,
    screen_of,
    side_of,
)
from llm_agents.policies.nethack_player import OBSERVATION_KEYS
from llm_agents.policies.nethack_types import NetHackPlayer
from llm_agents.rewards.motif import MessageReward
from llm_agents.rollouts.seeds import Purpose, derived_seed

Arrays = Mapping[str, NDArray[Any]]
SCREEN_KEYS = ("tty_chars", "tty_colors", "tty_cursor")


class Decided(NamedTuple):
    """An action, with what its player expects; None where it expects nothing."""

    action: int
    value: float | None = None


class GamePlayer(ABC):
    """Plays one game at a time.

    Attributes:
        keys: Observation keys that it looks at.
    """

    keys: tuple[str, ...] = ()

    @abstractmethod
    def begin(self) -> None:
        """Forget the last episode."""

    @abstractmethod
    def act(self, observation: Arrays) -> Decided:
        """Return the action for an observation."""


class RandomPlayer(GamePlayer):
    """Presses keys at random."""

    def __init__(self, seed: int) -> None:
        self._seed, self._episode = derived_seed(seed, Purpose.DRAWS), 0

    def begin(self) -> None:
        """Draw anew, alike for the same episode of the same seed."""
        self._generator = np.random.default_rng((self._seed, self._episode))
        self._episode += 1

    def act(self, observation: Arrays) -> Decided:
        """Draw an action."""
        del observation
        return Decided(int(self._generator.integers(len(ACTION_NAMES))))


class ScriptedPlayer(GamePlayer):
    """Plays by `Explorer`'s rules."""

    keys = EXPLORER_KEYS

    def __init__(self, seed: int) -> None:
        self._explorer = Explorer(seed)

    def begin(self) -> None:
        """Forget the level."""
        self._explorer.reset()

    def act(self, observation: Arrays) -> Decided:
        """Ask the rules."""
        return Decided(self._explorer.act(observation))


class TrainedPlayer(GamePlayer):
    """Plays as a trained agent does: drawing its actions.

    Args:
        player: The agent.
        seed: Of the draws.
    """

    keys = OBSERVATION_KEYS

    def __init__(self, player: NetHackPlayer, seed: int) -> None:
        self._player = player
        self._generator = torch.Generator().manual_seed(derived_seed(seed, Purpose.DRAWS))
        self.begin()

    def begin(self) -> None:
        """Forget what was remembered."""
        self._state = self._player.initial_state(1)
        self._starts = torch.ones(1, dtype=torch.bool)

    def act(self, observation: Arrays) -> Decided:
        """Draw an action, and remember."""
        arrays = {key: observation[key][None] for key in self.keys}
        seen = self._player.observe(arrays)
        decided = self._player.act(seen, self._state, self._starts, self._generator)
        self._state, self._starts = decided.state, torch.zeros(1, dtype=torch.bool)
        return Decided(int(decided.actions[0]), float(decided.values[0]))


def worth_of(reward: MessageReward, message: bytes) -> MessageWorth:
    """Return what a reward says of one message."""
    row = np.frombuffer(message, dtype=np.uint8)[None]
    raw, normalized = float(reward.raw(row)[0]), float(reward.normalized(row)[0])
    return MessageWorth(raw, normalized, float(reward.shaped(row)[0]))


def new_tally(reward: MessageReward | None) -> MessageTally:
    """Return the counts of an episode that begins."""
    if reward is None:
        return MessageTally()
    exponent = reward.shaping.count_exponent
    return MessageTally(lambda message: worth_of(reward, message), count_exponent=exponent)


def nethack_episodes(
    player: GamePlayer,
    game: NetHackGame,
    reward: MessageReward | None,
    *,
    episodes: int,
    max_steps: int | None,
    order: Order,
) -> Iterator[Frame | EpisodeRecord]:
    """Yield the frames of each episode as it is played, and then what came of it.

    Args:
        player: Who plays.
        game: With `SCREEN_KEYS` and the player's keys.
        reward: Says what messages are worth; None shows how often they came.
        episodes: How many.
        max_steps: Actions after which an episode is left; None plays on.
        order: Of the messages.
    """
    for number in range(1, episodes + 1):
        yield from _episode(player, game, new_tally(reward), number, max_steps, order)


def _episode(
    player: GamePlayer,
    game: NetHackGame,
    tally: MessageTally,
    number: int,
    max_steps: int | None,
    order: Order,
) -> Iterator[Frame | EpisodeRecord]:
    """Yield one episode."""
    player.begin()
    observation, total, step, summary = game.reset(), 0.0, 0, None
    paid = tally.see(observation["message"].tobytes())
    status: tuple[tuple[str, str], ...] = ()
    while True:
        decided = None
        ended = summary is not None or (max_steps is not None and step >= max_steps)
        if not ended:
            decided = player.act(observation)
        status = (*status, *_paid(tally, paid, decided), *_repeated(tally))
        yield _frame(number, step, status, observation, tally, order)
        if decided is None:
            break
        observation, gained, _, _, summary = game.step(decided.action)
        total, step = total + gained, step + 1
        paid = tally.see(observation["message"].tobytes())
        status = (
            ("did", ACTION_NAMES[decided.action]),
            ("reward", f"{gained:.2f}"),
            ("return", f"{total:.2f}"),
        )
    facts = facts_of(summary, total, step, tally)
    yield EpisodeRecord(number, facts, tuple(tally.rows(order)), is_complete=summary is not None)


def _paid(tally: MessageTally, paid: float, decided: Decided | None) -> tuple[tuple[str, str], ...]:
    """Return the part of the status that is about the intrinsic reward and the value."""
    found: list[tuple[str, str]] = []
    if tally.worth is not None:
        found += [("intrinsic", f"{paid:.3f}"), ("sum", f"{tally.total:.3f}")]
    if decided is not None and decided.value is not None:
        found.append(("value", f"{decided.value:.3f}"))
    return tuple(found)


def _repeated(tally: MessageTally) -> tuple[tuple[str, str], ...]:
    """Return the part of the status that says how often a message has come that came before."""
    return (("message seen", f"{tally.last_times} times"),) if tally.last_times > 1 else ()


def _frame(
    number: int,
    step: int,
    status: tuple[tuple[str, str], ...],
    observation: Arrays,
    tally: MessageTally,
    order: Order,
) -> Frame:
    """Return what is seen now."""
    screen = screen_of(*(observation[key] for key in SCREEN_KEYS))
    side = side_of(tally, order, ROWS - 1)
    return Frame(number, step, status, screen, side, is_repeat=tally.last_times > 1)


def facts_of(
    summary: NetHackEpisode | None, total: float, steps: int, tally: MessageTally
) -> dict[str, float | int | str | bool]:
    """Return what came of an episode."""
    facts: dict[str, float | int | str | bool] = {"return": total, "steps": steps}
    if tally.worth is not None:
        facts["intrinsic return"] = tally.total
    most = tally.most_repeated()
    repeated = {} if most is None else {"most repeated": f"{most.message} ×{most.times}"}
    if summary is None:
        return {**facts, "messages": len(tally.rows("times")), "end": "left", **repeated}
    return {
        "score": summary.score,
        **facts,
        "depth": summary.max_depth,
        "level": summary.experience_level,
        "turns": summary.turns,
        "messages": summary.num_messages,
        "success": summary.success,
        "end": summary.end,
        **repeated,
    }
