"""Training throughput of the offline methods against TRL's trainers, in one interleaved run.

Both train the same adapter on the same base and the same dialogues with the same micro-batches,
float32, one thread; time is this process's CPU time between the first and the last step, so that
other load on the machine does not count. What either computes once before training (our reference
log-probs and trunk states, TRL's tokenization) is outside. The last line is a JSON object of
ratios, above 1 is faster.

    python benchmarks/offline.py --quick
    python benchmarks/offline.py --data hh_test/helpful_base.json.gz    # keeps its results

Needs TRL: ``pip install 'llm-agents[bench]'``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from datasets import Dataset
from keeping import keep
from lightning.pytorch import Callback, Trainer
from memory import peak_of_this_process
from transformers import TrainerCallback

from llm_agents.data import HHAData
from llm_agents.data.selection import RowRules
from llm_agents.functional.lol import nll_loss
from llm_agents.functional.preference import dpo_loss
from llm_agents.methods import DPO, ALoL
from llm_agents.methods.settings import OptimizerConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.rewards import CallableReward
from llm_agents.types import GenerationConfig, TokenBatch

BASE = "smollm2-135m-instruct"
MICRO_BATCH = 4
LEARNING_RATE = 1e-4
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Timing:
    """What one timed stretch of training took."""

    seconds: float
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def word_share(prompts: object, responses: list[str]) -> list[float]:
    """A reward that costs nothing: the share of ten words that a response has."""
    del prompts
    return [min(1.0, len(response.split()) / 10) for response in responses]


def make_policy(top_layers: int | None, trunk: str | bool) -> LanguagePolicy:
    """Return the base with an adapter whose B is not zero, the same one every time."""
    torch.manual_seed(0)
    lora = LoraConfig(r=8, alpha=16, targets=("q_proj", "v_proj"), top_layers=top_layers)
    policy = LanguagePolicy.from_pretrained(BASE, lora=lora, trunk_cache=trunk)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.trainable_parameters():
            if "lora_B" in name:
                parameter.copy_(0.01 * torch.randn(parameter.shape, generator=generator))
    return policy


def make_data(source: str, rows: int) -> HHAData:
    rules = RowRules(max_train=rows, max_validation=4, too_long="drop")
    return HHAData(
        train=source,
        validation=source,
        test=None,
        max_prompt_tokens=192,
        max_response_tokens=64,
        batch_size=MICRO_BATCH,
        rules=rules,
        seed=0,
    )


class Clock(Callback):
    """Times our training loop after its first step, and counts the tokens it trained on."""

    def __init__(self) -> None:
        self.start, self.seconds, self.tokens = 0.0, 0.0, 0

    def on_train_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.process_time()
        if batch_idx == 0:
            self.start = now
        else:
            self.tokens += batch.tokens.num_tokens
            self.seconds = now - self.start


class PeerClock(TrainerCallback):
    """Times TRL's training loop after its first step."""

    def __init__(self) -> None:
        self.start, self.seconds = 0.0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.process_time()
        if state.global_step == 1:
            self.start = now
        else:
            self.seconds = now - self.start


def our_trainer(folder: Path, steps: int, clock: Clock) -> Trainer:
    return Trainer(
        max_steps=steps,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[clock],
    )


def ours(
    kind: str, source: str, policy: LanguagePolicy, rows: int, steps: int, folder: Path
) -> Timing:
    """Train for `steps` micro-batches with one of our methods."""
    optimizer = OptimizerConfig(lr=LEARNING_RATE)
    reward = CallableReward(f"{Path(__file__).stem}:word_share", low=0.0, high=1.0)
    generation = GenerationConfig(max_new_tokens=4)
    if kind == "dpo":
        module: ALoL | DPO = DPO(policy, None, optimizer=optimizer)
    elif kind == "nll":
        module = ALoL(policy, None, algorithm="nll", optimizer=optimizer)
    else:
        module = ALoL(
            policy,
            reward,
            algorithm="a_lol_seq",
            sampling="uniform",
            optimizer=optimizer,
            generation=generation,
        )
    clock = Clock()
    data = make_data(source, rows)
    our_trainer(folder, steps, clock).fit(module, data)
    return Timing(clock.seconds, clock.tokens)


def texts(source: str, rows: int, policy: LanguagePolicy) -> tuple[HHAData, list[dict[str, str]]]:
    """Return the training data and each pair as the text that TRL takes."""
    data = make_data(source, rows)
    data.connect(policy, "ranked", "ranked")
    data.setup("fit")
    prompts, responses = data.table_texts()
    rendered = [policy.text.render(prompt, "alol") for prompt in prompts]
    pairs = [
        {
            "prompt": rendered[i],
            "chosen": f" {responses[i].strip()}",
            "rejected": f" {responses[i + 1].strip()}",
        }
        for i in range(0, len(responses), 2)
    ]
    return data, pairs


