"""What every reward does: check its numbers, and score texts of similar length together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.types import as_scores


def check_pairs(prompts: Sequence[object], responses: Sequence[str]) -> None:
    """Raise `ValueError` unless there is one prompt for each response."""
    if len(prompts) != len(responses):
        raise ValueError(
            f"expected one prompt for each response, got {len(prompts)} prompts and "
            f"{len(responses)} responses"
        )


def check_scores(scores: object, *, count: int, name: str, low: float, high: float) -> Tensor:
    """Return `scores` as ``[B]`` float32 on the CPU, once they are known to be sound.

    Args:
        scores: What a reward computed: a tensor, an array or a sequence of numbers.
        count: B, the number of responses that were scored.
        name: The reward's name, for the message.
        low: Lowest score that the reward promises.
        high: Highest score that the reward promises.

    Returns:
        ``[B]`` float32, detached, on the CPU.

    Raises:
        UserError: It is not one number for each response, or one is not finite or lies outside the
            range.
    """
    checked = as_scores(scores, count=count, name=name).to(device="cpu", dtype=torch.float32)
    bad = ~checked.isfinite()
    if bad.any():
        rows = bad.nonzero().flatten().tolist()
        raise UserError(
            f"the reward `{name}` returned {checked[rows[0]].item()} for response {rows[0]} "
            f"({len(rows)} of {count} are not finite): look at that text, "
            "or at the reward's weights"
        )
    slack = 1e-5 * max(1.0, abs(low), abs(high))  # float32 rounding of a sum of parts
    outside = (checked < low - slack) | (checked > high + slack)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise UserError(
            f"the reward `{name}` promises scores from {low} to {high} and returned "
            f"{checked[row].item():.6g} for response {row}: correct `low` and `high`, or scale it"
        )
    return checked


def batches_by_length(rows: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Yield the positions of rows of similar length, `batch_size` at a time, longest first."""
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]), reverse=True)
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
