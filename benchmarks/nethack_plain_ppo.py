"""A plain recurrent PPO for NetHack in one file: what `nethack_ppo.py` holds ours against.

The networks are those of `llm_agents.policies.nethack`, layer by layer, in plain PyTorch: pictures
are drawn and convolved, the core runs step by step with its state reset where episodes end. Games,
their process and their number are the same as ours. Prints its frames after each iteration.

    python benchmarks/nethack_plain_ppo.py --network release
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from llm_agents.envs.nethack_vector import NetHackVector
from llm_agents.policies.nethack import CodeEncoder, stat_scales
from llm_agents.policies.nethack_window import glyph_atlas, tiles

GAMMA, GAE_LAMBDA, CLIP, MINIBATCH = 0.99, 0.95, 0.1, 1024


class Network(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "release":
            self.image: nn.Module = nn.Sequential(
                nn.Conv2d(3, 32, 8, 4), nn.ELU(), nn.Conv2d(32, 64, 4, 2), nn.ELU(),
                nn.Conv2d(64, 128, 3, 2), nn.ELU(), nn.Flatten(), nn.Linear(1152, 512), nn.ELU(),
            )  # fmt: skip
            size, branch, image = 512, 128, 512
        else:
            self.image = nn.Sequential(nn.Linear(144 * 12, 128), nn.ELU())
            size, branch, image = 128, 64, 128
        self.vector = nn.Sequential(
            nn.Linear(27, branch), nn.ELU(), nn.Linear(branch, branch), nn.ELU()
        )
        self.message = nn.Sequential(
            nn.Linear(256, branch), nn.ELU(), nn.Linear(branch, branch), nn.ELU()
        )
        self.core = nn.GRU(image + branch + 27 + branch, size)
        self.policy, self.value = nn.Linear(size, 23), nn.Linear(size, 1)
        self.size = size

    def features(self, image: Tensor, vector: Tensor, message: Tensor) -> Tensor:
        seen = image.float() / 255 if self.kind == "release" else image
        parts = [self.image(seen), self.vector(vector), vector, self.message(message.float() / 255)]
        return torch.cat(parts, -1)

    def steps(self, features: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states after each of T steps, ``[T, B, H]``, and the last one."""
        found = []
        for one, start in zip(features, starts, strict=True):
            out, state = self.core(one[None], state * (~start).float()[None, :, None])
            found.append(out[0])
        return torch.stack(found), state


class Eyes:
    """Turns the engine's arrays into tensors, all games at once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        drawn = tiles(torch.arange(4096), torch.from_numpy(glyph_atlas().copy()))
        self.tiles = (drawn * 255).round().to(torch.uint8).numpy()
        self.codes = CodeEncoder(1).codes

    def __call__(self, raw: dict[str, np.ndarray[Any, Any]]) -> tuple[Tensor, Tensor, Tensor]:
        kinds = raw["window_chars"].astype(np.int64) | raw["window_colors"].astype(np.int64) << 8
        if self.kind == "release":
            picture = self.tiles[kinds].transpose(0, 3, 1, 4, 2, 5)
            image = torch.from_numpy(np.ascontiguousarray(picture).reshape(-1, 3, 72, 72))
        else:
            image = self.codes[torch.from_numpy(kinds)].flatten(1)
        stats = torch.from_numpy(raw["blstats"].astype(np.float32))
        vector = (stats * stat_scales()).clamp(-5, 5)
        return image, vector, torch.from_numpy(raw["message"].copy())


def update(
    network: Network, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], state: Tensor
) -> None:
    """One epoch over sequences of whole rollouts, in minibatches of games."""
    steps, games = batch["actions"].shape
    for rows in torch.randperm(games).split(max(1, MINIBATCH // steps)):
        part = {name: value[:, rows] for name, value in batch.items()}
        flat = [part[name].flatten(0, 1) for name in ("image", "vector", "message")]
        features = network.features(*flat).view(steps, len(rows), -1)
        hidden, _ = network.steps(features, state[:, rows], part["starts"])
        log_probs = network.policy(hidden).log_softmax(-1)
        values = network.value(hidden)[..., 0]
        taken = log_probs.gather(-1, part["actions"][..., None])[..., 0]
        ratio = (taken - part["log_probs"]).exp()
        gain = part["advantages"]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = -torch.minimum(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        critic = 0.5 * (values - part["returns"]).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        optimizer.zero_grad()
        (policy + critic - 0.003 * entropy).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 4.0)
        optimizer.step()


@torch.no_grad()
def collect(
    network: Network, vector: NetHackVector, eyes: Eyes, now: dict[str, Any], num_steps: int
) -> dict[str, Tensor]:
    """Play `num_steps` steps of all games from `now` on, which is moved along."""
    kept: dict[str, list[Tensor]] = {}
    for _ in range(num_steps):
        image, stats, message = now["seen"]
        features = network.features(image, stats, message)
        hidden, state = network.steps(features[None], now["state"], now["starts"][None])
        log_probs = network.policy(hidden[0]).log_softmax(-1)
        actions = torch.multinomial(log_probs.exp(), 1)
        step = vector.step(actions[:, 0].numpy())
        record = {
            "image": image, "vector": stats, "message": message, "starts": now["starts"],
            "actions": actions[:, 0], "log_probs": log_probs.gather(1, actions)[:, 0],
            "values": network.value(hidden[0])[:, 0], "rewards": torch.from_numpy(step.rewards),
            "ends": torch.from_numpy(step.terminated | step.truncated),
        }  # fmt: skip
        for name, value in record.items():
            kept.setdefault(name, []).append(value)
        now |= {"seen": eyes(step.observations), "state": state, "starts": record["ends"]}
    batch = {name: torch.stack(parts) for name, parts in kept.items()}
    features = network.features(*now["seen"])
    hidden, _ = network.steps(features[None], now["state"], now["starts"][None])
    following, advantage = network.value(hidden[0])[:, 0], torch.zeros(vector.num_games)
    batch["advantages"] = torch.zeros_like(batch["values"])
    for step in reversed(range(num_steps)):
        goes_on = (~batch["ends"][step]).float()
        delta = 0.1 * batch["rewards"][step] + GAMMA * following * goes_on - batch["values"][step]
        advantage = delta + GAMMA * GAE_LAMBDA * goes_on * advantage
        batch["advantages"][step], following = advantage, batch["values"][step]
    batch["returns"] = batch["advantages"] + batch["values"]
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=("release", "small"), default="release")
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, eyes = Network(options.network), Eyes(options.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, eps=1e-6)
    keys = ("window_chars", "window_colors", "blstats", "message")
    vector = NetHackVector(options.games, options.workers, keys=keys)
    now: dict[str, Any] = {
        "seen": eyes(vector.reset()),
        "state": torch.zeros(1, options.games, network.size),
        "starts": torch.ones(options.games, dtype=torch.bool),
    }
    frames = 0
    while True:
        state = now["state"]
        batch = collect(network, vector, eyes, now, options.steps)
        update(network, optimizer, batch, state)
        frames += options.games * options.steps
        print(json.dumps({"frames": frames}), flush=True)


if __name__ == "__main__":
    main()
