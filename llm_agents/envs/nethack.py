"""NetHack as Motif plays it: nine tasks on the engine of nle 1.3, seeded, with real time limits.

Paper: arXiv 2310.00166; tasks and quirks as in its release. Differs: a time limit truncates and
leaves the game as it was, every reset is seeded, a hero at the map's edge has neighbors, whether
he hallucinates is one bit, and success on the very last step counts; see `NetHackRules`.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_agents.envs.nethack_screen import Stat, copy_windows
from llm_agents.envs.nethack_tasks import (
    ACTIONS,
    ANSWERED,
    BLANK,
    DESCENT,
    EATING,
    NORTHWEST,
    SUCCESS_REWARD,
    TASKS,
    WINDOW_KEYS,
    NetHackRules,
    check_keys,
    field_of,
    food_letter,
    has_descended,
    is_beside_oracle,
    is_sober,
    time_penalty,
)
from llm_agents.errors import MissingExtraError

if TYPE_CHECKING:
    from nle.nethack import Nethack

_KEYS = tuple(ACTIONS.values())
_ESCAPE, _SPACE = 27, 32


@dataclass(frozen=True)
class NetHackEpisode:
    """What happened in an episode, as of the last observation of a running game.

    Args:
        score: The game's score.
        episode_return: Sum of the rewards.
        num_steps: Actions.
        turns: The game's turns.
        depth: Depth at the end.
        max_depth: Greatest depth.
        experience_level: The hero's.
        gold: In his purse.
        num_messages: Distinct messages, the empty one included.
        explored: Cells that the map of each visited level shows, summed over levels.
        end: Death (or any other end of the game), success, or the time limit.
        success: The task was done, at any time.
        seed: The game's seed.
        number: Number of the episode since that seed.
    """

    score: int
    episode_return: float
    num_steps: int
    turns: int
    depth: int
    max_depth: int
    experience_level: int
    gold: int
    num_messages: int
    explored: int
    end: Literal["death", "success", "limit"]
    success: bool
    seed: int
    number: int


class NetHackStep(NamedTuple):
    """What an action led to.

    Args:
        observation: Copies, of the old episode where it ended.
        reward: Of the task.
        terminated: The game ended, or success ended the task.
        truncated: The time limit cut the episode.
        episode: Its summary if it ended, else None.
    """

    observation: dict[str, NDArray[Any]]
    reward: float
    terminated: bool
    truncated: bool
    episode: NetHackEpisode | None


class Advance(NamedTuple):
    """`NetHackStep` without the observation."""

    reward: float
    terminated: bool
    truncated: bool
    episode: NetHackEpisode | None


class ReplayError(RuntimeError):
    """A saved game can't be restored: the engine is not the one that it was played on."""


def episode_seeds(seed: int, number: int) -> tuple[int, int]:
    """Return the engine's two seeds for an episode, unrelated to those of any other."""
    state = np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(2)
    return int(state[0]), int(state[1])


