"""A small world and a small agent, both with every number known in advance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from llm_agents.envs import Observation, Step
from llm_agents.types import Choice, Decisions, Episode


class Corridor:
    """Cells 0 to `length`: the last one ends it with 1; a limit cuts it; some doors lead back.

    Its action lists have from 1 to 3 entries, some steps are macros of 2, and a step from a cell
    where a coin is drawn is random.

    Args:
        length: Cell of the goal.
        limit: Decisions after which an episode is cut.
    """

    name = "corridor"
    num_actions = 3
    vector_size = 2
    gamma = 0.9
    optimal_return: float | None = None

    def __init__(self, length: int = 3, limit: int = 5) -> None:
        self.length, self.limit = length, limit
        self.start = 0
        self.random = random.Random(0)
        self.seeds: list[int | None] = []
        self.cell = self.steps = self.primitive = 0
        self.total = self.discounted = 0.0
        self.over = True

    def reset(self, seed: int | None = None) -> Observation:
        """Begin in the cell `start`."""
        self.seeds.append(seed)
        if seed is not None:
            self.random = random.Random(seed)
        self.cell, self.steps, self.primitive = self.start, 0, 0
        self.total = self.discounted = 0.0
        self.over = False
        return self.observation()

    def observation(self) -> Observation:
        """Show the cell and the step."""
        actions = () if self.over else ("go on", "stay here", "run back")[: 1 + self.cell % 3]
        return Observation(
            f"You are in cell {self.cell} after {self.steps} steps.",
            "You should now",
            actions,
            tuple(range(len(actions))),
            (self.cell, self.steps),
        )

    def step(self, index: int) -> Step:
        """Go on (a coin may say no), stay for two primitive steps, or go back."""
        if self.over or not 0 <= index < len(self.observation().actions):
            raise ValueError(f"expected an admissible action, got {index}")
        duration = 2 if index == 1 else 1
        if index == 0:
            self.cell += self.random.random() < 0.8
        elif index == 2:
            self.cell = 0
        terminated = self.cell == self.length
        reward = 1.0 if terminated else 0.1 * index
        self.total += reward
        self.discounted += self.gamma**self.primitive * reward
        self.primitive += duration
        self.steps += 1
        truncated = self.steps == self.limit and not terminated
        self.over = terminated or truncated
        episode = None
        if self.over:
            episode = Episode(self.discounted, self.total, self.steps, self.primitive, terminated)
        return Step(self.observation(), reward, terminated, truncated, duration, episode)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as numbers."""
        version, internal, gauss = self.random.getstate()
        numbers = {
            name: getattr(self, name)
            for name in ("cell", "steps", "primitive", "total", "discounted", "over")
        }
        return {**numbers, "random": [version, list(internal), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> Observation:
        """Go back."""
        version, internal, gauss = state["random"]
        self.random.setstate((version, tuple(internal), gauss))
        for name, value in state.items():
            if name != "random":
                setattr(self, name, value)
        return self.observation()

    def render(self) -> str:
        """Draw the corridor."""
        return "".join("@" if cell == self.cell else "." for cell in range(self.length + 1))


class Drawer(torch.nn.Module):
    """Draws uniformly; a prompt's value is a number made of its text, times `scale`.

    Args:
        units: Whether an action has a unit a word (L varies from step to step) or one in all.
    """

    def __init__(self, units: bool = False) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.units = units
        self.asked: list[tuple[Choice, ...]] = []

    def value(self, prompt: str) -> float:
        """Return the value of a prompt."""
        return float(self.scale.detach()) * (sum(prompt.encode()) % 97) / 97

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Draw."""
        self.asked.append(tuple(choices))
        sizes = torch.tensor([len(choice.actions) for choice in choices])
        drawn = torch.rand(len(choices), generator=generator, dtype=torch.float64)
        index = (drawn * sizes).long()
        counts = torch.ones_like(index)
        if self.units:
            texts = [c.actions[i] for c, i in zip(choices, index.tolist(), strict=True)]
            counts = torch.tensor([len(text.split()) + 2 * text.count("back") for text in texts])
        mask = torch.arange(int(counts.max())) < counts.unsqueeze(1)
        log_probs = torch.where(mask, -sizes.log().unsqueeze(1) / counts.unsqueeze(1), 0.0)
        values = torch.tensor([self.value(choice.prompt) for choice in choices]).unsqueeze(1)
        values = torch.where(mask, values + torch.arange(mask.shape[1]) / 10, 0.0)
        return Decisions(index, log_probs, values, mask)

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Value the prompts."""
        return torch.tensor([self.value(choice.prompt) for choice in choices])
