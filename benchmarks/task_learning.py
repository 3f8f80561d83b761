"""What A-LoL learns on its other tasks, and what online PPO learns at the same cost in tokens.

- ``wow``: 800 responses with people's labels of faithfulness as reward (FaithDial's audit of WoW);
  the judge is another model, which knows people's labels of other responses to the test prompts
  and of two other corpora, none of the policies' rows.
- ``comet``: real tails of ATOMIC 2020 and a critic that tells them from tails of other events; the
  judge is a second critic, trained on other events with another seed.
- ``hha``: PPO beside offline methods, from one NLL adapter: as many tokens read for learning and
  generated as theirs, and four times as many. Splits and reward models are `hha_learning`'s.

Every run of a task starts from one NLL adapter and has the same budget. Killed at any moment, the
same command goes on; each run has one thread and takes a few CPU minutes.

    python benchmarks/task_learning.py --data DIR --work runs/task_learning

`--data` holds ``wow``, ``comet`` and ``hha``. The tables go to ``benchmarks/results/``, as JSON and
as `lightning aggregate` writes them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hha_learning
from keeping import RESULTS, keep
from seeds import run_recipe

from llm_agents.data.base import Example
from llm_agents.data.comet import RELATIONS, comet_prompt, read_triples
from llm_agents.data.contrast import contrast_rows
from llm_agents.evaluation import Interval, combine_seeds, read_results, read_reward_results
from llm_agents.training.aggregating import aggregate_runs
from llm_agents.training.metrics import read_rows

Settings = dict[str, object]

STEPS, ROWS = 32, 16
TEST_PROMPTS = {"wow": 60, "comet": 120, "hha": 120}
A_LOL: dict[str, Settings] = {
    "nll": {"model.algorithm": "nll"},
    "wbc": {"model.algorithm": "wbc"},
    "a_lol": {"model.algorithm": "a_lol"},
    "a_lol_ref_free": {"model.algorithm": "a_lol_ref_free"},
    "a_lol_seq": {"model.algorithm": "a_lol_seq"},
}
OBJECTIVES: dict[str, dict[str, Settings]] = {
    "wow": A_LOL,
    "comet": {name: A_LOL[name] for name in ("nll", "wbc", "a_lol", "a_lol_seq")},
    "hha": {name: A_LOL[name] for name in ("nll", "wbc", "a_lol_seq")},
}
PPO_EPOCHS = 4


def run(recipe: str, folder: Path, overrides: Settings) -> None:
    """Run a recipe, or go on with it; stop everything if it fails. Seconds are kept beside it."""
    if (folder / "results.json").exists():
        return
    start = time.monotonic()
    if not run_recipe(recipe, folder, overrides):
        raise SystemExit(f"stopped at {folder}")
    with folder.with_name(f"{folder.name}.seconds").open("a", encoding="utf8") as file:
        file.write(f"{time.monotonic() - start:.1f}\n")


def all_of(jobs: int, queue: Sequence[Callable[[], None]]) -> None:
    """Do what is queued, so many at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda one: one(), queue))


def judge(folder: Path) -> Settings:
    return {
        "evaluation.reward.class_path": "llm_agents.rewards.PolicyReward.from_pretrained",
        "evaluation.reward.init_args.path": str(folder / "adapter"),
    }


def reward(folder: Path) -> Settings:
    value = {
        "class_path": "llm_agents.rewards.PolicyReward.from_pretrained",
        "init_args": {"path": str(folder / "adapter")},
    }
    return {"model.reward": value}


def as_data(kind: str, files: Mapping[str, object], **limits: object) -> Settings:
    """Return the overrides that put another data module in a recipe."""
    path = f"llm_agents.data.{kind}"
    return {"data": {"class_path": path, "init_args": {**files, **limits}}}


# --- the tasks


