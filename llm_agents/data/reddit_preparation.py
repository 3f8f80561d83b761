"""Reddit's data: comments that people liked, or didn't, to prompts and scored responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llm_agents.data.base import DropReport
from llm_agents.data.preparation import Preparation, digests, resolved
from llm_agents.data.prepared import PreparedFile, TaskRow
from llm_agents.data.raw_rows import Sources
from llm_agents.data.reddit import Comment, is_taken_down, read_comments, tidy_comment
from llm_agents.data.token_limit import TokenLimit
from llm_agents.errors import UserError
from llm_agents.types import Reward, Turn

Sign = Literal["pos", "neg"]
Selection = Literal["train", "validation", "test"]

SAMPLES: dict[Sign, tuple[str]] = {
    "pos": ("raw_reddit_positive.csv",),
    "neg": ("raw_reddit_negative.csv",),
}
_TRAIN_NAMES: dict[Sign, str] = {"pos": "pos_train", "neg": "neg_train"}


@dataclass(frozen=True)
class RedditRules:
    """Which comments take part.

    Args:
        num_sampled: Comments to draw from each file; one that has fewer gives all, shuffled.
        max_words: Longest comment and longest parent, in words.
        tokens: Longest parent and comment together, each with its end token; null has no limit.
        num_test: Rows of each sign for the test.
        num_validation: Rows of each sign for validation.
        seed: Decides the draw.

    Raises:
        UserError: A number is below its range.
    """

    num_sampled: int = 102_000
    max_words: int = 100
    tokens: TokenLimit | None = None
    num_test: int = 1000
    num_validation: int = 1000
    seed: int = 901

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("num_sampled", "max_words", "num_test", "num_validation"):
            if getattr(self, name) < 1:
                raise UserError(f"expected `{name}` of at least 1, got {getattr(self, name)}")


class RedditPreparation(Preparation):
    """Makes ``pos_train.jsonl`` or ``neg_train.jsonl``, or both, ``val.jsonl`` and ``test.jsonl``.

    Comments are drawn from each file, tidied, those that are too long left out; of the rest, in the
    order of the draw, the first are the test, the next validation and the others training. Test and
    validation hold comments of both signs, whatever is trained on.

    Args:
        positive: Comments with many votes: ``sample``, or files of the raw data.
        negative: Comments with few votes.
        train_on: Which of them the training file is made of: ``pos``, ``neg``, or ``both`` files.
        reward: Scores every row; null leaves them without.
        diversity: Also score how rare a response's words are, fitted to the training responses of
            both signs; what was fitted is kept as ``tfidf.json``.
        rules: Which comments take part.
        batch_size: Rows that are scored together.
        output_folder: Where the files go; null is the run's folder.
    """

    def __init__(
        self,
        positive: Sources = "sample",
        negative: Sources = "sample",
        *,
        train_on: Literal["pos", "neg", "both"] = "pos",
        reward: Reward | None = None,
        diversity: bool = False,
        rules: RedditRules | None = None,
        batch_size: int = 32,
        output_folder: str | None = None,
    ) -> None:
        super().__init__(
            reward=reward,
            diversity=diversity,
            batch_size=batch_size,
            output_folder=output_folder,
            trusts_stored=False,
        )
        self.rules = rules or RedditRules()
        self.sources: dict[Sign, list[str]] = {
            "pos": resolved(positive, "sample", SAMPLES["pos"]),
            "neg": resolved(negative, "sample", SAMPLES["neg"]),
        }
        self.signs: tuple[Sign, ...] = ("pos", "neg") if train_on == "both" else (train_on,)
        self._kept: dict[Sign, _Draw] = {}

    def settings(self) -> Mapping[str, object]:
        """Return what the rows depend on."""
        return {
            "task": "reddit",
            "sources": {sign: digests(sources) for sign, sources in self.sources.items()},
            "rules": asdict(self.rules),
        }

    def fitting_responses(self) -> Iterator[str]:
        """Yield the training responses of both signs."""
        for sign in self.sources:
            yield from (row.response for row in self._rows((sign,), "train", DropReport()))

    def files(self) -> Sequence[PreparedFile]:
        """Return the files to make."""
        signs = tuple(self.sources)
        return [
            *(
                PreparedFile(_TRAIN_NAMES[sign], partial(self._rows, (sign,), "train"))
                for sign in self.signs
            ),
            PreparedFile("val", partial(self._rows, signs, "validation")),
            PreparedFile("test", partial(self._rows, signs, "test")),
        ]

    def notes(self) -> Mapping[str, object]:
        """Return the deciles of the votes of each sign's comments."""
        found = {sign: self._draw(sign) for sign in self.sources}
        return {"deciles": {sign: draw.deciles for sign, draw in found.items()}}

    def _rows(
        self, signs: Iterable[Sign], selection: Selection, report: DropReport
    ) -> Iterator[TaskRow]:
        """Yield the rows of a file; all that were drawn count, wherever they went."""
        for sign in signs:
            draw = self._draw(sign)
            report.include(draw.report)
            first = self.rules.num_test + self.rules.num_validation
            bounds = {
                "test": (0, self.rules.num_test),
                "validation": (self.rules.num_test, first),
                "train": (first, len(draw.comments)),
            }
            low, high = bounds[selection]
            report.dropped["in another file"] += len(draw.comments) - len(draw.comments[low:high])
            for number, comment in enumerate(draw.comments[low:high], start=low):
                yield TaskRow(
                    id=f"{sign}-{number}",
                    prompt=(Turn("user", comment.parent),),
                    response=comment.text,
                    meta={"task": "reddit", "sign": sign, "score": f"{comment.score:g}"},
                )

    def _draw(self, sign: Sign) -> _Draw:
        """Return the comments of a sign that are left, in the order of the draw."""
        if sign not in self._kept:
            self._kept[sign] = _draw_comments(self.sources[sign], self.rules)
        return self._kept[sign]


