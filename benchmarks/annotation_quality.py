"""How often annotators are right on pairs of NetHack messages written by hand, and how they favor.

The pairs are those of ``tests/rewards/gold_messages.py``, the better message first in every other
one. Prompts were tuned on half of them with the mode `pointwise`; its accuracy on the other half is
shown apart. A tie or an unknown pair counts as half right in `accuracy`: what a coin would get. For
the steering goals the default goal's scores on the same pairs show how far the goal moves them.
The last line is a JSON object.

    python benchmarks/annotation_quality.py --quick
    python benchmarks/annotation_quality.py           # keeps its results
    python benchmarks/annotation_quality.py --base my/model --template chat
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from keeping import keep

from llm_agents.rewards import (
    ChoiceAnnotator,
    GeneratedAnnotator,
    PointwiseAnnotator,
    PolicyBackend,
)
from llm_agents.rewards.annotator import FIRST, SECOND, CaptionAnnotator, Pairs
from llm_agents.types import GenerationConfig

PAIRS = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "rewards" / "gold_messages.py"))
GOLD, STEERING = PAIRS["GOLD"], PAIRS["STEERING"]
as_shown, held_out = PAIRS["as_shown"], PAIRS["held_out"]
BASE = "smollm2-135m-instruct"
SAMPLING = GenerationConfig(max_new_tokens=128, temperature=0.1, top_p=0.95, top_k=50)


def judge(annotator: CaptionAnnotator, pairs: Sequence[Any]) -> dict[str, Any]:
    """Return how an annotator does on pairs."""
    shown = as_shown(tuple(pairs))
    begin = time.process_time()
    found = annotator.annotate(Pairs.of_captions([(one, two) for one, two, _ in shown]))
    seconds = time.process_time() - begin
    right = decided = first = 0
    for (_, _, better), preference in zip(shown, found.preferences.tolist(), strict=True):
        right += preference == better
        decided += preference in (FIRST, SECOND)
        first += preference == FIRST
    report = annotator.report(found.counts)
    return {
        "pairs": len(shown),
        "accuracy": round((right + 0.5 * (len(shown) - decided)) / len(shown), 3),
        "decided": decided,
        "right_of_decided": round(right / decided, 3) if decided else None,
        "first_share": round(first / decided, 3) if decided else None,
        "first_place_share": _rounded(report.get("first_place_share")),
        "order_agreement": _rounded(report.get("order_agreement")),
        "cpu_seconds": round(seconds, 1),
    }


def _rounded(value: object) -> float | None:
    """Return a share with three digits."""
    return None if value is None else round(float(str(value)), 3)


def main() -> None:
    """Judge, print a table and the JSON line; keep the results of a full run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few pairs, and nothing is kept")
    parser.add_argument("--base", default=BASE, help="base model")
    parser.add_argument(
        "--template", default="chat", help="chat or plain, for choice and generated"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    backend = PolicyBackend(options.base)
    table: dict[str, dict[str, Any]] = {}

    def show(name: str, annotator: CaptionAnnotator, pairs: Sequence[Any]) -> None:
        table[name] = judge(annotator, pairs[:6] if options.quick else pairs)
        print(f"{name:46} {json.dumps(table[name])}", flush=True)

    usual = PointwiseAnnotator(backend, margin=0.0)
    show("pointwise both defaultgoal, held out", usual, held_out(GOLD))
    show("pointwise both defaultgoal", usual, GOLD)
    for goal, pairs in STEERING.items():
        goal_scores = PointwiseAnnotator(backend, goal=goal, margin=0.0)  # type: ignore[arg-type]
        show(f"pointwise both {goal}, held out", goal_scores, held_out(pairs))
        show(f"pointwise both {goal}", goal_scores, pairs)
        show(f"pointwise both defaultgoal on {goal} pairs", usual, pairs)
    show("pointwise both, margin 0.1", PointwiseAnnotator(backend, margin=0.1), GOLD)
    for version in ("default", "reworded"):
        one = PointwiseAnnotator(backend, version=version, margin=0.0)  # type: ignore[arg-type]
        show(f"pointwise {version} defaultgoal", one, GOLD)
    show("pointwise zeroknowledge", PointwiseAnnotator(backend, goal="zeroknowledge"), GOLD[::4])
    for template in dict.fromkeys((options.template, "plain")):
        choice = ChoiceAnnotator(backend, template=template)
        show(f"choice {template} defaultgoal", choice, GOLD[::3])
    for goal, pairs in STEERING.items():
        choice = ChoiceAnnotator(backend, goal=goal, template=options.template)  # type: ignore[arg-type]
        show(f"choice {options.template} {goal}", choice, pairs)
    generated = GeneratedAnnotator(backend, template=options.template, sampling=SAMPLING)
    show(f"generated {options.template} defaultgoal", generated, GOLD[::8])
    both = GeneratedAnnotator(backend, template="plain", sampling=SAMPLING, both_orders=True)
    show("generated plain defaultgoal, both orders", both, GOLD[::8])
    if not options.quick and options.base == BASE:
        keep("annotation_quality", ("torch", "transformers"), base=options.base, table=table)
    print(json.dumps({name: entry["accuracy"] for name, entry in table.items()}))


if __name__ == "__main__":
    main()