def prepare_wow(data: Path, work: Path) -> None:
    """Make the labelled rows, whole dialogues held out, and the judge's, of other corpora."""
    own = [data / "wow" / "gold" / "wow.csv"]
    own += [data / "wow" / "model" / f"{name}_wow.csv" for name in ("ctrl", "doha", "gpt2")]
    others = sorted((data / "wow" / "other").glob("*.csv.gz"))
    shared: Settings = {
        "job.reward": None,
        "job.diversity": False,
        "job.rules.labels": {"partial": 0.5},
        "job.rules.history": None,
        "job.rules.require_history": False,
        "job.held_out": {"validation": 0.1, "test": 0.3},
    }
    for name, files in (("policy", own), ("judge", others)):
        overrides = {
            **shared,
            "job.train": [str(path) for path in files],
            "job.validation": "held_out",
            "job.test": "held_out",
            "job.output_folder": str(work / "data" / name),
        }
        run("wow_prepare", work / "shared" / f"prepare-{name}", overrides)


def wow_files(work: Path, name: str) -> dict[str, object]:
    folder = work / "data" / name
    if name == "judge":  # what people said of the test prompts' responses, and of other corpora's
        policy = work / "data" / "policy"
        return {
            "train": [str(policy / "test.jsonl"), str(folder / "train.jsonl")],
            "validation": str(policy / "val.jsonl"),
            "test": [str(policy / "train.jsonl")],
        }
    return {
        "train": str(folder / "train.jsonl"),
        "validation": str(folder / "val.jsonl"),
        "test": [str(folder / "test.jsonl")],
    }


def wow_data(work: Path, name: str) -> Settings:
    limits = {"template": "chat", "max_prompt_tokens": 128, "max_response_tokens": 48}
    return as_data("WowData", wow_files(work, name), **limits, reward_range=[0.0, 1.0])


