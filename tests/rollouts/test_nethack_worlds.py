"""NetHack games as a TorchRL environment."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchrl.envs.utils import check_env_specs

from llm_agents.envs.nethack_tasks import NetHackRules
from llm_agents.envs.nethack_vector import NetHackVector
from llm_agents.rollouts.nethack_worlds import NetHackWorlds

pytestmark = pytest.mark.nethack
nle = pytest.importorskip("nle", reason="needs the extra `nethack`")

RULES = NetHackRules(max_steps=6)


def test_the_specs_hold() -> None:
    worlds = NetHackWorlds(NetHackVector(3, seed=1, rules=RULES))
    check_env_specs(worlds, check_dtype=True)
    with pytest.raises(ValueError, match="expected the seed at"):
        worlds.set_seed(3)
    worlds.close()


def test_a_rollout_is_the_vector_s_games() -> None:
    worlds = NetHackWorlds(NetHackVector(3, seed=1, rules=RULES))
    peer = NetHackVector(3, seed=1, rules=RULES)
    actions = np.random.default_rng(0).integers(23, size=(15, 3))
    shown = peer.reset()
    entry = worlds.reset()
    for row in actions:
        for key in ("message", "blstats"):
            assert (entry[key].numpy() == shown[key]).all()
        assert entry["message_count"].view(-1).tolist() == shown["message_count"].tolist()
        step, following = worlds.step_and_maybe_reset(entry.set("action", torch.from_numpy(row)))
        found = peer.step(row)
        after = step["next"]
        assert after["reward"].view(-1).tolist() == found.rewards.tolist()
        assert after["truncated"].view(-1).tolist() == found.truncated.tolist()
        assert after["terminated"].view(-1).tolist() == found.terminated.tolist()
        last = {key: array.copy() for key, array in found.observations.items()}
        for key, array in last.items():
            array[found.ended] = found.final_observations[key]
            assert (after[key].numpy().reshape(array.shape) == array).all()
        entry, shown = following, found.observations
    episodes = worlds.take_episodes()
    assert len(episodes) == 6
    assert all(episode.num_steps == 6 for episode in episodes)
    assert worlds.take_episodes() == []
    worlds.close()
    peer.close()
