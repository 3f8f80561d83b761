"""A loss or a gradient that is not a number: the batch's rows are kept, the run stops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from llm_agents.errors import UserError
from llm_agents.types import Choice


def stop_non_finite(
    folder: Path, *, what: str, value: float, step: int, rows: Sequence[int]
) -> NoReturn:
    """Write which rows were in the batch to ``non_finite_batch.json`` and stop.

    Args:
        folder: Where the file goes.
        what: What is not finite.
        value: Its value.
        step: Optimizer steps taken so far.
        rows: Rows of the training table in the batch.

    Raises:
        UserError: Always.
    """
    path = _write(folder, {"step": step, "what": what, "value": str(value), "rows": list(rows)})
    raise UserError(
        f"the {what} is {value} at step {step}: the batch's rows of the training table are in "
        f"{path}, the last checkpoint is from before. Lower `optimizer.lr`, set "
        "`trainer.gradient_clip_val`, or look at these rows"
    )


def stop_non_finite_choices(
    folder: Path, *, what: str, value: float, step: int, choices: Sequence[Choice]
) -> NoReturn:
    """Write which choices were in the minibatch to ``non_finite_batch.json`` and stop.

    Args:
        folder: Where the file goes.
        what: What is not finite.
        value: Its value.
        step: Steps of the worlds, those of the present rollout included.
        choices: Prompts and actions of the minibatch.

    Raises:
        UserError: Always.
    """
    distinct = [{"prompt": c.prompt, "actions": list(c.actions)} for c in dict.fromkeys(choices)]
    path = _write(folder, {"step": step, "what": what, "value": str(value), "choices": distinct})
    raise UserError(
        f"the {what} is {value} in the rollout up to step {step}: the minibatch's choices are in "
        f"{path}, the last checkpoint is from before. Lower `ppo.lr` or `ppo.critic_lr`, or look "
        "at these choices"
    )


def _write(folder: Path, found: dict[str, object]) -> Path:
    """Write what was found, and return where."""
    path = folder / "non_finite_batch.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf8")
    return path
