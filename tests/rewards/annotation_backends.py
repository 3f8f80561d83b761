"""Language models with a rule, for tests of annotators: they implement the backends' interface."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llm_agents.rewards import AnnotationBackend
from llm_agents.types import GenerationConfig, Prompt


@dataclass
class RuleBackend(AnnotationBackend):
    """Answers by rules and remembers what it was asked.

    Args:
        reply: From a prompt's last text and a seed to a reply.
        lead: From a prompt's last text to the lead of the first answer over the second; NaN says
            something else altogether.
        model: Its name.
    """

    reply: Callable[[str, int], str] = lambda text, seed: ""
    lead: Callable[[str], float] = lambda text: 0.0
    model: str = "rule"
    asked: list[Prompt] = field(default_factory=list)
    calls: int = 0

    @property
    def name(self) -> str:
        return self.model

    def identity(self) -> dict[str, object]:
        return {"backend": "rule", "model": self.model}

    def generate(
        self,
        prompts: Sequence[Prompt],
        template: str,
        sampling: GenerationConfig,
        seeds: Sequence[int],
    ) -> list[str]:
        self.calls += 1
        self.asked += prompts
        return [self.reply(p[-1].text, seed) for p, seed in zip(prompts, seeds, strict=True)]

    def answer_log_probs(
        self, prompts: Sequence[Prompt], template: str, answers: Sequence[str]
    ) -> Tensor:
        self.calls += 1
        self.asked += prompts
        leads = [self.lead(prompt[-1].text) for prompt in prompts]
        rows = [[math.nan, math.nan] if math.isnan(lead) else [lead - 5.0, -5.0] for lead in leads]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(prompts), len(answers))
