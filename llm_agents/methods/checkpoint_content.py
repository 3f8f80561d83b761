"""What a checkpoint of a method holds: the weights that train, and a state of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from llm_agents.errors import UserError

STATE_KEY = "llm_agents"
"""Where a checkpoint keeps what is not Lightning's."""


def own_state(
    checkpoint: dict[str, Any], *entries: str, writer: str, instead: str = ""
) -> dict[str, Any]:
    """Return what a method's own `on_save_checkpoint` added.

    Args:
        checkpoint: Lightning's.
        entries: What there must be.
        writer: What must have written it, for the message.
        instead: What one may do beside starting anew, for the message.

    Raises:
        UserError: The checkpoint is of another program, method or version.
    """
    state: dict[str, Any] = checkpoint.get(STATE_KEY) or {}
    missing = [entry for entry in entries if entry not in state]
    if len(missing) == len(entries):
        raise UserError(
            f"the checkpoint was not written by {writer}: start without `--resume`{instead}"
        )
    if missing:
        raise UserError(
            f"the checkpoint is of {writer} in another version, without `{missing[0]}`: go on with "
            f"that version, or start without `--resume`{instead}"
        )
    return state


def keep_weights(checkpoint: dict[str, Any], parts: Iterable[tuple[str, Tensor]]) -> None:
    """Leave only the weights named by `parts` in a checkpoint; the rest is loaded from elsewhere.

    Args:
        checkpoint: Lightning's.
        parts: Names and tensors of what stays.
    """
    kept, weights = {name for name, _ in parts}, checkpoint["state_dict"]
    checkpoint["state_dict"] = {name: weights[name] for name in weights if name in kept}


def expect_weights(
    checkpoint: dict[str, Any], parts: Iterable[tuple[str, Tensor]], *, owner: str
) -> None:
    """Refuse a checkpoint whose weights are not as many, or not as large, as those there are.

    Args:
        checkpoint: Lightning's.
        parts: What it is to hold.
        owner: Whose weights they are, for the message: ``policy``, ``agent``, …

    Raises:
        UserError: They differ.
    """
    found = {name: tuple(value.shape) for name, value in checkpoint["state_dict"].items()}
    expected = {name: tuple(value.shape) for name, value in parts}
    if found != expected:
        wrong = sorted(dict(found.items() ^ expected.items()))[0]
        raise UserError(
            f"the checkpoint does not fit the {owner}: {wrong} is {found.get(wrong, 'missing')} "
            f"there and {expected.get(wrong, 'missing')} here; resume with the recipe that the "
            "run started from"
        )
