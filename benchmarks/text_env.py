"""Steps per second of the text worlds, played at random with their prompts built, in one process.

Each number is CPU time of this process, so that other load on the machine does not count: the
median of several stretches, worlds taking turns. A step is one decision of the agent: an action of
VirtualHome, a whole macro of Overcooked. What an agent is shown is part of it: observation text,
action texts, and the prompt. The last line is a JSON object.

    python benchmarks/text_env.py --quick
    python benchmarks/text_env.py           # keeps its results

There is no peer among the packages on the index for these two worlds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from keeping import keep

from llm_agents.envs import PromptBuilder, TextEnv, make_world

ROOT = Path(__file__).resolve().parents[1]
WORLDS = {
    "overcooked_steps_per_s": ("overcooked-tomato-salad", "overcooked-tomato-lettuce-salad"),
    "virtualhome_steps_per_s": ("virtualhome-food-preparation", "virtualhome-entertainment"),
}


def play(world: TextEnv, generator: random.Random, num_steps: int) -> float:
    """Return the steps per second of CPU time over `num_steps` random steps."""
    builder = PromptBuilder()
    observation = world.reset()
    begin = time.process_time()
    for _ in range(num_steps):
        choice = builder.choice(observation)
        step = world.step(generator.randrange(len(choice.actions)))
        observation = step.observation if step.episode is None else world.reset()
    return num_steps / (time.process_time() - begin)


def measure(num_steps: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return each world's first stretch, with nothing known of it, and the median of the others."""
    names = [name for group in WORLDS.values() for name in group]
    worlds = {name: make_world(name) for name in names}
    generator = random.Random(0)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats + 1):
        for name, world in worlds.items():
            rates[name].append(play(world, generator, num_steps))
    return {
        name: {"first": values[0], "median": statistics.median(values[1:])}
        for name, values in rates.items()
    }


def main() -> None:
    """Measure, print a table and the JSON line; keep the results of a full run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter, and nothing is kept")
    quick = parser.parse_args().quick
    num_steps, repeats = (5_000, 3) if quick else (50_000, 7)
    measured = measure(num_steps, repeats)
    print(f"{'world':34} {'first ' + str(num_steps):>14} {'median':>12}  steps/s of CPU time")
    for name, rate in measured.items():
        print(f"{name:34} {rate['first']:14,.0f} {rate['median']:12,.0f}")
    keys: dict[str, float] = {
        key: round(min(measured[name]["median"] for name in group)) for key, group in WORLDS.items()
    }
    if not quick:
        write_results(keys, measured)
    print(json.dumps(keys))


def write_results(keys: dict[str, float], measured: dict[str, dict[str, float]]) -> None:
    """Keep a full run's numbers."""
    rates = {
        name: {part: round(rate) for part, rate in rates.items()}
        for name, rates in measured.items()
    }
    keep("text_env", (), steps_per_second=rates, keys=keys)


if __name__ == "__main__":
    main()
