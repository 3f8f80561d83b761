"""Players of BabyAI that need no training: minigrid's bot, which knows the way, and chance.

A player is asked for the index of an action in a world. Two rules count its episodes: a number that
each world plays to the end, or, as GLAM's release did, those that finish first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from llm_agents.envs.babyai import BabyAIText
from llm_agents.errors import UserError
from llm_agents.types import Episode

Player = Callable[[BabyAIText], int]

_MOST_SEARCHES = 3000  # for one step; the largest mazes take some dozens


class _LostError(RuntimeError):
    """The bot searches for ever."""


@cache
def _bot_class() -> type:
    """Return minigrid's bot with an end to its searches: where it finds no way it has none."""
    base: Any = import_module("minigrid.utils.baby_ai_bot").BabyAIBot

    class Searching(base):  # type: ignore[misc]  # a class that is known at run time only
        """The bot; raises `_LostError` after very many searches for one step."""

        def replan(self, action_taken: int | None = None) -> int:
            """Return the next action."""
            self._searches = 0
            return int(super().replan(action_taken))

        def _breadth_first_search(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            """Search the grid."""
            self._searches += 1
            if self._searches > _MOST_SEARCHES:
                raise _LostError
            return super()._breadth_first_search(*arguments, **options)

    return Searching


class Bot:
    """The scripted expert of BabyAI, which sees what the agent sees and remembers it.

    It always solves GLAM's levels, and minigrid's but for a few: those where a box has to be opened
    or the hands are full at first; it finds no way in some worlds of ``UnlockToUnlock``; and it
    fails where a wrong door ends the episode, in ``OpenDoorsOrderN2Debug`` and ``N4Debug``. It has
    to be asked at every step of an episode, and its advice taken, or to be told what was done.

    Example:
        >>> world, bot = BabyAIText(), Bot()
        >>> steps = [world.reset(0)] and [world.step(bot(world)) for _ in range(2)]
        >>> [step.terminated for step in steps]
        [False, True]
    """

    def __init__(self) -> None:
        self._bots: WeakKeyDictionary[BabyAIText, tuple[Any, Any]] = WeakKeyDictionary()

    def __call__(self, world: BabyAIText, taken: int | None = None) -> int:
        """Return the index of the next action.

        Args:
            world: The world.
            taken: The last action of the episode; None if its advice was taken, or there is none.

        Raises:
            UserError: The world does not offer the action, or the bot finds no way.
        """
        engine = world.engine
        instruction, bot = self._bots.get(world, (None, None))
        if instruction is not engine.instrs:
            bot = _bot_class()(engine)
            self._bots[world] = engine.instrs, bot
        try:
            action = int(bot.replan(taken))
        except (AssertionError, _LostError) as error:
            raise UserError(
                f"expected a world that minigrid's bot can solve, got `{world.name}`: it finds no "
                f"way to {world.mission}"
            ) from error
        if action >= world.num_actions:
            raise UserError(
                f"expected a world in which the bot can take BabyAI's action {action}, got "
                f"{world.num_actions} actions in `{world.name}`: offer the six of BabyAI"
            )
        return action


class Chance:
    """Takes every action of a list equally often.

    Args:
        seed: Begins its random numbers.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def __call__(self, world: BabyAIText) -> int:
        """Return the index of an action."""
        return self._random.randrange(world.num_actions)


def play_shares(worlds: Sequence[BabyAIText], player: Player, num_episodes: int) -> list[Episode]:
    """Return `num_episodes` episodes, each world's share fixed before the first step.

    Every episode counts, whatever its length.

    Args:
        worlds: E worlds; the first ``num_episodes % E`` play one more than the others.
        player: Plays all of them.
        num_episodes: At least 1.

    Raises:
        ValueError: There is nothing to play.
    """
    _check(worlds, num_episodes)
    share, rest = divmod(num_episodes, len(worlds))
    played = []
    for number, world in enumerate(worlds):
        for _ in range(share + (number < rest)):
            world.reset()
            episode = None
            while episode is None:
                episode = world.step(player(world)).episode
            played.append(episode)
    return played


def play_first(worlds: Sequence[BabyAIText], player: Player, num_episodes: int) -> list[Episode]:
    """Return the first episodes to finish while all worlds step together, at least `num_episodes`.

    The release's rule. It favours short episodes: worlds whose episodes are short finish more.

    Args:
        worlds: E worlds.
        player: Plays all of them.
        num_episodes: At least 1; up to E − 1 more are returned.

    Raises:
        ValueError: There is nothing to play.
    """
    _check(worlds, num_episodes)
    for world in worlds:
        world.reset()
    played: list[Episode] = []
    while len(played) < num_episodes:
        for world in worlds:
            episode = world.step(player(world)).episode
            if episode is not None:
                played.append(episode)
                world.reset()
    return played


def _check(worlds: Sequence[BabyAIText], num_episodes: int) -> None:
    """Raise where there is nothing to play."""
    if not worlds or num_episodes < 1:
        raise ValueError(
            f"expected at least one world and one episode, got {len(worlds)} worlds and "
            f"{num_episodes} episodes"
        )
