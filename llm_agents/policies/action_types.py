"""Choices as token ids, and what every exact way of scoring them returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class EncodedChoice:
    """A prompt and its actions as token ids that are never encoded again.

    Args:
        prompt_ids: What all the choice's sequences begin with, begin token included.
        action_ids: The rest of each sequence, at least one token each.
        num_words: Words of each action's text, split at whitespace.
    """

    prompt_ids: tuple[int, ...]
    action_ids: tuple[tuple[int, ...], ...]
    num_words: tuple[int, ...]


@dataclass(frozen=True)
class NodeStates:
    """Hidden states at the inner nodes of choices' action tries; node 0 is the prompt's end.

    Args:
        states: ``[N, H]`` after the final norm, the nodes of all choices one after another.
        logits: ``[N, V]`` only of models whose logits are not the plain output head's; else None.
        counts: Number of nodes of each choice.
    """

    states: Tensor
    logits: Tensor | None
    counts: tuple[int, ...]
