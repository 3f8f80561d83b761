"""Recorded episodes of NetHack: one file each, and a list of what happened in them.

A folder holds ``<seed>.npz`` with an array ``[T, …]`` per observation key and ``rewards`` ``[T]``,
and ``info.json`` with parallel lists; so does one of Motif's authors.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llm_agents.data.motif_layout import Field, pair_writer, sample_pairs
from llm_agents.data.motif_players import RecordedPlayer, make_player
from llm_agents.envs.nethack import NetHackGame
from llm_agents.envs.nethack_tasks import NetHackRules, field_of
from llm_agents.errors import UserError
from llm_agents.whole_files import write_json, write_whole

REWARDS = "rewards"
FACTS: Mapping[str, Any] = {
    "score": np.int64,
    "turns": np.int64,
    "experience_level": np.int64,
    "steps": np.int64,
    "level_num": np.int64,
    "character": "<U32",
}
"""Facts of an episode that go with its pairs, with their dtypes; `level_num` is the depth."""


@dataclass(frozen=True)
class RecordingPlan:
    """Which episodes there are: each follows from its number alone.

    Args:
        players: They take turns; see `make_player`.
        seed: Another seed plays other games.
        keys: Observation keys to record.
        task: Whose rewards are recorded, and which says when an episode ends.
        max_steps: Actions after which an episode is cut.
    """

    players: tuple[str, ...]
    seed: int
    keys: tuple[str, ...]
    task: str
    max_steps: int

    def episode_seed(self, number: int) -> int:
        """Return the seed of an episode's game and of its player's draws."""
        state = np.random.SeedSequence(self.seed, spawn_key=(number,)).generate_state(2)
        return int(state[0]) << 16 | int(state[1]) >> 16

    def player_name(self, number: int) -> str:
        """Return who plays an episode."""
        return self.players[number % len(self.players)]


class EpisodeRecorder:
    """Plays episodes of a plan and writes them to a folder.

    Args:
        plan: Which.
        folder: Exists.
    """

    def __init__(self, plan: RecordingPlan, folder: Path) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)  # several record at once
        self.plan, self.folder = plan, folder
        self._players: dict[str, RecordedPlayer] = {}
        self._games: dict[tuple[str, ...], NetHackGame] = {}

    def play(self, number: int) -> dict[str, Any]:
        """Play and write an episode, whatever was written of it before; return its facts."""
        name, seed = self.plan.player_name(number), self.plan.episode_seed(number)
        if name not in self._players:
            self._players[name] = make_player(name)
        player = self._players[name]
        keys = tuple(dict.fromkeys((*self.plan.keys, *player.keys)))
        if keys not in self._games:
            rules = NetHackRules(max_steps=self.plan.max_steps)
            self._games[keys] = NetHackGame(self.plan.task, observation_keys=keys, rules=rules)
        game = self._games[keys]
        room = self.plan.max_steps + 1
        steps = {key: np.empty((room, *field_of(key)[0]), field_of(key)[1]) for key in keys}
        rewards = np.zeros(room, dtype=np.float32)
        game.begin(seed)
        player.begin(seed)
        count, episode = 0, None
        while True:
            now = {key: array[count] for key, array in steps.items()}
            game.write(now)
            count += 1
            if episode is not None:
                break
            advance = game.advance(player.act(now))
            rewards[count], episode = advance.reward, advance.episode
        # After a death the screen shows no game any more.
        count -= episode.end == "death"
        arrays = {key: steps[key][:count] for key in self.plan.keys}
        _write_npz(self.folder / f"{seed}.npz", {**arrays, REWARDS: rewards[:count]})
        return {
            "number": number,
            "seed": seed,
            "player": name,
            "steps": count,
            "score": episode.score,
            "turns": episode.turns,
            "experience_level": episode.experience_level,
            "level_num": episode.depth,
            "max_depth": episode.max_depth,
            "num_messages": episode.num_messages,
            "end": episode.end,
            "character": game.rules.character,
        }

    def close(self) -> None:
        """End the games."""
        torch.set_num_threads(self._threads_before)
        for game in self._games.values():
            game.close()


@dataclass(frozen=True)
class RecordedEpisodes:
    """Episodes in a folder.

    Args:
        folder: Of the files.
        facts: One mapping an episode, in order.
    """

    folder: Path
    facts: tuple[Mapping[str, Any], ...]

    @classmethod
    def open(cls, folder: Path) -> RecordedEpisodes:
        """Read the list of a folder.

        Raises:
            UserError: There is none, or it is damaged.
        """
        path = folder / "info.json"
        try:
            columns = json.loads(path.read_text(encoding="utf8"))
            lengths = {key: len(columns[key]) for key in {"seed", "steps", *columns}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"expected parallel lists, `seed` and `steps` among them, in `{path}`: {error!r}"
            ) from error
        if len(set(lengths.values())) != 1:
            raise UserError(f"expected lists of one length in `{path}`, got {lengths}")
        rows = zip(*columns.values(), strict=True)
        return cls(folder, tuple(dict(zip(columns, row, strict=True)) for row in rows))

    def write_list(self) -> None:
        """Write ``info.json``."""
        columns = {key: [facts[key] for facts in self.facts] for key in (self.facts or ({},))[0]}
        write_json(self.folder / "info.json", columns or {"seed": [], "steps": []}, indent=1)

    def load(self, place: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of an episode.

        Raises:
            UserError: The file is missing, damaged, or shorter than the list says.
        """
        path = self.folder / f"{self.facts[place]['seed']}.npz"
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"expected a whole episode in `{path}`: {error}") from error
        steps = self.facts[place]["steps"]
        short = {key: len(array) for key, array in arrays.items() if len(array) < steps}
        if short or not arrays:
            raise UserError(f"expected {steps} steps in `{path}`, got {short or 'no arrays'}")
        return arrays

    def has_file(self, facts: Mapping[str, Any]) -> bool:
        """Return whether the file of an episode is there."""
        return (self.folder / f"{facts['seed']}.npz").is_file()


