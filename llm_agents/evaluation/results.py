"""What an evaluation found, and its place on disk."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_agents.errors import UserError
from llm_agents.evaluation.intervals import BootstrapConfig, Interval
from llm_agents.types import GenerationConfig, Prompt, Reward, Turn
from llm_agents.whole_files import write_text

FORMAT = 1
RESULTS_FILE = "results.json"
PACKAGES = ("llm-agents", "torch", "transformers", "peft", "lightning")


@dataclass(frozen=True)
class Answer:
    """One generated response and its reward.

    Args:
        test: Name of the test set.
        row: Position of the prompt in the test set.
        prompt: The dialogue.
        prefix: The dialogue as the policy read it, after the truncation rule.
        response: The text after clean-up.
        reward: Its score.
        num_words: Words, split on blanks.
        num_tokens: Tokens that were generated.
        is_truncated: It met the limit of new tokens before it ended.
        reference: The data's own answer to the prompt; None where they have none.
    """

    test: str
    row: int
    prompt: Prompt
    prefix: str
    response: str
    reward: float
    num_words: int
    num_tokens: int
    is_truncated: bool
    reference: str | None = None


@dataclass(frozen=True)
class GoldResult:
    """Numbers of the data's own answers to the prompts of a test set.

    Args:
        reward: Their mean reward; None unless they were scored.
        words: Their mean words.
        distinct: Their distinct-n for n = 1, 2, 3.
        parts: Mean of each part of a reward that is a sum.
        metrics: Their ``coverage`` and ``density``, where the prompts have knowledge.
    """

    reward: Interval | None
    words: Interval
    distinct: dict[int, float | None]
    parts: dict[str, Interval] = field(default_factory=dict)
    metrics: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class TestSetResult:
    """Numbers of one test set.

    Args:
        name: Name of the test set; ``all`` for all together.
        reward: Mean reward over the prompts.
        words: Mean words an answer.
        distinct: Distinct-n for n = 1, 2, 3; None where there is no n-gram.
        num_empty: Answers without a word.
        num_truncated: Answers that met the limit of new tokens.
        num_tokens: Tokens that were generated.
        seconds: Time spent on generating and scoring.
        parts: Mean of each part of a reward that is a sum.
        metrics: What needs no judge: ``coverage`` and ``density`` where the prompts have knowledge,
            ``meteor`` where the data have answers.
        gold: The same numbers of the data's own answers; None where they have none.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    name: str
    reward: Interval
    words: Interval
    distinct: dict[int, float | None]
    num_empty: int
    num_truncated: int
    num_tokens: int
    seconds: float
    parts: dict[str, Interval] = field(default_factory=dict)
    metrics: dict[str, Interval] = field(default_factory=dict)
    gold: GoldResult | None = None

    @property
    def num_prompts(self) -> int:
        """Return the number of prompts."""
        return self.reward.n


@dataclass(frozen=True)
class RewardDescription:
    """Which reward gave the scores: scores of two rewards may not be compared.

    Args:
        name: Its name.
        version: Its version.
        low: Lowest possible score; None if there is no bound.
        high: Highest possible score.
    """

    name: str
    version: str
    low: float | None
    high: float | None


def describe_reward(reward: Reward) -> RewardDescription:
    """Return what is kept of a reward beside its scores."""
    return RewardDescription(
        name=reward.name,
        version=reward.version,
        low=reward.low if math.isfinite(reward.low) else None,
        high=reward.high if math.isfinite(reward.high) else None,
    )


@dataclass(frozen=True)
class Results:
    """What an evaluation found.

    Args:
        name: What was evaluated.
        reward: Which reward gave the scores.
        generation: How the responses were generated.
        bootstrap: How the intervals were computed.
        seed: Seed of the generation, if it samples.
        tests: One entry a test set, then ``all`` if there are several.
        answers: One entry a prompt.
        date: When, in UTC.
        versions: Versions of the packages that matter.
        details: Anything the caller adds: method, recipe, training seed, dropped rows.
    """

    name: str
    reward: RewardDescription
    generation: GenerationConfig
    bootstrap: BootstrapConfig
    seed: int
    tests: tuple[TestSetResult, ...]
    answers: tuple[Answer, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=lambda: package_versions())
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overall(self) -> TestSetResult:
        """Return the entry over all prompts."""
        return self.tests[-1]

    def test_names(self) -> list[str]:
        """Return the names of the test sets, in order."""
        return list(dict.fromkeys(answer.test for answer in self.answers))


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that was never installed
            found[package] = "not installed"
    return found


def write_results(folder: str | Path, results: Results) -> Path:
    """Write `results` to a folder: numbers as one JSON file, texts as JSON lines a test set.

    Each file is written under a temporary name and renamed; ``results.json`` comes last, so that
    whoever finds it finds the others too.

    Args:
        folder: Made if it isn't there.
        results: What to write.

    Returns:
        The path of ``results.json``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for test in results.test_names():
        lines = (
            json.dumps(sample(answer, results.reward.name), ensure_ascii=False)
            for answer in results.answers
            if answer.test == test
        )
        write_text(texts_file(folder, test), "".join(f"{line}\n" for line in lines))
    path = folder / RESULTS_FILE
    write_text(path, json.dumps(to_json(results), indent=1, allow_nan=False) + "\n")
    return path


def texts_file(folder: Path, test: str) -> Path:
    """Return the file of a test set's texts."""
    return folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', test)}_eval_results.jsonl"


def sample(answer: Answer, reward_name: str) -> dict[str, Any]:
    """Return an answer under the keys of A-LoL's released sample files, and its turns."""
    return {
        "prefix": answer.prefix,
        "suffix": answer.response,
        "reward": answer.reward,
        "reward_name": reward_name,
        "test_segment": answer.test,
        "test_index": answer.row,
        "sample_id": f"{answer.test}:{answer.row}",
        "turns": [{"role": turn.role, "text": turn.text} for turn in answer.prompt],
        "reference": answer.reference,
    }


