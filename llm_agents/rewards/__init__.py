"""Judges of text: every class here is a `llm_agents.types.Reward`."""

from __future__ import annotations

from llm_agents.rewards.classifier import ClassifierReward, TextFormat
from llm_agents.rewards.combined import SumReward
from llm_agents.rewards.function import CallableReward
from llm_agents.rewards.hha import (
    GPTNeoXRewardConfig,
    GPTNeoXRewardModel,
    OpenAssistantReward,
)
from llm_agents.rewards.policy import PolicyReward

__all__ = [
    "CallableReward",
    "ClassifierReward",
    "GPTNeoXRewardConfig",
    "GPTNeoXRewardModel",
    "OpenAssistantReward",
    "PolicyReward",
    "SumReward",
    "TextFormat",
]
