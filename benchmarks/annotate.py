"""Speed of annotation with a language model, beside a loop that asks about one pair at a time.

The peer is the straightforward way: for each pair, whole prompts one after another through
transformers, and the log-probs of the two answers off the last token. Ours and the loop get the
same model, the same prompts and the same pairs, in one process on one CPU thread, and times are its
CPU time. A loop's time for many pairs is that of a few, multiplied.

Pairs are made of messages whose number of kinds grows as in random play of NetHack: 20,000 messages
are of about 440 kinds, a fifth of them empty. `pointwise` asks about each kind once; how its time
grows with the number of pairs is shown. With `--quick` all kinds are priced by a few of them.
The last line is a JSON object of ratios, above 1 is faster than the loop.

    python benchmarks/annotate.py --quick
    python benchmarks/annotate.py            # keeps its results
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from keeping import keep

from llm_agents.rewards import (
    ChoiceAnnotator,
    GeneratedAnnotator,
    PointwiseAnnotator,
    PolicyBackend,
)
from llm_agents.rewards.annotator import Pairs
from llm_agents.types import GenerationConfig

BASE = "smollm2-135m-instruct"
MONSTERS = (
    "newt,jackal,sewer rat,grid bug,goblin,gnome,gnome lord,hill orc,lichen,large kobold,"
    "kobold,giant ant,cave spider,acid blob,floating eye,giant rat,hobbit,dwarf,bat,giant bat,"
    "iguana,homunculus,imp,yellow light,rotting corpse,kobold zombie,gnome zombie,dog,kitten,wolf,"
    "dingo,soldier ant,fire ant,killer bee,snake,rock piercer,dwarf lord,bugbear,hill giant,"
    "chameleon"
)
EVENTS = (
    "You kill the {}!|You hit the {}.|You miss the {}.|The {} bites!|The {} misses!|The {} hits!|"
    "You see here a {} corpse.|You stop.  The {} is in the way.|You hear the {}.|"
    "The {} turns to flee."
)
OTHERS = (
    "It's a wall.|It's solid stone.|You see no objects here.|There is nothing here to pick up.|"
    "This door is locked.|The door opens.|WHAMM!|Ouch!  That hurts!|You kick at empty space.|"
    "You can't go down here.|You can't go up here.|There is a staircase down here.|"
    "There is a staircase up here.|You are beginning to feel hungry.|Never mind.|"
    "In what direction?|You don't have anything to eat.|You find a hidden door.|"
    "You hear bubbling water.|There is a fountain here.|You fall into a pit!|"
    "Welcome to experience level 2."
)


@dataclass(frozen=True)
class Play:
    """Pairs of messages in their frequencies.

    Args:
        pairs: What is annotated.
        kinds: How many messages differ.
    """

    pairs: Pairs
    kinds: int


def vocabulary() -> list[str]:
    """Return messages, frequent ones first."""
    events = [event.format(name) for name in MONSTERS.split(",") for event in EVENTS.split("|")]
    gold = [f"$ - {number} gold pieces." for number in range(1, 1500)]
    rare = np.random.default_rng(0).permutation([*events, *gold])
    return ["", *OTHERS.split("|"), *(str(text) for text in rare)]


def make_play(num_pairs: int) -> Play:
    """Return pairs of messages drawn by Zipf's law, the empty one apart."""
    texts = vocabulary()
    generator = np.random.default_rng(1)
    weights = 1.0 / np.arange(1, len(texts)) ** 1.62
    drawn = 1 + generator.choice(len(texts) - 1, (num_pairs, 2), p=weights / weights.sum())
    drawn[generator.random(drawn.shape) < 0.21] = 0
    captions = [(texts[one], texts[two]) for one, two in drawn]
    return Play(Pairs.of_captions(captions), len(np.unique(drawn)))


