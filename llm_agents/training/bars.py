"""What runs reached, as bars with intervals: answers by reward, agents by return and success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from llm_agents.errors import UserError
from llm_agents.evaluation import (
    BootstrapConfig,
    EpisodeResults,
    Interval,
    Results,
    bootstrap_mean,
    combine_seeds,
    read_any_results,
    share,
)
from llm_agents.evaluation.comparison_bars import plot_bars
from llm_agents.evaluation.results import RESULTS_FILE, kind_of_results

ANSWERS, EPISODES = "policy", "episodes"
Groups = Mapping[str, Sequence[Path]]


def results_groups(runs: Sequence[str], kind: str) -> dict[str, list[Path]] | None:
    """Return the folders of runs by label if all of them hold results of a kind; else None.

    Args:
        runs: Folders, each with its label before an ``=`` if it is to have one other than its path.
        kind: `ANSWERS` or `EPISODES`.
    """
    groups: dict[str, list[Path]] = {}
    for run in runs:
        label, _, path = run.rpartition("=")
        folder = Path(path)
        if not (folder / RESULTS_FILE).is_file() or kind_of_results(folder) != kind:
            return None
        groups.setdefault(label or path.rstrip("/").removeprefix("checkpoints/"), []).append(folder)
    return groups


def draw_answers(groups: Groups, out: Path) -> Path:
    """Draw the mean reward of answers; see `answer_panels`."""
    name = _answers(next(iter(groups.values()))[0]).reward.name
    return plot_bars(answer_panels(groups), out, title=f"mean reward ({name})")


def answer_panels(groups: Groups) -> dict[str, dict[str, Interval]]:
    """Return the mean reward of answers by test set and label; seeds and prompts are resampled.

    Raises:
        UserError: The runs were scored by different rewards or on different prompts.
    """
    found = {label: [_answers(folder) for folder in each] for label, each in groups.items()}
    first = next(iter(found.values()))[0]
    for each in found.values():
        for results in each:
            if (results.reward.name, results.reward.version) != (
                first.reward.name,
                first.reward.version,
            ):
                raise UserError(
                    f"expected runs that one reward judged, got `{first.reward.name}` and "
                    f"`{results.reward.name}`: evaluate them alike first (`lightning evaluate "
                    "… --reward`)"
                )
    means = {label: combine_seeds(each) for label, each in found.items()}
    tests = list(dict.fromkeys(test for each in means.values() for test in each))
    return {
        test: {label: each[test] for label, each in means.items() if test in each} for test in tests
    }


def _answers(folder: Path) -> Results:
    """Return the results of a policy that writes."""
    results = read_any_results(folder)
    assert isinstance(results, Results)  # `results_groups` has looked
    return results


def draw_play(groups: Groups, out: Path) -> Path:
    """Draw what agents reached in worlds; see `play_panels`."""
    return plot_bars(play_panels(groups), out, title="finished episodes")


def play_panels(groups: Groups) -> dict[str, dict[str, Interval]]:
    """Return what agents reached in the worlds that all of them played: return and success.

    The agents that each run is compared with stand beneath, as the first run met them.

    Raises:
        UserError: No world was played by all of them.
    """
    found = {label: [_episodes(folder) for folder in each] for label, each in groups.items()}
    everything = [results for each in found.values() for results in each]
    worlds = [
        world
        for world in dict.fromkeys(entry.world for entry in everything[0].worlds)
        if all(any(entry.world == world for entry in each.worlds) for each in everything)
    ]
    if not worlds:
        raise UserError("expected runs that have played a common world: plot them apart")
    panels: dict[str, dict[str, Interval]] = {}
    for world in worlds:
        returns = {label: _mean(each, world, "discounted_return") for label, each in found.items()}
        success = {label: _mean(each, world, "success") for label, each in found.items()}
        for entry in everything[0].worlds:
            if entry.world == world and entry.agent != everything[0].overall.agent:
                returns[entry.agent], success[entry.agent] = entry.discounted_return, entry.success
        panels[f"{world}: discounted return"] = returns
        panels[f"{world}: success"] = success
    return panels


def _episodes(folder: Path) -> EpisodeResults:
    """Return the results of an agent in worlds."""
    results = read_any_results(folder)
    assert isinstance(results, EpisodeResults)  # `results_groups` has looked
    return results


def _mean(runs: Sequence[EpisodeResults], world: str, measure: str) -> Interval:
    """Return the mean of the runs' own agents in a world: over seeds and episodes, if several."""
    values = [
        [
            float(getattr(entry.episode, measure))
            for entry in run.episodes
            if (entry.world, entry.agent) == (world, run.overall.agent)
        ]
        for run in runs
    ]
    bootstrap: BootstrapConfig = runs[0].bootstrap
    if len(values) == 1 and measure == "success":
        return share([bool(value) for value in values[0]], bootstrap.confidence)
    shortest = min(map(len, values))
    return bootstrap_mean(
        torch.tensor([row[:shortest] for row in values], dtype=torch.float64), bootstrap
    )
