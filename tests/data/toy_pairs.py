"""A small data set of pairs whose preferences follow from what the messages are worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_agents.data.motif_layout import MotifPairs, preference_path
from llm_agents.rewards.annotator import UNKNOWN

WORTH = {
    "": 0,
    "It's solid stone.": -1,
    "You see here a newt corpse.": 0,
    "The newt bites!": -1,
    "You kill the newt!": 2,
    "You kill the jackal!": 2,
    "$ - 12 gold pieces.": 2,
    "You descend the stairs.": 3,
    "You die...": -3,
    "Never mind.": 0,
    "This door is locked.": -1,
    "Welcome to experience level 2.": 3,
}
"""What each message is worth; equal ones tie."""


def as_bytes(text: str) -> NDArray[np.uint8]:
    """Return a message as the game gives it."""
    return np.frombuffer(text.encode("latin-1").ljust(256, b"\0"), np.uint8)


MESSAGES = np.stack([as_bytes(text) for text in WORTH])
VALUES = np.array(list(WORTH.values()))


def write_pairs(
    folder: Path,
    count: int = 300,
    *,
    seed: int = 0,
    length: int = 1,
    unknown: float = 0.0,
    annotators: tuple[str, ...] = ("toy",),
    with_screen: bool = False,
) -> Path:
    """Write pairs of random messages, and each annotator's preferences.

    Args:
        folder: Made.
        count: N.
        seed: Decides the messages.
        length: L; a side is worth the sum of its messages.
        unknown: Share of the pairs that are not annotated.
        annotators: The first prefers what is worth more, the second what is worth less.
        with_screen: Also write bottom lines and maps.
    """
    random = np.random.default_rng(seed)
    weights = np.linspace(3, 0.5, len(VALUES))
    chosen = random.choice(len(VALUES), (count, 2, length), p=weights / weights.sum())
    data = {"message": MESSAGES[chosen]}
    if with_screen:
        data["blstats"] = random.integers(0, 20, (count, 2, length, 27))
        data["glyphs"] = random.integers(0, 5976, (count, 2, length, 21, 79)).astype(np.int16)
    worth = VALUES[chosen].sum(-1)
    score = 10.0 * worth + random.integers(-9, 10, worth.shape)
    MotifPairs.create(folder, data, {"score": score})
    gap = worth[:, 1] - worth[:, 0]
    (folder / "preference").mkdir()
    for number, annotator in enumerate(annotators):
        sign = 1 if number == 0 else -1
        label = np.where(gap == 0, 2, (sign * gap > 0).astype(np.int8)).astype(np.int8)
        label[random.random(count) < unknown] = UNKNOWN
        np.save(preference_path(folder, annotator), label)
    return folder