def to_json(results: Results) -> dict[str, Any]:
    """Return the numbers of `results` as JSON values, without the texts."""
    values = asdict(results)
    values["answers"] = [
        {
            key: entry[key]
            for key in ("test", "row", "reward", "num_words", "num_tokens", "is_truncated")
        }
        for entry in values["answers"]
    ]
    values["details"] = only_finite(values["details"])
    return {"format": FORMAT, "kind": "policy", **values}


def only_finite(value: Any) -> Any:  # noqa: ANN401  # JSON
    """Return a JSON value with null for the numbers that JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): only_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [only_finite(entry) for entry in value]
    return value


def read_results(folder: str | Path, *, with_texts: bool = True) -> Results:
    """Read what `write_results` wrote; texts are empty where their files are missing.

    Args:
        folder: Folder of ``results.json``, or that file.
        with_texts: Read the prompts and responses too.

    Raises:
        UserError: There are no results, or they were written in another format.
    """
    values = read_object(folder, kind="policy")
    texts_folder = results_path(folder).parent if with_texts else None
    tests = tuple(_read_test(entry) for entry in values["tests"])
    values["generation"]["stop_strings"] = tuple(values["generation"]["stop_strings"])
    return Results(
        **{
            **values,
            "reward": RewardDescription(**values["reward"]),
            "generation": GenerationConfig(**values["generation"]),
            "bootstrap": BootstrapConfig(**values["bootstrap"]),
            "tests": tests,
            "answers": tuple(_read_answers(texts_folder, values["answers"])),
        }
    )


def results_path(folder: str | Path) -> Path:
    """Return the path of the results in a folder, or of the file itself."""
    path = Path(folder)
    return path / RESULTS_FILE if path.is_dir() else path


def read_object(folder: str | Path, *, kind: str) -> dict[str, Any]:
    """Return the values in ``results.json``, once format and kind are known to be right.

    Args:
        folder: Folder of the file, or the file.
        kind: ``policy`` or ``reward``.
    """
    path = results_path(folder)
    values = _read_values(path, folder)
    found = values.pop("kind", "policy")
    if found != kind:
        raise UserError(f"expected the results of a {kind} in `{path}`, got those of a {found}")
    return values


def write_object(folder: str | Path, values: Mapping[str, Any], *, kind: str) -> Path:
    """Write what `read_object` reads as ``results.json``, at once, and return its path.

    Args:
        folder: Made if it isn't there.
        values: JSON values; what is not finite in `details` is left out.
        kind: What the results are of.
    """
    path = Path(folder) / RESULTS_FILE
    values = {"format": FORMAT, "kind": kind, **values}
    if "details" in values:
        values["details"] = only_finite(values["details"])
    write_text(path, json.dumps(values, indent=1, allow_nan=False) + "\n")
    return path


def kind_of_results(folder: str | Path) -> str:
    """Return what the results in a folder are of: the `kind` that `read_object` expects.

    Raises:
        UserError: There are no results, or they were written in another format.
    """
    return str(_read_values(results_path(folder), folder).get("kind", "policy"))


def _read_values(path: Path, folder: str | Path) -> dict[str, Any]:
    """Return the values in a file of results, once its format is known to be right."""
    if not path.is_file():
        raise UserError(f"no `{RESULTS_FILE}` in `{folder}`: `lightning evaluate` writes it")
    try:
        values = json.loads(path.read_text(encoding="utf8"))
    except json.JSONDecodeError as error:
        raise UserError(f"`{path}` is not JSON: {error}") from error
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise UserError(f"`{path}` is not in format {FORMAT}: evaluate again with this version")
    return values


def _read_test(entry: dict[str, Any]) -> TestSetResult:
    """Rebuild a test set's numbers."""
    return TestSetResult(
        **{
            **entry,
            "reward": Interval(**entry["reward"]),
            **_read_shared(entry),
            "gold": _read_gold(entry.get("gold")),
        }
    )


def _read_shared(entry: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the numbers that answers and gold answers have alike."""
    return {
        "words": Interval(**entry["words"]),
        "distinct": {int(n): value for n, value in entry["distinct"].items()},
        "parts": {name: Interval(**part) for name, part in entry["parts"].items()},
        "metrics": {name: Interval(**part) for name, part in entry.get("metrics", {}).items()},
    }


def _read_gold(entry: dict[str, Any] | None) -> GoldResult | None:
    """Rebuild the numbers of gold answers."""
    if entry is None:
        return None
    reward = entry["reward"]
    return GoldResult(reward=None if reward is None else Interval(**reward), **_read_shared(entry))


def _read_answers(folder: Path | None, entries: Sequence[dict[str, Any]]) -> list[Answer]:
    """Join the numbers of each answer with its texts, where there is a folder of them."""
    texts: dict[tuple[str, int], dict[str, Any]] = {}
    for test in {entry["test"] for entry in entries}:
        file = texts_file(folder, test) if folder else None
        if file is not None and file.is_file():
            for line in file.read_text(encoding="utf8").splitlines():
                values = json.loads(line)
                texts[test, values["test_index"]] = values
    answers = []
    for entry in entries:
        text = texts.get((entry["test"], entry["row"]), {"turns": [], "prefix": "", "suffix": ""})
        prompt = tuple(Turn(turn["role"], turn["text"]) for turn in text["turns"])
        answers.append(
            Answer(
                prompt=prompt,
                prefix=text["prefix"],
                response=text["suffix"],
                reference=text.get("reference"),
                **entry,
            )
        )
    return answers
