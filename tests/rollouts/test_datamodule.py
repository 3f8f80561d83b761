"""The data module: sizes, seeds, a trainer's rollouts, interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from llm_agents.envs.prompts import PromptBuilder
from llm_agents.errors import UserError
from llm_agents.rollouts import TextRollouts
from llm_agents.types import Choice, Decisions, Rollout
from tests.rollouts.worlds import Drawer

FRAMES = 3 * 7
WORLD = "overcooked-tomato-salad"


def data(**options: Any) -> TextRollouts:
    settings: dict[str, Any] = {
        "num_worlds": 3,
        "num_steps": 7,
        "total_frames": 6 * FRAMES + 5,
        "warm_up_frames": FRAMES + 4,
        "prompt": PromptBuilder(history_length=1),
        "seed": 3,
    }
    return TextRollouts(WORLD, **{**settings, **options})


class Learner(LightningModule):
    """An agent whose values shrink with every rollout it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.agent = Drawer(units=True)
        self.seen: list[tuple[Rollout, float]] = []

    def act(self, choices: tuple[Choice, ...], generator: torch.Generator) -> Decisions:
        return self.agent.act(choices, generator)

    def state_values(self, choices: tuple[Choice, ...]) -> torch.Tensor:
        return self.agent.state_values(choices)

    def training_step(self, rollout: Rollout, batch_idx: int) -> None:
        self.seen.append((rollout, float(self.agent.scale.detach())))
        optimizer: Any = self.optimizers()
        for _ in range(4):  # as many optimizer steps a rollout as an epoch has minibatches
            optimizer.zero_grad()
            self.manual_backward(self.agent.scale * 0.1)
            optimizer.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Killer(Callback):
    """Writes a checkpoint after a rollout, and fails."""

    def __init__(self, after: int, path: Path) -> None:
        self.after, self.path = after, path

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **_: Any) -> None:
        if args[-1] == self.after:
            trainer.save_checkpoint(self.path)
            raise KeyError("killed")


def trainer(*callbacks: Callback, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )


def assert_equal(one: Rollout, two: Rollout) -> None:
    for name in Rollout.__dataclass_fields__:
        left, right = getattr(one, name), getattr(two, name)
        if isinstance(left, torch.Tensor):
            assert torch.equal(left, right), name
        else:
            assert left == right, name


@pytest.mark.parametrize("max_epochs", [1, -1])
def test_a_trainer_gets_each_rollout_after_the_update_before_it(max_epochs: int) -> None:
    learner, source = Learner(), data()
    trainer(max_epochs=max_epochs).fit(learner, datamodule=source)
    assert [rollout.number for rollout, _ in learner.seen] == list(range(7))
    assert {rollout.num_rollouts for rollout, _ in learner.seen} == {7}
    scales = [scale for _, scale in learner.seen]
    assert scales == pytest.approx([1 - 0.04 * n for n in range(7)])
    for rollout, scale in learner.seen:
        agent = Drawer()
        agent.scale.data.fill_(scale)
        first = torch.tensor([agent.value(choice.prompt) for choice in rollout.choices])
        assert torch.allclose(rollout.values[..., 0].flatten(), first, atol=1e-6)


@pytest.mark.parametrize("after", [0, 2, 6])
def test_a_killed_and_resumed_run_collects_the_same_rollouts(after: int, tmp_path: Path) -> None:
    whole = Learner()
    source = data()
    trainer(max_epochs=1).fit(whole, datamodule=source)
    killed, resumed = Learner(), Learner()
    with pytest.raises(KeyError):
        trainer(Killer(after, tmp_path / "k.ckpt"), max_epochs=1).fit(killed, datamodule=data())
    again = data()
    trainer(max_epochs=1).fit(
        resumed, datamodule=again, ckpt_path=str(tmp_path / "k.ckpt"), weights_only=True
    )
    assert len(killed.seen) == after + 1
    both = killed.seen + resumed.seen
    assert len(both) == len(whole.seen) == 7
    for (one, scale), (two, other) in zip(both, whole.seen, strict=True):
        assert scale == other
        assert_equal(one, two)
    assert again.statistics.summary() == source.statistics.summary()


