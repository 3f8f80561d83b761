"""NetHack as a text world: what the game says, how the hero is, what is around him."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llm_agents.envs.base import Observation, Step
from llm_agents.envs.nethack import NetHackEpisode, NetHackGame
from llm_agents.envs.nethack_screen import (
    Stat,
    message_text,
    screen_lines,
    status_text,
)
from llm_agents.envs.nethack_tasks import ACTION_NAMES, TASKS, NetHackRules
from llm_agents.types import Episode

_SYMBOLS = {
    "|": "a wall",
    "-": "a wall",
    "#": "a corridor",
    "+": "a door",
    "<": "stairs up",
    ">": "stairs down",
    "_": "an altar",
    "{": "a fountain",
    "}": "water",
    "^": "a trap",
    "`": "a boulder",
    "$": "gold",
    "%": "food",
    "!": "a potion",
    "?": "a scroll",
    "/": "a wand",
    "=": "a ring",
    '"': "an amulet",
    "(": "a tool",
    ")": "a weapon",
    "[": "armor",
    "*": "a stone",
}
_DIRECTIONS = {
    "north": (-1, 0),
    "northeast": (-1, 1),
    "east": (0, 1),
    "southeast": (1, 1),
    "south": (1, 0),
    "southwest": (1, -1),
    "west": (0, -1),
    "northwest": (-1, -1),
}
_GOALS = {
    "score": "To get a high score, you",
    "stairs": "To go down to level {level}, you",
    "oracle": "To find the Oracle, you",
}

TaskName = Literal[
    "NetHackScore-v1",
    "NetHackStaircase-v1",
    "NetHackStaircaseLvl3-v1",
    "NetHackStaircaseLvl4-v1",
    "NetHackStaircaseContinual-v1",
    "NetHackStaircaseLvl3Continual-v1",
    "NetHackStaircaseLvl4Continual-v1",
    "NetHackOracle-v1",
    "NetHackOracleSober-v1",
]


class NetHackText:
    """A NetHack task for language agents, by the rules of `TextEnv`.

    All 23 actions are always offered. Saving keeps the game's seed and actions, which are played
    again; see `NetHackGame`.

    Args:
        task: One of Motif's nine.
        with_map: Add the lines of the map that show anything.
        max_steps: Actions after which an episode is cut.
        seed: Begins the games before any `reset` with a seed.
    """

    name = "nethack-text"
    num_actions = len(ACTION_NAMES)
    vector_size = len(Stat)
    gamma = 1.0
    optimal_return: float | None = None

    def __init__(
        self,
        task: TaskName = "NetHackScore-v1",
        with_map: bool = False,
        max_steps: int = 5000,
        seed: int = 0,
    ) -> None:
        self.task, self.rules, self.seed = task, NetHackRules(max_steps=max_steps), seed
        self._game = self._new_game()
        self.with_map = with_map
        rule = TASKS[task]
        self.goal = _GOALS[rule.kind].format(level=rule.level)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._has_terminated = False

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode; a seed begins the games anew."""
        self._arrays = self._game.reset(seed)
        self._has_terminated = False
        return self._observation()

    def step(self, index: int) -> Step:
        """Take the action at `index`.

        Raises:
            ValueError: There is no such action, or the episode has ended.
        """
        self._arrays, reward, terminated, truncated, episode = self._game.step(index)
        self._has_terminated = terminated
        return Step(
            observation=self._observation(),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            duration=1,
            episode=None if episode is None else _summary(episode),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs to go on alike: plain numbers and strings."""
        return {**self._game.state_dict(), "has_terminated": self._has_terminated}

    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        """Return to a state; give the observation that was last shown.

        Raises:
            ValueError: The state is another task's.
        """
        self._game.load_state_dict(state)
        self._arrays = self._game.observation()
        self._has_terminated = state["has_terminated"]
        return self._observation()

    def render(self) -> str:
        """Return the terminal."""
        return "\n".join(screen_lines(self._arrays["tty_chars"]))

    def close(self) -> None:
        """End the game."""
        self._game.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: an engine can't be copied, its game is played again."""
        state = {key: value for key, value in vars(self).items() if key != "_game"}
        return {**state, "_saved": self.state_dict() if self._arrays else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_saved")
        vars(self).update(state)
        self._game = self._new_game()
        if saved is not None:
            self._game.load_state_dict(saved)

    def _new_game(self) -> NetHackGame:
        """Return a game that has not begun."""
        keys = ("message", "blstats", "chars", "tty_chars")
        return NetHackGame(self.task, seed=self.seed, observation_keys=keys, rules=self.rules)

    def _observation(self) -> Observation:
        """Return the present observation."""
        offered = () if self._has_terminated else ACTION_NAMES
        stats = self._arrays["blstats"]
        sentences = [
            message_text(self._arrays["message"]).strip(),
            f"Your status is {status_text(stats)}.",
            surroundings(self._arrays["chars"], int(stats[Stat.X]), int(stats[Stat.Y])),
        ]
        text = " ".join(sentence for sentence in sentences if sentence)
        if self.with_map:
            lines = [line for line in screen_lines(self._arrays["chars"]) if line]
            text = "\n".join([text, *lines])
        return Observation(
            text=text,
            goal=self.goal,
            actions=offered,
            action_ids=tuple(range(len(offered))),
            vector=tuple(stats.tolist()),
        )


def surroundings(chars: NDArray[np.uint8], x: int, y: int) -> str:
    """Return sentences about what is beside the hero, and about stairs and creatures in sight.

    Args:
        chars: ``[21, 79]``, the map.
        x: The hero's column.
        y: His row.
    """
    sentences = []
    found: dict[str, list[str]] = {}
    for direction, (down, right) in _DIRECTIONS.items():
        row, column = y + down, x + right
        inside = 0 <= row < chars.shape[0] and 0 <= column < chars.shape[1]
        name = _thing(chr(chars[row, column])) if inside else None
        if name:
            found.setdefault(name, []).append(direction)
    if found:
        things = [f"{name} ({', '.join(directions)})" for name, directions in found.items()]
        sentences.append(f"Next to you: {', '.join(things)}.")
    for row, column in zip(*np.nonzero(chars), strict=True):
        symbol = chr(chars[row, column])
        is_near = abs(row - y) <= 1 and abs(column - x) <= 1
        if not is_near and (symbol in "<>" or symbol.isalpha()):
            sentences.append(f"You see {_thing(symbol)} {_way(row - y, column - x)}.")
    return " ".join(sentences)


def _thing(symbol: str) -> str | None:
    """Return what a symbol of the map stands for; None for bare floor and the unknown."""
    if symbol in _SYMBOLS:
        return _SYMBOLS[symbol]
    return f"a creature {symbol}" if symbol.isalpha() or symbol in "@&;:'" else None


def _way(down: int, right: int) -> str:
    """Return a distance in words."""
    parts = []
    if down:
        parts.append(f"{abs(down)} {'south' if down > 0 else 'north'}")
    if right:
        parts.append(f"{abs(right)} {'east' if right > 0 else 'west'}")
    return " and ".join(parts)


def _summary(episode: NetHackEpisode) -> Episode:
    """Return an episode's summary as text worlds give it."""
    return Episode(
        discounted_return=episode.episode_return,
        undiscounted_return=episode.episode_return,
        num_decisions=episode.num_steps,
        num_primitive_steps=episode.num_steps,
        success=episode.success,
    )