class Loop:
    """Asks about one pair at a time, each prompt from its first token."""

    def __init__(self, backend: PolicyBackend) -> None:
        self.policy = backend.policy

    def lead(self, prompt: Any, template: Any, answers: Sequence[str]) -> float:
        """Return by how much the first answer is likelier than the second, from one pass."""
        text = self.policy.text.render(prompt, template)
        ids = self.policy.text.encode_text(text, begin=True)
        blank = "" if text[-1].isspace() else " "
        good, bad = (
            self.policy.text.encode_text(text + blank + answer, begin=True)[len(ids)]
            for answer in answers
        )
        with torch.no_grad():
            output = self.policy.causal_model(input_ids=torch.tensor([ids]), logits_to_keep=1)
        log_probs = output.logits[0, -1].log_softmax(-1)
        return float(log_probs[good] - log_probs[bad])

    def choice(self, annotator: ChoiceAnnotator, first: str, second: str) -> float:
        """Return how much better the first caption is, asked in both orders."""
        asked = [annotator.prompts.choice(*pair) for pair in ((first, second), (second, first))]
        one, two = (self.lead(p, annotator.prompts.template, ("1", "2")) for p in asked)
        return 0.5 * (one - two)

    def pointwise(self, annotator: PointwiseAnnotator, first: str, second: str) -> float:
        """Return how much better the first caption is, each asked about by itself."""
        one, two = (
            statistics.fmean(
                self.lead(prompts.question(text), prompts.template, prompts.answers)
                for prompts in annotator.prompts
            )
            for text in (first, second)
        )
        return one - two

    def reply(self, annotator: GeneratedAnnotator, first: str, second: str) -> str:
        """Return the likeliest reply to a pair, by transformers."""
        text = self.policy.text.render(
            annotator.prompts.question(first, second), annotator.prompts.template
        )
        ids = torch.tensor([self.policy.text.encode_text(text, begin=True)])
        with torch.no_grad():
            out = self.policy.causal_model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=annotator.sampling.max_new_tokens,
                do_sample=False,
            )
        return self.policy.decode(out[0, ids.shape[1] :].tolist())


def captions_of(pairs: Pairs, number: int) -> list[tuple[str, str]]:
    """Return the captions of the first pairs that differ."""
    texts = pairs.texts
    found = [(texts[one], texts[two]) for one, two in pairs.sides if one != two]
    return found[:number]


def measure_choice(backend: PolicyBackend, quick: bool) -> dict[str, float]:
    """Return seconds a pair of `choice` and of the loop, and how far their results differ."""
    number, by_loop = (8, 2) if quick else (200, 20)
    captions = captions_of(make_play(1000).pairs, number)
    annotator, loop = ChoiceAnnotator(backend), Loop(backend)
    begin = time.process_time()
    annotator.annotate(Pairs.of_captions(captions))
    ours = (time.process_time() - begin) / len(captions)
    begin = time.process_time()
    leads = [loop.choice(annotator, *pair) for pair in captions[:by_loop]]
    theirs = (time.process_time() - begin) / by_loop
    error = 0.0
    for (first, second), lead in zip(captions, leads, strict=False):
        one, two = annotator.memory.get(tuple(sorted((first, second)))) or (0.0, 0.0)
        sign = 1 if first < second else -1
        error = max(error, abs(sign * 0.5 * (one + two) - lead))
    return {"ours": ours, "one_by_one": theirs, "max_abs_error": error}


def measure_generated(backend: PolicyBackend, quick: bool) -> dict[str, float]:
    """Return seconds a pair of replies of 64 tokens, ours and the loop's, and the share alike."""
    number, by_loop = (4, 1) if quick else (32, 8)
    captions = captions_of(make_play(1000).pairs, number)
    sampling = GenerationConfig(max_new_tokens=64, temperature=0.0, batch_size=16)
    annotator, loop = GeneratedAnnotator(backend, sampling=sampling), Loop(backend)
    prompts = [annotator.prompts.question(*pair) for pair in captions]
    begin = time.process_time()
    replies = backend.generate(
        prompts, annotator.prompts.template, annotator.sampling, list(range(number))
    )
    ours = (time.process_time() - begin) / number
    begin = time.process_time()
    theirs = [loop.reply(annotator, *pair) for pair in captions[:by_loop]]
    seconds = (time.process_time() - begin) / by_loop
    same = sum(one.strip() == other.strip() for one, other in zip(replies, theirs, strict=False))
    return {"ours": ours, "one_by_one": seconds, "same": same / by_loop}