def test_sizes_are_counted_in_frames() -> None:
    source = data()
    assert source.frames_per_rollout == FRAMES
    assert (source.warm_up_rollouts, source.num_rollouts) == (1, 7)
    source.connect(Drawer())
    stream = source.train_dataloader()
    assert (len(stream), source.frames) == (7, 0)
    next(iter(stream))
    assert (len(stream), source.frames) == (7, FRAMES)
    assert len(list(stream)) == 6


def test_seeds_are_recorded_and_all_different() -> None:
    source = data()
    source.connect(Drawer())
    source.train_dataloader()
    assert len(set(source.seeds)) == 3
    assert source.state_dict()["ranks"][0]["seeds"] == list(source.seeds)
    other = data(seed=4)
    other.connect(Drawer())
    other.train_dataloader()
    assert not set(source.seeds) & set(other.seeds)


def test_evaluation_worlds_are_new_ones() -> None:
    source = data()
    assert len(source.make_worlds()) == 3
    (world,) = source.make_worlds(1, "overcooked-tomato-lettuce-salad")
    assert world.name != source.make_worlds(1)[0].name


def test_worlds_of_several_names_are_dealt_out_in_turn() -> None:
    names = [WORLD, "overcooked-tomato-lettuce-salad"]
    source = TextRollouts(names, num_worlds=3, num_steps=2, total_frames=6)
    made = [world.name for world in source.make_worlds()]
    assert made[0] == made[2] != made[1]


def test_other_worlds_cannot_continue_a_run() -> None:
    source = data()
    source.connect(Drawer())
    next(iter(source.train_dataloader()))
    state = source.state_dict()
    with pytest.raises(UserError, match=r"with `seed`: 3, got 4: restore them"):
        data(seed=4).load_state_dict(state)
    with pytest.raises(UserError, match="`prompt`"):
        data(prompt=None).load_state_dict(state)
    fresh = data()
    fresh.load_state_dict({})
    assert fresh.state_dict() == {}


def test_another_agent_goes_on_in_the_same_worlds() -> None:
    source, plain = data(), data()
    for one in (source, plain):
        one.connect(Drawer())
    next(iter(source.train_dataloader()))
    source.connect(Drawer())
    list(iter(rest := plain.train_dataloader()))
    assert [r.number for r in source.train_dataloader()] == list(range(1, 7))
    assert source.statistics.summary() == plain.statistics.summary()
    assert len(rest) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_frames": FRAMES - 1}, "at least one rollout, num_worlds · num_steps = 21, got 20"),
        ({"num_steps": 0}, "`num_steps` of at least 1"),
        ({"warm_up_frames": -1}, "`warm_up_frames` of at least 0"),
        ({"num_processes": 2}, "`num_processes` to divide `num_worlds`, got 2 and 3"),
    ],
)
def test_sizes_without_a_rollout_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        data(**options)


def test_names_of_worlds_are_needed() -> None:
    with pytest.raises(UserError, match="got an empty list"):
        TextRollouts([])
    with pytest.raises(UserError, match="set it to 2 or more"):
        TextRollouts([WORLD, WORLD], num_worlds=1)
    with pytest.raises(UserError, match="expected a world, got"):
        TextRollouts("overcoked").make_worlds()


def test_a_module_that_does_not_act_is_refused() -> None:
    class Mute(LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            raise AssertionError("nothing to train on")

        def configure_optimizers(self) -> None:
            return None

    with pytest.raises(UserError, match="expected a method that acts"):
        trainer(max_epochs=1).fit(Mute(), datamodule=data())


def test_an_agent_is_needed() -> None:
    with pytest.raises(ValueError, match="call connect"):
        data().train_dataloader()


def test_a_stream_whose_data_module_was_not_restored_is_refused() -> None:
    source = data()
    source.connect(Drawer())
    with pytest.raises(ValueError, match="expected rollout 4 to come next, got 0"):
        source.train_dataloader().load_state_dict({"number": 4})
