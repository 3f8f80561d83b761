"""A loss or a gradient that is not a number: the batch's rows are kept, the run stops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from llm_agents.errors import UserError


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
    path = folder / "non_finite_batch.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"step": step, "what": what, "value": str(value), "rows": list(rows)}
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf8")
    raise UserError(
        f"the {what} is {value} at step {step}: the batch's rows of the training table are in "
        f"{path}, the last checkpoint is from before. Lower `optimizer.lr`, set "
        "`trainer.gradient_clip_val`, or look at these rows"
    )
