"""How far GLAM and its comparison agents come in BabyAI-Text at equal steps: several seeds.

For each seed the bot plays, a language model is cloned from its episodes, and PPO grounds the model
as it is and the clone; DRRN and symbolic PPO see as many steps of the world. Every stage is
``llm-agents run`` of a recipe on one thread. Killed at any moment, the same command goes on; what
is finished is not run again.

    python benchmarks/glam_learning.py --work runs/glam_learning
    python benchmarks/glam_learning.py --world babyai-go-to-red-ball --agents cloned --seeds 1
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from agent_runs import AgentRun, draw_curves
from keeping import RESULTS, keep
from seeds import interval

KEPT = RESULTS / "glam_learning.json"
EASY = "babyai-go-to-red-ball-no-dists"
RECIPES = {
    "ppo": "glam_babyai_go_to_red_ball",
    "cloned": "cloning_babyai_go_to_local",
    "cloned_ppo": "glam_babyai_go_to_red_ball",
    "drrn": "drrn_babyai_go_to_local",
    "symbolic": "symbolic_ppo_babyai_go_to_red_ball",
}


@dataclass(frozen=True)
class Run(AgentRun):
    """One agent with one seed.

    Args:
        agent: What learns.
        world: Where.
        frames: Steps of the world that those see who learn from rewards.
        demonstrations: Steps of the bot that a clone reads.
    """

    agent: str
    world: str
    frames: int
    demonstrations: int

    def sibling(self, agent: str) -> Path:
        """Return the folder of another agent's run of the same seed."""
        return self.folder.with_name(f"{agent}-{self.seed}")

    def train(self, overrides: Sequence[str]) -> None:
        """Run it with what it needs, or go on with it, unless it has finished."""
        changes: dict[str, object] = {"data.world": self.world}
        if self.agent == "cloned":
            changes["data.train"] = str(self.watch_the_bot())
        else:
            changes["data.total_frames"] = self.frames
        if self.agent == "cloned_ppo":
            changes["model.policy.adapter"] = str(self.sibling("cloned") / "adapter")
        self.execute(RECIPES[self.agent], changes, overrides)

    def watch_the_bot(self) -> Path:
        """Return the bot's episodes, recorded if they are not there."""
        watched = AgentRun(self.sibling("bot"), self.seed)
        episodes = watched.folder.with_suffix(".jsonl")
        plan: Mapping[str, object] = {
            "job.plan.world": self.world,
            "job.plan.num_steps": self.demonstrations,
            "job.plan.output": str(episodes),
        }
        if not watched.execute("cloning_collect_babyai_go_to_local", plan, ()):
            raise SystemExit(f"stopped at the bot's episodes of seed {self.seed}")
        return episodes

    def success(self, player: str = "trained") -> float | None:
        """Return the success of the trained agent, of its base, or of chance."""
        found = self.worlds().get(f"{player}@{self.world}")
        return None if found is None else float(found["success"]["mean"])


def summarize(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the numbers of one agent over its seeds, beside those of its base and of chance."""
    summary: dict[str, Any] = {"seeds": [run.seed for run in runs]}
    for player in ("trained", "zero-shot", "random"):
        found = [value for run in runs if (value := run.success(player)) is not None]
        if found:
            summary[player] = {**interval(found), "by_seed": found}
    if "zero-shot" in summary:
        gains = [
            trained - base
            for trained, base in zip(
                summary["trained"]["by_seed"], summary["zero-shot"]["by_seed"], strict=True
            )
        ]
        summary["gain"] = interval(gains)
    kept = [minutes for run in runs if (minutes := run.minutes()) is not None]
    summary["minutes"] = round(statistics.median(kept), 1) if kept else None
    return summary


def picture(world: str, groups: Mapping[str, Sequence[Run]], path: Path) -> None:
    """Draw the success of those that learn from rewards."""
    learners = {name: runs for name, runs in groups.items() if name != "cloned"}
    if not learners:
        return
    figure, axis = plt.subplots(figsize=(7.6, 3.8), layout="constrained")
    draw_curves(axis, learners, "success_rate")
    for name, runs in groups.items():
        if name == "cloned":
            mean = statistics.fmean(run.success() or 0.0 for run in runs)
            axis.axhline(mean, color="0.3", linewidth=1, linestyle="--", label="cloned")
    axis.set_ylabel("success of finished episodes")
    axis.set_title(world)
    figure.legend(fontsize=8, loc="outside right", title="seeds in brackets", title_fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def write_results(world: str, queue: Sequence[Run]) -> None:
    """Put what has finished beside what is known of other worlds and agents."""
    known = json.loads(KEPT.read_text(encoding="utf8")) if KEPT.exists() else {}
    worlds: dict[str, dict[str, Any]] = known.get("worlds", {})
    groups: dict[str, list[Run]] = {}
    for run in queue:
        if run.is_finished:
            groups.setdefault(run.agent, []).append(run)
    for agent, runs in groups.items():
        found = {"frames": runs[0].frames, **summarize(runs)}
        if agent == "cloned":
            found["frames"] = runs[0].demonstrations
        worlds.setdefault(world, {})[agent] = found
    picture(world, groups, RESULTS / f"glam_learning_{world}.png")
    keep("glam_learning", ("torch", "transformers"), worlds=worlds)
    print(json.dumps(worlds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/glam_learning"))
    parser.add_argument("--world", default=EASY)
    parser.add_argument("--agents", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=8192)
    parser.add_argument("--demonstrations", type=int, default=6000, help="steps of the bot")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, one thread each")
    parser.add_argument(
        "--summarize", action="store_true", help="run nothing: the tables of what has finished"
    )
    parser.add_argument("overrides", nargs="*", help="settings for every run, after --")
    options = parser.parse_args()
    work = options.work / options.world
    seeds = range(1, options.seeds + 1)
    given = (options.world, options.frames, options.demonstrations)
    queue = [
        Run(work / f"{agent}-{seed}", seed, agent, *given)
        for agent in RECIPES
        if agent in options.agents
        for seed in seeds
    ]
    if not options.summarize:

        def train(seed: int) -> None:  # a clone comes before what starts from it
            for run in queue:
                if run.seed == seed:
                    run.train(options.overrides)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(train, seeds))
    write_results(options.world, queue)


if __name__ == "__main__":
    main()
