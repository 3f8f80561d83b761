"""How a policy develops: its action probabilities in fixed situations, once an update.

GLAM's appendix C (arXiv 2302.02662). The release logs raw scores under the name of probabilities;
these are probabilities, and those of a situation sum to 1.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from llm_agents.envs.babyai_probes import probe_choices
from llm_agents.envs.babyai_text import Language
from llm_agents.envs.prompts import PromptBuilder
from llm_agents.errors import UserError
from llm_agents.methods import Cloning, OnlinePPO
from llm_agents.training.counting import Collected
from llm_agents.whole_files import write_text

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

PROBES_FILE = "probes.csv"
STEP = "step"


class ActionProbes(Callback):
    """Writes ``probes.csv`` into the run's folder: a row an update, before it.

    A row has the decisions that the weights have learnt from, and one probability for each action
    of each situation, situation by situation.

    Args:
        template: 1 for the eleven situations of mixed tasks, 2 for the two of going somewhere.
        every: Updates (of cloning: optimizer steps) between rows.
        actions: What the agent may do; None is the language's own six actions.
        language: Of the situations.
        prompt: How they become prompts; None is GLAM's.
    """

    def __init__(
        self,
        template: Literal[1, 2] = 1,
        *,
        every: int = 1,
        actions: list[str] | None = None,
        language: Language = "english",
        prompt: PromptBuilder | None = None,
    ) -> None:
        if every < 1:
            raise UserError(f"expected `every` of at least 1, got {every}")
        self.choices = probe_choices(template, actions=actions, language=language, prompt=prompt)
        self.every = every
        self._file: Path | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the file, or go on with that of an interrupted run.

        Raises:
            UserError: The method doesn't score actions.
        """
        if not isinstance(pl_module, OnlinePPO | Cloning):
            raise UserError(
                f"expected a method that scores actions, such as GLAM, for ActionProbes, got "
                f"{type(pl_module).__name__}: leave the callback out"
            )
        self._file = Path(trainer.default_root_dir) / PROBES_FILE
        if trainer.global_step == 0:
            self._write([])

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Add a row, in place of those that a killed run has written beyond its checkpoint."""
        number = batch.number if isinstance(batch, Collected) else batch_idx
        if number % self.every or not trainer.is_global_zero:
            return
        step = number * batch.num_steps if isinstance(batch, Collected) else trainer.global_step
        assert isinstance(pl_module, OnlinePPO | Cloning)
        kept = [row for row in self._rows() if int(row[0]) < step]
        found = probabilities(pl_module, self.choices).flatten().tolist()
        self._write([*kept, [str(step), *(f"{share:.6g}" for share in found)]])

    def _rows(self) -> list[list[str]]:
        """Return the rows so far."""
        assert self._file is not None
        if not self._file.is_file():
            return []
        with self._file.open(encoding="utf8", newline="") as file:
            return list(csv.reader(file))[1:]

    def _write(self, rows: Sequence[Sequence[str]]) -> None:
        """Write the file under a temporary name first."""
        assert self._file is not None
        names = [
            f"{number}/{action}"
            for number, choice in enumerate(self.choices, start=1)
            for action in choice.actions
        ]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([[STEP, *names], *rows])
        write_text(self._file, text.getvalue())


@torch.no_grad()
def probabilities(agent: OnlinePPO | Cloning, choices: Sequence[Any]) -> torch.Tensor:
    """Return ``[B, A]``: what an agent draws its actions from, without dropout."""
    was_training = agent.training
    agent.eval()
    scores = agent.policy.score_actions(choices, agent.normalization)
    if isinstance(agent, OnlinePPO):
        found = agent.units(choices, scores).action_log_probs
    else:
        found = scores.log_probs()
    agent.train(was_training)
    return found.exp().cpu()
