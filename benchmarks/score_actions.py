"""Speed of action scoring, beside the ways that released codes take.

The peers are those of `action_peers`, and all get token ids. Everything runs in one process on one
CPU thread, interleaved, with the same adapter; times are the CPU time of the thread, so that other
processes matter little. Memory is that of processes of their own. The last line is a JSON object of
ratios, above 1 is faster or smaller than the peer.

    python benchmarks/score_actions.py --quick
    python benchmarks/score_actions.py            # keeps its results
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from action_peers import cached_scores, cached_seq2seq, repeat_scores, repeat_seq2seq
from keeping import keep
from memory import peak_of_this_process
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.action_trie import ActionTrie
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.types import Choice

BASE = "smollm2-135m-instruct"
ROOT = Path(__file__).resolve().parents[1]
CLIP, ENTROPY_COEF = 0.2, 0.01
ADAPTER = LoraConfig(r=8, alpha=16, targets=("q_proj", "v_proj"))
T5_ADAPTER = LoraConfig(r=8, alpha=16, targets=("q", "v"))


# --- choices ------------------------------------------------------------------------------------


class Words:
    """Makes choices of exact numbers of tokens out of words that are one token each."""

    def __init__(self, policy: LanguagePolicy) -> None:
        self.random = random.Random(0)
        tokens = policy.tokenizer.get_vocab()
        words = (t[1:] for t in tokens if t[0] == "Ġ" and t[1:].isascii() and t[1:].isalpha())
        self.words = sorted(word for word in words if word.islower() and word in tokens)

    def text(self, number: int) -> str:
        return " ".join(self.random.choice(self.words) for _ in range(number))

    def choices(
        self, number: int, prompt: int, actions: int, tokens: int, *, static: int = 0
    ) -> list[Choice]:
        """Return choices whose prompts share `static` tokens and whose actions begin alike."""
        common = self.text(max(static, 1))
        made = []
        for _ in range(number):
            verbs = [self.text(1) for _ in range(max(2, actions * 6 // 10))]
            offered: dict[str, None] = {}
            while len(offered) < actions:
                verb = verbs[len(offered) % len(verbs)]
                offered[f"{verb} {self.text(tokens - 1)}"] = None
            text = f"{common} {self.text(prompt - max(static, 1))}"
            made.append(Choice(text, tuple(offered)))
        return made


# --- measuring ----------------------------------------------------------------------------------


@dataclass
class Case:
    """One thing to do in several ways, each from fresh choices every round.

    Args:
        name: Shown, and in the results.
        ways: What is timed, by name; gets the round.
    """

    name: str
    ways: dict[str, Callable[[int], Any]]


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of every way, interleaved."""
    seconds: dict[str, list[float]] = {way: [] for way in case.ways}
    for number in range(rounds):
        for way, run in case.ways.items():
            begin = time.thread_time()
            run(number)
            seconds[way].append(time.thread_time() - begin)
    shown = ", ".join(f"{way} {1000 * statistics.median(t):.0f} ms" for way, t in seconds.items())
    print(f"{case.name}: {shown}", flush=True)
    return seconds


def ratio(seconds: dict[str, list[float]], peer: str, ours: str = "ours") -> float:
    """Return the median over rounds of the ratio within a round."""
    pairs = zip(seconds[peer], seconds[ours], strict=True)
    return round(statistics.median(theirs / own for theirs, own in pairs), 2)


def make_policy(lora: LoraConfig | None, base: str = BASE) -> LanguagePolicy:
    """Return the base with an adapter whose B is not zero, the same one every time."""
    torch.manual_seed(0)
    policy = LanguagePolicy.from_pretrained(base, lora=lora)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.trainable_parameters():
            if "lora_B" in name:
                parameter.copy_(0.01 * torch.randn(parameter.shape, generator=generator))
    return policy.eval()


def ppo_loss(scores: Sequence[Tensor]) -> Tensor:
    """Return a clipped surrogate with an entropy bonus over lists of actions."""
    terms = []
    for row in scores:
        log_probs = row.log_softmax(0)
        ratios = (log_probs[0] - log_probs[0].detach()).exp()
        surrogate = torch.minimum(ratios, ratios.clamp(1 - CLIP, 1 + CLIP))
        terms.append(-surrogate + ENTROPY_COEF * (log_probs.exp() * log_probs).sum())
    return torch.stack(terms).mean()


def our_scores(policy: LanguagePolicy, choices: Sequence[Choice]) -> list[Tensor]:
    scores = policy.score_actions(choices, "token")
    return [row[mask] for row, mask in zip(scores.scores, scores.mask, strict=True)]


