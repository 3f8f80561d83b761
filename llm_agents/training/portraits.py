"""The pictures of an online run: its learning curve, and one episode of the trained agent."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill, shorten

import torch

from llm_agents.envs.babyai_probes import PROBES
from llm_agents.evaluation import (
    CreditPicture,
    DecisionPicture,
    EpisodeResults,
    plot_credit,
    plot_curves,
    plot_decisions,
    read_curve,
)
from llm_agents.evaluation.episodes import TRAINED, ZERO_SHOT
from llm_agents.evaluation.suite_pictures import plot_probes, read_probes
from llm_agents.methods import LoadedAgent
from llm_agents.methods.online_ppo import OnlinePPO
from llm_agents.rollouts import PromptedWorld
from llm_agents.rollouts.seeds import Purpose, derived_seed, world_seeds
from llm_agents.training.metrics import read_rows
from llm_agents.training.playing import TrainingWorlds, has_frozen_base
from llm_agents.training.probes import PROBES_FILE
from llm_agents.training.recording import Watched, record_episode
from llm_agents.types import Choice

log = logging.getLogger(__name__)

PROBES_PICTURE = "probes.png"
CURVE, ACTIONS, CREDIT = "learning_curve.png", "action_probabilities.png", "token_credit.png"
_LONGEST = 64  # decisions of the episode that is drawn
_TITLE, _LINE = 320, 92  # characters of a prompt above its actions, and of a line
_WINDOW_SHARE = 0.05  # of a run, over which its curve is averaged


def watch(agent: OnlinePPO, home: TrainingWorlds, seed: int) -> Watched:
    """Play an episode of the first training world."""
    (number,) = world_seeds(seed, 1, purpose=Purpose.EVALUATION)
    world = PromptedWorld(home.make(home.names[0]), home.prompt, number=0, seed=number)
    draws = torch.Generator().manual_seed(derived_seed(seed, Purpose.DRAWS))
    return record_episode(agent, world, draws, _LONGEST)


@torch.no_grad()
def decision_pictures(agent: OnlinePPO, watched: Watched) -> list[DecisionPicture]:
    """Return the probabilities of all actions in each situation, trained and zero-shot."""
    steps: dict[Choice, int] = {}
    for step, choice in enumerate(watched.choices):
        steps.setdefault(choice, step)
    choices = list(steps)
    trained = action_probabilities(agent, choices)
    with agent.policy.without_adapters():
        before = action_probabilities(agent, choices)
    found = []
    for row, (choice, step) in enumerate(steps.items()):
        count = len(choice.actions)
        probabilities = {
            TRAINED: tuple(trained[row, :count].tolist()),
            ZERO_SHOT: tuple(before[row, :count].tolist()),
        }
        title = fill(f"step {step + 1}: {shorten(choice.prompt, _TITLE)}", _LINE)
        chosen = int(watched.index[step])
        found.append(DecisionPicture(title, choice.actions, probabilities, chosen))
    return found


@torch.no_grad()
def action_probabilities(agent: OnlinePPO, choices: Sequence[Choice]) -> torch.Tensor:
    """Return ``[B, A]``: what the agent draws its actions from."""
    scores = agent.policy.score_actions(choices, agent.normalization)
    return agent.units(choices, scores).action_log_probs.exp().cpu()


@torch.no_grad()
def credit_pictures(agent: OnlinePPO, watched: Watched) -> list[CreditPicture]:
    """Return the advantage of each part of the actions taken: the whole in PPO on actions."""
    choices, index = watched.choices, watched.index
    advantages = agent.assign(watched.rollout).advantages[:, 0].cpu()
    mask = watched.rollout.mask[:, 0].cpu()
    scores = agent.policy.score_actions(choices, agent.normalization)
    found = []
    for step, taken in enumerate(index.tolist()):
        listed = [
            ids[real].tolist()
            for ids, real in zip(scores.token_ids[step], scores.token_mask[step], strict=True)
        ]
        values = tuple(advantages[step][mask[step]].tolist())
        texts = tuple(map(agent.policy.decode, _unit_ids(listed, taken, len(values))))
        found.append(CreditPicture(f"step {step + 1}", texts, values))
    return found


def _unit_ids(listed: list[list[int]], taken: int, num_units: int) -> list[list[int]]:
    """Return the tokens of each unit.

    Args:
        listed: Tokens of all offered actions.
        taken: Position of the action among them.
        num_units: 1, as many as its tokens, or as many as there are places where actions part.
    """
    ids = listed[taken]
    if num_units == 1:
        return [ids]
    starts = [0]
    for place in range(1, len(ids)):
        alike = {
            tuple(other[place : place + 1]) for other in listed if other[:place] == ids[:place]
        }
        if len(alike) > 1:
            starts.append(place)
    if num_units == len(ids):
        starts = list(range(len(ids)))
    return [ids[a:b] for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)]


def levels(results: EpisodeResults, world: str) -> dict[str, float]:
    """Return the returns that a learning curve is compared with."""
    found = {
        entry.agent: entry.discounted_return.mean
        for entry in results.worlds
        if entry.world == world and entry.agent != TRAINED
    }
    optimum = results.overall.optimal_return
    return found if optimum is None else {"optimum": optimum, **found}


def draw_curves(
    metrics: Mapping[str, Sequence[Path]],
    path: Path,
    *,
    lines: Mapping[str, float],
    title: str,
) -> Path | None:
    """Draw the mean return of finished episodes over a run, or over several that differ by seed.

    Args:
        metrics: ``metrics.csv`` of each run, by what the runs have in common.
        path: Picture to write.
        lines: Levels to compare with.
        title: Above it.

    Returns:
        `path`; None if no episode ended in any run.
    """
    groups = {
        name: [read_curve(read_rows(file)) for file in files] for name, files in metrics.items()
    }
    steps = [curve.steps[-1] for curves in groups.values() for curve in curves if curve.steps]
    if not steps:
        log.info("no learning curve: no episode ended in training")
        return None
    window = max(1.0, _WINDOW_SHARE * max(steps))
    return plot_curves(groups, path, lines=lines, title=title, window=window)


def draw_probes(files: Sequence[Path], path: Path, *, title: str) -> Path:
    """Draw how policies developed in fixed situations, the mean over runs.

    Args:
        files: ``probes.csv`` of each run.
        path: Picture to write.
        title: Above it.

    Raises:
        UserError: A file has no rows, or the runs have other situations.
    """
    runs = []
    for each in files:
        with each.open(encoding="utf8", newline="") as lines:
            names, *rows = csv.reader(lines)
        runs.append(read_probes(names, rows))
    return plot_probes(runs, [probe.mission for probe in PROBES], path, title=title)


def draw_run(
    agent: LoadedAgent, home: TrainingWorlds, results: EpisodeResults, folder: Path
) -> list[Path]:
    """Draw everything that there is to be seen of a run into its folder."""
    name = home.names[0]
    drawn = []
    metrics = folder / "metrics.csv"
    if metrics.is_file():
        lines = levels(results, name)
        curve = draw_curves({results.name: [metrics]}, folder / CURVE, lines=lines, title=name)
        drawn += [] if curve is None else [curve]
    probes = folder / PROBES_FILE
    if probes.is_file():
        drawn.append(draw_probes([probes], folder / PROBES_PICTURE, title=results.name))
    if has_frozen_base(agent) and isinstance(agent, OnlinePPO):  # what it is compared with
        watched = watch(agent, home, results.seed)
        drawn.append(plot_decisions(decision_pictures(agent, watched), folder / ACTIONS))
        drawn.append(plot_credit(credit_pictures(agent, watched), folder / CREDIT))
    return drawn
