"""Sample Factory 2.1 on NetHack with the networks of `llm_agents.policies.nethack`.

Runs in an environment of its own, which `nethack_ppo.py --sample-factory` makes; nothing of
llm_agents is there. With GAE, since V-trace stops with an error in 2.1.1 (`advantages` are missing
where it sums up a batch). Prints its frames after each iteration.

    VENV/bin/python benchmarks/nethack_sample_factory.py --network release --mode async
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from nle.env.tasks import NetHackScore
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner
from torch import Tensor, nn

KEYS = ("tty_chars", "tty_colors", "blstats", "message")
TENTHS = (3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 16, 18, 22)
SCALES = np.zeros(27, np.float32)
SCALES[0], SCALES[1], SCALES[13], SCALES[20] = 1 / 79, 1 / 21, 1 / 1000, 1 / 1000
SCALES[list(TENTHS)], SCALES[19], SCALES[21] = 1 / 10, 1 / 100, 1


class Game(gym.Env):
    """NetHack with a picture, or codes, of what surrounds the hero."""

    render_mode = None

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.game = NetHackScore(observation_keys=KEYS, save_ttyrec_every=0)
        self.action_space = gym.spaces.Discrete(self.game.action_space.n)
        box = gym.spaces.Box
        image = (
            box(0, 255, (3, 72, 72), np.uint8)
            if kind == "release"
            else box(-9, 9, (144 * 12,), np.float32)
        )
        self.observation_space = gym.spaces.Dict(
            {
                "image": image,
                "vector": box(-5, 5, (27,), np.float32),
                "message": box(0, 255, (256,), np.uint8),
            }
        )
        rng = np.random.default_rng(0)  # drawings of any kind cost the same
        self.tiles = rng.integers(0, 256, (4096, 3, 6, 6)).astype(np.uint8)
        self.codes = rng.normal(size=(4096, 12)).astype(np.float32)

    def _see(self, raw: dict[str, Any]) -> dict[str, Any]:
        x, y = raw["blstats"][:2]
        kinds = np.zeros((12, 12), np.int64)
        top, left = max(0, y - 6), max(0, x - 6)
        chars = raw["tty_chars"][top : y + 6, left : x + 6]
        colors = raw["tty_colors"][top : y + 6, left : x + 6].astype(np.int64) & 15
        row, column = top - y + 6, left - x + 6
        kinds[row : row + chars.shape[0], column : column + chars.shape[1]] = chars | colors << 8
        if self.kind == "release":
            image = self.tiles[kinds].transpose(2, 0, 3, 1, 4).reshape(3, 72, 72)
        else:
            image = self.codes[kinds].reshape(-1)
        vector = np.clip(raw["blstats"] * SCALES, -5, 5).astype(np.float32)
        return {"image": image, "vector": vector, "message": raw["message"].copy()}

    def reset(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        raw, _ = self.game.reset()
        return self._see(raw), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        raw, reward, terminated, truncated, _ = self.game.step(action)
        return self._see(raw), reward, terminated, truncated, {}

    def close(self) -> None:
        self.game.close()


class ScreenEncoder(Encoder):
    def __init__(self, cfg: Any, space: Any) -> None:
        super().__init__(cfg)
        self.is_release = len(space["image"].shape) == 3
        branch = 128 if self.is_release else 64
        if self.is_release:
            self.image: nn.Module = nn.Sequential(
                nn.Conv2d(3, 32, 8, 4), nn.ELU(), nn.Conv2d(32, 64, 4, 2), nn.ELU(),
                nn.Conv2d(64, 128, 3, 2), nn.ELU(), nn.Flatten(), nn.Linear(1152, 512), nn.ELU(),
            )  # fmt: skip
        else:
            self.image = nn.Sequential(nn.Linear(144 * 12, 128), nn.ELU())
        self.vector = nn.Sequential(
            nn.Linear(27, branch), nn.ELU(), nn.Linear(branch, branch), nn.ELU()
        )
        self.message = nn.Sequential(
            nn.Linear(256, branch), nn.ELU(), nn.Linear(branch, branch), nn.ELU()
        )
        self.size = (512 if self.is_release else 128) + 27 + 2 * branch

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        image = seen["image"].float()
        parts = [
            self.image(image / 255 if self.is_release else image),
            self.vector(seen["vector"]),
            seen["vector"],
            self.message(seen["message"].float() / 255),
        ]
        return torch.cat(parts, -1)

    def get_out_size(self) -> int:
        return self.size


class Counter(AlgoObserver):
    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        print(json.dumps({"frames": runner.total_env_steps_since_resume}), flush=True)


def make_game(full_env_name: str, cfg: Any, env_config: Any, render_mode: Any = None) -> Game:
    return Game(full_env_name.rpartition("_")[2])


def make_encoder(cfg: Any, space: Any) -> Encoder:
    return ScreenEncoder(cfg, space)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=("release", "small"), default="release")
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mode", choices=("async", "sync", "serial"), default="async")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = f"nethack_{options.network}"
    register_env(name, make_game)
    global_model_factory().register_encoder_factory(make_encoder)
    workers = 1 if options.mode == "serial" else options.workers
    arguments = {
        "env": name, "experiment": "benchmark", "train_dir": tempfile.mkdtemp(), "device": "cpu",
        "num_workers": workers, "num_envs_per_worker": options.games // workers,
        "worker_num_splits": 1 if options.mode == "serial" else 2,
        "async_rl": options.mode == "async", "serial_mode": options.mode == "serial",
        "batched_sampling": False, "rollout": 32, "recurrence": 32, "batch_size": 1024,
        "num_batches_per_epoch": 1, "num_epochs": 1, "use_rnn": True, "rnn_type": "gru",
        "rnn_size": 512 if options.network == "release" else 128, "nonlinearity": "elu",
        "normalize_input": False, "normalize_returns": False, "with_vtrace": False,
        "reward_scale": 0.1, "reward_clip": 10, "exploration_loss_coeff": 0.003,
        "learning_rate": 1e-4, "max_grad_norm": 4.0, "ppo_clip_ratio": 0.1, "gamma": 0.99,
        "save_every_sec": 100000, "train_for_seconds": 100000, "use_env_info_cache": False,
        "set_workers_cpu_affinity": False, "with_wandb": False,
    }  # fmt: skip
    parser, _ = parse_sf_args([f"--{key}={value}" for key, value in arguments.items()])
    cfg = parse_full_cfg(parser, [f"--{key}={value}" for key, value in arguments.items()])
    cfg, runner = make_runner(cfg)
    runner.register_observer(Counter())
    runner.init()
    return int(runner.run())


if __name__ == "__main__":
    sys.exit(main())
