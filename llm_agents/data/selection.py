"""Which examples take part: cleaning rules, splits by prompt, limits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_agents.data.base import DropReport, Example
from llm_agents.errors import UserError
from llm_agents.types import Prompt


@dataclass(frozen=True)
class RowRules:
    """What becomes of rows that are malformed, unfit or too long.

    Args:
        on_malformed: A malformed row stops the run, or is left out and counted.
        drop_identical: Leave out ranked training rows whose responses are all the same.
        min_responses: Ranked rows with fewer responses are left out. A reward model that is trained
            on scores (`objective: scores`) takes 1: rows of one response each.
        too_long: Training prompts and responses beyond the limits are cut (``truncate``), or their
            rows left out (``drop``).
        roleless_paragraphs: Paragraphs of hh-rlhf dialogues that begin with no role are dropped, as
            in PRO's data, or kept in their turn; None takes the data module's rule: `HHAData` drops
            them, as the release does, the others keep them.
        rank_by: Order of the responses of ranked batches: as in the file with the preferred one
            first, or by falling stored reward (as PRO's script orders its training file).
        train_on: Responses that uniform sampling draws from: those the data call good, or all. An
            objective that samples by weight names its rows itself, and ranked batches hold all.
        max_train: Use this many training prompts, chosen by a hash of their text; None uses all.
        max_validation: The same for validation prompts.
    """

    on_malformed: Literal["error", "skip"] = "error"
    drop_identical: bool = True
    min_responses: int = 2
    too_long: Literal["truncate", "drop"] = "truncate"
    roleless_paragraphs: Literal["drop", "keep"] | None = None
    rank_by: Literal["file", "reward"] = "file"
    train_on: Literal["preferred", "all"] = "preferred"
    max_train: int | None = None
    max_validation: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("min_responses", "max_train", "max_validation"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"expected `data.rules.{name}` of at least 1, got {value}")


@dataclass(frozen=True)
class PromptSplit:
    """Holds prompts of the training source out of training, by a hash of their text.

    Args:
        seed: Another seed holds out other prompts.
        held_out: Share of prompts to hold out, from 0 to 1.
    """

    seed: int
    held_out: float

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.held_out <= 1:
            raise UserError(
                f"expected `data.split_by_prompt.held_out` from 0 to 1, got {self.held_out}"
            )


def split_by_prompt(
    examples: Sequence[Example], split: PromptSplit
) -> tuple[list[Example], list[Example]]:
    """Part examples into training and held-out ones so that no prompt is in both.

    The part depends on the prompt's text and the seed alone: adding rows moves no other row, and
    equal prompts, in one file or several, fall on the same side.

    Returns:
        The training examples and the held-out ones, each in the order they came in.
    """
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        parts[_share(example.prompt, split.seed) < split.held_out].append(example)
    return parts


def hold_out(
    examples: Sequence[Example], roles: Sequence[str], share: float, name: str, seed: int = 0
) -> tuple[list[Example], dict[str, list[Example]]]:
    """Hold a share of the prompts out for each role, by a hash of their text.

    Equal prompts fall on the same side, and each role has one prompt at least.

    Args:
        examples: Rows of training data.
        roles: What is held out for: each has prompts of its own.
        share: Share of the prompts for each.
        name: What the rows are called in messages.
        seed: Another seed holds out other prompts.

    Returns:
        The training examples, and the held-out ones of each role, each in the order they came in.

    Raises:
        UserError: There are not enough different prompts.
    """
    shares = {example.prompt: _share(example.prompt, seed) for example in examples}
    rising = sorted(shares, key=shares.__getitem__)
    if len(rising) <= len(roles):
        raise UserError(
            f"expected more than {len(roles)} different prompts in {name} to hold some of them out "
            f"for {' and '.join(roles)}, got {len(rising)}: name a file with data.{roles[0]}, or "
            "null for none"
        )
    role_of: dict[Prompt, str] = {}
    first = 0
    for number, role in enumerate(roles, start=1):
        last = first + 1
        while (
            last < len(rising) - len(roles) + number - 1 and shares[rising[last]] < number * share
        ):
            last += 1
        role_of |= dict.fromkeys(rising[first:last], role)
        first = last
    held_out: dict[str, list[Example]] = {role: [] for role in roles}
    kept: list[Example] = []
    for example in examples:
        role = role_of.get(example.prompt, "")
        (held_out[role] if role else kept).append(example)
    return kept, held_out


def clean(examples: Sequence[Example], *, drop_colon: bool, report: DropReport) -> list[Example]:
    """Leave out training rows without a response, or with one cut off before a list.

    Rows that are left out are counted in `report`.
    """
    kept = []
    for example in examples:
        if not example.responses:
            keys = example.meta.get("keys")
            report.dropped["no response" + (f" beside {keys}" if keys else "")] += 1
        elif drop_colon and any(text.endswith(":") for text in example.responses):
            report.dropped["a response ends with ':'"] += 1
        else:
            kept.append(example)
    return kept


def order_responses(
    examples: Sequence[Example], rules: RowRules, report: DropReport
) -> list[Example]:
    """Put each example's responses in ranking order, the preferred one first.

    Rows without the rewards to rank by are left out; these, and rows whose stored rewards put
    another response above the one that the data call good, are counted in `report`.
    """
    kept = []
    for example in examples:
        rewards = example.rewards
        others = [i for i in range(len(example.responses)) if i != example.preferred]
        order = [example.preferred, *others] if example.preferred >= 0 else others
        if (
            rewards is not None
            and example.preferred >= 0
            and max(rewards) > rewards[example.preferred]
        ):
            report.changed["rows whose reward prefers another response"] += 1
        if rules.rank_by == "reward" and rewards is None:
            report.dropped["no rewards to rank by"] += 1
            continue
        if rules.rank_by == "reward" and rewards is not None:
            order = sorted(order, key=lambda i: -rewards[i])
            example = replace(example, preferred=order[0])
        kept.append(example.reordered(order))
    return kept


def require_pairs(
    examples: Sequence[Example], rules: RowRules, report: DropReport
) -> list[Example]:
    """Leave out what can't be ranked: too few responses, and responses that are all the same."""
    kept = []
    for example in examples:
        count = len(example.responses)
        if count < rules.min_responses:
            reason = "a single response" if count == 1 else "too few responses"
            report.dropped[reason] += 1
        elif rules.drop_identical and count > 1 and len(set(example.responses)) == 1:
            report.dropped["identical responses"] += 1
        else:
            kept.append(example)
    return kept


def limit(
    examples: Sequence[Example], most: int | None, report: DropReport, seed: int = 0
) -> list[Example]:
    """Keep `most` examples, chosen by a hash of their prompts, in the order they came in."""
    if most is None or len(examples) <= most:
        return list(examples)
    if most < 1:
        raise ValueError(f"expected a limit of at least 1, got {most}")
    by_hash = sorted(range(len(examples)), key=lambda i: (_share(examples[i].prompt, seed), i))
    report.dropped["over the limit"] += len(examples) - most
    return [examples[i] for i in sorted(by_hash[:most])]


def _share(prompt: Prompt, seed: int) -> float:
    """Return a number in [0, 1) that the prompt's text and the seed decide."""
    text = "\x1f".join(f"{turn.role}\x1e{turn.text}" for turn in prompt)
    digest = hashlib.sha256(f"{seed}\x1d{text}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
