"""Steps per second of the text worlds, played at random with their prompts built, in one process.

Each number is CPU time of this process, so that other load on the machine does not count: the
median of several stretches, worlds taking turns. A step is one decision of the agent: an action of
VirtualHome, a whole macro of Overcooked. What an agent is shown is part of it: observation text,
action texts, and the prompt. The last line is a JSON object.

    python benchmarks/text_env.py --quick
    python benchmarks/text_env.py           # keeps its results

There is no peer among the packages on the index for Overcooked and VirtualHome. BabyAI-Text stands
beside minigrid's own BabyAI, which gives an image and no text: the same level and actions, episodes
generated anew in both, and on our side the sentences, the symbolic view and GLAM's prompt with its
history as well.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import minigrid  # noqa: F401  (registers its levels)
from keeping import keep

from llm_agents.envs import BabyAIPrompt, PromptBuilder, TextEnv, make_world

ROOT = Path(__file__).resolve().parents[1]
WORLDS = {
    "overcooked_steps_per_s": ("overcooked-tomato-salad", "overcooked-tomato-lettuce-salad"),
    "virtualhome_steps_per_s": ("virtualhome-food-preparation", "virtualhome-entertainment"),
}
BABYAI = ("babyai-go-to-local", "BabyAI-GoToLocal-v0")


def play(
    world: TextEnv,
    generator: random.Random,
    num_steps: int,
    builder: PromptBuilder | None = None,
) -> float:
    """Return the steps per second of CPU time over `num_steps` random steps."""
    builder = builder or PromptBuilder()
    observation, past = world.reset(), ()
    begin = time.process_time()
    for _ in range(num_steps):
        choice = builder.choice(observation, past)
        index = generator.randrange(len(choice.actions))
        past = builder.remember(past, observation, index)
        step = world.step(index)
        observation = step.observation
        if step.episode is not None:
            observation, past = world.reset(), ()
    return num_steps / (time.process_time() - begin)


def play_minigrid(engine: gymnasium.Env, generator: random.Random, num_steps: int) -> float:
    """Return the steps per second of CPU time of minigrid's own environment."""
    engine.reset()
    begin = time.process_time()
    for _ in range(num_steps):
        _, _, terminated, truncated, _ = engine.step(generator.randrange(6))
        if terminated or truncated:
            engine.reset()
    return num_steps / (time.process_time() - begin)


def measure_babyai(num_steps: int, repeats: int) -> dict[str, float]:
    """Return the median rates of BabyAI-Text and of minigrid, and of their quotient."""
    world = make_world(BABYAI[0])
    engine = gymnasium.make(BABYAI[1], disable_env_checker=True).unwrapped
    world.reset(0)
    engine.reset(seed=0)
    generator, builder = random.Random(0), BabyAIPrompt()
    ours, theirs = [], []
    for _ in range(repeats + 1):
        ours.append(play(world, generator, num_steps, builder))
        with contextlib.redirect_stdout(io.StringIO()):  # it tells of every rejected draw
            theirs.append(play_minigrid(engine, generator, num_steps))
    quotients = [a / b for a, b in zip(ours, theirs, strict=True)]
    names = ("ours", "minigrid", "quotient")
    return {
        name: statistics.median(values[1:])
        for name, values in zip(names, (ours, theirs, quotients), strict=True)
    }


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
    babyai = measure_babyai(num_steps // 5, repeats)
    print(f"{BABYAI[0]:34} {'':>14} {babyai['ours']:12,.0f}")
    print(f"{BABYAI[1] + ' of minigrid':34} {'':>14} {babyai['minigrid']:12,.0f}")
    keys["babyai_text_vs_minigrid"] = round(babyai["quotient"], 2)
    if not quick:
        write_results(keys, measured, babyai)
    print(json.dumps(keys))


def write_results(
    keys: dict[str, float],
    measured: dict[str, dict[str, float]],
    babyai: dict[str, float],
) -> None:
    """Keep a full run's numbers."""
    rates = {
        name: {part: round(rate) for part, rate in rates.items()}
        for name, rates in measured.items()
    }
    rates[BABYAI[0]] = {"median": round(babyai["ours"])}
    peer = {"level": BABYAI[1], "steps_per_second": round(babyai["minigrid"])}
    packages = ("minigrid", "gymnasium", "numpy")
    keep("text_env", packages, steps_per_second=rates, peer=peer, keys=keys)


if __name__ == "__main__":
    main()
