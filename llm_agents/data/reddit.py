"""Reddit: comments with many and few votes as answers to their parents; reader and data module.

Raw data are the two CSV files of Kaggle's "reddit comment scores", one of comments with the most
votes and one of those with the fewest: ``text``, ``score``, ``parent_text``, ``parent_score`` and
columns that are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from llm_agents.data.encoding import Truncation
from llm_agents.data.module import OfflineDataModule
from llm_agents.data.raw_rows import RawRow, number_field, raw_rows
from llm_agents.data.reading import Sources
from llm_agents.data.selection import PromptSplit, RowRules
from llm_agents.data.templates import Template
from llm_agents.errors import UserError

_URL = re.compile(r"\b(?:https?://|www\.)(?:[^\s()\[\]<>]|\([^\s()]*\))+(?<![.,;:!?'\"])")
_TAKEN_DOWN = ("", "[deleted]", "[removed]")


@dataclass(frozen=True)
class Comment:
    """A comment and what it answers.

    Args:
        parent: Text of the comment or post above.
        text: The comment's own text.
        score: Votes for it minus votes against it.
        parent_score: The same of the parent; None where it is unknown.
    """

    parent: str
    text: str
    score: float
    parent_score: float | None = None


def read_comments(source: str) -> Iterator[Comment | None]:
    """Yield the comments of a file, in order; None for a row without a text or a parent's text.

    Raises:
        UserError: The source is not found, or lacks a column.
    """
    for where, row in raw_rows(source):
        for name in ("text", "parent_text", "score"):
            if name not in row:
                raise UserError(
                    f"{where}: expected the columns text, parent_text and score, got "
                    f"{', '.join(map(str, row))}"
                )
        text, parent = _present(row, "text"), _present(row, "parent_text")
        if text is None or parent is None:
            yield None
            continue
        known = row.get("parent_score") not in (None, "")
        yield Comment(
            parent=parent,
            text=text,
            score=number_field(row, "score", where),
            parent_score=number_field(row, "parent_score", where) if known else None,
        )


def _present(row: RawRow, name: str) -> str | None:
    """Return a text, or None if it is missing."""
    value = row[name]
    return value if isinstance(value, str) and value else None


def is_taken_down(text: str) -> bool:
    """Return whether a comment's text is blank, or what stands for one that was taken down."""
    return text.strip() in _TAKEN_DOWN


def tidy_comment(text: str) -> str:
    r"""Return a text on one line, with ``<URL>`` for every address in it.

    Example:
        >>> tidy_comment("see  [this](https://example.org/a_(b))\n\nor www.example.org")
        'see [this](<URL>) or <URL>'
    """
    return _URL.sub("<URL>", " ".join(text.split()))


class RedditData(OfflineDataModule):
    """Comments as answers to their parents, in `RedditPreparation`'s or the release's files.

    The defaults are the release's: each turn is followed by the end token, 512 prompt and 128
    response tokens, rewards that are the sum of five.

    Args:
        train: Training data: ``sample``, a JSON-lines file, a Hub id, or a list of these.
        validation: Prompts to answer during training; ``held_out`` takes those held out of `train`,
            and so does ``sample`` where `train` is data of your own.
        test: Test sets, each evaluated by itself; ``held_out`` and ``sample`` as in `validation`.
        template: How prompts are written out.
        max_prompt_tokens: Longest prompt; None leaves it to the model's window.
        max_response_tokens: Longest response; a longer one loses its end and its end token.
        truncation: What a long prompt loses: its left end, or its oldest turns.
        batch_size: Rows (scored) or prompts (ranked) of a micro-batch.
        eval_batch_size: Prompts of a validation or test batch.
        reward_transform: Whether stored rewards are logits that a sigmoid brings to 0 … 1.
        reward_range: Lowest and highest reward after the transform; None checks nothing.
        split_by_prompt: Hold prompts of `train` out; None trains on all.
        rules: What becomes of malformed, unfit and long rows.
        seed: Decides the order of the data; None takes the run's `seed_everything`, else 0.
    """

    samples: ClassVar[str] = "reddit"
    replaces_samples: ClassVar[bool] = True

    def __init__(
        self,
        train: Sources = "sample",
        validation: Sources | None = "sample",
        test: Sources | None = "sample",
        *,
        template: Template = "eos",
        max_prompt_tokens: int | None = 512,
        max_response_tokens: int = 128,
        truncation: Truncation = "left",
        batch_size: int = 8,
        eval_batch_size: int = 32,
        reward_transform: Literal["sigmoid", "none"] = "none",
        reward_range: tuple[float, float] | None = (0.0, 5.0),
        split_by_prompt: PromptSplit | None = None,
        rules: RowRules | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            train,
            validation,
            test,
            template=template,
            max_prompt_tokens=max_prompt_tokens,
            max_response_tokens=max_response_tokens,
            truncation=truncation,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            reward_transform=reward_transform,
            reward_range=reward_range,
            split_by_prompt=split_by_prompt,
            rules=rules,
            seed=seed,
        )
