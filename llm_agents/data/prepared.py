"""Prepared files: rows with their rewards as JSON lines, written in batches, resumably, at once.

While a file is being made, ``.<name>.jsonl.part`` holds the rows that are scored so far; killed at
any moment, the same job goes on behind the last whole row. ``<name>.report.json`` beside the
finished file says how it came about: settings, rows dropped, means of the rewards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from llm_agents.data.base import DropReport
from llm_agents.errors import UserError
from llm_agents.types import Prompt, Reward
from llm_agents.whole_files import write_text

FINAL = "final_reward"
NOT_BEST = "not the best response to its prompt"


@dataclass(frozen=True)
class TaskRow:
    """One prompt and response on the way to a prepared file.

    Args:
        id: Unique within its file.
        prompt: The dialogue, knowledge in its system turn; one user turn is written as plain text.
        response: The response.
        meta: What else is known of the row.
        stored: Scores that the raw data have, by name.
    """

    id: str
    prompt: Prompt
    response: str
    meta: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, float] = field(default_factory=dict)

    def line(self, scores: Mapping[str, float], total: float | None) -> str:
        """Return the row as a line of JSON.

        Args:
            scores: Scores of the reward's parts, by name.
            total: Their sum; None if there is no reward.
        """
        prompt: object = [{"role": turn.role, "content": turn.text} for turn in self.prompt]
        if len(self.prompt) == 1 and self.prompt[0].role == "user":
            prompt = self.prompt[0].text
        values: dict[str, object] = {
            "id": self.id,
            "prompt": prompt,
            "response": self.response,
        }
        components = {**self.stored, **scores}
        if components:
            final = sum(self.stored.values()) + (total or 0.0)
            values["reward_components"] = {**components, FINAL: final}
        values["meta_data"] = dict(self.meta)
        return json.dumps(values, ensure_ascii=False) + "\n"


Rows = Callable[[DropReport], Iterable[TaskRow]]


@dataclass(frozen=True)
class PreparedFile:
    """A file to be made.

    Args:
        name: Of the file, without its ending.
        rows: Yields the rows, always the same ones, and counts in the report what it drops.
        keeps_best: Of the rows with one prompt only that with the highest reward is kept.
    """

    name: str
    rows: Rows
    keeps_best: bool = False


class Scorer:
    """Scores rows in batches.

    Args:
        reward: The judge; None leaves rows with what the raw data have.
        trusts_stored: Rows that have a stored score are not scored.
        batch_size: Rows that are scored together.
    """

    def __init__(self, reward: Reward | None, *, trusts_stored: bool, batch_size: int) -> None:
        if batch_size < 1:
            raise UserError(f"expected `batch_size` of at least 1, got {batch_size}")
        self.reward = reward
        self.trusts_stored = trusts_stored
        self.batch_size = batch_size

    def identity(self) -> dict[str, object]:
        """Return what the scores depend on."""
        reward = None if self.reward is None else f"{self.reward.name}@{self.reward.version}"
        return {"reward": reward, "trusts_stored": self.trusts_stored}

    def lines(self, rows: Sequence[TaskRow]) -> list[str]:
        """Return scored rows as lines of JSON."""
        chosen = [
            number
            for number, row in enumerate(rows)
            if self.reward is not None and not (self.trusts_stored and row.stored)
        ]
        found: dict[int, tuple[dict[str, float], float]] = {}
        if self.reward is not None and chosen:
            prompts = [rows[number].prompt for number in chosen]
            responses = [rows[number].response for number in chosen]
            totals, parts = self.reward.scores_and_parts(prompts, responses)
            columns = {name: scores.tolist() for name, scores in parts.items()}
            sums = totals.tolist()
            columns = columns or {self.reward.name: sums}
            self._refuse_twice(columns, [rows[number] for number in chosen])
            for place, number in enumerate(chosen):
                scores = {name: column[place] for name, column in columns.items()}
                found[number] = scores, sums[place]
        return [row.line(*found.get(number, ({}, None))) for number, row in enumerate(rows)]

    @staticmethod
    def _refuse_twice(columns: Mapping[str, object], rows: Iterable[TaskRow]) -> None:
        """Raise if a part of the reward has the name of a stored score."""
        for row in rows:
            if twice := sorted(columns.keys() & row.stored.keys()):
                raise UserError(
                    f"the reward and the data both have a score called {', '.join(twice)}: rename "
                    "the reward's part, or leave it or the stored score out"
                )


def write_prepared(
    file: PreparedFile, folder: Path, scorer: Scorer, settings: Mapping[str, object]
) -> dict[str, Any]:
    """Make a prepared file, or go on with it; a finished one is left as it is.

    Args:
        file: What to make.
        folder: Where it goes.
        scorer: Scores its rows.
        settings: Everything that its rows depend on.

    Returns:
        What was kept and dropped, and the rewards' means, as the report beside the file has them.

    Raises:
        UserError: There is a file that other settings have made, or no row is left.
    """
    target = folder / f"{file.name}.jsonl"
    part = folder / f".{target.name}.part"
    beside = folder / f"{file.name}.report.json"
    wanted = json.loads(json.dumps({**settings, **scorer.identity()}))
    is_begun = target.exists() or (part.exists() and part.stat().st_size > 0)
    known = _known_report(target, beside, wanted) if is_begun else {}
    if target.exists():
        part.unlink(missing_ok=True)
        return known
    write_text(beside, json.dumps({"settings": wanted}, indent=1) + "\n")
    counts = DropReport()
    kept = whole_lines(part)
    with part.open("ab") as lines:
        for batch in _batches(islice(file.rows(counts), kept, None), scorer.batch_size):
            lines.write("".join(scorer.lines(batch)).encode())
            lines.flush()
    if not part.stat().st_size:
        raise UserError(f"expected rows for {target}, but none is left: {counts}")
    done = _best_rows(part, counts) if file.keeps_best else part
    report = {"counts": counts.as_dict(), "rewards": reward_means(done)}
    write_text(beside, json.dumps({"settings": wanted, **report}, indent=1) + "\n")
    done.replace(target)
    part.unlink(missing_ok=True)
    return report


def _known_report(target: Path, beside: Path, wanted: Mapping[str, object]) -> dict[str, Any]:
    """Return the report of a file that was begun or finished under the same settings.

    Raises:
        UserError: The settings were others, or the file is somebody else's.
    """
    if not beside.exists():
        raise UserError(
            f"expected to make {target}, but it is there already and this job has not written it: "
            "choose another `output_folder`, or delete it"
        )
    found = json.loads(beside.read_text(encoding="utf8"))
    before = found.pop("settings")
    differs = sorted(k for k in before.keys() | wanted if before.get(k) != wanted.get(k))
    if differs:
        raise UserError(
            f"expected the settings that {target} was begun with, got another "
            f"{', '.join(f'`{name}`' for name in differs)}: choose another `output_folder`, or "
            f"delete {beside.name} and the file"
        )
    return dict(found)


def whole_lines(part: Path) -> int:
    """Return the lines of an unfinished file, and cut off what was not written to its end."""
    if not part.exists():
        return 0
    count = place = 0
    with part.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                count, place = count + 1, place + len(line)
    os.truncate(part, place)
    return count


def reward_means(path: Path) -> dict[str, dict[str, float]]:
    """Return number, mean, smallest and largest of each score in a prepared file."""
    found: dict[str, list[float]] = {}
    for _, row in _rows_of(path):
        for name, value in row.get("reward_components", {}).items():
            entry = found.setdefault(name, [0, 0.0, value, value])
            entry[0] += 1
            entry[1] += value
            entry[2], entry[3] = min(entry[2], value), max(entry[3], value)
    return {
        name: {"rows": count, "mean": total / count, "min": low, "max": high}
        for name, (count, total, low, high) in found.items()
    }


def _rows_of(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines of a prepared file and what they say."""
    with path.open("rb") as lines:
        for line in lines:
            yield line, json.loads(line)


def _best_rows(part: Path, counts: DropReport) -> Path:
    """Write the best row of each prompt, where the prompt's first row stood, to a file of its own.

    Args:
        part: A file of scored rows; it stays as it is, so that a killed job can do this again.
        counts: Where dropped rows are counted.
    """
    best: dict[str, tuple[float, bytes]] = {}
    for line, row in _rows_of(part):
        if "reward_components" not in row:
            raise UserError(
                f"expected a `reward` to choose the best response of each prompt by, but row "
                f"{row['id']} has no score: name one"
            )
        score, prompt = row["reward_components"][FINAL], json.dumps(row["prompt"])
        if prompt in best:
            counts.dropped[NOT_BEST] += 1
        if prompt not in best or score > best[prompt][0]:
            best[prompt] = score, line
    chosen = part.with_name(f"{part.name}.best")
    chosen.write_bytes(b"".join(line for _, line in best.values()))
    return chosen


def _batches(rows: Iterable[TaskRow], size: int) -> Iterator[list[TaskRow]]:
    """Yield rows in lists of `size`."""
    waiting = iter(rows)
    while batch := list(islice(waiting, size)):
        yield batch
