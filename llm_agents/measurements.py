"""What was measured, by method and task: read from the benchmarks' results and the zoo's entries.

The page ``docs/results.md`` is generated from it and from the recipes' `reproduces`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks") / "results"
CHECKPOINTS = Path("checkpoints")
_WORLDS = {  # names of tasks in benchmarks/online_learning.py
    "food": "virtualhome_food_preparation",
    "entertainment": "virtualhome_entertainment",
    "tomato": "overcooked_tomato_salad",
    "tomato_lettuce": "overcooked_tomato_lettuce_salad",
}

_BABYAI_AGENTS = {  # names of agents in benchmarks/glam_learning.py
    "ppo": "glam",
    "cloned": "cloning",
    "cloned_ppo": "glam from a clone",
    "dart": "cloning with dart",
    "dagger": "cloning with dagger",
    "dagger_ppo": "glam from a clone with dagger",
    "symbolic": "symbolic_ppo",
}


@dataclass(frozen=True)
class Measurement:
    """A number of ours.

    Args:
        method: Name of the method or objective, as in recipes' names.
        task: Name of the task, likewise.
        metric: What is measured.
        value: Mean.
        low: Lower end of its 95 % interval; None if there is none.
        high: Upper end.
        seeds: Trainings that it is the mean of.
        minutes: Minutes of one training; None if nobody knows.
        commit: What it was measured at; None if it is not recorded.
        source: File that it stands in, from the root.
    """

    method: str
    task: str
    metric: str
    value: float
    low: float | None
    high: float | None
    seeds: int
    minutes: float | None
    commit: str | None
    source: str

    @property
    def interval(self) -> str:
        """Return the interval as text."""
        if self.low is None or self.high is None:
            return "–"
        return f"[{self.low:.4g}, {self.high:.4g}]"


def measurements(root: Path = ROOT) -> list[Measurement]:
    """Return everything that is measured, benchmarks first.

    A benchmark's file counts if it is one of those known here, or has a list ``rows`` of objects
    with `Measurement`'s names (all but `source`).
    """
    found: list[Measurement] = []
    for path in sorted((root / RESULTS).glob("*.json")):
        content = json.loads(path.read_text(encoding="utf8"))
        source = path.relative_to(root).as_posix()
        found += _READERS.get(path.name, _rows)(content, source)
    for path in sorted((root / CHECKPOINTS).glob("*/results.json")):
        found += entry_measurements(root, path.parent.name)
    return found


def entry_measurements(root: Path, name: str) -> list[Measurement]:
    """Return what is measured of an entry of the zoo."""
    path = root / CHECKPOINTS / name / "results.json"
    return list(_entry(path, path.relative_to(root).as_posix()))


def _rows(content: Mapping[str, Any], source: str) -> Iterator[Measurement]:
    """Yield the rows of a file that has them."""
    rows = content.get("rows")
    for row in rows if isinstance(rows, list) else ():
        yield Measurement(**row, source=source)


def _hha(content: Mapping[str, Any], source: str) -> Iterator[Measurement]:
    """Yield the objectives on HHA dialogues."""
    prompts = content.get("test_prompts")
    for method, entry in content["objectives"].items():
        yield _of_interval(
            method,
            "hha",
            f"reward by a judge that nothing was trained on, {prompts} test prompts",
            entry["reward"],
            seeds=len(entry["seeds"]),
            content=content,
            source=source,
        )


def _online(content: Mapping[str, Any], source: str) -> Iterator[Measurement]:
    """Yield the agents in text worlds: in the world that they were trained in, and in others."""
    for task, variants in content.get("tasks", {}).items():
        for variant, entry in variants.items():
            for name, found in entry.items() if isinstance(entry, Mapping) else ():
                agent, _, world = name.partition("@")
                if agent != "trained" or not isinstance(found, Mapping):
                    continue
                yield _of_interval(
                    variant,
                    _WORLDS.get(task, task),
                    f"mean return, {world}",
                    found["return"],
                    seeds=len(entry["seeds"]),
                    content={**content, "minutes": entry.get("minutes")},
                    source=source,
                )


def _glam(content: Mapping[str, Any], source: str) -> Iterator[Measurement]:
    """Yield the agents in BabyAI-Text by success in the world that they were trained in."""
    for world, agents in content.get("worlds", {}).items():
        level = "".join(part.title() for part in world.removeprefix("babyai-").split("-"))
        for agent, entry in agents.items():
            if "success" not in entry:  # without training
                continue
            yield _of_interval(
                _BABYAI_AGENTS.get(agent, agent),
                world.replace("-", "_"),
                f"success rate, {level}",
                entry["success"],
                seeds=len(entry["seeds"]),
                content=entry,
                source=source,
            )


def _motif(content: Mapping[str, Any], source: str) -> Iterator[Measurement]:
    """Yield Motif's agents by score and intrinsic return."""
    for agent, entry in content.get("agents", {}).items():
        for measure in ("score", "intrinsic_return"):
            if measure in entry:
                yield _of_interval(
                    "motif",
                    "nethack",
                    f"{measure.replace('_', ' ')}, agent `{agent}`",
                    entry[measure],
                    seeds=len(entry["seeds"]),
                    content=content,
                    source=source,
                )


