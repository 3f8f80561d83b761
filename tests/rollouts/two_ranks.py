"""Two processes train on rollouts of their own; run by `test_two_ranks`.

Prints the indices that each rank saw: of an unbroken run, then of one that was killed and resumed.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from llm_agents.rollouts import TextRollouts
from tests.rollouts.test_datamodule import Killer, Learner, trainer


def data() -> TextRollouts:
    return TextRollouts(
        "overcooked-tomato-salad", num_worlds=2, num_steps=3, total_frames=5 * 12, seed=3
    )


def two(*callbacks: Killer) -> Trainer:
    return trainer(*callbacks, max_epochs=1, devices=2, strategy="ddp")


def main(folder: Path) -> None:
    whole = Learner()
    two().fit(whole, datamodule=data())
    killed, resumed = Learner(), Learner()
    with suppress(KeyError):
        two(Killer(1, folder / "k.ckpt")).fit(killed, datamodule=data())
    two().fit(resumed, datamodule=data(), ckpt_path=str(folder / "k.ckpt"), weights_only=True)
    found = {
        "whole": [rollout.index.tolist() for rollout, _ in whole.seen],
        "parts": [rollout.index.tolist() for rollout, _ in killed.seen + resumed.seen],
    }
    rank = torch.distributed.get_rank()
    torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