class NetHackGame:
    """One game of a task at a time.

    Two of one seed show the same episodes to the same actions, in any process: the engine is seeded
    anew at every reset and takes the moon from the seed, not from the clock (shopkeepers' names
    still come from the clock). The engine's state can't be saved, so that a saved game is its seed
    and its actions, which are played again.

    Args:
        task: One of `TASKS`.
        seed: Begins its sequence of games.
        observation_keys: Of `OBSERVATION_FIELDS` and `WINDOW_KEYS`.
        rules: Quirks and limits.

    Raises:
        MissingExtraError: nle is not installed.
        ValueError: Nobody knows the task or a key.
    """

    num_actions = len(ACTIONS)

    def __init__(
        self,
        task: str = "NetHackScore-v1",
        *,
        seed: int = 0,
        observation_keys: Sequence[str] = ("message", "blstats"),
        rules: NetHackRules | None = None,
    ) -> None:
        if task not in TASKS:
            raise ValueError(f"expected a task out of {', '.join(TASKS)}, got `{task}`")
        self.task, self.rule, self.rules = task, TASKS[task], rules or NetHackRules()
        self.observation_keys = tuple(observation_keys)
        check_keys(self.observation_keys)
        self._seed, self._next_episode = seed, 0
        needed = {"message", "blstats", "internal", "program_state", "glyphs"}
        needed |= {key for key in self.observation_keys if key not in WINDOW_KEYS}
        if set(WINDOW_KEYS) & set(self.observation_keys):
            needed |= {"tty_chars", "tty_colors"}
        self._engine, self._buffers = _engine(tuple(sorted(needed)), self.rules.character)
        self._close = weakref.finalize(self, self._engine.close)
        sources = {"window_chars": "tty_chars", "window_colors": "tty_colors"}
        pairs = [(key, self._buffers[sources.get(key, key)]) for key in self.observation_keys]
        self._windows = [pair for pair in pairs if pair[0] in WINDOW_KEYS]
        self._shown = [pair for pair in pairs if pair[0] not in WINDOW_KEYS]
        self._has_ended = True

    # --- playing

    def reset(self, seed: int | None = None) -> dict[str, NDArray[Any]]:
        """Begin an episode; a seed begins the sequence of games anew.

        Returns:
            Copies.
        """
        self.begin(seed)
        return self.observation()

    def step(self, action: int) -> NetHackStep:
        """Take an action.

        Raises:
            ValueError: There is no such action, or no episode is under way.
        """
        advance = self.advance(action)
        return NetHackStep(self.observation(), *advance)

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode, without giving the observation."""
        if seed is not None:
            self._seed, self._next_episode = seed, 0
        self._engine.set_initial_seeds(*episode_seeds(self._seed, self._next_episode), False)
        self._engine.reset()
        self._next_episode += 1
        internal, program_state = self._buffers["internal"], self._buffers["program_state"]
        for _ in range(1000):
            if program_state[3]:  # in the main loop: the first screens are over
                break
            self._engine.step(_ESCAPE if internal[2] else _SPACE)
        else:
            raise RuntimeError("NetHack did not get past its first screens in 1000 key presses")
        self._has_ended = self._has_paid = False
        self._actions = bytearray()
        self._frozen_steps = 0
        self._return = 0.0
        self._stats: list[int] = self._buffers["blstats"].tolist()
        self._max_depth = self._stats[Stat.DEPTH]
        self._counts: dict[bytes, int] = {}
        self._explored: dict[tuple[int, int], int] = {}
        self._note()

    def advance(self, action: int) -> Advance:
        """Take an action, without giving the observation.

        Raises:
            ValueError: There is no such action, or no episode is under way.
        """
        if self._has_ended or not 0 <= action < len(_KEYS):
            reason = "no episode is under way" if self._has_ended else f"there are {len(_KEYS)}"
            raise ValueError(f"`{self.task}` can't take the action {action}: {reason}")
        self._actions.append(action)
        _, done = self._engine.step(self._key_of(action))
        done = self._skip(done)
        stats: list[int] = self._buffers["blstats"].tolist()
        success = not done and not self._has_paid and self._has_succeeded(stats)
        reward = self._reward(stats, done, success)
        self._return += reward
        if not done:
            self._stats = stats
            self._max_depth = max(self._max_depth, stats[Stat.DEPTH])
        self._note(done)
        self._has_paid |= success
        ends = success and self.rule.ends
        limit = not done and not ends and len(self._actions) >= self.rules.max_steps
        self._has_ended = done or ends or limit
        terminated = done or ends or (limit and self.rules.limit_terminates)
        end: Literal["death", "success", "limit"] = (
            "death" if done else "success" if ends else "limit"
        )
        return Advance(
            reward=reward,
            terminated=terminated,
            truncated=self._has_ended and not terminated,
            episode=self._episode(end) if self._has_ended else None,
        )

    def observation(self) -> dict[str, NDArray[Any]]:
        """Return copies of the present observation."""
        chosen = {key: np.empty(*field_of(key)) for key in self.observation_keys}
        self.write(chosen)
        return chosen

    def write(self, slots: Mapping[str, NDArray[Any]]) -> None:
        """Write the present observation.

        Args:
            slots: Array to write into, for each of `observation_keys`.
        """
        for key, buffer in self._shown:
            slots[key][...] = buffer
        if self._windows:
            pairs = [(terminal, slots[key]) for key, terminal in self._windows]
            row = self._stats[Stat.Y] + self.rules.window_row
            copy_windows(pairs, row, self._stats[Stat.X])

    @property
    def message_count(self) -> int:
        """Return how often the present message has been shown in this episode, this time included.

        Messages that differ in one byte are two.
        """
        return self._counts[self._message]

    @property
    def has_ended(self) -> bool:
        """Return whether `begin` or `reset` must come next."""
        return self._has_ended

    def close(self) -> None:
        """Give back the engine's memory and remove its temporary folder; may be called twice."""
        self._close()

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """Return the seed, the episode, its actions, and a checksum of where they led.

        Raises:
            ValueError: No episode has begun.
        """
        if self._next_episode == 0:
            raise ValueError(f"`{self.task}` has no episode yet: call .reset() first")
        return {
            "task": self.task,
            "seed": self._seed,
            "number": self._next_episode - 1,
            "actions": list(self._actions),
            "checksum": self._checksum(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Return to a state by playing its episode again.

        Raises:
            ValueError: The state is another task's.
            ReplayError: The game did not come out as it was; the next episode may begin.
        """
        if state["task"] != self.task:
            raise ValueError(f"expected a state of `{self.task}`, got one of `{state['task']}`")
        self._seed, self._next_episode = state["seed"], state["number"]
        self.begin()
        for place, action in enumerate(state["actions"]):
            if self._has_ended:
                raise ReplayError(
                    f"the saved episode of `{self.task}` ended after {place} of its "
                    f"{len(state['actions'])} actions when it was played again"
                )
            self.advance(action)
        if self._checksum() != state["checksum"]:
            raise ReplayError(f"the saved episode of `{self.task}` led elsewhere when played again")

    def _checksum(self) -> int:
        """Return a number that tells situations apart; names that the clock decides don't enter."""
        return zlib.crc32(self._buffers["blstats"].tobytes())

    # --- parts of a step

    def _key_of(self, action: int) -> int:
        """Return the key that an action presses at this moment."""
        if self.rules.eat_fix and EATING in self._message:
            letter = food_letter(self._message) if action == NORTHWEST else None
            return _SPACE if letter is None else letter
        return _KEYS[action]

    def _skip(self, done: bool) -> bool:
        """Get past pages, texts to type and questions that are not the agent's."""
        internal, message = self._buffers["internal"], self._buffers["message"]
        while not done:
            asks_for_key, asks_for_line, waits_for_space = internal[1], internal[2], internal[3]
            if waits_for_space:
                shown = message.tobytes()
                _, done = self._engine.step(_SPACE)
                if self.rules.carry_over and DESCENT in shown:
                    message[:] = np.frombuffer(shown, dtype=np.uint8)
            elif asks_for_line:
                _, done = self._engine.step(_ESCAPE)
            else:
                if asks_for_key:
                    shown = message.tobytes()
                    if not any(word in shown for word in ANSWERED):
                        _, done = self._engine.step(_ESCAPE)
                break
        return bool(done)

    def _has_succeeded(self, stats: list[int]) -> bool:
        """Return whether the present observation is what the task asks for."""
        if self.rule.kind == "stairs":
            return has_descended(self._buffers["message"].tobytes(), stats, self.rule.level)
        if self.rule.kind == "oracle":
            if not is_beside_oracle(self._buffers["glyphs"], stats[Stat.X], stats[Stat.Y]):
                return False
            return not self.rule.is_sober or is_sober(stats[Stat.CONDITION], self.rules.sober_test)
        return False

    def _reward(self, stats: list[int], done: bool, success: bool) -> float:
        """Return the reward of a step, from the statistics before and after (0 after the end)."""
        if self.rule.kind != "score":
            return SUCCESS_REWARD if success else 0.0
        is_frozen = stats[Stat.TURN] == self._stats[Stat.TURN]
        self._frozen_steps = self._frozen_steps + 1 if is_frozen else 0
        gained = 0 if done else stats[Stat.SCORE] - self._stats[Stat.SCORE]
        return gained + time_penalty(self.rules.penalty_mode, self._frozen_steps)

    def _note(self, done: bool = False) -> None:
        """Count the message, and the cells of the map of a running game."""
        self._message = self._buffers["message"].tobytes()
        self._counts[self._message] = self._counts.get(self._message, 0) + 1
        if not done:
            place = (self._stats[Stat.DUNGEON], self._stats[Stat.LEVEL])
            self._explored[place] = int(np.count_nonzero(self._buffers["glyphs"] != BLANK))

    def _episode(self, end: Literal["death", "success", "limit"]) -> NetHackEpisode:
        """Return the summary of the episode that has just ended."""
        stats = self._stats
        return NetHackEpisode(
            score=stats[Stat.SCORE],
            episode_return=self._return,
            num_steps=len(self._actions),
            turns=stats[Stat.TURN],
            depth=stats[Stat.DEPTH],
            max_depth=self._max_depth,
            experience_level=stats[Stat.EXPERIENCE_LEVEL],
            gold=stats[Stat.GOLD],
            num_messages=len(self._counts),
            explored=sum(self._explored.values()),
            end=end,
            success=self._has_paid,
            seed=self._seed,
            number=self._next_episode - 1,
        )


def make_nethack(
    task: str = "NetHackScore-v1",
    *,
    seed: int = 0,
    observation_keys: Sequence[str] = ("message", "blstats"),
    **switches: object,
) -> NetHackGame:
    """Return a game; see `NetHackGame`.

    Args:
        task: One of `TASKS`.
        seed: Begins its sequence of games.
        observation_keys: Of `OBSERVATION_FIELDS` and `WINDOW_KEYS`.
        switches: Fields of `NetHackRules`.
    """
    rules = NetHackRules(**switches)  # type: ignore[arg-type]  # it checks them
    return NetHackGame(task, seed=seed, observation_keys=observation_keys, rules=rules)


def _engine(keys: tuple[str, ...], character: str) -> tuple[Nethack, dict[str, NDArray[Any]]]:
    """Return a new engine and the arrays that it writes into."""
    try:
        from nle.nethack import Nethack
    except ImportError as error:
        raise MissingExtraError("nle", "nethack", "to play NetHack") from error
    engine = Nethack(
        observation_keys=keys, playername=f"Agent-{character}", ttyrec=None, fix_moon_phase=True
    )
    # The engine gives its arrays only with a step's or a reset's answer.
    engine.set_initial_seeds(0, 0, False)
    return engine, dict(zip(keys, engine.reset(), strict=True))
