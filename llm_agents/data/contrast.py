"""Real responses beside ones that answer another prompt: data for a judge that nobody labelled."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from llm_agents.data.base import Example
from llm_agents.data.held_out import HeldOut, part_groups
from llm_agents.data.reading import read_examples
from llm_agents.errors import UserError
from llm_agents.rewards.comet import prompt_parts
from llm_agents.rewards.knowledge import knowledge_of
from llm_agents.types import Job, Prompt
from llm_agents.whole_files import write_text

_FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
_TRIES = 50


class ContrastPreparation(Job):
    """Makes pairs of a real response, scored 1, and a wrong one, scored 0.

    The wrong one is a real response to another prompt; of COMET's prompts, to another event with
    the same relation. A reward model trained on them (`llm_agents.methods.RewardTraining`) tells
    what fits a prompt from what does not. Events, knowledge and dialogues are dealt out to the
    splits as wholes.

    Args:
        source: ``sample``, a JSON-lines file, a Hub id, or a list of these.
        samples: Which bundled data ``sample`` stands for: ``comet``, ``wow``, ``reddit`` …
        output_folder: Where the files go; None is the run's folder.
        negatives: Wrong responses beside each real one.
        held_out: Shares for validation and test.
        seed: Decides which response is wrong for which prompt.
    """

    def __init__(
        self,
        source: str | list[str] = "sample",
        samples: str = "comet",
        output_folder: str | None = None,
        negatives: int = 1,
        held_out: HeldOut | None = None,
        seed: int = 901,
    ) -> None:
        if negatives < 1:
            raise UserError(f"expected `negatives` of at least 1, got {negatives}")
        self.source, self.samples, self.output_folder = source, samples, output_folder
        self.negatives, self.seed = negatives, seed
        self.held_out = held_out or HeldOut()

    def run(self, folder: Path) -> Mapping[str, object]:
        """Write ``train.jsonl``, ``val.jsonl`` and ``test.jsonl``.

        Args:
            folder: The run's folder.

        Returns:
            Rows of each file, and how many prompts found no wrong response.

        Raises:
            UserError: The source can't be read, or nothing is left.
        """
        output = Path(self.output_folder).expanduser() if self.output_folder else folder
        output.mkdir(parents=True, exist_ok=True)
        examples, _ = read_examples(self.source, samples=self.samples)
        examples = [example for example in examples if example.good_response is not None]
        counts: dict[str, int] = defaultdict(int)
        for example in examples:
            counts[subject_of(example.prompt)] += 1
        split_of = part_groups(counts, self.held_out)
        found: dict[str, object] = {}
        left_out = 0
        for split, name in _FILES.items():
            members = [e for e in examples if split_of[subject_of(e.prompt)] == split]
            rows = contrast_rows(members, self.negatives, self.seed)
            left_out += len(members) - len(rows)
            _write(output / name, rows)
            found[name] = len(rows)
        if not found["train.jsonl"]:
            raise UserError(f"expected rows to train on in {self.source}, but none is left")
        return {"output_folder": str(output), **found, "without_a_wrong_response": left_out}


def subject_of(prompt: Prompt) -> str:
    """Return what a prompt is about: its event, its knowledge, or else its text."""
    parts = prompt_parts(prompt)
    if parts is not None:
        return parts[0]
    return knowledge_of(prompt) or "\n".join(turn.text for turn in prompt)


def contrast_rows(
    examples: Sequence[Example], negatives: int, seed: int
) -> list[dict[str, object]]:
    """Return a row for each example that a wrong response is found for.

    Args:
        examples: With responses; the preferred one is the real one.
        negatives: Wrong responses a row.
        seed: The same seed gives the same rows.
    """
    chooser = random.Random(seed)
    kinds: dict[str, list[Example]] = defaultdict(list)
    real: dict[Prompt, set[str]] = defaultdict(set)
    for example in examples:
        kinds[_kind(example.prompt)].append(example)
        real[example.prompt].update(text.strip().lower() for text in example.responses)
    rows: list[dict[str, object]] = []
    for example in examples:
        others = kinds[_kind(example.prompt)]
        wrong: list[str] = []
        for _ in range(_TRIES):
            other = chooser.choice(others)
            text = other.responses[other.preferred]
            is_other = subject_of(other.prompt) != subject_of(example.prompt)
            is_new = text not in wrong and text.strip().lower() not in real[example.prompt]
            if is_other and is_new:
                wrong.append(text)
            if len(wrong) == negatives:
                break
        if len(wrong) == negatives:
            rows.append(_row(example, wrong))
    return rows


def _kind(prompt: Prompt) -> str:
    """Return what a wrong response must have in common with the prompt: COMET's relation."""
    parts = prompt_parts(prompt)
    return "" if parts is None else parts[1]


def _row(example: Example, wrong: Sequence[str]) -> dict[str, object]:
    """Return a row in the common format."""
    return {
        "prompt": [{"role": turn.role, "content": turn.text} for turn in example.prompt],
        "responses": [example.responses[example.preferred], *wrong],
        "rewards": [1.0, *(0.0 for _ in wrong)],
        "preferred": 0,
    }


def _write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as JSON lines, at once."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
