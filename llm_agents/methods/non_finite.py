"""A loss or a gradient that is not a number: what the batch held is kept, the run stops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import LightningModule
from torch import Tensor

from llm_agents.errors import UserError
from llm_agents.types import Choice
from llm_agents.whole_files import write_json


def expect_finite_rows(
    module: LightningModule, value: Tensor, *, what: str, rows: Sequence[int]
) -> None:
    """Stop at a number that is not finite, with the batch's rows in ``non_finite_batch.json``.

    Args:
        module: Says how many optimizer steps were taken, and where the file goes.
        value: The number.
        what: What it is.
        rows: Rows of the training table in the batch.

    Raises:
        UserError: It isn't.
    """
    if bool(value.isfinite()):
        return
    number, step = float(value.detach()), module.global_step
    path = _write(module, {"step": step, "what": what, "value": str(number), "rows": list(rows)})
    raise UserError(
        f"the {what} is {number} at step {step}: the batch's rows of the training table are in "
        f"{path}, the last checkpoint is from before. Lower `optimizer.lr`, set "
        "`trainer.gradient_clip_val`, or look at these rows"
    )


def expect_finite_choices(
    module: LightningModule, value: Tensor, *, what: str, step: int, choices: Sequence[Choice]
) -> None:
    """Stop at a number that is not finite, with the choices in ``non_finite_batch.json``.

    Args:
        module: Says where the file goes.
        value: The number.
        what: What it is.
        step: Steps of the worlds, those of the present rollout included.
        choices: Prompts and actions of the minibatch.

    Raises:
        UserError: It isn't.
    """
    if bool(value.isfinite()):
        return
    number = float(value.detach())
    distinct = [{"prompt": c.prompt, "actions": list(c.actions)} for c in dict.fromkeys(choices)]
    path = _write(module, {"step": step, "what": what, "value": str(number), "choices": distinct})
    raise UserError(
        f"the {what} is {number} in the rollout up to step {step}: the minibatch's choices are in "
        f"{path}, the last checkpoint is from before. Lower `ppo.lr` or `ppo.critic_lr`, or look "
        "at these choices"
    )


def expect_finite(value: Tensor, *, what: str, step: int, cure: str) -> None:
    """Stop at a number that is not finite, where nothing of the batch could be read.

    Args:
        value: The number.
        what: What it is.
        step: Steps of the worlds, those of the present rollout included.
        cure: What may help.

    Raises:
        UserError: It isn't.
    """
    if not bool(value.isfinite()):
        raise UserError(
            f"the {what} is {float(value.detach())} in the rollout up to step {step}: the last "
            f"checkpoint is from before. {cure}"
        )


def _write(module: LightningModule, found: dict[str, object]) -> Path:
    """Write what was found, and return where."""
    path = Path(module.trainer.default_root_dir) / "non_finite_batch.json"
    write_json(path, found)
    return path