class Bench:
    """Cases of one policy."""

    def __init__(self, policy: LanguagePolicy) -> None:
        self.policy, self.model = policy, policy.causal_model
        self.words = Words(policy)
        self.encoder = policy.scorer.encoder  # one that remembers ids for all ways
        seq2seq = policy.is_encoder_decoder
        self.peers = {
            "repeat": repeat_seq2seq if seq2seq else repeat_scores,
            "cached": cached_seq2seq if seq2seq else cached_scores,
        }

    def peer(self, name: str, choices: Sequence[Choice]) -> list[Tensor]:
        return self.peers[name](self.model, [self.encoder.encode(choice) for choice in choices])

    def warm_up(self) -> None:
        """Let everything that happens once a process happen, on a small choice."""
        choices = self.words.choices(1, 20, 2, 3)
        with torch.no_grad():
            our_scores(self.policy, choices)
            for name in self.peers:
                self.peer(name, choices)
        ppo_loss(our_scores(self.policy, choices)).backward()
        self.policy.zero_grad()

    def prepared(self, choices: Sequence[Choice]) -> None:
        """Tokenize beforehand: no way's time counts that."""
        for choice in choices:
            self.encoder.prepare(choice)

    def rollout(
        self, name: str, shape: tuple[int, int, int], rounds: int, *, static: int = 0
    ) -> Case:
        """Score one choice a round without gradient, under weights that are new or the same."""
        prompt, actions, tokens = shape
        choices = self.words.choices(rounds + 1, prompt, actions, tokens, static=static)
        self.prepared(choices)
        trie = ActionTrie.build(self.encoder.encode(choices[0]).action_ids)
        length = len(self.encoder.encode(choices[0]).prompt_ids)
        print(f"{name}: {length} prompt tokens, {len(trie.tokens)} inner nodes", flush=True)
        if static:
            with torch.no_grad():
                our_scores(self.policy, choices[-1:])

        def ours(number: int) -> None:
            if not static:
                self.policy.parameters_changed()
            with torch.no_grad():
                our_scores(self.policy, [choices[number]])

        def peer(way: str) -> Callable[[int], None]:
            def run(number: int) -> None:
                with torch.no_grad():
                    self.peer(way, [choices[number]])

            return run

        return Case(name, {"ours": ours, **{way: peer(way) for way in self.peers}})

    def update(
        self,
        name: str,
        shape: tuple[int, int, int, int],
        rounds: int,
        *,
        static: int = 0,
        peers: Sequence[str],
        is_known: bool = False,
    ) -> Case:
        """Take one gradient of a PPO loss a round; `is_known`: of choices of a rollout before."""
        number, prompt, actions, tokens = shape
        groups = [
            self.words.choices(number, prompt, actions, tokens, static=static)
            for _ in range(rounds)
        ]
        self.prepared([choice for group in groups for choice in group])
        if is_known:
            with torch.no_grad():
                for group in groups:
                    our_scores(self.policy, group)
            self.policy.parameters_changed()

        def way(score: Callable[[Sequence[Choice]], list[Tensor]]) -> Callable[[int], None]:
            def run(number: int) -> None:
                self.policy.zero_grad()
                ppo_loss(score(groups[number])).backward()

            return run

        ways = {"ours": way(lambda choices: our_scores(self.policy, choices))}
        for peer in peers:
            ways[peer] = way(lambda choices, peer=peer: self.peer(peer, choices))
        return Case(name, ways)

    def tokens(self, name: str, prompt: int, tokens: int, rounds: int) -> Case:
        """Give log-probs and values of one action's tokens, as POAD's rollout and update ask.

        The peer passes the sequence through the base for values, through the base again as the
        reference, and through the policy, each time with the logits of all positions.
        """
        choices = self.words.choices(rounds, prompt, 1, tokens)
        self.prepared(choices)

        def peer(number: int) -> None:
            choice = self.encoder.encode(choices[number])
            ids = torch.tensor([[*choice.prompt_ids, *choice.action_ids[0]]])
            with torch.no_grad():
                with self.policy.without_adapters():
                    for _ in range(2):
                        self.model(input_ids=ids, output_hidden_states=True).logits.log_softmax(-1)
                self.model(input_ids=ids).logits.log_softmax(-1)

        def policy_alone(number: int) -> None:
            self.policy.parameters_changed()
            with torch.no_grad():
                self.policy.score_actions([choices[number]], "token")

        def ours(number: int) -> None:
            policy_alone(number)
            self.policy.base_features([choices[number]]).token_states(torch.zeros(1).long())

        # The first call computes a choice's features, the second one finds them in memory.
        return Case(name, {"peer": peer, "first": ours, "ours": ours})

    def differences(self, shape: tuple[int, int, int]) -> dict[str, float]:
        """Return the largest difference of a log-prob's sum from float64, for every way."""
        prompt, actions, tokens = shape
        choices = self.words.choices(1, prompt, actions, tokens)
        exact = copy.deepcopy(self.model).double()
        encoded = [self.encoder.encode(choice) for choice in choices]
        repeat = repeat_seq2seq if self.policy.is_encoder_decoder else repeat_scores
        with torch.no_grad():
            (expected,) = repeat(exact, encoded)
            found = {"ours": our_scores(self.policy, choices)[0]}
            found |= {way: self.peer(way, choices)[0] for way in self.peers}
        return {
            way: float(tokens * (scores.double() - expected).abs().max())
            for way, scores in found.items()
        }


