"""What PPO needs before it has met a rare reward: VirtualHome's entertainment on a table of logits.

The world pays once, at the end. A language model's first policy is scored for every observation;
what learns is a table of logits added to these scores, and a critic on the model's frozen states,
so that a run takes seconds. Everything else is as in the recipe. Prints which share of episodes is
paid before any training (dynamic programming over all states), and which settings ever learn.

    python benchmarks/rare_rewards.py --quick
    python benchmarks/rare_rewards.py            # keeps its results
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from keeping import keep
from torch import Tensor, nn

from llm_agents.envs import Observation, PromptBuilder
from llm_agents.envs.planning import reachable_states, start_state
from llm_agents.envs.virtualhome_entertainment import Entertainment
from llm_agents.functional import (
    clipped_surrogate_loss,
    gae,
    kl_per_unit,
    list_entropy,
    list_log_probs,
    normalize_advantages,
    value_loss,
)
from llm_agents.policies import LanguagePolicy, LoraConfig

WORLDS, STEPS, EPOCHS = 8, 32, 4
LR, CRITIC_LR, TARGET_KL = 0.05, 1e-3, 0.05


class Kitchen(NamedTuple):
    """The world as arrays: N states, V observations, at most A actions.

    Args:
        observations: The V observations.
        offered: ``[V, A]`` bool.
        seen: ``[N]`` int64, the observation of each state; the first state begins an episode.
        after: ``[N, A]`` int64.
        rewards: ``[N, A]``.
        ends: ``[N, A]`` bool.
    """

    observations: list[Observation]
    offered: Tensor
    seen: Tensor
    after: Tensor
    rewards: Tensor
    ends: Tensor


def enumerate_world(world: Entertainment) -> Kitchen:
    states = reachable_states(world, start_state(world))
    numbers = {state: number for number, state in enumerate(states)}
    shown = [world.observe(state) for state in states]
    kinds = list(dict.fromkeys(shown))
    width = max(len(observation.actions) for observation in kinds)
    after = torch.zeros(len(states), width, dtype=torch.long)  # behind an end: never read
    rewards, ends = torch.zeros(len(states), width), torch.zeros(len(states), width).bool()
    for number, state in enumerate(states):
        for place, action in enumerate(shown[number].action_ids):
            found = world.outcome(state, action)
            after[number, place] = numbers.get(found.state, 0)
            rewards[number, place], ends[number, place] = found.reward, found.terminated
    seen = torch.tensor([kinds.index(observation) for observation in shown])
    offered = torch.tensor([[n < len(each.actions) for n in range(width)] for each in kinds])
    return Kitchen(kinds, offered, seen, after, rewards, ends)


def score(kitchen: Kitchen) -> tuple[dict[str, Tensor], Tensor]:
    """Return ``[V, A]`` scores of the untrained model by normalization, and ``[V, H]`` states."""
    lora = LoraConfig(r=8, alpha=16, targets=("q_proj", "v_proj"), top_layers=4)
    policy = LanguagePolicy.from_pretrained("smollm2-135m-instruct", lora=lora)
    choices = [PromptBuilder().choice(observation) for observation in kitchen.observations]
    scores = {"uniform": torch.zeros(kitchen.offered.shape)}
    with torch.no_grad():
        for name in ("word", "token", "sum"):
            scores[name] = policy.score_actions(choices, name).scores  # type: ignore[arg-type]
        return scores, policy.base_features(choices).prompt_states.float()


def paid_share(kitchen: Kitchen, scores: Tensor, max_steps: int) -> float:
    """Return the probability that an episode is paid within its steps."""
    policy = list_log_probs(scores, kitchen.offered).exp()[kitchen.seen]
    paid = torch.zeros(len(kitchen.seen))
    for _ in range(max_steps):
        paid = (policy * (kitchen.rewards + ~kitchen.ends * paid[kitchen.after])).sum(-1)
    return float(paid[0])


@dataclass(frozen=True)
class Settings:
    """What is varied."""

    critic_init: str
    advantage_floor: float
    entropy_coef: float


GRID = [
    Settings("random", 0.0, 0.01),
    Settings("random", 0.05, 0.03),
    Settings("zero", 0.0, 0.01),
    Settings("zero", 0.0, 0.03),
    Settings("zero", 0.05, 0.01),
    Settings("zero", 0.05, 0.03),
]


class Learner:
    """PPO on the table.

    Args:
        kitchen: The world.
        scores: ``[V, A]`` of the first policy.
        states: ``[V, H]`` that the critic reads.
        settings: What is varied.
        world: For its discount and limit.
        seed: Of the critic and the draws.
    """

    def __init__(
        self,
        kitchen: Kitchen,
        scores: Tensor,
        states: Tensor,
        settings: Settings,
        world: Entertainment,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.kitchen, self.scores, self.states = kitchen, scores, states
        self.settings, self.gamma, self.limit = settings, world.gamma, world.max_steps or 0
        self.table = nn.Parameter(torch.zeros_like(scores))
        sizes = states.shape[1]
        self.critic = nn.Sequential(
            nn.Linear(sizes, 256, bias=False), nn.ReLU(), nn.Linear(256, 1, bias=False)
        )
        if settings.critic_init == "zero":
            nn.init.zeros_(self.critic[-1].weight)  # type: ignore[arg-type]
        self.optimizer = torch.optim.AdamW([self.table], lr=LR, eps=1e-5, weight_decay=0)
        self.critic_optimizer = torch.optim.AdamW(
            self.critic.parameters(), lr=CRITIC_LR, eps=1e-5, weight_decay=0
        )
        self.place = torch.zeros(WORLDS, dtype=torch.long)
        self.age = torch.zeros(WORLDS, dtype=torch.long)
        self.returns: list[float] = []  # discounted, of finished episodes

    def log_probs(self) -> Tensor:
        return list_log_probs(self.scores + self.table, self.kitchen.offered)

    def values(self) -> Tensor:
        found: Tensor = self.critic(self.states).squeeze(-1)
        return found

    @torch.no_grad()
    def collect(self) -> tuple[Tensor, ...]:
        """Return ``[T, E]`` observations, actions, rewards, ends, limits and next values."""
        policy, values, rows = self.log_probs().exp(), self.values(), []
        world = self.kitchen
        for _ in range(STEPS):
            seen = world.seen[self.place]
            action = torch.multinomial(policy[seen], 1).squeeze(1)
            reward, ended = world.rewards[self.place, action], world.ends[self.place, action]
            after = world.after[self.place, action]
            self.age += 1
            cut = (self.age >= self.limit) & ~ended
            rows.append((seen, action, reward, ended, cut, values[world.seen[after]]))
            for number in torch.nonzero(ended | cut).flatten().tolist():
                discount = self.gamma ** (int(self.age[number]) - 1)
                self.returns.append(float(reward[number]) * discount)
            self.place = after.masked_fill(ended | cut, 0)
            self.age = self.age.masked_fill(ended | cut, 0)
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    def update(self) -> None:
        seen, action, rewards, ended, cut, after = self.collect()
        old_values = self.values().detach()[seen]
        found = gae(
            rewards=rewards,
            values=old_values,
            next_values=after,
            terminated=ended,
            truncated=cut,
            discounts=torch.full_like(rewards, self.gamma),
            gae_lambda=0.95,
        )
        whole = torch.ones_like(ended).flatten()[:, None]
        advantages = normalize_advantages(
            found.advantages,
            torch.ones_like(ended),
            unbiased=True,
            epsilon=1e-8,
            floor=self.settings.advantage_floor,
        ).flatten()[:, None]
        taken, kinds = action.flatten()[:, None], seen.flatten()
        old = self.log_probs().detach()[kinds].gather(1, taken)
        for _ in range(EPOCHS):
            values = self.values()[kinds][:, None]
            fit = value_loss(
                values=values,
                old_values=old_values.flatten()[:, None],
                returns=found.returns.flatten()[:, None],
                mask=whole,
                clip_epsilon=0.2,
                reduction="units",
            ).loss
            self._step(self.critic_optimizer, 0.5 * fit)
            every = self.log_probs()
            now = every[kinds].gather(1, taken)
            moved = kl_per_unit(
                log_probs=old, other_log_probs=now.detach(), mask=whole, estimator="k3"
            )
            if float(moved.mean()) > TARGET_KL:
                return
            loss = clipped_surrogate_loss(
                log_probs=now,
                old_log_probs=old,
                advantages=advantages,
                mask=whole,
                clip_epsilon=0.2,
                reduction="units",
            ).loss
            entropy = list_entropy(every, self.kitchen.offered)[kinds].mean()
            self._step(self.optimizer, loss - self.settings.entropy_coef * entropy)

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
        optimizer.step()

    def curve(self, frames: int) -> Iterator[float]:
        """Yield the mean return of the last 40 episodes after each update."""
        for _ in range(frames // (WORLDS * STEPS)):
            self.update()
            yield statistics.fmean(self.returns[-40:] or [0.0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, a few updates")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--frames", type=int, default=49152)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds, frames = (1, 2048) if options.quick else (options.seeds, options.frames)
    world = Entertainment()
    kitchen = enumerate_world(world)
    scores, states = score(kitchen)
    paid = {name: paid_share(kitchen, of, world.max_steps or 0) for name, of in scores.items()}
    print(f"{len(kitchen.seen)} states; share of episodes that are paid untrained: {paid}")
    rows = []
    for settings in GRID:
        ends, steps = [], []
        for seed in range(1, seeds + 1):
            learner = Learner(kitchen, scores["word"], states, settings, world, seed)
            curve = list(learner.curve(frames))
            bar = 0.9 * (world.optimal_return or 1.0)
            first = next((n for n, found in enumerate(curve, 1) if found >= bar), None)
            steps.append(None if first is None else first * WORLDS * STEPS)
            ends.append(round(curve[-1], 4))
        row = {**vars(settings), "returns": ends, "steps_to_90%": steps}
        print(json.dumps(row), flush=True)
        rows.append(row)
    if not options.quick:
        keep("rare_rewards", ("torch", "transformers"), frames=frames, paid=paid, settings=rows)


if __name__ == "__main__":
    main()
