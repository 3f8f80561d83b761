"""The last stage of a run: the adapter's folder, its evaluation, table and picture."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import yaml
from lightning.pytorch import LightningDataModule, LightningModule

from llm_agents.data import MotifData, OfflineDataModule
from llm_agents.data.base import Example
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    AnyResults,
    Results,
    RewardResults,
    evaluate_message_reward,
    evaluate_policy,
    evaluate_reward,
    mean_scores,
    print_table,
    write_results,
)
from llm_agents.methods import LoadedAgent, MotifAgent, MotifReward
from llm_agents.methods.names import method_name
from llm_agents.policies import LanguagePolicy
from llm_agents.rewards import MessageReward, PolicyReward
from llm_agents.rollouts import NetHackRollouts
from llm_agents.training.comparing import draw_game_curves
from llm_agents.training.playing import (
    TrainingWorlds,
    WorldData,
    agent_details,
    evaluate_in_worlds,
    plays_worlds,
    put_on,
    unfinished_episodes,
    worlds_to_play,
)
from llm_agents.training.playing_nethack import NetHackHome, evaluate_nethack, nethack_details
from llm_agents.training.portraits import CURVE, draw_run
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import GenerationConfig, Prompt, PromptBatch, Reward
from llm_agents.zoo.layout import RECIPE_FILE, REWARD_FILE, AdapterInfo, replace_folder
from llm_agents.zoo.outside_files import find_files, write_files

if TYPE_CHECKING:
    from llm_agents.training.run_folder import RunFolder
    from llm_agents.training.session import RecipeCLI

log = logging.getLogger(__name__)


@runtime_checkable
class Trained(Protocol):
    """A module that leaves an adapter or a network behind."""

    def save_pretrained(self, folder: Path | str) -> None:
        """Write what was trained to a folder."""


def save_trained(
    module: LightningModule, folder: Path, *, data: LightningDataModule | None, recipe: str
) -> None:
    """Write what was trained to a folder, whole or not at all.

    Args:
        module: Says with ``save_pretrained`` what that is.
        folder: Replaced if it is there.
        data: Names the task.
        recipe: The resolved recipe.
    """
    if not isinstance(module, Trained):
        log.warning("%s has no `save_pretrained`: no adapter is kept", type(module).__name__)
        return
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    module.save_pretrained(unfinished)
    policy = getattr(module, "policy", None)
    if isinstance(policy, LanguagePolicy):  # a network of its own describes itself
        AdapterInfo(
            base=policy.base,
            revision=policy.revision,
            method=method_name(module),
            task=None if data is None else task_name(data),
            template=data.limits.template if isinstance(data, OfflineDataModule) else None,
            heads=tuple(sorted(path.stem for path in unfinished.glob("*_head.safetensors"))),
        ).write(unfinished)
    (unfinished / RECIPE_FILE).write_text(recipe, encoding="utf8")
    write_files(unfinished, find_files(yaml.safe_load(recipe) or {}))  # as they are now
    replace_folder(unfinished, folder)
    log.info("%s: %s", "adapter" if isinstance(policy, LanguagePolicy) else "network", folder)


def task_name(data: LightningDataModule) -> str:
    """Return the name of the task that a data module brings."""
    if plays_worlds(data):
        return "+".join(TrainingWorlds.of(data).names)
    if isinstance(data, NetHackRollouts):
        return data.task
    return type(data).__name__.removesuffix("DataModule").removesuffix("Data").lower()


def evaluate_trained(cli: RecipeCLI, run: RunFolder) -> None:
    """Evaluate what a run has trained, or the policy that its recipe names."""
    data, module, config = cli.datamodule, cli.model, cli.evaluation_config
    if plays_worlds(data) and isinstance(module, LoadedAgent):
        _evaluate_agent(module, data, cli, run)
        return
    if isinstance(data, NetHackRollouts) and isinstance(module, MotifAgent):
        _evaluate_games(module, data, cli, run)
        return
    if isinstance(data, MotifData) and isinstance(module, MotifReward):
        _evaluate_message_reward(module, data, cli, run)
        return
    if not isinstance(data, OfflineDataModule) or not hasattr(module, "policy"):
        log.info("no evaluation: it needs a policy and a data module with test sets")
        return
    if not data.sources["test"]:
        log.info("no evaluation: `data.test` names no test set")
        return
    details: dict[str, Any] = {"method": method_name(module)}
    details["task"] = config.task or task_name(data)
    details |= getattr(module, "outcome", {})
    if (run.adapter / REWARD_FILE).is_file():
        reward = PolicyReward.from_pretrained(str(run.adapter))
        results: Results | RewardResults = reward_results(reward, data, config, details)
    else:
        judge = config.reward or getattr(module, "reward", None)
        if judge is None:
            log.info("no evaluation: neither `evaluation.reward` nor `model.reward` is given")
            return
        device = cli.trainer.strategy.root_device
        if module.policy.config.quantization is None:  # quantized weights stay where they are
            module.policy.to(device)
        generation = config.generation or module.generation
        results = policy_results(
            module.policy,
            judge,
            data,
            generation,
            config,
            name=details["method"],
            details=details,
            folder=run.path,
        )
    _keep_and_show(results, run)
    if warning := details.get("warning"):
        log.warning("%s", warning)


def _evaluate_agent(agent: LoadedAgent, data: WorldData, cli: RecipeCLI, run: RunFolder) -> None:
    """Let an agent play, keep what came of it, and draw it."""
    config, home = cli.evaluation_config, TrainingWorlds.of(data)
    put_on(agent, cli.trainer.strategy.root_device)
    details = {**agent_details(agent, home), "training_seed": data.seed}
    worlds = worlds_to_play(home, config)
    unfinished = unfinished_episodes(run.path, agent, home, worlds, config, details)
    results = evaluate_in_worlds(
        agent, worlds, config, name=details["method"], details=details, unfinished=unfinished
    )
    if config.pictures:
        for picture in draw_run(agent, home, results, run.path):
            _keep_picture(picture, run)
    _keep_and_show(results, run)
    unfinished.discard()


def _evaluate_games(
    agent: MotifAgent, data: NetHackRollouts, cli: RecipeCLI, run: RunFolder
) -> None:
    """Let an agent play NetHack, keep what came of it, and draw its curves."""
    config, home = cli.evaluation_config, NetHackHome.of(data)
    agent.to(cli.trainer.strategy.root_device)
    details = {**nethack_details(agent, home), "training_seed": data.seed}
    results = evaluate_nethack(
        agent.player(), home, config, name=details["method"], details=details
    )
    if config.pictures:
        picture = draw_game_curves({results.name: [run.path]}, run.path / CURVE, title=home.task)
        if picture is not None:
            _keep_picture(picture, run)
    _keep_and_show(results, run)


def _keep_picture(picture: Path, run: RunFolder) -> None:
    """Put a picture beside the agent too."""
    if run.adapter.is_dir():
        shutil.copyfile(picture, run.adapter / picture.name)
    log.info("picture: %s", picture)


def _evaluate_message_reward(
    module: MotifReward, data: MotifData, cli: RecipeCLI, run: RunFolder
) -> None:
    """Compare the reward of messages that was kept with the preferences held out."""
    if not run.adapter.is_dir():
        raise UserError(
            f"expected a trained reward in {run.adapter}: leave `fit` in `run.stages`, or take "
            "`evaluate` out"
        )
    reward = MessageReward.from_pretrained(str(run.adapter))
    details = {"method": method_name(module), "task": task_name(data), **module.outcome}
    results = evaluate_message_reward(
        reward, data, confidence=cli.evaluation_config.bootstrap.confidence, details=details
    )
    _keep_and_show(results, run)


def _keep_and_show(results: AnyResults, run: RunFolder) -> None:
    """Write results beside what was trained and in the run's folder, and print them."""
    keep_results(results, [run.adapter] if run.adapter.is_dir() else [])
    keep_results(results, [run.path])
    print_table(results)
    log.info("results: %s", run.path / "results.json")


