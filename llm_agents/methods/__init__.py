"""Methods: one LightningModule a paper, and what they share."""

from __future__ import annotations

from llm_agents.methods.a_lol import ALoL
from llm_agents.methods.dpo import DPO
from llm_agents.methods.offline import OfflineModule
from llm_agents.methods.pro import PRO
from llm_agents.methods.reward_model import RewardTraining
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.methods.value_fit import ValueFitConfig

__all__ = [
    "DPO",
    "PRO",
    "ALoL",
    "OfflineModule",
    "OfflineOptions",
    "OptimizerConfig",
    "RewardTraining",
    "ValueFitConfig",
]
