"""How well a reward of game messages agrees with held-out preferences, and what it likes best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from llm_agents.data.motif import MotifData
from llm_agents.data.motif_pairs import PairTable
from llm_agents.envs.nethack_screen import message_text
from llm_agents.evaluation.intervals import Interval, format_interval, share
from llm_agents.evaluation.results import (
    package_versions,
    read_object,
    write_object,
)
from llm_agents.functional.preference import tied_preference_loss
from llm_agents.rewards.annotator import TIE
from llm_agents.rewards.motif import MessageReward

_KIND = "message_reward"


@dataclass(frozen=True)
class RankedMessage:
    """A message and what the reward says of it.

    Args:
        text: The message.
        raw: Raw reward.
        normalized: Normalized reward, before threshold and count.
        count: Occurrences in all annotated pairs.
    """

    text: str
    raw: float
    normalized: float
    count: int


@dataclass(frozen=True)
class MessageRewardResults:
    """What the evaluation of a reward of messages found; None where nothing could be counted.

    Args:
        name: The reward's name.
        version: Digest of its folder.
        annotator: Whose preferences were held out.
        accuracy: Share of the held-out pairs without a tie that are ordered right.
        accuracy_unseen: The same over the pairs with an observation that was not trained on.
        score_agreement: Share of the held-out pairs whose episodes' scores differ that are ordered
            as these.
        loss: Mean loss of the held-out pairs, ties among them.
        num_pairs: Held-out pairs.
        num_ties: Ties among them.
        num_messages: Distinct observations in all annotated pairs.
        mean: Mean of the raw rewards over the training messages.
        variance: Their variance.
        median: Normalized reward of the median distinct training message.
        highest: The messages of the highest rewards, best first.
        lowest: The messages of the lowest rewards, worst first.
        confidence: Of the intervals.
        date: When, in UTC.
        versions: Versions of the packages that matter.
        details: Anything the caller adds.
    """

    name: str
    version: str
    annotator: str
    accuracy: Interval | None
    accuracy_unseen: Interval | None
    score_agreement: Interval | None
    loss: float | None
    num_pairs: int
    num_ties: int
    num_messages: int
    mean: float
    variance: float
    median: float
    highest: tuple[RankedMessage, ...]
    lowest: tuple[RankedMessage, ...]
    confidence: float
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=package_versions)
    details: Mapping[str, Any] = field(default_factory=dict)


def evaluate_message_reward(
    reward: MessageReward,
    data: MotifData,
    *,
    num_messages: int = 20,
    confidence: float = 0.95,
    details: Mapping[str, Any] | None = None,
) -> MessageRewardResults:
    """Compare a reward with the held-out preferences, and rank all messages.

    Intervals are Wilson's, of independent pairs.

    Args:
        reward: To be judged.
        data: Set up with the seed and the annotator of the training, so that what is held out was
            held out then.
        num_messages: Highest and lowest messages kept.
        confidence: Of the intervals.
        details: Kept in the results as they are.
    """
    data.connect(reward.scorer.keys)
    data.setup()
    numbers = torch.arange(len(data.table.messages))
    parts = [reward.scorer.score(o, reward.batch_size) for o in data.table.chunks(numbers, 4096)]
    raw = torch.cat(parts)
    ranked = _ranked(reward, data.table, raw)
    return MessageRewardResults(
        name=reward.name,
        version=reward.version,
        annotator=data.annotator,
        **_agreement(data, raw, confidence),
        num_messages=len(raw),
        mean=reward.statistics.mean,
        variance=reward.statistics.variance,
        median=reward.statistics.quantiles[len(reward.statistics.quantiles) // 2],
        highest=tuple(ranked[:num_messages]),
        lowest=tuple(reversed(ranked[-num_messages:])),
        confidence=confidence,
        details=dict(details or {}),
    )


def _agreement(data: MotifData, raw: Tensor, confidence: float) -> dict[str, Any]:
    """Return what is counted over the held-out pairs, from the rewards of all observations."""
    table, held_out = data.table, data.held_out_places
    steps, preferences = table.distinct.steps[held_out], table.preferences[held_out]
    rewards = raw[steps].mean(-1)
    predicted, decided = (rewards[:, 1] > rewards[:, 0]).long(), preferences != TIE
    right = predicted == preferences
    seen = table.counts(data.train_places) > 0
    unseen = decided & ~seen[steps].flatten(1).all(1)
    scores = table.scores[held_out]
    differ = (scores[:, 0] != scores[:, 1]) & scores.isfinite().all(1)
    by_score = predicted == (scores[:, 1] > scores[:, 0])
    loss = None
    if len(held_out):
        found = tied_preference_loss(rewards=rewards.double(), preferences=preferences)
        loss = float(found.loss)
    return {
        "accuracy": _share(right[decided], confidence),
        "accuracy_unseen": _share(right[unseen], confidence),
        "score_agreement": _share(by_score[differ], confidence),
        "loss": loss,
        "num_pairs": len(held_out),
        "num_ties": int((~decided).sum()),
    }


def _ranked(reward: MessageReward, table: PairTable, raw: Tensor) -> list[RankedMessage]:
    """Return all messages, the one of the highest reward first."""
    spread = reward.statistics.variance**0.5
    counts = table.counts(torch.arange(len(table))).tolist()
    values = raw.tolist()
    return [
        RankedMessage(
            text=message_text(table.messages[number].numpy()),
            raw=values[number],
            normalized=(values[number] - reward.statistics.mean) / spread,
            count=counts[number],
        )
        for number in raw.argsort(descending=True, stable=True).tolist()
    ]


def _share(outcomes: Tensor, confidence: float) -> Interval | None:
    """Return the share of True with its interval; None of nothing."""
    return share(outcomes.tolist(), confidence) if len(outcomes) else None


def write_message_reward_results(folder: str | Path, results: MessageRewardResults) -> Path:
    """Write ``results.json`` to a folder, at once, and return its path."""
    return write_object(folder, asdict(results), kind=_KIND)


def read_message_reward_results(folder: str | Path) -> MessageRewardResults:
    """Read what `write_message_reward_results` wrote."""
    values = read_object(folder, kind=_KIND)
    for name in ("accuracy", "accuracy_unseen", "score_agreement"):
        values[name] = None if values[name] is None else Interval(**values[name])
    for name in ("highest", "lowest"):
        values[name] = tuple(RankedMessage(**entry) for entry in values[name])
    return MessageRewardResults(**values)


def message_reward_table(results: MessageRewardResults) -> Group:
    """Return tables of the agreement and of the highest and lowest messages."""
    confidence = f"{100 * results.confidence:g}%"
    numbers = Table(
        title=f"reward: {results.name}, preferences: {results.annotator}",
        title_justify="left",
        caption=f"[{confidence} Wilson interval over held-out pairs]",
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    numbers.add_column("share of pairs ordered right")
    for column in ("pairs", "share"):
        numbers.add_column(column, justify="right")
    for name, interval in (
        ("as preferred, ties left out", results.accuracy),
        ("… with a message never trained on", results.accuracy_unseen),
        ("as the episodes' scores", results.score_agreement),
    ):
        count = "0" if interval is None else f"{interval.n:,}"
        numbers.add_row(name, count, "–" if interval is None else format_interval(interval, 3))
    return Group(
        numbers,
        _messages_table("highest", results.highest),
        _messages_table("lowest", results.lowest),
    )


def _messages_table(title: str, messages: tuple[RankedMessage, ...]) -> Table:
    """Return a table of messages with their rewards."""
    table = Table(title=f"{title} rewards", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("normalized", justify="right")
    table.add_column("times", justify="right")
    table.add_column("message")
    for entry in messages:
        text = Text(entry.text or "(empty)", overflow="ellipsis", no_wrap=True)
        table.add_row(f"{entry.normalized:+.3f}", f"{entry.count:,}", text)
    return table
