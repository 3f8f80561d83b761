"""What NetHack agents become when messages, the score, or both pay them: several seeds.

From pairs that are collected here, or given, three goals are annotated and distilled into rewards;
agents are then paid by the default goal's messages, by the score, by both, and by the messages of
the goals gold and combat. Every stage is ``llm-agents run`` of a recipe on one thread. Killed at
any moment, the same command goes on; what is finished is not run again.

    python benchmarks/motif_learning.py --work runs/motif_learning
    python benchmarks/motif_learning.py --work runs/motif_learning --pairs motif_dataset --seeds 3
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keeping import keep
from seeds import interval, run_recipe

GOALS = ("defaultgoal", "gold", "combat")
MEASURES = (
    *("score", "intrinsic_return", "max_depth", "experience_level", "num_messages"),
    *("gold", "explored", "turns"),
)
GAMES = 96
WITH_RANDOM = "intrinsic"
"""The agent whose runs have a random player play the same games."""
MESSAGES_ALONE = {"model.ppo.extrinsic_coef": 0}
AGENTS: dict[str, tuple[str, dict[str, object]]] = {
    "intrinsic": ("defaultgoal", MESSAGES_ALONE),
    "extrinsic": ("defaultgoal", {"model.ppo.intrinsic_coef": 0}),
    "both": ("defaultgoal", {}),
    "gold": ("gold", MESSAGES_ALONE),
    "combat": ("combat", MESSAGES_ALONE),
}


def annotator_of(goal: str) -> str:
    return f"llm_msg_{goal}_both"


def make_rewards(work: Path, pairs: Path, goals: Sequence[str], jobs: int) -> None:
    """Annotate the pairs for each goal, and train its reward."""

    def make(goal: str) -> None:
        asked = {
            "job.directory": str(pairs),
            "job.name": annotator_of(goal),
            "job.annotator.goal": goal,
        }
        learned = {"data.folder": str(pairs), "data.annotator": annotator_of(goal)}
        if not run_recipe("motif_annotate_nethack", work / f"annotate-{goal}", asked):
            raise SystemExit(f"stopped at the annotation of {goal}")
        if not run_recipe("motif_reward_nethack", work / f"reward-{goal}", learned):
            raise SystemExit(f"stopped at the reward of {goal}")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(make, goals))


def make_agent(work: Path, agent: str, seed: int, extra: Sequence[str]) -> None:
    """Train an agent with a seed."""
    goal, changes = AGENTS[agent]
    overrides = {
        "data.reward.path": str(work / f"reward-{goal}" / "adapter"),
        "seed_everything": seed,
        "evaluation.seed": seed,
        "evaluation.episodes": GAMES,
        "evaluation.baselines": ["random"] if agent == WITH_RANDOM else [],
        **changes,
    }
    run_recipe("motif_nethack", work / f"{agent}-{seed}", overrides, extra)


def games(work: Path, agent: str, seed: int, player: str) -> Mapping[str, float] | None:
    """Return the means of a run's evaluation; None where it hasn't finished."""
    path = work / f"{agent}-{seed}" / "results.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf8"))["results"]
    entry = next(entry for entry in found if entry["agent"] == player)
    return {name: entry["means"][name]["mean"] for name in MEASURES if name in entry["means"]}


def summarize(work: Path, agents: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Return means over seeds with intervals, and differences of each seed's agents."""
    table: dict[str, dict[int, Mapping[str, float]]] = {}
    for agent in agents:
        found = {seed: games(work, agent, seed, "trained") for seed in seeds}
        table[agent] = {seed: means for seed, means in found.items() if means is not None}
    random = {seed: games(work, WITH_RANDOM, seed, "random") for seed in seeds}
    table["random"] = {seed: means for seed, means in random.items() if means is not None}

    def minus(one: str, other: str) -> dict[str, Any]:
        both = sorted(table[one].keys() & table[other].keys())
        names = [m for m in MEASURES if all(m in table[a][s] for a in (one, other) for s in both)]
        return {m: interval([table[one][s][m] - table[other][s][m] for s in both]) for m in names}

    pairs = [("intrinsic", "random"), ("both", "extrinsic"), ("gold", "combat"), ("both", "random")]
    return {
        "agents": {
            agent: {
                "seeds": sorted(rows),
                **{
                    measure: interval([row[measure] for row in rows.values()])
                    for measure in MEASURES
                    if rows and all(measure in row for row in rows.values())
                },
            }
            for agent, rows in table.items()
        },
        "differences": {
            f"{one} - {other}": minus(one, other)
            for one, other in pairs
            if table.get(one) and table.get(other)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/motif_learning"))
    parser.add_argument("--pairs", type=Path, help="a Motif data set; one is collected without it")
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--summarize", action="store_true", help="run nothing: the table alone")
    parser.add_argument("extra", nargs="*", help="settings for every agent, after --")
    options = parser.parse_args()
    if not options.summarize:
        run_all(options)
    found = summarize(options.work, options.agents, range(1, options.seeds + 1))
    keep("motif_learning", ("torch", "nle"), settings=options.extra, **found)
    print(json.dumps(found, indent=1))


def run_all(options: argparse.Namespace) -> None:
    """Run every stage that has not finished."""
    pairs = options.pairs or options.work / "pairs"
    if options.pairs is None:
        run_recipe("motif_collect_nethack", options.work / "collect", {"job.output": str(pairs)})
    goals = [goal for goal in GOALS if any(AGENTS[a][0] == goal for a in options.agents)]
    make_rewards(options.work, pairs, goals, options.jobs)
    seeds = range(1, options.seeds + 1)
    with ThreadPoolExecutor(options.jobs) as pool:
        queue = [(agent, seed) for seed in seeds for agent in options.agents]
        list(pool.map(lambda job: make_agent(options.work, *job, options.extra), queue))


if __name__ == "__main__":
    main()