@dataclass(frozen=True)
class _Draw:
    """Comments of one sign.

    Args:
        comments: Those that are left, tidied, in the order of the draw.
        report: How many were drawn, and why some are not left.
        deciles: Smallest vote, deciles and largest vote of all comments of the files.
    """

    comments: list[Comment]
    report: DropReport
    deciles: list[float]


def _draw_comments(sources: Sequence[str], rules: RedditRules) -> _Draw:
    """Draw comments and tidy them, in two passes over the files."""
    report = DropReport()
    scores: list[float] = []
    for comment in _comments(sources):
        if comment is None:
            report.rows += 1
            report.dropped["no text or no parent"] += 1
        else:
            scores.append(comment.score)
    if not scores:
        raise UserError(f"expected comments in {', '.join(sources)}, but none has text and parent")
    # As pandas' DataFrame.sample draws with this random_state: the rows are the release's.
    chooser = np.random.RandomState(rules.seed)
    size = min(rules.num_sampled, len(scores))
    chosen: NDArray[np.int64] = chooser.choice(len(scores), size=size, replace=False)
    report.rows += len(scores)
    report.dropped["not drawn"] += len(scores) - size
    places = {int(number): place for place, number in enumerate(chosen)}
    drawn: list[Comment | None] = [None] * size
    present = (comment for comment in _comments(sources) if comment is not None)
    for number, comment in enumerate(present):
        if number in places:
            drawn[places[number]] = comment
    kept = [tidied for one in drawn if (tidied := _tidied(one, rules, report)) is not None]
    least = rules.num_test + rules.num_validation
    if len(kept) <= least:
        raise UserError(
            f"expected more than {least} comments in {', '.join(sources)}, so that some are left "
            f"to train on, got {len(kept)} ({report}): lower `num_test` and `num_validation`"
        )
    deciles = [float(value) for value in np.percentile(scores, range(0, 101, 10))]
    return _Draw(kept, report, deciles)


def _comments(sources: Sequence[str]) -> Iterator[Comment | None]:
    """Yield the comments of several files."""
    for source in sources:
        yield from read_comments(source)


def _tidied(comment: Comment | None, rules: RedditRules, report: DropReport) -> Comment | None:
    """Return a tidied comment, or None if it is left out."""
    if comment is None:
        raise ValueError("expected the files to hold what they held at the first pass")
    texts = comment.parent, comment.text
    if any(is_taken_down(text) for text in texts):
        report.dropped["taken down"] += 1
    elif any(len(text.split()) > rules.max_words for text in texts):
        report.dropped["too many words"] += 1
    else:
        parent, text = (tidy_comment(one) for one in texts)
        if rules.tokens is None or rules.tokens.allows(parent, text):
            return Comment(parent, text, comment.score, comment.parent_score)
        report.dropped["too many tokens"] += 1
    return None
