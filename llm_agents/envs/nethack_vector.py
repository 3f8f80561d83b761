"""Many NetHack games that step together, shared out over worker processes.

A vector step is one message to each worker and one back; observations, actions and rewards lie in
shared memory, which is anonymous: no file is left whatever is killed. Games of one seed are the
same whatever the number of workers.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from llm_agents.envs.nethack import Advance, NetHackEpisode, NetHackGame, ReplayError
from llm_agents.envs.nethack_tasks import ACTIONS, NetHackRules, check_keys, field_of
from llm_agents.envs.worker_processes import WorkerProcesses, start_context

COUNT_KEY = "message_count"
"""Observation key of its own: how often this episode has shown the message, this time included."""

_log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]


class VectorStep(NamedTuple):
    """What the actions in E games led to.

    Args:
        observations: ``[E, …]`` by key, and `COUNT_KEY` ``[E]`` int32; where an episode ended, the
            first of the next one.
        rewards: ``[E]`` float32.
        terminated: ``[E]`` bool, the game or the task ended.
        truncated: ``[E]`` bool, the time limit cut the episode.
        ended: ``[K]`` int64, the games whose episode ended, in order.
        final_observations: ``[K, …]`` by key, the last observation of each of those episodes.
        episodes: K summaries.
    """

    observations: Arrays
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    ended: NDArray[np.int64]
    final_observations: Arrays
    episodes: tuple[NetHackEpisode, ...]


def game_seeds(seed: int, count: int, first: int = 0) -> tuple[int, ...]:
    """Return the seeds of some games of a vector, unrelated to those of any other seed.

    Args:
        seed: Of the vector.
        count: Games.
        first: Number of the first.
    """
    sequences = [np.random.SeedSequence(seed, spawn_key=(first + e,)) for e in range(count)]
    return tuple(int(one.generate_state(1, np.uint64)[0] >> np.uint64(1)) for one in sequences)


class _Table(NamedTuple):
    """The arrays that a vector and its workers share.

    Args:
        now: ``[E, …]`` by key.
        final: ``[E, …]`` by key, written where an episode ends.
        actions: ``[E]`` uint8.
        rewards: ``[E]`` float32.
        terminated: ``[E]`` bool.
        truncated: ``[E]`` bool.
    """

    now: Arrays
    final: Arrays
    actions: NDArray[np.uint8]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


def _table(keys: Sequence[str], count: int, context: Any) -> _Table:  # noqa: ANN401 - no public type
    """Return shared arrays for `count` games."""

    def shared(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:  # noqa: ANN401 - a dtype
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(context.RawArray("b", size), dtype=dtype).reshape(shape)

    fields = {key: field_of(key) for key in keys} | {COUNT_KEY: ((), np.int32)}
    now, final = (
        {key: shared((count, *shape), dtype) for key, (shape, dtype) in fields.items()}
        for _ in range(2)
    )
    return _Table(
        now,
        final,
        shared((count,), np.uint8),
        shared((count,), np.float32),
        shared((count,), np.bool_),
        shared((count,), np.bool_),
    )


class _Share:
    """Consecutive games of a vector, played in one process.

    Args:
        seeds: Of its games.
        first: Number of the first.
        task: Of all.
        rules: Of all.
        table: The vector's arrays.
    """

    def __init__(
        self, seeds: Sequence[int], first: int, task: str, rules: NetHackRules, table: _Table
    ) -> None:
        keys = [key for key in table.now if key != COUNT_KEY]
        self.games = [
            NetHackGame(task, seed=seed, observation_keys=keys, rules=rules) for seed in seeds
        ]
        self.first, self.table = first, table
        places = range(first, first + len(seeds))
        self.now = [{key: array[e, ...] for key, array in table.now.items()} for e in places]
        self.final = [{key: array[e, ...] for key, array in table.final.items()} for e in places]

    def reset(self) -> None:
        """Begin an episode in every game."""
        for place, game in enumerate(self.games):
            game.begin()
            self._show(place, self.now)

    def step(self) -> list[tuple[int, NetHackEpisode]]:
        """Take every game's action; begin the next episode where one ends.

        Returns:
            The games whose episode ended, by their number in the vector.
        """
        ended: list[tuple[int, NetHackEpisode]] = []
        table, own = self.table, slice(self.first, self.first + len(self.games))
        found: list[Advance] = []
        for place, action in enumerate(table.actions[own].tolist()):
            game = self.games[place]
            advance = game.advance(action)
            found.append(advance)
            if advance.episode is not None:
                self._show(place, self.final)
                ended.append((self.first + place, advance.episode))
                game.begin()
            self._show(place, self.now)
        table.rewards[own] = [advance.reward for advance in found]
        table.terminated[own] = [advance.terminated for advance in found]
        table.truncated[own] = [advance.truncated for advance in found]
        return ended

    def state(self) -> list[dict[str, Any]]:
        """Return the state of every game."""
        return [game.state_dict() for game in self.games]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return every game to a state; begin the next episode where that fails.

        Returns:
            What failed.
        """
        faults = []
        for place, (game, state) in enumerate(zip(self.games, states, strict=True)):
            try:
                game.load_state_dict(state)
            except ReplayError as error:
                faults.append(str(error))
                game.begin()
            self._show(place, self.now)
        return faults

    def close(self) -> None:
        """Close every game."""
        for game in self.games:
            game.close()

    def _show(self, place: int, slots: Sequence[Arrays]) -> None:
        """Write a game's observation into its slot."""
        self.games[place].write(slots[place])
        slots[place][COUNT_KEY][...] = self.games[place].message_count