def keep_results(results: AnyResults, folders: Sequence[Path]) -> None:
    """Write results to folders."""
    for folder in folders:
        write_results(folder, results)


def policy_results(
    policy: LanguagePolicy,
    reward: Reward,
    data: OfflineDataModule,
    generation: GenerationConfig,
    config: EvaluationConfig,
    *,
    name: str,
    details: dict[str, Any],
    folder: Path | None = None,
) -> Results:
    """Let a policy answer the test prompts, and score the answers; see `evaluate_policy`."""
    test_sets = test_prompts(policy, data)
    prompts, texts = gold_answers(data.read_validation_examples() if config.gold else [])
    if texts:
        details = {**details, "val_gold": mean_scores(reward, prompts, texts)}
    return evaluate_policy(
        policy,
        reward,
        test_sets,
        generation,
        template=data.limits.template,
        name=name,
        seed=config.seed,
        num_prompts=config.num_prompts,
        bootstrap=config.bootstrap,
        details={**details, "dropped": dropped(data)},
        references={
            name: [example.good_response for example in table.examples]
            for name, table in data.test_sets.items()
        },
        scores_references=config.gold,
        progress=folder is not None or is_terminal(),
        folder=folder,
    )


def gold_answers(examples: Sequence[Example]) -> tuple[list[Prompt], list[str]]:
    """Return the prompts that the data answer themselves, and the answers that they call good."""
    given = [(e.prompt, e.good_response) for e in examples if e.good_response is not None]
    return [prompt for prompt, _ in given], [text for _, text in given]


def test_prompts(policy: LanguagePolicy, data: OfflineDataModule) -> dict[str, list[PromptBatch]]:
    """Return the batches of every test set by name."""
    data.trainer = None  # the training's layouts don't count here
    data.connect(policy)
    data.setup("test")
    size = data.eval_batch_size
    return {
        name: [
            table.batch(list(range(start, min(start + size, len(table)))))
            for start in range(0, len(table), size)
        ]
        for name, table in data.test_sets.items()
    }


def reward_results(
    reward: Reward, data: OfflineDataModule, config: EvaluationConfig, details: dict[str, Any]
) -> RewardResults:
    """Compare a reward with the preferences and scores of the test sets."""
    limit = config.num_prompts
    examples = {name: found[:limit] for name, found in data.read_test_examples().items()}
    return evaluate_reward(reward, examples, bootstrap=config.bootstrap, details=details)


def dropped(data: OfflineDataModule) -> dict[str, Any]:
    """Return what was left out of each test set, and why."""
    return {
        name.removeprefix("test/"): report.as_dict()
        for name, report in data.reports.items()
        if name.startswith("test/")
    }


def is_terminal() -> bool:
    """Return whether someone watches."""
    return sys.stderr.isatty()
