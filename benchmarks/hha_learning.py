"""Which offline objective learns most from real HHA dialogues: several seeds, a held-out judge.

From A-LoL's scored test files (PRO's format), dialogues of at most 128 prompt and 64 response
tokens are split by prompt into test (never trained on), validation and training; longer ones train
a second reward model, differently built and seeded, that judges the test answers and nothing else.
Policies train on, and answer, those of at most 96 and 48 tokens.
Every run starts from the same NLL adapter and has the same budget of optimizer steps. Killed at any
moment, the same command goes on.

    python benchmarks/hha_learning.py --data DIR --work runs/hha_learning

Each stage is a ``llm-agents run`` of a recipe with overrides; the table and the picture go to
``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from keeping import RESULTS, keep
from seeds import run_recipe

from llm_agents.evaluation import (
    Interval,
    combine_seeds,
    read_results,
    read_reward_results,
)

FILES = ("harmless_base", "helpful_base", "helpful_online")
PROMPT_TOKENS, RESPONSE_TOKENS = 128, 64
POLICY_PROMPT_TOKENS, POLICY_RESPONSE_TOKENS = 96, 48
LONG_PROMPT_TOKENS, LONG_RESPONSE_TOKENS = 200, 96
TEST_PROMPTS, VALIDATION_PROMPTS, TEST_ANSWERS = 300, 64, 120
LEARNING_RATE = 3e-4
SOURCE = (
    "the scored test files of A-LoL's release (its data/hh_test, PRO's format), split by "
    "`python benchmarks/hha_learning.py --data DIR --split-only` in a clone of llm_agents"
)

LIMITS = {
    "data.max_prompt_tokens": POLICY_PROMPT_TOKENS,
    "data.max_response_tokens": POLICY_RESPONSE_TOKENS,
    "data.rules.too_long": "drop",
}
LONG_LIMITS = {
    "data.max_prompt_tokens": LONG_PROMPT_TOKENS,
    "data.max_response_tokens": LONG_RESPONSE_TOKENS,
}


@dataclass(frozen=True)
class Objective:
    """A row of the table.

    Args:
        name: In tables.
        recipe: Recipe that trains it.
        overrides: Settings laid over the recipe.
    """

    name: str
    recipe: str
    overrides: dict[str, object]


def a_lol(algorithm: str, **overrides: object) -> Objective:
    settings = {
        "model.algorithm": algorithm,
        **{f"model.{key}": value for key, value in overrides.items()},
    }
    return Objective(algorithm, "a_lol_hha", settings)


OBJECTIVES = (
    a_lol("nll", sampling="uniform"),
    a_lol("wbc"),
    a_lol("r_gold"),
    a_lol("r_lol"),
    a_lol("a_lol"),
    a_lol("a_lol_ref_free"),
    a_lol("a_lol_seq"),
    a_lol("a_lol_kl", kl_coef=0.2),
    Objective("dpo", "dpo_hha", {}),
    Objective("pro", "pro_hha", {}),
)


COMPARED = ("nll", "a_lol_seq")


def prompt_of(row: dict[str, list[list[str]]]) -> str:
    return "".join(row["prefix"][0])


def prepare(data: Path, work: Path) -> None:
    """Split the scored files by prompt, with a hash that decides the same everywhere."""
    folder = work / "split"
    if (folder / "done").exists():
        return
    from llm_agents.data.reading import read_examples
    from llm_agents.policies import LanguagePolicy

    folder.mkdir(parents=True, exist_ok=True)
    text = LanguagePolicy.from_pretrained("smollm2-135m-instruct", trainable=False).text
    short, longer = [], []
    for name in FILES:
        path = data / "hh_test" / f"{name}.json.gz"
        examples, _ = read_examples(str(path), role="train", roleless_paragraphs="drop")
        with gzip.open(path, "rt", encoding="utf8") as lines:
            rows = [json.loads(line) for line in lines]
        for row, example in zip(rows, examples, strict=True):
            if any(not r.strip() or r.strip().endswith(":") for r in row["suffix"]):
                continue
            prompt = len(text.encode_prompt(example.prompt))
            response = max(len(text.encode_response(r)) for r in row["suffix"])
            if prompt <= PROMPT_TOKENS and response <= RESPONSE_TOKENS:
                short.append(row)
            elif prompt <= LONG_PROMPT_TOKENS and response <= LONG_RESPONSE_TOKENS:
                longer.append(row)
    parts: dict[str, list[dict[str, list[list[str]]]]] = {
        "test": [],
        "validation": [],
        "policy": [],
        "judge": [],
    }
    owner: dict[str, str] = {}
    for row in sorted(short, key=lambda row: hashlib.sha256(prompt_of(row).encode()).digest()):
        free = "test" if len(parts["test"]) < TEST_PROMPTS else "policy"
        free = (
            "validation"
            if free == "policy" and len(parts["validation"]) < VALIDATION_PROMPTS
            else free
        )
        parts[owner.setdefault(prompt_of(row), free)].append(row)
    parts["judge"] = [row for row in longer if prompt_of(row) not in owner]
    for name, rows in parts.items():
        content = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(content, encoding="utf8")
        print(f"{name}: {len(rows)} pairs", flush=True)
    (folder / "done").touch()


def run(recipe: str, folder: Path, overrides: dict[str, object]) -> None:
    """Run a recipe with overrides on one thread; stop everything if it fails."""
    if not run_recipe(recipe, folder, overrides):
        raise SystemExit(f"stopped at {folder}")


def sources(split: Path, train: str) -> dict[str, object]:
    return {
        "data.train": str(split / f"{train}.jsonl"),
        "data.validation": str(split / "validation.jsonl"),
        "data.test": ["sample", str(split / "test.jsonl")],  # the first one everybody has
        "publish.data_source": SOURCE,
    }


def reward_models(work: Path, jobs: int) -> None:
    """Train the reward model that training sees and the judge that it never sees."""
    split = work / "split"
    shared = {
        **LONG_LIMITS,
        "data.batch_size": 32,
        "trainer.max_steps": 400,
        "trainer.val_check_interval": 40,
    }
    training = {**shared, **sources(split, "policy"), "seed_everything": 11}
    judge = {
        **shared,
        **sources(split, "judge"),
        "seed_everything": 12,
        "trainer.max_steps": 800,
        "model.width": 512,
        "model.name": "judge",
    }
    with ThreadPoolExecutor(jobs) as pool:
        list(
            pool.map(
                lambda job: run("reward_hha", *job),
                [(work / "reward", training), (work / "judge", judge)],
            )
        )


def objectives(
    work: Path, names: Sequence[str], seeds: Sequence[int], jobs: int, steps: int
) -> None:
    """Train the reference, then every objective with every seed."""
    split, reward = work / "split", {"model.reward.path": str(work / "reward" / "adapter")}
    judged = {
        "evaluation.reward.class_path": "llm_agents.rewards.PolicyReward.from_pretrained",
        "evaluation.reward.init_args.path": str(work / "judge" / "adapter"),
        "evaluation.num_prompts": TEST_ANSWERS,
        "data.rules.max_validation": 48,
    }
    generation = {"model.generation.max_new_tokens": POLICY_RESPONSE_TOKENS}
    shared = {**sources(split, "policy"), **LIMITS, **judged, **reward, **generation}
    run(
        "nll_hha",
        work / "nll",
        {
            **shared,
            "seed_everything": 20,
            "trainer.max_steps": 80,
            "trainer.val_check_interval": 80,
        },
    )
    start = {
        "model.policy.adapter": str(work / "nll" / "adapter"),
        "trainer.max_steps": steps,
        "trainer.val_check_interval": steps,
        "trainer.limit_val_batches": 1,  # the last weights count: nothing is selected
        "model.optimizer.lr": LEARNING_RATE,
        "model.options.budget": "whole",
    }
    pairs = [(objective, seed) for seed in seeds for objective in OBJECTIVES]
    pairs = [pair for pair in pairs if pair[0].name in names]
    pairs.sort(key=lambda pair: pair[0].name not in COMPARED)  # the comparison that counts first
    queue = [
        (
            objective.recipe,
            work / f"{objective.name}-{seed}",
            {**shared, **start, **objective.overrides, "seed_everything": seed},
        )
        for objective, seed in pairs
    ]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda job: run(*job), queue))


def interval(value: Interval) -> dict[str, float | None]:
    return {
        "mean": round(value.mean, 4),
        "low": value.low and round(value.low, 4),
        "high": value.high and round(value.high, 4),
    }


def judge_again(work: Path) -> None:
    """Let the judge score answers that an earlier judge has scored; nothing is generated."""
    from llm_agents.evaluation import rescore, write_results
    from llm_agents.rewards import PolicyReward

    judge = PolicyReward.from_pretrained(str(work / "judge" / "adapter"))
    for objective in OBJECTIVES:
        for folder in sorted(work.glob(f"{objective.name}-[0-9]")):
            if not (folder / "results.json").exists():
                continue
            results = read_results(folder)
            if results.reward.version != judge.version:
                write_results(folder, rescore(results, judge))
                print(f"{folder.name}: scored again", flush=True)


def summarize(work: Path, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Return the table's rows, each from the seeds that have finished."""
    rows: dict[str, object] = {}
    for objective in OBJECTIVES:
        done = [s for s in seeds if (work / f"{objective.name}-{s}" / "results.json").exists()]
        done = [s for s in done if (work / f"nll-{s}" / "results.json").exists()]
        if not done:
            continue
        found = [read_results(work / f"{objective.name}-{seed}") for seed in done]
        baseline = [read_results(work / f"nll-{seed}") for seed in done]
        tests = [next(t for t in entry.tests if t.name == "test") for entry in found]
        rows[objective.name] = {
            "seeds": done,
            "reward": interval(combine_seeds(found)["test"]),
            "minus_nll": interval(combine_seeds(found, minus=baseline)["test"]),
            "by_seed": [round(test.reward.mean, 4) for test in tests],
            "words": round(sum(test.words.mean for test in tests) / len(tests), 1),
            "distinct": [
                round(sum(test.distinct[n] or 0.0 for test in tests) / len(tests), 3)
                for n in (1, 2, 3)
            ],
        }
    models = {
        name: [asdict(test) for test in read_reward_results(work / name).tests]
        for name in ("reward", "judge")
        if (work / name / "results.json").exists()
    }
    return {
        "test_prompts": TEST_ANSWERS,
        "steps": steps,
        "learning_rate": LEARNING_RATE,
        "reward_models": models,
        "objectives": rows,
    }