def prepare_comet(data: Path, work: Path) -> None:
    """Deal the events out: to test, validation, policies, and the two critics."""
    folder = work / "data"
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    tails: dict[tuple[str, str], list[str]] = {}
    source = data / "comet" / "atomic2020_system_eval.tsv.gz"
    for triple in read_triples(str(source)):
        if triple.relation in RELATIONS and triple.tail.lower() not in ("", "none"):
            tails.setdefault((triple.head, triple.relation), []).append(triple.tail)
    parts: dict[str, list[Example]] = {
        name: [] for name in ("test", "validation", "policy", "critic", "judge")
    }
    shares = (("test", 12), ("validation", 6), ("policy", 42), ("critic", 20), ("judge", 20))
    for (head, relation), known in tails.items():
        place = int(hashlib.sha256(head.encode()).hexdigest(), 16) % 100
        name = next(name for name, limit in _cumulated(shares) if place < limit)
        chosen = known[:1] if name in ("test", "validation") else known
        prompt = comet_prompt(head, relation)
        parts[name] += [Example(prompt, (tail,), None, 0, {}) for tail in chosen]
    for name, examples in parts.items():
        if name in ("critic", "judge"):
            rows = contrast_rows(examples, negatives=1, seed=901)
        else:
            rows = [
                {"prompt": one.prompt[0].text, "response": one.responses[0]} for one in examples
            ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf8")
        print(f"comet, {name}: {len(rows)} rows", flush=True)
    (folder / "done").touch()


def _cumulated(shares: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    total = 0
    for name, share in shares:
        total += share
        yield name, total


def comet_data(work: Path, train: str, test: str = "test") -> Settings:
    folder = work / "data"
    files: dict[str, object] = {
        "train": str(folder / f"{train}.jsonl"),
        "validation": str(folder / f"{test if test != 'test' else 'validation'}.jsonl"),
        "test": [str(folder / f"{test}.jsonl")],
    }
    limits: dict[str, object] = {"max_prompt_tokens": 64, "max_response_tokens": 24}
    return as_data("CometData", files, **limits, append_eos=True)


def reward_models(task: str, work: Path, jobs: int) -> None:
    """Train the reward model that training sees, and the judge that it never sees."""
    sizes: Settings = {"trainer.max_steps": 240, "trainer.val_check_interval": 40}
    models: dict[str, Settings]
    if task == "wow":
        models = {"reward": wow_data(work, "policy"), "judge": wow_data(work, "judge")}
    else:
        models = {
            "reward": comet_data(work, "critic", "judge"),
            "judge": comet_data(work, "judge", "critic"),
        }
    other: Settings = {"model.width": 512, "model.name": "judge", "seed_everything": 12}
    queue = []
    for name, data in models.items():
        more = other if name == "judge" else {"model.name": task, "seed_everything": 11}
        overrides = {**data, "data.batch_size": 32, **sizes, **more}
        if task == "comet":  # hundreds of rows tell enough
            overrides |= {"data.rules.max_train": 1500, "data.rules.max_validation": 300}
        else:  # each response has a label of its own
            overrides |= {"data.rules.min_responses": 1, "model.max_score": 1}
            overrides |= {"data.rules.max_train": 500, "evaluation.num_prompts": 160}
        recipe = "reward_wow" if task == "wow" else "reward_hha"
        folder = work / "shared" / name
        queue.append(lambda recipe=recipe, folder=folder, o=overrides: run(recipe, folder, o))
    all_of(jobs, queue)


def policies(task: str, work: Path, seeds: Sequence[int], jobs: int) -> None:
    """Train the reference, then every objective with every seed."""
    shared_folder = work / "shared"
    data = wow_data(work, "policy") if task == "wow" else comet_data(work, "policy")
    if task == "comet":  # 512 are read in 32 steps, and each of the rest costs a pass
        data = {**data, "data.rules.max_train": 1200}
    recipe = f"a_lol_{task}"
    shared: Settings = {
        **data,
        **reward(shared_folder / "reward"),
        **judge(shared_folder / "judge"),
        "reference": None,
        "data.batch_size": 4,
        "data.rules.max_validation": 48,
        "evaluation.num_prompts": TEST_PROMPTS[task],
        "model.generation.num_beams": 1,
        "model.generation.repetition_penalty": 1.0,  # it counts the knowledge's words as said
        "model.generation.max_new_tokens": 32 if task == "wow" else 16,
        "model.options": {"training_rewards": "stored", "select_by": None},
        "trainer.max_steps": STEPS,
        "trainer.val_check_interval": STEPS,  # the last weights count: nothing is selected
    }
    nll: Settings = {"model.algorithm": "nll", "seed_everything": 20, "model.optimizer.lr": 5e-4}
    longer: Settings = {"trainer.max_steps": 80, "trainer.val_check_interval": 80}
    run(recipe, shared_folder / "nll", {**shared, **nll, **longer})
    start: Settings = {
        "model.policy.lora": None,
        "model.policy.adapter": str(shared_folder / "nll" / "adapter"),
        "model.optimizer.lr": 3e-4,
    }
    queue = []
    for seed in seeds:
        for name, own in OBJECTIVES[task].items():
            options: Settings = {"budget": "whole", "select_by": None}
            if task == "comet":  # its recipe has them scored, which means nothing to NLL
                options["training_rewards"] = "stored" if name == "nll" else "scored"
            overrides = {
                **shared, **start, **own, "model.options": options, "seed_everything": seed,
            }  # fmt: skip
            folder = work / "runs" / f"{name}-{seed}"
            queue.append(lambda folder=folder, o=overrides: run(recipe, folder, o))
    all_of(jobs, queue)


def hha(data: Path, work: Path, seeds: Sequence[int], jobs: int) -> None:
    """Train the offline methods, then PPO at their cost, and at four times that."""
    hha_learning.prepare(data / "hha", work)
    hha_learning.reward_models(work, jobs)
    shared: Settings = {
        **hha_learning.sources(work / "split", "policy"),
        **hha_learning.LIMITS,
        **judge(work / "judge"),
        "model.reward.path": str(work / "reward" / "adapter"),
        "model.generation.max_new_tokens": hha_learning.POLICY_RESPONSE_TOKENS,
        "evaluation.num_prompts": TEST_PROMPTS["hha"],
        "data.rules.max_validation": 48,
    }
    nll: Settings = {"seed_everything": 20, "trainer.max_steps": 80}
    run("nll_hha", work / "nll", {**shared, **nll, "trainer.val_check_interval": 80})
    adapter: Settings = {"model.policy.adapter": str(work / "nll" / "adapter")}
    steps: Settings = {"trainer.max_steps": STEPS, "trainer.val_check_interval": STEPS}
    rate: Settings = {"model.optimizer.lr": 3e-4}
    queue = []
    for seed in seeds:
        own: Settings = {**shared, **adapter, **rate, "seed_everything": seed}
        for name, settings in OBJECTIVES["hha"].items():
            sampling = "uniform" if name == "nll" else "good_priority"
            more = {"model.options.budget": "whole", "model.sampling": sampling}
            o = {**own, **steps, **settings, **more}
            folder = work / "runs" / f"{name}-{seed}"
            queue.append(lambda folder=folder, o=o: run("a_lol_hha", folder, o))
        for times in (1, 4):
            o = {**own, **ppo_settings(times)}
            folder = work / "runs" / f"ppo_x{times}-{seed}"
            queue.append(lambda folder=folder, o=o: run("ppo_hha", folder, o))
    all_of(jobs, queue)


def ppo_settings(times: int) -> Settings:
    """Return PPO's budget: a rollout reads its rows four times and generates each once.

    The offline methods read 32 · 16 rows; an answer that is generated costs about as much as its
    row does when it is read, so that a rollout of 16 costs five of their steps.
    """
    rollouts = max(1, times * STEPS // (PPO_EPOCHS + 1))
    steps = PPO_EPOCHS * rollouts
    return {
        "data.batch_size": ROWS,
        "trainer.max_steps": steps,
        "trainer.val_check_interval": steps,
        "model.sampling.max_new_tokens": hha_learning.POLICY_RESPONSE_TOKENS,
    }


# --- the tables


def tokens_of(folder: Path, rows_per_batch: int) -> dict[str, float]:
    """Return the tokens that a run has read for learning and generated, from its numbers."""
    rows = read_rows(folder / "metrics.csv")
    if any("train/trained_tokens" in row for row in rows):
        last = [row for row in rows if "train/trained_tokens" in row][-1]
        return {
            "generated": last["rollout/generated_tokens"],
            "learnt": last["train/trained_tokens"],
        }
    per_batch = [row["train/response_tokens"] for row in rows if "train/response_tokens" in row]
    return {"generated": 0.0, "learnt": sum(per_batch) * rows_per_batch}


def entry_of(task: str, name: str, work: Path, seeds: Sequence[int]) -> dict[str, Any] | None:
    """Return a row of the table, of the seeds that have finished with their baseline."""
    folder = work / "runs"
    done = [s for s in seeds if (folder / f"{name}-{s}" / "results.json").exists()]
    done = [s for s in done if (folder / f"nll-{s}" / "results.json").exists()]
    if not done:
        return None
    folders = [folder / f"{name}-{seed}" for seed in done]
    found = [read_results(one) for one in folders]
    baseline = [read_results(folder / f"nll-{seed}") for seed in done]
    tests = [one.overall for one in found]
    measures = {
        measure: round(sum(t.metrics[measure].mean for t in tests) / len(tests), 4)
        for measure in tests[0].metrics
        if all(measure in t.metrics for t in tests)
    }
    tokens = [tokens_of(one, ROWS) for one in folders]
    return {
        "seeds": done,
        "reward": interval(last(combine_seeds(found))),
        "minus_nll": interval(last(combine_seeds(found, minus=baseline))),
        "by_seed": [round(test.reward.mean, 4) for test in tests],
        "words": round(sum(test.words.mean for test in tests) / len(tests), 1),
        "distinct": [
            round(sum(test.distinct[n] or 0.0 for test in tests) / len(tests), 3) for n in (1, 2, 3)
        ],
        **measures,
        "response_tokens": {
            kind: round(sum(one[kind] for one in tokens) / len(tokens)) for kind in tokens[0]
        },
        "kl": kl_of(folders),
        "seconds": [seconds_of(one) for one in folders],
        "prompts": TEST_PROMPTS[task],
    }


def last(intervals: Mapping[str, Interval]) -> Interval:
    return list(intervals.values())[-1]


def kl_of(folders: Sequence[Path]) -> float | None:
    """Return PPO's mean divergence from its reference in the last rollout, a sum over tokens."""
    found = [row["rollout/kl"] for one in folders for row in _last_rollout(one)]
    return round(sum(found) / len(found), 3) if found else None


def _last_rollout(folder: Path) -> list[dict[str, float]]:
    return [row for row in read_rows(folder / "metrics.csv") if "rollout/kl" in row][-1:]


def seconds_of(folder: Path) -> float:
    """Return the seconds of a run, over all its attempts that came to an end."""
    path = folder.with_name(f"{folder.name}.seconds")
    if not path.exists():
        return 0.0
    return round(sum(float(line) for line in path.read_text(encoding="utf8").split()), 1)


def interval(value: Interval) -> dict[str, float | None]:
    ends = {"low": value.low, "high": value.high}
    return {
        "mean": round(value.mean, 4),
        **{name: None if end is None else round(end, 4) for name, end in ends.items()},
    }


def summarize(work: Path, tasks: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the tables, and their rows as the page of results reads them."""
    found: dict[str, Any] = {}
    for task in tasks:
        names = [*OBJECTIVES[task], *(("ppo_x1", "ppo_x4") if task == "hha" else ())]
        entries = {name: entry_of(task, name, work / task, seeds) for name in names}
        models = work / task / ("" if task == "hha" else "shared")
        found[task] = {
            "objectives": {name: entry for name, entry in entries.items() if entry},
            "reward_models": {
                name: [test.pair_accuracy and test.pair_accuracy.mean
                       for test in read_reward_results(models / name).tests]
                for name in ("reward", "judge")
                if (models / name / "results.json").exists()
            },
        }  # fmt: skip
    return found


def rows_of(found: Mapping[str, Any], commit: str | None) -> list[dict[str, Any]]:
    """Return a row for each task and objective, with the names that measurements have."""
    rows = []
    for task, table in found.items():
        for name, entry in table["objectives"].items():
            minutes = max(entry["seconds"]) / 60
            rows.append(
                {
                    "method": name,
                    "task": task,
                    "metric": "reward by a judge that nothing was trained on, minus continued "
                    f"NLL's, {entry['prompts']} test prompts",
                    "value": entry["minus_nll"]["mean"],
                    "low": entry["minus_nll"]["low"],
                    "high": entry["minus_nll"]["high"],
                    "seeds": len(entry["seeds"]),
                    "minutes": round(minutes, 1) if minutes else None,
                    "commit": commit,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="holds wow/, comet/ and hha/")
    parser.add_argument("--work", type=Path, default=Path("runs/task_learning"))
    parser.add_argument("--tasks", nargs="+", choices=sorted(OBJECTIVES), default=list(OBJECTIVES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--summarize", action="store_true", help="run nothing: the tables alone")
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    prepare = {"wow": prepare_wow, "comet": prepare_comet}
    for task in () if options.summarize else options.tasks:
        work = options.work / task
        if task == "hha":
            hha(options.data, work, seeds, options.jobs)
            continue
        prepare[task](options.data, work)
        reward_models(task, work, options.jobs)
        policies(task, work, seeds, options.jobs)
    found = summarize(options.work, options.tasks, seeds)
    keep("task_learning", ("torch", "transformers"), tasks=found, rows=rows_of(found, None))
    folders = [options.work / task / "runs" for task in options.tasks]
    finished = [str(folder) for folder in folders if any(folder.glob("*/results.json"))]
    if finished:
        for path in aggregate_runs(finished, RESULTS / "task_learning.csv"):
            print(path)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