def _of_interval(
    method: str,
    task: str,
    metric: str,
    found: Mapping[str, float],
    *,
    seeds: int,
    content: Mapping[str, Any],
    source: str,
) -> Measurement:
    """Return a measurement of a mean with its interval."""
    return Measurement(
        method=method,
        task=task,
        metric=metric,
        value=found["mean"],
        low=found.get("low"),
        high=found.get("high"),
        seeds=seeds,
        minutes=content.get("minutes"),
        commit=content.get("commit"),
        source=source,
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Iterator[Measurement]]] = {
    "glam_learning.json": _glam,
    "hha_learning.json": _hha,
    "motif_learning.json": _motif,
    "online_learning.json": _online,
}


# --- entries of the zoo ---------------------------------------------------------------------------


def _entry(path: Path, source: str) -> Iterator[Measurement]:
    """Yield the headline of an entry of the zoo: one training, its interval over prompts or games.

    The files are read as plain JSON, so that writing a table needs no torch.
    """
    values = json.loads(path.read_text(encoding="utf8"))
    details = values.get("details") or {}
    read = _HEADLINES.get(values.get("kind"))
    found = None if read is None else read(values)
    if found is None:
        return
    metric, interval, task = found
    provenance = path.with_name("provenance.json")
    known = json.loads(provenance.read_text(encoding="utf8")) if provenance.is_file() else {}
    seconds = known.get("training_seconds")
    method = details.get("method") or path.parent.name.partition("-")[0]
    yield Measurement(
        method=str(method),
        task=re.sub(r"[^a-z0-9]+", "_", str(task or details.get("task") or "").lower()),
        metric=metric,
        value=interval["mean"],
        low=interval["low"],
        high=interval["high"],
        seeds=1,
        minutes=None if seconds is None else round(seconds / 60, 1),
        commit=known.get("commit"),
        source=source,
    )


Headline = tuple[str, Mapping[str, Any], str | None]
"""Metric, interval, and task if the results name it."""


def _answers(values: Mapping[str, Any]) -> Headline | None:
    """Return the reward of a policy's answers."""
    test = values["tests"][-1]
    return f"reward `{values['reward']['name']}`, test set {test['name']}", test["reward"], None


def _pairs(values: Mapping[str, Any]) -> Headline | None:
    """Return the pairs that a reward orders as people do, or else as their stored scores."""
    test = values["tests"][-1]
    for key, text in (
        ("pair_accuracy", "pairs in people's order"),
        ("pair_agreement", "pairs in the order of stored scores"),
    ):
        if test[key] is not None:
            return f"{text}, test set {test['name']}", test[key], None
    return None


def _messages(values: Mapping[str, Any]) -> Headline | None:
    """Return the held-out pairs that a reward of messages orders right."""
    accuracy = values["accuracy"]
    return None if accuracy is None else ("held-out accuracy without ties", accuracy, "nethack")


def _episodes(values: Mapping[str, Any]) -> Headline | None:
    """Return the return of an agent in its world."""
    world = values["worlds"][0]
    return f"mean return, {world['world']}", world["discounted_return"], world["world"]


def _games(values: Mapping[str, Any]) -> Headline | None:
    """Return the score of a NetHack agent."""
    game = values["results"][0]
    return f"score, {game['task']}", game["means"]["score"], "nethack"


_HEADLINES: Mapping[str, Callable[[Mapping[str, Any]], Headline | None]] = {
    "policy": _answers,
    "reward": _pairs,
    "message_reward": _messages,
    "episodes": _episodes,
    "games": _games,
}
