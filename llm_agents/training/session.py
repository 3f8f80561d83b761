"""From a checked recipe to results: objects, training, adapter, evaluation."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from typing_extensions import override

from llm_agents.data import OfflineDataModule
from llm_agents.errors import UserError
from llm_agents.messages import is_verbose, quieten
from llm_agents.methods import OnlinePPO
from llm_agents.methods.trainer_budget import check_precision
from llm_agents.rollouts import NetHackRollouts, TextRollouts
from llm_agents.training.building import plain_faults, resolve_self
from llm_agents.training.checkpoints import Checkpoints, step_of
from llm_agents.training.claiming import claimed
from llm_agents.training.clock import TrainingClock
from llm_agents.training.counting import StepCounter, is_online
from llm_agents.training.evaluating import evaluate_trained, save_trained
from llm_agents.training.metrics import STEP, MetricsFile, Row, StepTensorBoard
from llm_agents.training.past_runs import FOLDER_VARIABLE
from llm_agents.training.playing import (
    TrainingWorlds,
    check_settings,
    check_warm_up,
    plays_worlds,
    worlds_to_play,
)
from llm_agents.training.playing_nethack import NetHackHome, baselines_of
from llm_agents.training.progress import RunProgress
from llm_agents.training.publishing import check_publishing, publish_trained
from llm_agents.training.run_folder import RunFolder, open_run
from llm_agents.training.settings import EvaluationConfig, RunConfig
from llm_agents.training.stopping import StopSignals

log = logging.getLogger(__name__)

_OWN_STEPS: dict[str, tuple[Any, str]] = {
    "accumulate_grad_batches": (1, "model.ppo.accumulate"),
    "gradient_clip_val": (None, "model.ppo.max_grad_norm"),
}

# What Lightning says about every run of a recipe and what is meant to be so.
_EXPECTED_WARNINGS = (
    r".*LightningCLI's args parameter.*",
    r".*was called without a model.*",
    r".*smaller than the logging interval.*",
    r"(?s).*JsonargparseDeprecationWarning.*",  # LightningCLI's own calls
)


class RecipeCLI(LightningCLI):
    """Builds module, data and trainer of a recipe.

    Args:
        values: The sections `seed_everything`, `model`, `data`, `trainer`, `run`, `evaluation`.
        run: The run's folder.
        signals: Says whether someone asked the run to stop.
    """

    def __init__(self, values: Mapping[str, Any], run: RunFolder, signals: StopSignals) -> None:
        self.run, self.signals = run, signals
        self.metrics = MetricsFile(run.path / "metrics.csv")
        self.counter, self.clock = StepCounter(), TrainingClock()
        super().__init__(
            args={name: value for name, value in values.items() if value is not None},
            run=False,
            seed_everything_default=0,
            save_config_callback=None,  # the recipe is in the run's folder already
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            parser_kwargs={"exit_on_error": False},
        )

    @property
    def run_config(self) -> RunConfig:
        """Return the section `run`."""
        found: RunConfig = self.config_init["run"]
        return found

    @property
    def evaluation_config(self) -> EvaluationConfig:
        """Return the section `evaluation`."""
        found: EvaluationConfig = self.config_init["evaluation"]
        return found

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the sections that are not Lightning's."""
        parser.add_class_arguments(RunConfig, "run")
        parser.add_class_arguments(EvaluationConfig, "evaluation")

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer with this run's folder, loggers, checkpoints and progress."""
        config = self.config_init["trainer"]
        settings = self.run_config
        defaults: dict[str, Any] = {
            "default_root_dir": str(self.run.path),
            "enable_model_summary": False,
            "log_every_n_steps": 1,
        }
        check_precision(config["precision"])
        if is_online(self.model):
            check_online(config)
            defaults["max_epochs"] = 1  # the rollouts end when their budget does
        elif not self.model.automatic_optimization:
            check_own_steps(config)
        for name, value in defaults.items():
            if config[name] is None:
                kwargs.setdefault(name, value)
        theirs = config["logger"]
        ours: list[MetricsFile | StepTensorBoard] = [self.metrics]
        if theirs is not False:
            ours.append(self._tensorboard())
        others = theirs if isinstance(theirs, list) else [theirs]
        added = [logger for logger in others if logger not in (None, True, False)]
        for logger in ours:
            logger.counter = self.counter
        callbacks: list[Callback] = [self.counter, self.clock]
        if config["enable_progress_bar"] is not False:
            callbacks.append(RunProgress(settings.log_every, self.counter))
        if config["enable_checkpointing"] is not False and not config["fast_dev_run"]:
            callbacks.append(
                Checkpoints(
                    self.run.checkpoints,
                    every=settings.checkpoint_every,
                    minutes=settings.checkpoint_minutes,
                    keep=settings.keep_checkpoints,
                    signals=self.signals,
                    metrics=self.metrics,
                    counter=self.counter,
                )
            )
        given = config["callbacks"] or []
        theirs_too = given if isinstance(given, list) else [given]
        try:
            return super().instantiate_trainer(
                logger=[*ours, *added], callbacks=[*theirs_too, *callbacks], **kwargs
            )
        except MisconfigurationException as error:
            raise UserError(f"the section `trainer` can't be used here: {error}") from error

    def _tensorboard(self) -> StepTensorBoard:
        """Return the TensorBoard logger, which hides what the killed run logged too much."""
        step = step_of(self.run.checkpoint) if self.run.checkpoint else -1
        purge: dict[str, Any] = {"purge_step": step + 1} if step >= 0 else {}
        return StepTensorBoard(
            save_dir=self.run.path, name="", version="tensorboard", default_hp_metric=False, **purge
        )