def measure_pointwise(
    backend: PolicyBackend, play: Play, price: tuple[float, float] | None
) -> tuple[float, PointwiseAnnotator]:
    """Return the seconds in which `pointwise` annotates all pairs.

    Args:
        backend: The model; what it computed before is forgotten.
        play: The pairs.
        price: Seconds that the examples and that a caption cost; None asks about all captions.
    """
    annotator = PointwiseAnnotator(backend)
    texts = play.pairs.texts
    begin = time.process_time()
    if price is None:
        backend.policy.parameters_changed()
        annotator.score(texts)
        asking = time.process_time() - begin
    else:
        annotator.memory.put({(text,): (float(place),) for place, text in enumerate(texts)})
        asking = price[0] + price[1] * len(texts)
    begin = time.process_time()
    annotator.annotate(play.pairs)
    return asking + time.process_time() - begin, annotator


def price_of(backend: PolicyBackend, texts: Sequence[str]) -> tuple[float, float]:
    """Return the seconds that `pointwise` takes for its examples, and for a caption after them."""
    annotator = PointwiseAnnotator(backend)
    begin = time.process_time()
    annotator.score(texts[:1])
    first = time.process_time()
    annotator.score(texts)
    return first - begin, (time.process_time() - first) / (len(texts) - 1)


def measure_pointwise_loop(backend: PolicyBackend, number: int) -> tuple[float, float]:
    """Return the loop's seconds a pair, and how far its results are from ours."""
    annotator, loop = PointwiseAnnotator(backend), Loop(backend)
    captions = captions_of(make_play(1_000).pairs, number)
    begin = time.process_time()
    leads = [loop.pointwise(annotator, *pair) for pair in captions]
    seconds = (time.process_time() - begin) / number
    pairs = zip(captions, leads, strict=True)
    errors = [abs(np.subtract(*annotator.score(pair)) - lead) for pair, lead in pairs]
    return seconds, float(max(errors))


def main() -> None:
    """Measure, print tables and the JSON line; keep the results of a full run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter, and nothing is kept")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    backend = PolicyBackend(BASE, device="cpu")
    price = price_of(backend, make_play(1_000).pairs.texts[:24]) if quick else None
    growth: dict[int, dict[str, float]] = {}
    print(f"{'pairs':>8} {'kinds':>6} {'seconds':>9} {'pairs/s':>9}  pointwise, CPU time")
    for size in (1_000, 10_000, 100_000):
        play = make_play(size)
        seconds, _ = measure_pointwise(backend, play, price)
        growth[size] = {"kinds": play.kinds, "seconds": seconds, "pairs_per_s": size / seconds}
        print(f"{size:8} {play.kinds:6} {seconds:9.1f} {size / seconds:9.0f}", flush=True)
    a_pair, error = measure_pointwise_loop(backend, 2 if quick else 15)
    print(f"one pair at a time, pointwise prompts: {1 / a_pair:.2f} pairs/s, error {error:.1e}")
    choice = measure_choice(backend, quick)
    print(
        f"choice: {1 / choice['ours']:.2f} pairs/s, one pair at a time "
        f"{1 / choice['one_by_one']:.2f} pairs/s, error {choice['max_abs_error']:.1e}"
    )
    generated = measure_generated(backend, quick)
    print(
        f"generated, replies of 64 tokens: {1 / generated['ours']:.2f} pairs/s, one pair at a time "
        f"{1 / generated['one_by_one']:.2f} pairs/s, {generated['same']:.0%} alike"
    )
    keys = {
        "choice_vs_one_by_one": round(choice["one_by_one"] / choice["ours"], 2),
        "generated_vs_one_by_one": round(generated["one_by_one"] / generated["ours"], 2),
        "pointwise_vs_one_by_one_1e4_pairs": round(10_000 * a_pair / growth[10_000]["seconds"], 1),
    }
    if not quick:
        keep(
            "annotate",
            ("torch", "transformers"),
            growth=growth,
            choice=choice,
            generated=generated,
            one_by_one={"seconds_a_pair": a_pair, "max_abs_error": error},
            keys=keys,
        )
    print(json.dumps(keys))


if __name__ == "__main__":
    main()