def picture(summary: dict[str, object], path: Path) -> None:
    """Draw each objective's difference to continued NLL with its interval."""
    rows: dict[str, dict[str, dict[str, float]]] = summary["objectives"]  # type: ignore[assignment]
    names = [name for name in rows if name != "nll"]
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for place, name in enumerate(reversed(names)):
        value = rows[name]["minus_nll"]
        axis.plot([value["low"], value["high"]], [place, place], color="0.4", linewidth=2)
        axis.plot(value["mean"], place, "o", color="C0")
    axis.axvline(0.0, color="0.7", linewidth=1)
    labels = [f"{name} ({len(rows[name]['seeds'])} seeds)" for name in reversed(names)]
    axis.set_yticks(range(len(names)), labels)
    axis.set_xlabel("held-out reward minus continued NLL's, 95 % interval")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds hh_test/")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/hha_learning"), help="where the runs are kept"
    )
    known = [objective.name for objective in OBJECTIVES]
    parser.add_argument(
        "--objectives", nargs="+", choices=known, default=known, help="train these; all by default"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument(
        "--split-only", action="store_true", help="write the split that the entries name, and stop"
    )
    parser.add_argument(
        "--summarize", action="store_true", help="run nothing: the table of what has finished"
    )
    parser.add_argument(
        "--judge-again", action="store_true", help="score finished runs' answers by a new judge"
    )
    parser.add_argument("--steps", type=int, default=32, help="optimizer steps of each objective")
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    if options.split_only:
        prepare(options.data, options.work)
        return
    if options.judge_again:
        judge_again(options.work)
    elif not options.summarize:
        prepare(options.data, options.work)
        reward_models(options.work, options.jobs)
        objectives(options.work, options.objectives, seeds, options.jobs, options.steps)
    summary = summarize(options.work, seeds, options.steps)
    keep("hha_learning", ("torch", "transformers"), **summary)
    picture(summary, RESULTS / "hha_learning.png")
    print(json.dumps(summary["objectives"]))


if __name__ == "__main__":
    main()
