"""What other processes do with a model that they ask; imported by these processes, too."""

from __future__ import annotations

from typing import Any

from llm_agents.envs.prompts import PromptBuilder
from llm_agents.envs.toy import Lamp
from llm_agents.rollouts.policy_server import PolicyClient


def play(client: PolicyClient, seed: int, rounds: int, results: Any) -> None:
    """Play a lamp's world: score, take the best action, and let the model learn of the reward."""
    world, prompts, earned = Lamp(seed=seed), PromptBuilder(), 0.0
    for _ in range(rounds):
        choice = prompts.choice(world.reset())
        (scores,) = client.score([choice], "token")
        index = int(scores.argmax())
        step = world.step(index)
        earned += step.reward
        client.call("update", [choice], [index], [step.reward])
    client.close()
    results.put((seed, earned))
