"""``lightning evaluate``: an adapter, reward model or base by name, on test prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import seed_everything

from llm_agents.data import HHAData, MotifData, OfflineDataModule
from llm_agents.entries import is_whole_model, zoo_name
from llm_agents.errors import UserError
from llm_agents.evaluation import (
    MessageRewardResults,
    Results,
    RewardResults,
    compare,
    comparison_table,
    evaluate_message_reward,
    print_table,
)
from llm_agents.judge import JudgeConfig, judge, make_pairs, tally
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.bundled import ALIASES
from llm_agents.rewards import CallableReward, MessageReward, PolicyReward
from llm_agents.served_models import ServedModel, is_served
from llm_agents.training.building import instantiate
from llm_agents.training.earlier_results import keep_beside
from llm_agents.training.evaluating import policy_results, reward_results
from llm_agents.training.evaluation_files import EvaluationFiles
from llm_agents.training.session import quieten_lightning
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import GenerationConfig, Reward
from llm_agents.zoo import load_policy, load_pretrained
from llm_agents.zoo.facts import AGAINST
from llm_agents.zoo.hub import find_folder
from llm_agents.zoo.integrity import weights_digest
from llm_agents.zoo.layout import AdapterInfo
from llm_agents.zoo.outside_files import read_files

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What is to be evaluated, and how it departs from its recipe.

    Args:
        name: Zoo name, folder, Hub id, or alias of a base model.
        recipe: Content of the recipe that says data, reward and generation; empty if there is none.
        data: Test sets in place of the recipe's.
        reward: Judge in place of the recipe's: a reward model, or ``package.module:function``.
        num_prompts: Prompts of each test set.
        max_new_tokens: Longest answer.
        against: Other policies, answering the same prompts.
        out: Where results go.
        is_own_recipe: Whether it was trained with the recipe.
    """

    name: str
    recipe: Mapping[str, Any]
    data: tuple[str, ...]
    reward: str | None
    num_prompts: int | None
    max_new_tokens: int | None
    against: tuple[str, ...]
    out: Path
    is_own_recipe: bool = True


def evaluate_named(
    request: Request, judged: JudgeConfig | None
) -> Results | RewardResults | MessageRewardResults:
    """Evaluate something by its name, print a table and keep the results.

    Args:
        request: What, on what, by whom.
        judged: Ask this model too about each pair of answers; needs `against`.

    Raises:
        UserError: It can't be found, or there is nothing to evaluate it on.
    """
    quieten_lightning()
    if len(request.against) != 1 and judged is not None:
        raise UserError("`--judge` compares with one other policy: give one `--against`")
    seed_everything(int(request.recipe.get("seed_everything") or 0), verbose=False)
    subject = load_pretrained(request.name)
    if isinstance(subject, MessageReward):
        return _judge_messages(subject, request)
    if not isinstance(subject, LanguagePolicy | PolicyReward):
        raise UserError(f"expected a policy or a reward, but `{request.name}` is an agent")
    data = build_data(request)
    config = evaluation_config(request)
    if isinstance(subject, PolicyReward):
        if request.against or request.reward:
            raise UserError(
                f"`{request.name}` is a reward model, which is compared with the data's own "
                "preferences: leave `--against` and `--reward` out"
            )
        found = reward_results(subject, data, config, known_of(request))
        agreement = keep_beside(found, request.out)
        print_table(agreement)
        return agreement
    reward = build_reward(request, config)
    generation = build_generation(request, config)

    def answers(policy: LanguagePolicy, name: str, details: dict[str, Any]) -> Results:
        return policy_results(policy, reward, data, generation, config, name=name, details=details)

    results = answers(subject, request.name, known_of(request))
    kept = keep_beside(results, request.out)
    if not request.against:
        print_table(kept)
        return kept
    del subject
    others = []
    for place, name in enumerate(request.against):
        other_policy = load_policy(name)
        others.append(answers(other_policy, name, {}))
        del other_policy
        keep_beside(others[-1], against_folder(request.out, place))
    print_table([results, *others])
    for other in others:
        _compare(results, other, judged, request.out)
    return results


def against_folder(out: Path, place: int) -> Path:
    """Return where the results of the policy that was named in some place of ``--against`` go."""
    return out / (AGAINST if place == 0 else f"{AGAINST}-{place + 1}")


def known_of(request: Request) -> dict[str, Any]:
    """Return what is known of what is evaluated, beside the numbers: how it was trained."""
    if request.name in ALIASES:
        return {}
    folder = _folder_of(request.name)
    info = AdapterInfo.read(folder)
    details: dict[str, Any] = {"weights": weights_digest(folder)}
    if info is not None:
        details |= {"method": info.method, "task": info.task}
    seed = request.recipe.get("seed_everything")
    if request.is_own_recipe and isinstance(seed, int):
        details["training_seed"] = seed
    return {key: value for key, value in details.items() if value is not None}


def files_of(request: Request) -> EvaluationFiles:
    """Return what is known of the files that the recipe of what is evaluated names."""
    if request.name in ALIASES or not request.is_own_recipe:
        return EvaluationFiles(request.name)
    publish = request.recipe.get("publish")
    source = publish.get("data_source") if isinstance(publish, Mapping) else None
    files = read_files(_folder_of(request.name))
    return EvaluationFiles(request.name, tuple(files), source if isinstance(source, str) else None)