class NetHackVector:
    """E games of one task with one step for all.

    An episode that ends is followed by the next one's first observation in the same step. Between
    `send` and `receive` the caller may do other work while workers play. Everything it gives out is
    a copy.

    Args:
        num_games: E, ≥ 1.
        num_workers: Processes, at most E; 0 plays in this one.
        task: One of `llm_agents.envs.nethack_tasks.TASKS`.
        seed: Begins every game's sequence of episodes.
        keys: Observation keys; `COUNT_KEY` is always there.
        rules: Quirks and limits.
        first_game: Number of the first game, for vectors that share one seed.
        plays_along: This process plays a share of the games too, in `receive`: W workers then keep
            W + 1 cores busy, with one process fewer to wake up at every step.

    Raises:
        MissingExtraError: nle is not installed.
        ValueError: Too few games, or an unknown task or key.
    """

    num_actions = len(ACTIONS)

    def __init__(
        self,
        num_games: int,
        num_workers: int = 0,
        task: str = "NetHackScore-v1",
        seed: int = 0,
        keys: Sequence[str] = ("message", "blstats"),
        rules: NetHackRules | None = None,
        *,
        first_game: int = 0,
        plays_along: bool = False,
    ) -> None:
        if num_games < 1 or not 0 <= num_workers <= num_games - plays_along:
            raise ValueError(
                f"expected at least one game and at most one process a game, got {num_games} and "
                f"{num_workers} workers"
            )
        check_keys(keys)
        self.num_games, self.task, self.keys = num_games, task, tuple(keys)
        self.rules = rules or NetHackRules()
        # Probes this process, so that a fault of the arguments is raised here and not in a worker.
        NetHackGame(task, observation_keys=self.keys, rules=self.rules).close()
        self._table = _table(self.keys, num_games, start_context())
        seeds = game_seeds(seed, num_games, first_game)
        self._is_waiting = False
        has_share = plays_along or num_workers == 0
        bounds = np.linspace(0, num_games, num_workers + has_share + 1).astype(int).tolist()
        self._bounds = list(pairwise(bounds))
        shares = [
            {
                "seeds": seeds[low:high],
                "first": low,
                "task": task,
                "rules": self.rules,
                "table": self._table,
            }
            for low, high in self._bounds
        ]
        # Workers first: a fork copies no engine then.
        others = shares[has_share:]
        self._workers = WorkerProcesses(_Share, others, "nethack") if others else None
        self._share = _Share(**shares[0]) if has_share else None
        self._close = weakref.finalize(self, _close, self._workers, self._share)

    # --- playing

    def reset(self) -> Arrays:
        """Begin an episode in every game; give the observations."""
        self._ask("reset")
        return self.observations()

    def step(self, actions: NDArray[np.integer[Any]], out: Arrays | None = None) -> VectorStep:
        """Take an action in every game; `send` and `receive` in one."""
        self.send(actions)
        return self.receive(out)

    def send(self, actions: NDArray[np.integer[Any]]) -> None:
        """Let every game take its action.

        Args:
            actions: ``[E]``, each below `num_actions`.

        Raises:
            ValueError: They are not so, or the last step has not been received.
        """
        if self._is_waiting:
            raise ValueError("expected `receive` before the next `send`")
        if actions.shape != (self.num_games,) or not (
            0 <= actions.min() <= actions.max() < self.num_actions
        ):
            raise ValueError(
                f"expected {self.num_games} actions below {self.num_actions}, got {actions}"
            )
        self._table.actions[:] = actions
        self._is_waiting = True
        if self._workers is not None:
            for worker in range(len(self._workers)):
                self._workers.tell(worker, "step")

    def receive(self, out: Arrays | None = None) -> VectorStep:
        """Return what the actions led to.

        Args:
            out: Arrays ``[E, …]`` by key to write the observations into, such as a row of a
                rollout; None makes new ones.

        Raises:
            ValueError: Nothing was sent.
        """
        if not self._is_waiting:
            raise ValueError("expected `send` before `receive`")
        pairs = [] if self._share is None else self._share.step()
        pairs += [pair for answer in self._answers() for pair in answer]
        self._is_waiting = False
        ended = np.array([game for game, _ in pairs], dtype=np.int64)
        return VectorStep(
            observations=self.observations(out),
            rewards=self._table.rewards.copy(),
            terminated=self._table.terminated.copy(),
            truncated=self._table.truncated.copy(),
            ended=ended,
            final_observations={key: array[ended] for key, array in self._table.final.items()},
            episodes=tuple(episode for _, episode in pairs),
        )

    def observations(self, out: Arrays | None = None) -> Arrays:
        """Return copies of the present observations, or write them into `out`."""
        if out is None:
            return {key: array.copy() for key, array in self._table.now.items()}
        for key, array in self._table.now.items():
            out[key][...] = array
        return out

    # --- saving

    def state_dict(self) -> list[dict[str, Any]]:
        """Return every game's state between two steps: its seed, episode and actions."""
        return [state for states in self._ask("state") for state in states]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> Arrays:
        """Return to a state by playing every episode again; give the observations.

        An episode that comes out otherwise, on another version of the engine, gives way to the next
        one; that is logged as a warning.

        Raises:
            ValueError: The states are of another number of games.
        """
        if len(states) != self.num_games:
            raise ValueError(
                f"expected the states of {self.num_games} games, got {len(states)}: play as many "
                "games as were saved"
            )
        parts = [states[low:high] for low, high in self._bounds]
        faults = [fault for found in self._ask("restore", parts) for fault in found]
        if faults:
            _log.warning(
                "%d of %d games could not be restored and begin their next episode: %s",
                len(faults),
                self.num_games,
                faults[0],
            )
        return self.observations()

    def processes(self) -> tuple[BaseProcess, ...]:
        """Return the worker processes."""
        return () if self._workers is None else self._workers.processes()

    # --- ending

    def close(self) -> None:
        """End the games and their processes; may be called twice."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- talking to workers

    def _ask(self, method: str, parts: Sequence[Any] | None = None) -> list[Any]:
        """Let every share do something, each with its part; return their answers in order."""
        if self._is_waiting:
            raise ValueError("expected `receive` after `send`")
        given = [()] * len(self._bounds) if parts is None else [(part,) for part in parts]
        has_share = self._share is not None
        for worker, arguments in enumerate(given[has_share:]):
            assert self._workers is not None
            self._workers.tell(worker, method, *arguments)
        own = [getattr(self._share, method)(*given[0])] if has_share else []
        return own + self._answers()

    def _answers(self) -> list[Any]:
        """Return every worker's answer."""
        if self._workers is None:
            return []
        return [self._workers.answer(worker) for worker in range(len(self._workers))]


def _close(workers: WorkerProcesses | None, share: _Share | None) -> None:
    """End what plays the games."""
    if workers is not None:
        workers.close()
    if share is not None:
        share.close()
