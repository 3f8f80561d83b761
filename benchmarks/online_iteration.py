"""A whole PPO iteration, rollout and update, beside the peers' way of scoring its choices.

Ours is timed whole: TorchRL's collector, worlds, prompts, tokenizer, critic and update, once the
run is warm. A peer's iteration is what scoring alone would cost it: every choice of the rollout is
scored once without gradient and once with it in each epoch, as nothing is remembered; that is timed
on a few choices of the same rollout and multiplied by their number. Their critics, extra passes and
environments are left out, so the ratios are on the low side. CPU time of the process, one thread.
``overcooked`` is TWOSOME's iteration beside its own and Lamorel's scoring, ``babyai`` GLAM's beside
Lamorel's, which GLAM uses: rows that repeat the prompt, or `pre_encode_inputs`, the cache.
The last line is a JSON object of ratios, above 1 is faster.

    python benchmarks/online_iteration.py --quick
    python benchmarks/online_iteration.py            # both; keeps their results
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from action_peers import cached_scores, repeat_scores
from keeping import keep
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from llm_agents.envs import BabyAIPrompt, PromptBuilder
from llm_agents.methods import GLAM, TWOSOME, GLAMConfig, OnlinePPO, PPOConfig
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.rollouts import TextRollouts
from llm_agents.types import Choice, Rollout

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Iteration:
    """What is timed.

    Args:
        agent: Makes the method, from a policy and its number of epochs.
        world: Name of the world.
        prompt: How its observations are written.
        epochs: Passes over the rollout, of the method's release.
        num_steps: Of each of 4 worlds; fewer where prompts are long and hardly one comes twice, so
            that an iteration takes minutes for the peers and tells the same.
    """

    agent: Callable[[LanguagePolicy, int], OnlinePPO]
    world: str
    prompt: PromptBuilder
    epochs: int
    num_steps: int

    @property
    def total(self) -> int:
        """Return the steps of an iteration."""
        return NUM_WORLDS * self.num_steps


def twosome(policy: LanguagePolicy, epochs: int) -> OnlinePPO:
    return TWOSOME(policy, ppo=PPOConfig(num_epochs=epochs, lr=1e-4, target_kl=None))


def glam(policy: LanguagePolicy, epochs: int) -> OnlinePPO:
    return GLAM(policy, critic="base", ppo=GLAMConfig(num_epochs=epochs, lr=1e-4, target_kl=None))


NUM_WORLDS = 4
ITERATIONS = {
    "overcooked": Iteration(twosome, "overcooked-tomato-salad", PromptBuilder(), 1, 32),
    "babyai": Iteration(glam, "babyai-go-to-red-ball", BabyAIPrompt(), 4, 8),
}


class Clock(Callback):
    """Keeps the CPU time of each iteration and the choices of the last one."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.choices: tuple[Choice, ...] = ()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Rollout, *_: Any
    ) -> None:
        self.times.append(time.process_time())
        self.choices = batch.choices


def our_iterations(
    what: Iteration, top_layers: int | None, number: int
) -> tuple[OnlinePPO, list[float], Clock]:
    """Return the CPU seconds of all iterations but the first."""
    torch.manual_seed(0)
    lora = LoraConfig(r=8, alpha=16, targets=("q_proj", "v_proj"), top_layers=top_layers)
    policy = LanguagePolicy.from_pretrained("smollm2-135m-instruct", lora=lora)
    agent = what.agent(policy, what.epochs)
    frames = what.total * (number + 1)
    data = TextRollouts(
        what.world,
        prompt=what.prompt,
        num_worlds=NUM_WORLDS,
        num_steps=what.num_steps,
        total_frames=frames,
        seed=0,
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            max_epochs=1,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[clock],
        ).fit(agent, data)
    return agent, [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)], clock


def timed(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def peer_iteration(
    scores: Callable[[Any, Sequence[Any]], list[Tensor]],
    agent: OnlinePPO,
    choices: list[Choice],
    what: Iteration,
) -> float:
    """Return the CPU seconds that scoring a whole iteration costs a peer, from a few choices."""
    model, encoder = agent.policy.causal_model, agent.policy.scorer.encoder
    encoded = [encoder.encode(choice) for choice in choices]

    def act() -> None:
        with torch.no_grad():
            scores(model, encoded)

    def update() -> None:
        for choice in encoded:
            (row,) = scores(model, [choice])
            (-row.log_softmax(0)[0]).backward()
        agent.zero_grad()

    return (timed(act) + what.epochs * timed(update)) * what.total / len(encoded)


def compare(what: Iteration, iterations: int, sampled: int) -> dict[str, float]:
    """Return ratios of the peers' CPU time to ours."""
    agent, whole, clock = our_iterations(what, None, iterations)
    asked, _, remembered = agent.policy.memory_statistics()
    distinct = list(dict.fromkeys(clock.choices))
    choices = [distinct[i * len(distinct) // sampled] for i in range(min(sampled, len(distinct)))]
    ours = statistics.median(whole)
    repeat = peer_iteration(repeat_scores, agent, choices, what)
    cached = peer_iteration(cached_scores, agent, choices, what)
    top = statistics.median(our_iterations(what, 6, iterations)[1])
    print(
        f"{what.world}, an iteration of {what.total} steps, {len(distinct)} distinct "
        f"choices, {what.epochs} epochs: ours {ours:.1f} s, top 6 layers {top:.1f} s; scoring "
        f"alone: {repeat:.0f} s for the peer that repeats, {cached:.0f} s for the one that caches",
        flush=True,
    )
    return {
        "iteration_vs_repeat": round(repeat / ours, 1),
        "iteration_vs_prefix_cache": round(cached / ours, 1),
        "iteration_vs_repeat_trunk_cache": round(repeat / top, 1),
        "iteration_vs_prefix_cache_trunk_cache": round(cached / top, 1),
        "answered_from_memory": round(remembered / asked, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer iterations and choices")
    parser.add_argument("--what", nargs="+", choices=ITERATIONS, default=list(ITERATIONS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    iterations, sampled = (1, 2) if options.quick else (3, 4)
    found = {}
    for name in options.what:
        found[name] = compare(ITERATIONS[name], iterations, sampled)
        if not options.quick:
            keep(f"online_iteration_{name}", ratios=found[name])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
