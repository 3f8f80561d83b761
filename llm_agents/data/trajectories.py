"""Played episodes as JSON lines: one line a step, with all that cloning needs.

A line has ``episode`` (a number, the same for all its steps), ``prompt``, ``actions`` (all that was
offered) and ``action`` (the text of what was done); ``step``, ``goal``, ``reward`` and ``done``
are for people and statistics, and may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from llm_agents.data.raw_rows import file_rows
from llm_agents.data.row_fields import Row, RowError, describe, require_unicode
from llm_agents.errors import UserError
from llm_agents.types import Choice

_T = TypeVar("_T")
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
    """Yield the steps of a file, plain or ``.gz``, in order; a JSON array or parquet will do too.

    Args:
        path: JSON lines, as `to_line` makes them; ``sample`` is a bundled file.

    Raises:
        UserError: There is no such file, it is empty, or a line is no step; names the line.
    """
    path = _SAMPLE if path == "sample" else Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"expected trajectories in {path}, there is no such file")
    number = 0
    for number, (where, row) in enumerate(file_rows(path), start=1):
        try:
            yield _step(row, number - 1)
        except RowError as fault:
            raise UserError(f"{where}: {fault}") from None
    if not number:
        raise UserError(f"{path}: expected at least one step, got an empty file")


def _step(content: object, number: int) -> TrajectoryStep:
    """Return the step of a line; `number` is that of the line, from 0."""
    if isinstance(content, RowError):
        raise content
    if not isinstance(content, Mapping):
        raise RowError(f"expected one JSON object a line, got {type(content).__name__}")
    require_unicode(content)
    row = Row(content)
    actions, action = _value(row, "actions", list), _value(row, "action", str)
    if not all(isinstance(each, str) for each in actions):
        raise RowError(f"expected `actions` to be texts, got {describe(actions)}")
    if action not in actions:
        raise RowError(f"expected `action` to be one of {actions}, got {action!r}")
    reward = row.number("reward")
    return TrajectoryStep(
        episode=_whole(row, "episode"),
        step=_whole(row, "step") if "step" in row else number,
        goal=_value(row, "goal", str) if "goal" in row else "",
        prompt=_value(row, "prompt", str),
        actions=tuple(actions),
        action=action,
        reward=0.0 if reward is None else reward,
        done=bool(row.truth("done")),
    )


def _value(row: Row, key: str, kind: type[_T]) -> _T:
    """Return a value of the kind asked for."""
    value = row.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RowError(f"expected `{key}` to be a {kind.__name__}, got {describe(value)}")
    return value


def _whole(row: Row, key: str) -> int:
    """Return a whole number, which other programs may write as 3.0."""
    value = row.get(key)
    return int(value) if isinstance(value, float) and value.is_integer() else _value(row, key, int)


def episodes_of(steps: Iterable[TrajectoryStep]) -> list[list[TrajectoryStep]]:
    """Return steps by episodes, in the order of their first steps."""
    found: dict[int, list[TrajectoryStep]] = {}
    for step in steps:
        found.setdefault(step.episode, []).append(step)
    return list(found.values())