def _folder_of(name: str) -> Path:
    """Return the folder of what is evaluated."""
    folder = Path(name).expanduser()
    return folder if is_whole_model(folder) else find_folder(name)


def _judge_messages(reward: MessageReward, request: Request) -> MessageRewardResults:
    """Compare a reward of game messages with held-out preferences, print and keep the results.

    Raises:
        UserError: An option means nothing for it, or nothing says which pairs were held out.
    """
    given = {"--against": bool(request.against), "--reward": request.reward}
    wrong = [option for option, value in given.items() if value]
    if wrong or len(request.data) > 1:
        raise UserError(
            f"`{request.name}` judges game messages: leave {(wrong or ['all but one --data'])[0]} "
            "out"
        )
    section = dict(request.recipe.get("data") or {})
    if not section:
        raise UserError(
            f"nothing says by which pairs `{request.name}` is judged: give `--recipe` with that of "
            "its training"
        )
    if request.data:
        section["init_args"] = {**(section.get("init_args") or {}), "folder": request.data[0]}
    config = evaluation_config(request)
    arguments = dict(section.get("init_args") or {})
    arguments["folder"] = files_of(request).folder(str(arguments.get("folder")))
    results = evaluate_message_reward(
        reward,
        instantiate(MotifData, {**section, "init_args": arguments}),
        confidence=config.bootstrap.confidence,
        details={**known_of(request), "method": "motif_reward", "task": "motif"},
    )
    kept = keep_beside(results, request.out)
    print_table(kept)
    return kept


def _compare(first: Results, second: Results, judged: JudgeConfig | None, out: Path) -> None:
    """Print the paired differences, and what the judge says."""
    from rich.console import Console

    console = Console()
    console.print(comparison_table(first.name, second.name, compare(first, second)))
    if judged is not None:
        replies = out / "judged.jsonl"
        entries = judge(make_pairs(first, second), judged, replies, progress=console.is_terminal)
        for aspect, counts in tally(entries, first.bootstrap).items():
            console.print(
                f"{aspect}: {counts.wins} wins, {counts.ties} ties, {counts.losses} losses of "
                f"{first.name} by {judged.model} ({counts.unparsed} replies without a verdict)"
            )


def default_folder(name: str) -> Path:
    """Return where the results of `name` go: its own folder if there is one here."""
    if is_served(name):
        return Path("evaluations") / ServedModel.read(name).folder_name
    folder = Path(name).expanduser()
    entry = zoo_name(name) or name
    return folder if folder.is_dir() else Path("evaluations") / entry.replace("/", "--")


def evaluation_config(request: Request) -> EvaluationConfig:
    """Return the recipe's section `evaluation` with the request's changes."""
    section = dict(request.recipe.get("evaluation") or {})
    if request.reward is not None:
        section.pop("reward", None)  # another one judges
    config = instantiate(EvaluationConfig, section)
    if request.num_prompts is not None:
        config = replace(config, num_prompts=request.num_prompts)
    return config


def build_data(request: Request) -> OfflineDataModule:
    """Return the recipe's data module, or HHA's, with the test sets asked for."""
    section = dict(request.recipe.get("data") or {})
    if not section:
        info = AdapterInfo.read(Path(request.name)) if Path(request.name).is_dir() else None
        tests = list(request.data) or ["sample"]
        template: dict[str, Any] = {"template": info.template} if info and info.template else {}
        return HHAData(validation=None, test=tests, **template)
    arguments = files_of(request).tests(dict(section.get("init_args") or {}), request.data)
    data = instantiate(OfflineDataModule, {**section, "init_args": arguments})
    if not data.sources["test"]:
        raise UserError("expected test sets: give `--data`, the recipe's `data.test` names none")
    return data


def build_reward(request: Request, config: EvaluationConfig) -> Reward:
    """Return the judge: the one asked for, or that of the recipe."""
    if request.reward is not None:
        if ":" in request.reward:
            return CallableReward(request.reward)
        found = load_pretrained(request.reward)
        if not isinstance(found, PolicyReward):
            raise UserError(f"expected a reward model after `--reward`, got `{request.reward}`")
        return found
    if config.reward is not None:
        return config.reward
    section = _model_argument(request, "reward")
    if section is None:
        raise UserError(
            f"no recipe says by which reward `{request.name}` is judged: give `--reward` with a "
            "reward model's name or `package.module:function`"
        )
    return instantiate(Reward, section)  # type: ignore[type-abstract]  # a subclass is made


def build_generation(request: Request, config: EvaluationConfig) -> GenerationConfig:
    """Return how answers are generated."""
    generation = config.generation
    if generation is None:
        generation = instantiate(GenerationConfig, _model_argument(request, "generation") or {})
    if request.max_new_tokens is not None:
        generation = replace(generation, max_new_tokens=request.max_new_tokens)
    return generation


def _model_argument(request: Request, name: str) -> Any:  # noqa: ANN401  (a recipe's content)
    """Return an argument of the recipe's method."""
    model = request.recipe.get("model") or {}
    return (model.get("init_args") or {}).get(name)
