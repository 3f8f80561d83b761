"""Random play in `NetHackVector` against the bare engine: steps per second on two cores.

The peer is nle's own `NetHackScore` environment in as many processes, each in a loop of its own
that sends nothing to anybody and takes turns at as many games: games that are open at once push
each other out of the caches, whoever plays them. What one game a process makes is given too.
All play the same keys and draw their actions alike; they take turns, and each pair of neighboring
stretches gives one ratio. Wall time is what counts; CPU time is given beside it, since other load
disturbs it less. The last line is a JSON object.

    python benchmarks/nethack_engine.py --quick
    python benchmarks/nethack_engine.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from llm_agents.envs.nethack_vector import NetHackVector
from llm_agents.envs.worker_processes import WorkerProcesses

KEYS = ("tty_chars", "tty_colors", "blstats", "message")
WINDOW_KEYS = ("window_chars", "window_colors", "blstats", "message")
NUM_ACTIONS = 23


class Rate(NamedTuple):
    """Steps per second.

    Args:
        wall: Of wall time.
        cpu: Of the CPU time of all processes together.
    """

    wall: float
    cpu: float


class RawGames:
    """nle's environments, played at random by turns in one process."""

    def __init__(self, keys: Sequence[str], num_games: int, seed: int) -> None:
        from nle.env.tasks import NetHackScore

        self.envs = [NetHackScore(observation_keys=tuple(keys)) for _ in range(num_games)]
        for number, env in enumerate(self.envs):
            env.seed(seed * num_games + number, seed, False)
            env.reset()
        self.generator = np.random.default_rng(seed)

    def play(self, num_steps: int) -> int:
        """Take random actions."""
        for _ in range(num_steps // len(self.envs)):
            actions = self.generator.integers(NUM_ACTIONS, size=len(self.envs)).tolist()
            for env, action in zip(self.envs, actions, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return num_steps

    def close(self) -> None:
        for env in self.envs:
            env.close()


class RawEngine:
    """Raw games in processes of their own."""

    def __init__(self, num_games: int, num_processes: int, keys: Sequence[str] = KEYS) -> None:
        games = num_games // num_processes
        arguments = [
            {"keys": keys, "num_games": games, "seed": seed} for seed in range(num_processes)
        ]
        self.workers = WorkerProcesses(RawGames, arguments, "raw")
        self.stretch(num_games)

    def stretch(self, num_steps: int) -> Rate:
        """Return the rate over `num_steps` of all games together."""
        count = len(self.workers)
        cpu, began = self._cpu(), time.perf_counter()
        for worker in range(count):
            self.workers.tell(worker, "play", num_steps // count)
        for worker in range(count):
            self.workers.answer(worker)
        wall = time.perf_counter() - began
        return Rate(num_steps / wall, num_steps / max(self._cpu() - cpu, 1e-9))

    def _cpu(self) -> float:
        return sum(cpu_seconds(process.pid) for process in self.workers.processes())

    def close(self) -> None:
        self.workers.close()


class VectorEngine:
    """`NetHackVector`, played at random."""

    def __init__(
        self, num_games: int, num_processes: int, keys: Sequence[str] = KEYS, seed: int = 0
    ) -> None:
        self.vector = NetHackVector(
            num_games, num_processes - 1, seed=seed, keys=keys, plays_along=True
        )
        self.vector.reset()
        self.generator = np.random.default_rng(seed)

    def stretch(self, num_steps: int) -> Rate:
        """Return the rate over about `num_steps` of all games together."""
        games = self.vector.num_games
        rounds = max(1, num_steps // games)
        cpu, began = self._cpu(), time.perf_counter()
        for _ in range(rounds):
            self.vector.step(self.generator.integers(NUM_ACTIONS, size=games))
        wall = time.perf_counter() - began
        return Rate(rounds * games / wall, rounds * games / max(self._cpu() - cpu, 1e-9))

    def _cpu(self) -> float:
        pids = [os.getpid(), *(process.pid for process in self.vector.processes())]
        return sum(cpu_seconds(pid) for pid in pids)

    def close(self) -> None:
        self.vector.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def raw_engine_rate(num_steps: int, num_games: int = 32, num_processes: int = 2) -> Rate:
    """Return the bare engine's rate over one stretch."""
    engine = RawEngine(num_games, num_processes)
    try:
        return engine.stretch(num_steps)
    finally:
        engine.close()


def random_vector_rate(num_steps: int, num_games: int = 32, num_processes: int = 2) -> Rate:
    """Return the vector's rate over one stretch."""
    engine = VectorEngine(num_games, num_processes)
    try:
        return engine.stretch(num_steps)
    finally:
        engine.close()


def random_vs_engine(
    num_steps: int, repeats: int, num_games: int = 32, num_processes: int = 2
) -> dict[str, float]:
    """Return the ratios of rates, vector ÷ engine, and the rates: medians over the repeats."""
    engines = {
        "engine": RawEngine(num_games, num_processes),
        "one_game_engine": RawEngine(num_processes, num_processes),
        "random": VectorEngine(num_games, num_processes),
        "window": VectorEngine(num_games, num_processes, WINDOW_KEYS),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in engines}
    try:
        for repeat in range(repeats):
            order = list(engines) if repeat % 2 == 0 else list(reversed(engines))
            for name in order:
                rates[name].append(engines[name].stretch(num_steps))
    finally:
        for engine in engines.values():
            engine.close()
    found = {}
    for kind in ("wall", "cpu"):
        values = {name: [getattr(rate, kind) for rate in own] for name, own in rates.items()}
        for name in ("random", "window"):
            for peer in ("engine", "one_game_engine"):
                pairs = zip(values[name], values[peer], strict=True)
                suffix = "" if kind == "wall" else "_cpu"
                found[f"{name}_vs_{peer}{suffix}"] = statistics.median(a / b for a, b in pairs)
        found |= {
            f"{name}_steps_per_{kind}_s": statistics.median(own) for name, own in values.items()
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--games", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    steps, repeats = (6_000, 5) if options.quick else (30_000, 11)
    found = random_vs_engine(steps, repeats, options.games, options.processes)
    print(json.dumps({key: round(value, 3) for key, value in found.items()}))


if __name__ == "__main__":
    main()
