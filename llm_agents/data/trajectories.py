"""Played episodes as JSON lines: one line a step, with all that cloning needs.

A line has ``episode`` (a number, the same for all its steps), ``prompt``, ``actions`` (all that was
offered) and ``action`` (the text of what was done); ``step``, ``goal``, ``reward`` and ``done``
are for people and statistics, and may be missing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llm_agents.errors import UserError
from llm_agents.types import Choice

_SAMPLE = Path(__file__).parent / "samples" / "babyai_go_to_local.jsonl"


@dataclass(frozen=True)
class TrajectoryStep:
    """A step of a played episode.

    Args:
        episode: Number of the episode in its file.
        step: Number of the step, from 0.
        goal: What was to be done.
        prompt: What the agent was shown.
        actions: What it was offered.
        action: What it did: one of these.
        reward: What it got.
        done: Whether the episode ended with the step.
    """

    episode: int
    step: int
    goal: str
    prompt: str
    actions: tuple[str, ...]
    action: str
    reward: float
    done: bool

    @property
    def choice(self) -> Choice:
        """Return prompt and actions."""
        return Choice(self.prompt, self.actions)

    @property
    def index(self) -> int:
        """Return the position of the action."""
        return self.actions.index(self.action)


def to_line(step: TrajectoryStep) -> str:
    """Return a step as a line of a file, its end included."""
    return json.dumps(asdict(step), ensure_ascii=False) + "\n"


def read_trajectories(path: Path | str) -> Iterator[TrajectoryStep]:
    """Yield the steps of a file, plain or ``.gz``, in order.

    Args:
        path: JSON lines, as `to_line` makes them; ``sample`` is a bundled file.

    Raises:
        UserError: There is no such file, it is empty, or a line is no step; names the line.
    """
    path = _SAMPLE if path == "sample" else Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"expected trajectories in {path}, there is no such file")
    number = 0
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield _step(line, f"{path}:{number}", number)
    if not number:
        raise UserError(f"{path}: expected at least one step, got an empty file")


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf8") as lines:
            yield from lines
    else:
        with path.open(encoding="utf8") as lines:
            yield from lines


def _step(line: str, where: str, number: int) -> TrajectoryStep:
    """Return the step of a line."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: expected one JSON object a line: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: expected one JSON object a line, got {type(found).__name__}")
    _check(found, where)
    return TrajectoryStep(
        episode=found["episode"],
        step=int(found.get("step", number - 1)),
        goal=str(found.get("goal", "")),
        prompt=found["prompt"],
        actions=tuple(found["actions"]),
        action=found["action"],
        reward=float(found.get("reward", 0.0)),
        done=bool(found.get("done", False)),
    )


def _check(found: Mapping[str, Any], where: str) -> None:
    """Refuse a line that is no step."""
    for name, kind in (("episode", int), ("prompt", str), ("actions", list), ("action", str)):
        if not isinstance(found.get(name), kind):
            raise UserError(
                f"{where}: expected `{name}` to be a {kind.__name__}, got {found.get(name)!r}"
            )
    actions = found["actions"]
    if not all(isinstance(each, str) for each in actions):
        raise UserError(f"{where}: expected `actions` to be texts, got {actions}")
    if found["action"] not in actions:
        raise UserError(
            f"{where}: expected `action` to be one of {actions}, got {found['action']!r}"
        )


def episodes_of(steps: Iterable[TrajectoryStep]) -> list[list[TrajectoryStep]]:
    """Return steps by episodes, in the order of their first steps."""
    found: dict[int, list[TrajectoryStep]] = {}
    for step in steps:
        found.setdefault(step.episode, []).append(step)
    return list(found.values())