def write_pairs(
    output: Path,
    sources: Sequence[RecordedEpisodes],
    *,
    num_pairs: int,
    length: int,
    keys: Sequence[str],
    seed: int,
) -> None:
    """Draw pairs from recorded episodes into a new data set, one episode in memory at a time.

    Args:
        output: Root of the data set.
        sources: Their episodes are pooled.
        num_pairs: N; fewer if the episodes don't hold as many.
        length: L.
        keys: Observation keys; the rewards go with them.
        seed: Of the draws.

    Raises:
        UserError: A file is damaged or lacks a key, or there is not one pair.
    """
    pool = [(source, place) for source in sources for place in range(len(source.facts))]
    lengths = [source.facts[place]["steps"] for source, place in pool]
    pairs = sample_pairs(lengths, length, seed)[:num_pairs]
    if not pairs:
        raise UserError(
            f"expected episodes of at least {length} steps to draw pairs from, got none"
        )
    uses: dict[int, list[tuple[int, int, int]]] = {}
    for number, pair in enumerate(pairs):
        for side, stretch in enumerate(pair):
            uses.setdefault(stretch.episode, []).append((number, side, stretch.start))
    known = [key for key in FACTS if all(key in s.facts[p] for s, p in pool)]
    data = {key: Field(*field_of(key)) for key in keys} | {REWARDS: Field((), np.float32)}
    info = {key: Field((), FACTS[key]) for key in known}
    with pair_writer(output, num_pairs=len(pairs), length=length, data=data, info=info) as arrays:
        for episode, places in sorted(uses.items()):
            source, place = pool[episode]
            steps = source.load(place)
            missing = [key for key in data if key not in steps]
            if missing:
                raise UserError(
                    f"expected {', '.join(missing)} in the episodes of `{source.folder}`, got "
                    f"{', '.join(steps)}: ask for other keys, or record anew"
                )
            numbers, sides, starts = np.array(places, dtype=np.int64).T
            stretches = starts[:, None] + np.arange(length)
            for key in data:
                arrays[key][numbers, sides] = steps[key][stretches]
            for key in known:
                arrays[key][numbers, sides] = source.facts[place][key]


def _write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a compressed file under a temporary name and rename it."""

    def write(unfinished: Path) -> None:
        with unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # names are keys

    write_whole(path, write)
