"""Methods: one LightningModule a paper, and what they share."""

from __future__ import annotations

from llm_agents.methods.a_lol import ALoL
from llm_agents.methods.agent_files import is_agent, load_agent, read_agent
from llm_agents.methods.dpo import DPO
from llm_agents.methods.offline import OfflineModule
from llm_agents.methods.online_ppo import OnlinePPO
from llm_agents.methods.poad import POAD
from llm_agents.methods.ppo_settings import PPOConfig, TokenPPOConfig
from llm_agents.methods.pro import PRO
from llm_agents.methods.reward_model import RewardTraining
from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
from llm_agents.methods.twosome import TWOSOME
from llm_agents.methods.value_fit import ValueFitConfig

__all__ = [
    "DPO",
    "POAD",
    "PRO",
    "TWOSOME",
    "ALoL",
    "OfflineModule",
    "OfflineOptions",
    "OnlinePPO",
    "OptimizerConfig",
    "PPOConfig",
    "RewardTraining",
    "TokenPPOConfig",
    "ValueFitConfig",
    "is_agent",
    "load_agent",
    "read_agent",
]
