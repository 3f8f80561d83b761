"""``lightning evaluate --suite``: an agent by name in all tests of a suite."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import seed_everything
from rich.console import Console

from llm_agents.envs import BabyAIPrompt, BabyAIText, PromptBuilder
from llm_agents.envs.babyai import WORLDS
from llm_agents.envs.babyai_levels import KINDS, MIXED
from llm_agents.envs.babyai_prompts import LABEL_TESTS, ChangedPrompt, Modification
from llm_agents.envs.babyai_text import ACTIONS
from llm_agents.envs.registry import make_world
from llm_agents.errors import UserError
from llm_agents.evaluation import EpisodeResults, World, read_episode_results, write_results
from llm_agents.evaluation.baselines import WorldPlayer
from llm_agents.evaluation.episodes import PlayedEpisode, WorldResult, summarize_episodes
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.evaluation.suite_pictures import plot_suite
from llm_agents.evaluation.suites import (
    HOME_KEY,
    NO_CHANGE,
    SUITE_KEY,
    SuiteName,
    SuiteTest,
    is_suite,
    suite_markdown,
    suite_table,
    suite_tests,
)
from llm_agents.rollouts.symbolic import SymbolicAgent
from llm_agents.training.agents import AgentRequest, home_of, named_player
from llm_agents.training.building import instantiate
from llm_agents.training.playing import (
    TrainingWorlds,
    evaluate_in_worlds,
    play_fresh,
    unfinished_episodes,
)
from llm_agents.training.settings import EvaluationConfig
from llm_agents.types import Agent, Episode
from llm_agents.whole_files import write_text

log = logging.getLogger(__name__)

TABLE_FILE, PICTURE_FILE = "table.md", "success.png"
_BETWEEN = ": "  # between a test and a kind of task in the name of what is played
_KEPT_OPTIONS = ("actions", "reward_scale", "limit", "french")  # in other worlds than the agent's


@dataclass(frozen=True)
class SuiteRequest:
    """Which agent is to take which tests.

    Args:
        agent: Who plays, in which world it is at home (the first of `worlds`, or the recipe's), how
            many episodes of each test, and where results go.
        suite: Which suite.
        tests: Names of the tests; all if empty.
    """

    agent: AgentRequest
    suite: SuiteName
    tests: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Return where the results go: not among those of the agent's own evaluation."""
        return self.agent.out / self.suite


def evaluate_suite_named(request: SuiteRequest) -> EpisodeResults:
    """Let an agent take the tests, print the table, and keep it with the numbers and a picture.

    Raises:
        UserError: The agent can't be found, nothing says where it is at home, or it can't be tested
            so.
    """
    asked = request.agent
    seed_everything(int(asked.recipe.get("seed_everything") or 0), verbose=False)
    player = named_player(asked)
    reads = not isinstance(player.agent, SymbolicAgent | WorldPlayer)
    home = _home(asked, reads=reads)
    config = instantiate(EvaluationConfig, asked.recipe.get("evaluation") or {})
    if asked.episodes is not None:
        config = replace(config, episodes=asked.episodes)
    tests = suite_tests(request.suite, home.names[0], request.tests)
    if not reads:
        tests = [test for test in tests if test.is_another_world and test.compared_with is None]
        tests = [SuiteTest(NO_CHANGE), *tests]
        log.info("`%s` reads no text: it takes the tests in other worlds only", asked.name)
    elif not isinstance(home.prompt, BabyAIPrompt):
        tests = [test for test in tests if test.modification not in LABEL_TESTS]
    worlds = [world for test in tests for world in worlds_of(test, home, config)]
    unfinished = unfinished_episodes(
        request.folder, player.agent, home, worlds, config, player.details
    )
    played = evaluate_in_worlds(
        player.agent,
        worlds,
        config,
        name=asked.name,
        details={
            **player.details,
            SUITE_KEY: request.suite,
            HOME_KEY: home.names[0],
            "tests": {test.name: _described(test, home) for test in tests},
        },
        label=player.label,
        unfinished=unfinished,
    )
    results = joined(played)
    groups = {asked.name: [results]}
    write_results(request.folder, results)
    write_text(request.folder / TABLE_FILE, suite_markdown(groups))
    plot_suite(groups, request.folder / PICTURE_FILE, title=f"{asked.name}: {request.suite}")
    unfinished.discard()
    Console().print(suite_table(groups, title=f"{asked.name}: {request.suite}"))
    return results


def _home(request: AgentRequest, *, reads: bool) -> TrainingWorlds:
    """Return the one world that an agent is at home in.

    Args:
        request: Who plays.
        reads: Whether it sees prompts.

    Raises:
        UserError: There is none, or there are several.
    """
    home = home_of(request.recipe)
    names = request.worlds or home.names
    if len(names) != 1 or not isinstance(make_world(names[0]), BabyAIText):
        raise UserError(
            "expected one world of BabyAI, in which the suite's first test is played, got "
            f"{', '.join(names) or 'none'}: name it with `--env`"
        )
    prompt = home.prompt if reads and home.names else BabyAIPrompt()
    options = home.options if names == home.names else {}
    return TrainingWorlds(tuple(names), dict(options), prompt)


def worlds_of(test: SuiteTest, home: TrainingWorlds, config: EvaluationConfig) -> list[World]:
    """Return what is played for a test: a world, or one for each kind of its tasks.

    Args:
        test: The test.
        home: The agent's own world and prompt.
        config: How many episodes; kinds have equal shares of them.
    """
    found = []
    for suffix, name, options in _places(test, home):
        place = TrainingWorlds((name,), options, changed(home.prompt, test.modification))
        make_world(name, **options)  # refuses options that the world doesn't have
        share = max(1, config.episodes // len(KINDS)) if suffix else config.episodes
        found.append(
            World(
                name=f"{test.name}{suffix}",
                play=partial(_play, place, name, config, share),
                is_trained_on=test.name == NO_CHANGE,
            )
        )
    return found


def changed(prompt: PromptBuilder | None, modification: Modification) -> PromptBuilder:
    """Return what makes the same prompts with the words of a test."""
    if isinstance(prompt, BabyAIPrompt):
        return replace(prompt, modification=modification)
    return ChangedPrompt(builder=prompt or PromptBuilder(), modification=modification)


def _play(
    place: TrainingWorlds,
    name: str,
    config: EvaluationConfig,
    share: int,
    agent: Agent,
    num_episodes: int,
    generator: torch.Generator,
) -> list[Episode]:
    """Play the share that a world has of a test's episodes."""
    del num_episodes
    return play_fresh(place, name, config, agent, share, generator)


def _places(test: SuiteTest, home: TrainingWorlds) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the worlds of a test: what follows its name, the world's name, the world's options."""
    name = test.world or home.names[0]
    own = dict(home.options)
    if test.world is not None:
        own = {key: value for key, value in own.items() if key in _KEPT_OPTIONS}
    fixed = WORLDS.get(name, {})
    language = str(fixed.get("language") or own.get("language") or "english")
    options = _with_actions(own, test, language)
    if fixed.get("level") not in MIXED or "kind" in fixed or own.get("kind") is not None:
        yield "", name, options
        return
    options.pop("kind_mode", None)
    for kind in KINDS:
        yield f"{_BETWEEN}{kind}", f"{name}-{kind}", options


def _with_actions(own: Mapping[str, Any], test: SuiteTest, language: str) -> dict[str, Any]:
    """Return a world's options with the names of as many actions as the agent knows.

    Raises:
        UserError: The test renames English actions, and these are not.
    """
    options = dict(own)
    known = own.get("actions")
    if test.world is not None and language != "english" and known is not None:
        options["actions"] = list(ACTIONS[language])[: len(known)]  # type: ignore[index]
    if not test.actions:
        return options
    if language != "english":
        raise UserError(f"expected English actions for the test `{test.name}`, got {language} ones")
    current = list(known or ACTIONS["english"])
    options["actions"] = [*test.actions[: len(current)], *current[len(test.actions) :]]
    return options


def _described(test: SuiteTest, home: TrainingWorlds) -> dict[str, Any]:
    """Return what a test is, for the results."""
    return {
        "worlds": [name for _, name, _ in _places(test, home)],
        "modification": test.modification,
        "actions": list(test.actions) or None,
    }


def joined(results: EpisodeResults) -> EpisodeResults:
    """Return results in which the kinds of a test are one entry; each kind's success is a detail.

    Kinds have played equally many episodes, so that each weighs the same.
    """
    entries: dict[tuple[str, str], list[WorldResult]] = {}
    for entry in results.worlds:
        entries.setdefault((entry.world.split(_BETWEEN)[0], entry.agent), []).append(entry)
    kinds: dict[str, dict[str, dict[str, float]]] = {}
    found = []
    for (test, agent), parts in entries.items():
        if len(parts) == 1:
            found.append(parts[0])
            continue
        rates = {part.world.split(_BETWEEN)[1]: part.success.mean for part in parts}
        kinds.setdefault(test, {})[agent] = rates
        worlds = {part.world for part in parts}
        episodes = [
            played.episode
            for played in results.episodes
            if played.world in worlds and played.agent == agent
        ]
        whole = World(test, _unplayed, is_trained_on=parts[0].is_trained_on)
        seconds = sum(part.seconds for part in parts)
        found.append(summarize_episodes(whole, agent, episodes, results.bootstrap, seconds=seconds))
    played = tuple(
        PlayedEpisode(each.world.split(_BETWEEN)[0], each.agent, each.episode)
        for each in results.episodes
    )
    details = {**results.details, "kinds": kinds}
    return replace(results, worlds=tuple(found), episodes=played, details=details)


def _unplayed(agent: Agent, num_episodes: int, generator: torch.Generator) -> list[Episode]:
    """Refuse: the episodes are there already."""
    raise ValueError("expected episodes that were played, not to play them")


# --- several runs ---------------------------------------------------------------------------------


def hold_suites(folders: Sequence[Path]) -> bool:
    """Return whether each folder holds results of a suite."""
    return bool(folders) and all(_holds_suite(folder) for folder in folders)


def _holds_suite(folder: Path) -> bool:
    """Return whether a folder holds results of a suite."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        return False
    details = json.loads(path.read_text(encoding="utf8")).get("details")
    return isinstance(details, dict) and SUITE_KEY in details


def compare_suites(groups: Mapping[str, Sequence[Path]], out: Path) -> list[Path]:
    """Print, keep and draw what agents reached in one suite, those that differ by seed together.

    Args:
        groups: Folders of the suite's results, by what the runs have in common.
        out: Picture to write; the table gets its name with another ending.

    Returns:
        The files that were written.

    Raises:
        UserError: They are not all of one suite, or have other tests or numbers of episodes.
    """
    read = {label: [read_episode_results(f) for f in each] for label, each in groups.items()}
    everything = [results for each in read.values() for results in each]
    suites = {str(results.details.get(SUITE_KEY)) for results in everything}
    if len(suites) > 1 or not all(map(is_suite, everything)):
        raise UserError(f"expected results of one suite, got those of {', '.join(sorted(suites))}")
    title = suites.pop()
    Console().print(suite_table(read, title=title))
    table = out.with_suffix(".md")
    table.parent.mkdir(parents=True, exist_ok=True)
    write_text(table, suite_markdown(read))
    return [plot_suite(read, out, title=title), table]