def peer(
    kind: str, policy: LanguagePolicy, pairs: list[dict[str, str]], steps: int, folder: Path
) -> tuple[Any, PeerClock]:
    """Return TRL's trainer on the same adapter and rows."""
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    shared: dict[str, Any] = {
        "output_dir": str(folder / "trl"),
        "max_steps": steps,
        "per_device_train_batch_size": MICRO_BATCH,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "fp16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "max_length": None,
        "seed": 0,
    }
    clock = PeerClock()
    callbacks: list[TrainerCallback] = [clock]
    if kind.startswith("dpo"):
        arguments = DPOConfig(
            **shared, beta=0.1, precompute_ref_log_probs=kind == "dpo_precomputed"
        )
        trainer: Any = DPOTrainer(
            model=policy.model,
            args=arguments,
            train_dataset=Dataset.from_list(pairs),
            processing_class=policy.tokenizer,
            callbacks=callbacks,
        )
    else:
        rows = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in pairs]
        trainer = SFTTrainer(
            model=policy.model,
            args=SFTConfig(**shared, completion_only_loss=True),
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            callbacks=callbacks,
        )
    return trainer, clock


def peer_tokens(kind: str, trainer: Any, steps: int) -> int:
    """Return the real tokens of all steps but the first, as TRL's own loader deals them out."""
    tokens = 0
    for step, batch in zip(range(steps), trainer.get_train_dataloader(), strict=False):
        tokens += int(batch["attention_mask"].sum()) if step else 0
    return tokens


def timed_peer(
    kind: str, policy: LanguagePolicy, pairs: list[dict[str, str]], steps: int, folder: Path
) -> Timing:
    trainer, clock = peer(kind, policy, pairs, steps, folder)
    tokens = peer_tokens(kind, trainer, steps)
    trainer.train()
    return Timing(clock.seconds, tokens)


def loss_differences(source: str, folder: Path) -> dict[str, float]:
    """Return how far the two libraries' losses on the same micro-batch and adapter are apart.

    For DPO, both start from the same saved adapter, which is the reference, and are then moved away
    from it by the same amount.
    """
    make_policy(None, False).save_adapter(folder / "start")
    differences = {}
    for kind in ("sft", "dpo"):
        policy, other = (
            LanguagePolicy.from_pretrained(BASE, adapter=str(folder / "start")) for _ in range(2)
        )
        data, pairs = texts(source, MICRO_BATCH, policy)
        trainer, _ = peer(kind, other, pairs, 1, folder)
        for changed in (policy, other):
            nudge(changed)
            changed.eval()
        batch = next(iter(data.table_batches(10**9)))
        order = [int((batch.rows == row).nonzero()[0, 0]) for row in range(2 * MICRO_BATCH)]
        inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(MICRO_BATCH)])
        with torch.no_grad():
            mine = our_loss(kind, policy, batch.select(torch.tensor(order)))
            theirs = trainer.compute_loss(trainer.model, dict(inputs))
        print(f"{kind} loss: ours {mine:.6f}, TRL {float(theirs):.6f}", flush=True)
        differences["nll" if kind == "sft" else kind] = abs(mine - float(theirs))
    return differences


