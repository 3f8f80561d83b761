"""How far GLAM and its comparison agents come in BabyAI-Text at equal steps: several seeds.

For each seed the bot plays, a language model is cloned from its episodes, and PPO grounds the model
as it is and the clone; DRRN and symbolic PPO see as many steps of the world. ``dart`` is a clone of
a bot that is led astray now and then, and shows how it comes back; ``dagger`` learns further, from
what the bot says of the steps that this clone takes, and ``dagger_ppo`` goes on from there. Every
stage is ``llm-agents run`` of a recipe on one thread. Killed at any moment, the same command goes
on; what is finished is not run again.

    python benchmarks/glam_learning.py --work runs/glam_learning
    python benchmarks/glam_learning.py --world babyai-go-to-red-ball --demonstrations 4000 \\
        --agents dart dagger dagger_ppo --after-cloning 1536 --episodes 50
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
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
from seeds import interval, log_of

KEPT = RESULTS / "glam_learning.json"
BASE = "smollm2-135m-instruct"
EASY = "babyai-go-to-red-ball-no-dists"
RECIPES = {
    "ppo": "glam_babyai_go_to_red_ball",
    "cloned": "cloning_babyai_go_to_local",
    "cloned_ppo": "glam_babyai_go_to_red_ball",
    "dart": "cloning_babyai_go_to_local",
    "dagger": "cloning_babyai_go_to_local",
    "dagger_ppo": "glam_babyai_go_to_red_ball",
    "drrn": "drrn_babyai_go_to_local",
    "symbolic": "symbolic_ppo_babyai_go_to_red_ball",
}
CLONES = ("cloned", "dart", "dagger")
STARTS = {"cloned_ppo": "cloned", "dagger": "dart", "dagger_ppo": "dagger"}
_LESSONS = {"dagger": "cloning_dagger_babyai_go_to_red_ball"}
_NOISE = 0.25  # how often DART's bot is led astray
# Without distractors fewer layers and larger batches do; a clone is refined in smaller steps.
_FEW_LAYERS: Mapping[str, object] = {"model.policy.lora.top_layers": 8}
_FROM_A_CLONE: Mapping[str, object] = {
    "data.num_worlds": 4,
    "data.num_steps": 64,  # whole episodes
    "data.bootstrap_at_limit": False,  # to stand before an obstacle to the end is worth nothing
    "model.ppo.num_minibatches": 4,
    "model.ppo.gae_lambda": 0.99,
    "model.ppo.lr": 5e-4,
    "model.ppo.critic_init": "zero",
}
SETTINGS: Mapping[tuple[str, str], Mapping[str, object]] = {
    (EASY, "ppo"): _FEW_LAYERS,
    (EASY, "cloned"): {**_FEW_LAYERS, "data.batch_size": 16},
    (EASY, "cloned_ppo"): _FEW_LAYERS,
    ("babyai-go-to-red-ball", "cloned_ppo"): _FROM_A_CLONE,
    ("babyai-go-to-red-ball", "dagger_ppo"): _FROM_A_CLONE,
}


@dataclass(frozen=True)
class Run(AgentRun):
    """One agent with one seed.

    Args:
        agent: What learns.
        world: Where.
        frames: Steps of the world that it sees, if it learns from rewards.
        lessons: Steps of the bot, or of its advice, that a clone learns from.
        steps_read: The same with those of what it starts from.
    """

    agent: str
    world: str
    frames: int
    lessons: int
    steps_read: int

    def sibling(self, agent: str) -> Path:
        """Return the folder of another agent's run of the same seed."""
        return self.folder.with_name(f"{agent}-{self.seed}")

    def train(self, overrides: Sequence[str]) -> None:
        """Run it with what it needs, or go on with it, unless it has finished."""
        changes: dict[str, object] = {"data.world": self.world}
        changes |= SETTINGS.get((self.world, self.agent), {})
        changes["evaluation.baselines"] = []  # they play once, whatever the seed
        if self.agent in CLONES:
            changes["data.train"] = str(self.ask_the_bot())
        else:
            changes["data.total_frames"] = self.frames
        if self.agent in STARTS:
            changes["model.policy.adapter"] = str(self.start)
        self.execute(RECIPES[self.agent], changes, overrides)

    @property
    def start(self) -> Path:
        """Return the adapter that it starts from."""
        return self.sibling(STARTS[self.agent]) / "adapter"

    def ask_the_bot(self) -> Path:
        """Return what a clone learns from, collected if it is not there."""
        collection = AgentRun(self.sibling(f"{self.agent}_bot"), self.seed)
        steps = collection.folder.with_suffix(".jsonl")
        plan: dict[str, object] = {
            "job.plan.world": self.world,
            "job.plan.num_steps": self.lessons,
            "job.plan.output": str(steps),
        }
        if self.agent == "dart":
            plan["job.noise"] = _NOISE
        if self.agent == "dagger":
            plan["job.policy.adapter"] = str(self.start)
        recipe = _LESSONS.get(self.agent, "cloning_collect_babyai_go_to_local")
        if not collection.execute(recipe, plan, ()):
            raise SystemExit(f"stopped at the bot's steps of seed {self.seed}")
        return steps

    def played(self) -> Mapping[str, float]:
        """Return success and steps an episode."""
        found = self.worlds()[f"trained@{self.world}"]
        return {"success": found["success"]["mean"], "steps": found["primitive_steps"]["mean"]}