def t5_policy(folder: Path) -> LanguagePolicy:
    """Return a random T5 of 60 million weights with a tokenizer of bytes."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tiny_tokenizer("t5").save_pretrained(folder)
    return make_policy(T5_ADAPTER, str(folder))


# --- memory -------------------------------------------------------------------------------------


def peak_memory(way: str, shape: tuple[int, int, int]) -> float:
    """Return the MB that one gradient adds to the peak of a fresh process."""
    arguments = ["--memory-of", way, "--shape", *map(str, shape)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=True
    )
    return float(done.stdout.strip().splitlines()[-1])


def memory_of(way: str, shape: tuple[int, int, int]) -> None:
    bench = Bench(make_policy(ADAPTER))
    bench.warm_up()
    peers = [] if way == "ours" else [way]
    case = bench.update("memory", (1, *shape), 1, peers=peers)
    before = peak_of_this_process()
    case.ways[way](0)
    print((peak_of_this_process() - before) / 1024)


# --- the run ------------------------------------------------------------------------------------


Found = dict[str, dict[str, list[float]]]
BOTH = ("repeat", "cached")


def causal_cases(bench: Bench, rounds: int) -> dict[str, Callable[[], Case]]:
    shape, two = (300, 10, 3), ["cached"]
    return {
        "rollout_300x10x3": lambda: bench.rollout("rollout 300x10x3", shape, rounds),
        "rollout_300x20x6": lambda: bench.rollout("rollout 300x20x6", (300, 20, 6), rounds),
        "rollout_half_static_300x10x3": lambda: bench.rollout(
            "rollout 300x10x3, half of it known", shape, rounds, static=150
        ),
        "ppo_300x10x3": lambda: bench.update("PPO 300x10x3", (1, *shape), rounds, peers=BOTH),
        "ppo_8_prompts_half_shared": lambda: bench.update(
            "PPO, 8 prompts of 100, half shared", (8, 100, 8, 3), rounds, static=50, peers=two
        ),
        "poad_tokens_300x6": lambda: bench.tokens("tokens of one action", 300, 6, rounds),
    }


def run_case(key: str, case: Case, rounds: int, ratios: dict[str, float], found: Found) -> None:
    found[key] = measure(case, rounds)
    for peer in set(case.ways) - {"ours", "first"}:
        ratios[f"{key}_vs_{peer}"] = ratio(found[key], peer)
    if "first" in case.ways:
        ratios[f"{key}_two_passes_vs_peer"] = ratio(found[key], "peer", "first")


def quick() -> dict[str, float]:
    bench, ratios = Bench(make_policy(ADAPTER)), dict[str, float]()
    bench.warm_up()
    run_case("rollout_100x6x3", bench.rollout("rollout 100x6x3", (100, 6, 3), 1), 1, ratios, {})
    return ratios


def full(rounds: int, only: Sequence[str]) -> tuple[dict[str, float], Found]:
    """Run all cases, or those named."""
    found, ratios = Found(), dict[str, float]()
    bench = Bench(make_policy(ADAPTER))
    bench.warm_up()
    for key, case in causal_cases(bench, rounds).items():
        if not only or key in only:
            run_case(key, case(), rounds, ratios, found)
    if not only or "ppo_top_6_layers_300x10x3" in only:
        top = Bench(make_policy(replace(ADAPTER, top_layers=6)))
        top.warm_up()
        name = "PPO 300x10x3, adapters in the top 6 layers, choices of the rollout"
        case = top.update(name, (1, 300, 10, 3), rounds, peers=BOTH, is_known=True)
        run_case("ppo_top_6_layers_300x10x3", case, rounds, ratios, found)
    if not only or "t5_300x20x6" in only:
        with tempfile.TemporaryDirectory() as name:
            t5 = Bench(t5_policy(Path(name)))
            t5.warm_up()
            case = t5.rollout("T5 300x20x6", (300, 20, 6), rounds)
            run_case("t5_300x20x6", case, rounds, ratios, found)
    if not only or "memory" in only:
        memory = {way: peak_memory(way, (300, 10, 3)) for way in ("ours", *BOTH)}
        print(f"memory of one PPO gradient, MB: {memory}", flush=True)
        for peer in BOTH:
            ratios[f"ppo_memory_300x10x3_vs_{peer}"] = round(memory[peer] / memory["ours"], 2)
    if not only or "differences" in only:
        differences = bench.differences((100, 10, 6))
        print(f"largest difference of a sum of 6 log-probs from float64: {differences}")
        ratios |= {f"difference_{way}": value for way, value in differences.items()}
    return ratios, found


def write_results(ratios: dict[str, float], found: Found) -> None:
    """Keep a full run's numbers."""
    seconds = {
        case: {way: [round(value, 3) for value in times] for way, times in ways.items()}
        for case, ways in found.items()
    }
    keep("score_actions", ("torch", "transformers"), cpu_seconds=seconds, ratios=ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of one small case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="cases by their keys; keeps nothing")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        memory_of(options.memory_of, tuple(options.shape))
        return
    if options.quick:
        ratios = quick()
    else:
        ratios, found = full(options.rounds, options.only)
        if not options.only:
            write_results(ratios, found)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