def check_online(trainer: Mapping[str, Any]) -> None:
    """Refuse settings of the trainer that mean nothing where a method collects rollouts.

    Raises:
        UserError: Names the setting that does the same.
    """
    in_place_of = {
        "max_steps": (-1, "data.total_frames"),
        "max_epochs": (None, "data.total_frames"),
        **_OWN_STEPS,
    }
    _refuse(trainer, in_place_of)


def check_own_steps(trainer: Mapping[str, Any]) -> None:
    """Refuse settings of the trainer that mean nothing where a method takes its steps itself.

    Raises:
        UserError: Names the setting that does the same.
    """
    _refuse(trainer, _OWN_STEPS)


def _refuse(trainer: Mapping[str, Any], in_place_of: Mapping[str, tuple[Any, str]]) -> None:
    """Refuse settings that are not left at their default, and name those in place of them."""
    for name, (default, other) in in_place_of.items():
        if trainer[name] not in (default, None):
            raise UserError(
                f"expected no `trainer.{name}`, got {trainer[name]}: this method collects rollouts "
                f"and takes its optimizer steps itself, so set `{other}`"
            )


def run_recipe(values: Mapping[str, Any], recipe: str, name: str, resume: str | None) -> RunFolder:
    """Do what a recipe says.

    Args:
        values: The recipe's content, checked.
        recipe: The same as text, for the run's folder.
        name: Name of its runs.
        resume: ``auto``, the path of a checkpoint or of a run's folder, or None.

    Returns:
        The run's folder.

    Raises:
        UserError: Something that the user can cure.
        RunStoppedError: Ctrl-C or SIGTERM.
    """
    quieten_lightning()
    section = values.get("run") or {}
    run = open_run(section.get("name") or name, section.get("folder"), resume, recipe)
    if resume == "auto" and run.is_finished and run.holds(recipe):
        log.info("the run in %s is finished: leave `--resume` out to start another", run.path)
        return run
    os.environ[FOLDER_VARIABLE] = str(run.path.absolute())
    try:
        with claimed(run.path), StopSignals() as signals, warnings.catch_warnings():
            quieten()
            for message in () if is_verbose() else _EXPECTED_WARNINGS:
                warnings.filterwarnings("ignore", message)
            _run(values, recipe, run, signals)
    except UserError:
        run.remove_if_empty()
        raise
    finally:
        del os.environ[FOLDER_VARIABLE]
    return run


def quieten_lightning() -> None:
    """Let Lightning warn, once, but not tell what every run tells."""
    if is_verbose():
        return
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        logger.handlers.clear()
        logger.propagate = True


def _run(values: Mapping[str, Any], recipe: str, run: RunFolder, signals: StopSignals) -> None:
    """Build and run the stages."""
    check_publishing(values, recipe)
    cli = build(values, run, signals)
    if cli.trainer.is_global_zero:
        run.write_start(recipe)
    log.info("run folder: %s", run.path)
    if "fit" in cli.run_config.stages:
        fit(cli, run)
        if cli.trainer.is_global_zero and isinstance(cli.datamodule, OfflineDataModule):
            cli.datamodule.save_report(run.path / "data.json")
        if cli.trainer.is_global_zero:
            run.write_seconds(cli.clock.seconds)
            save_trained(cli.model, run.adapter, data=cli.datamodule, recipe=recipe)
    if "evaluate" in cli.run_config.stages and cli.trainer.is_global_zero:
        evaluate_trained(cli, run)
    if cli.trainer.is_global_zero and run.adapter.is_dir():
        publish_trained(values, run.adapter)


def build(values: Mapping[str, Any], run: RunFolder, signals: StopSignals) -> RecipeCLI:
    """Return module, data and trainer.

    Raises:
        UserError: The recipe is not what the classes take.
    """
    known = ("seed_everything", "model", "data", "trainer", "run", "evaluation")
    given = {key: values[key] for key in known if key in values}
    resolve_self(given)
    with plain_faults("the recipe"):
        cli = RecipeCLI(given, run, signals)
    data, module = cli.datamodule, cli.model
    in_worlds = plays_worlds(data) or isinstance(data, NetHackRollouts)
    check_settings(cli.evaluation_config, in_worlds=in_worlds)
    if isinstance(data, NetHackRollouts):
        NetHackHome.of(data).tasks(cli.evaluation_config)  # refuses unknown names now
        baselines_of(cli.evaluation_config)
    if isinstance(data, TextRollouts) and isinstance(module, OnlinePPO):
        check_warm_up(module, data)
    if plays_worlds(data):
        worlds_to_play(TrainingWorlds.of(data), cli.evaluation_config)  # refuses unknown names now
    return cli


def fit(cli: RecipeCLI, run: RunFolder) -> None:
    """Train, from the checkpoint if there is one."""
    if run.checkpoint is None:
        cli.metrics.path.unlink(missing_ok=True)  # of a run that was killed before its first one
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        return
    log.info("continuing from %s", run.checkpoint)
    try:
        saved = torch.load(run.checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError) as error:
        raise UserError(
            f"expected a checkpoint, {run.checkpoint} can't be read: {error}"
        ) from error
    row: Row = next((s["row"] for s in saved["callbacks"].values() if "row" in s), {})
    cli.metrics.resume(int(row.get(STEP, saved["global_step"])), row)
    del saved
    cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=str(run.checkpoint))