def nudge(policy: LanguagePolicy) -> None:
    """Move the adapter that trains a little, the same way every time."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B.default" in name:
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))


def our_loss(kind: str, policy: LanguagePolicy, rows: TokenBatch) -> float:
    """Return our loss of pairs of rows, chosen before rejected, as TRL averages it."""
    if kind == "dpo":
        found = policy.sequence_log_probs(rows)
        with policy.reference():
            reference = policy.sequence_log_probs(rows)
        return float(
            dpo_loss(
                chosen=found[::2],
                rejected=found[1::2],
                ref_chosen=reference[::2],
                ref_rejected=reference[1::2],
                beta=0.1,
                reference_free=False,
            ).loss
        )
    chosen = rows.select(torch.arange(0, len(rows), 2))
    log_probs = policy.log_probs(chosen)
    total = nll_loss(log_probs=log_probs, response_mask=chosen.response_mask).per_sequence.sum()
    return float(total) / int(chosen.response_mask.sum())


def measure(
    kinds: list[str], source: str, rounds: int, steps: int, folder: Path
) -> dict[str, list[Timing]]:
    """Interleave `rounds` of every kind."""
    rows = steps * MICRO_BATCH
    _, pairs = texts(source, rows, make_policy(None, False))
    found: dict[str, list[Timing]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            name, _, place = kind.partition("@")
            top = 6 if place else None
            library, _, method = name.partition(":")
            trunk: str | bool = str(folder / "trunk") if library == "ours" and place else False
            policy = make_policy(top, trunk)
            run: Callable[[], Timing] = (
                (lambda m=method, p=policy: ours(m, source, p, rows, steps, folder))
                if library == "ours"
                else (lambda m=method, p=policy: timed_peer(m, p, pairs, steps, folder))
            )
            timing = run()
            found[kind].append(timing)
            print(
                f"{kind:28s} {timing.tokens_per_second:8.1f} tokens/s ({timing.tokens} tokens)",
                flush=True,
            )
    return found


def ratio(found: dict[str, list[Timing]], mine: str, theirs: str) -> float:
    """Return the median over rounds of the ratio within a round."""
    pairs = zip(found[mine], found[theirs], strict=True)
    return round(statistics.median(a.tokens_per_second / b.tokens_per_second for a, b in pairs), 2)


def peak_memory(kind: str, source: str, steps: int) -> int:
    """Return the peak memory in MB of a fresh process that trains for a few steps."""
    command = [
        sys.executable,
        __file__,
        "--memory-of",
        kind,
        "--data",
        source,
        "--steps",
        str(steps),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.strip().splitlines()[-1])


def memory_of(kind: str, source: str, steps: int) -> None:
    """Train and print this process's peak memory in MB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library, _, method = kind.partition(":")
        rows = steps * MICRO_BATCH
        policy = make_policy(None, False)
        if library == "ours":
            ours(method, source, policy, rows, steps, folder)
        else:
            _, pairs = texts(source, rows, policy)
            timed_peer(method, policy, pairs, steps, folder)
    print(peak_of_this_process() // 1024)


KINDS = [
    "ours:nll",
    "ours:a_lol",
    "trl:sft",
    "ours:dpo",
    "trl:dpo",
    "trl:dpo_precomputed",
    "ours:a_lol@top",
    "trl:sft@top",
    "ours:dpo@top",
    "trl:dpo@top",
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round, few steps, SFT only")
    parser.add_argument("--data", default="sample", help="HHA file in PRO's format")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))
    if options.memory_of:
        memory_of(options.memory_of, options.data, options.steps)
        return
    kinds = ["ours:a_lol@top", "trl:sft@top"] if options.quick else KINDS
    rounds, steps = (1, 4) if options.quick else (options.rounds, options.steps)
    with tempfile.TemporaryDirectory() as name:
        differences = {} if options.quick else loss_differences(options.data, Path(name))
        found = measure(kinds, options.data, rounds, steps, Path(name))
    ratios: dict[str, float] = {
        "a_lol_tokens_vs_trl_sft_trunk_cache": ratio(found, "ours:a_lol@top", "trl:sft@top")
    }
    if not options.quick:
        ratios |= {
            "a_lol_step_vs_nll_step": round(1 / ratio(found, "ours:a_lol", "ours:nll"), 2),
            "a_lol_tokens_vs_trl_sft": ratio(found, "ours:a_lol", "trl:sft"),
            "dpo_tokens_vs_trl_dpo": ratio(found, "ours:dpo", "trl:dpo"),
            "dpo_tokens_vs_trl_dpo_precomputed": ratio(found, "ours:dpo", "trl:dpo_precomputed"),
            "dpo_tokens_vs_trl_dpo_trunk_cache": ratio(found, "ours:dpo@top", "trl:dpo@top"),
        }
        peaks = {kind: peak_memory(kind, options.data, 4) for kind in KINDS if "@" not in kind}
        print(f"peak memory of a process in MB: {peaks}")
        ratios |= {
            "memory_vs_trl_dpo": round(peaks["trl:dpo"] / peaks["ours:dpo"], 2),
            "memory_vs_trl_sft": round(peaks["trl:sft"] / peaks["ours:a_lol"], 2),
        }
        ratios |= {f"loss_difference_{name}": value for name, value in differences.items()}
        write_results(ratios, found, peaks)
    print(json.dumps(ratios))


def write_results(
    ratios: dict[str, float], found: dict[str, list[Timing]], peaks: dict[str, int]
) -> None:
    """Keep a full run's numbers."""
    speeds = {
        kind: [round(timing.tokens_per_second, 1) for timing in timings]
        for kind, timings in found.items()
    }
    keep(
        "offline",
        ("torch", "trl"),
        tokens_per_second=speeds,
        ratios=ratios,
        peak_memory_mb=peaks,
    )


if __name__ == "__main__":
    main()