def summarize(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the numbers of one agent over its seeds."""
    found = [run.played() for run in runs]
    by_seed = [played["success"] for played in found]
    kept = [spent for run in runs if (spent := run.minutes()) is not None]
    minutes = statistics.median(kept) if kept else None
    return {
        "seeds": [run.seed for run in runs],
        "success": {**interval(by_seed), "by_seed": by_seed},
        "steps": round(statistics.fmean(played["steps"] for played in found), 1),
        "minutes": minutes if minutes is None else round(minutes, 1 if minutes >= 1 else 2),
        "commit": runs[0].commit(),
    }


def play_untrained(folder: Path, world: str, episodes: int) -> None:
    """Let the base and chance play, unless they have: their success is that of every seed."""
    if (folder / "results.json").exists():
        return
    command = [sys.executable, "-m", "llm_agents", "evaluate", BASE, "--env", world]
    command += ["--episodes", str(episodes), "--out", str(folder)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with log_of(folder).open("a", encoding="utf8") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, stdout=log, stderr=log, env=environment, check=True)


def untrained(folder: Path, world: str) -> dict[str, dict[str, float]]:
    """Return the success of the base and of chance."""
    if not (folder / "results.json").exists():
        return {}
    found: dict[str, dict[str, float]] = {}
    for name, entry in AgentRun(folder, seed=0).worlds().items():
        known = {key: round(entry["success"][key], 4) for key in ("mean", "low", "high")}
        steps = round(entry["primitive_steps"]["mean"], 1)
        found[name.removesuffix(f"@{world}")] = {
            **known,
            "n": entry["success"]["n"],
            "steps": steps,
        }
    return found


def picture(
    world: str,
    groups: Mapping[str, Sequence[Run]],
    known: Mapping[str, Mapping[str, Any]],
    path: Path,
) -> None:
    """Draw the success of language models that learn from rewards, and levels to compare it with.

    Levels are of all that is known of the world, whenever it was run.

    Those that play many worlds at once have levels: of their episodes the successful end first, and
    few others end within such a budget.
    """
    learners = {name: runs for name, runs in groups.items() if name.endswith("ppo")}
    if not learners:
        return
    figure, axis = plt.subplots(figsize=(7.6, 3.8), layout="constrained")
    draw_curves(axis, learners, "success_rate")
    levels = {
        name: entry.get("success", entry)["mean"]
        for name, entry in known.items()
        if name not in learners
    }
    for number, name in enumerate(sorted(levels, key=levels.__getitem__)):
        style = (0, (1 + 2 * number, 2))  # the higher, the longer its dashes
        axis.axhline(levels[name], color="0.3", linewidth=1, linestyle=style, label=name)
    axis.set_ylabel("success of finished episodes")
    axis.set_title(world)
    figure.legend(fontsize=8, loc="outside right", title="seeds in brackets", title_fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def write_results(world: str, queue: Sequence[Run], base: Path) -> None:
    """Put what has finished beside what is known of other worlds and agents."""
    known = json.loads(KEPT.read_text(encoding="utf8")) if KEPT.exists() else {}
    worlds: dict[str, dict[str, Any]] = known.get("worlds", {})
    groups: dict[str, list[Run]] = {}
    for run in queue:
        if run.is_finished:
            groups.setdefault(run.agent, []).append(run)
    for agent, runs in groups.items():
        seen: dict[str, float] = {}
        if runs[0].steps_read:
            seen["steps_of_the_bot"] = runs[0].steps_read
        if runs[0].frames:
            seen["frames"] = runs[0].frames
        worlds.setdefault(world, {})[agent] = {**seen, **summarize(runs)}
    worlds.setdefault(world, {}).update(untrained(base, world))
    picture(world, groups, worlds[world], RESULTS / f"glam_learning_{world}.png")
    keep("glam_learning", ("torch", "transformers"), worlds=worlds)
    print(json.dumps(worlds))


def _frames(agent: str, whole: int, after_cloning: int) -> int:
    """Return the steps of the world that an agent learns in."""
    if agent in CLONES:
        return 0
    return after_cloning if agent in STARTS else whole


def _steps_read(agent: str, lessons: Mapping[str, int]) -> int:
    """Return the steps of the bot that an agent and what it starts from learn from."""
    start = STARTS.get(agent)
    return lessons.get(agent, 0) + (_steps_read(start, lessons) if start else 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/glam_learning"))
    parser.add_argument("--world", default=EASY)
    parser.add_argument("--agents", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=4096)
    parser.add_argument("--after-cloning", type=int, default=1024, help="frames that a clone sees")
    parser.add_argument("--demonstrations", type=int, default=3000, help="steps of the bot")
    parser.add_argument("--corrections", type=int, default=2500, help="steps of its advice")
    parser.add_argument("--episodes", type=int, default=100, help="of the base and of chance")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, one thread each")
    parser.add_argument(
        "--summarize", action="store_true", help="run nothing: the tables of what has finished"
    )
    parser.add_argument("overrides", nargs="*", help="settings for every run, after --")
    options = parser.parse_args()
    work = options.work / options.world
    seeds = range(1, options.seeds + 1)
    lessons = {
        "cloned": options.demonstrations,
        "dart": options.demonstrations,
        "dagger": options.corrections,
    }
    queue = [
        Run(
            work / f"{agent}-{seed}",
            seed,
            agent=agent,
            world=options.world,
            frames=_frames(agent, options.frames, options.after_cloning),
            lessons=lessons.get(agent, 0),
            steps_read=_steps_read(agent, lessons),
        )
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
        play_untrained(work / "untrained", options.world, options.episodes)
    write_results(options.world, queue, work / "untrained")


if __name__ == "__main__":
    main()
