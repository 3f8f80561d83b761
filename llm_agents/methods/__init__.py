"""Methods: one LightningModule a paper, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_agents.public_names import on_first_use

if TYPE_CHECKING:
    from llm_agents.methods.a_lol import ALoL
    from llm_agents.methods.agent_files import (
        LoadedAgent,
        has_base,
        is_agent,
        load_agent,
        load_network_agent,
        read_agent,
    )
    from llm_agents.methods.agent_folder import WorldAgent
    from llm_agents.methods.cloning import Cloning
    from llm_agents.methods.dpo import DPO
    from llm_agents.methods.drrn import DRRN, DRRNConfig
    from llm_agents.methods.glam import GLAM, GLAMConfig
    from llm_agents.methods.motif_agent import MotifAgent
    from llm_agents.methods.motif_reward import MotifReward
    from llm_agents.methods.motif_settings import MotifPPOConfig
    from llm_agents.methods.offline import OfflineModule
    from llm_agents.methods.online_ppo import OnlinePPO
    from llm_agents.methods.poad import POAD
    from llm_agents.methods.ppo import PPO
    from llm_agents.methods.ppo_settings import PPOConfig, TokenPPOConfig
    from llm_agents.methods.pro import PRO
    from llm_agents.methods.response_settings import ResponsePPOConfig
    from llm_agents.methods.reward_model import RewardTraining
    from llm_agents.methods.settings import OfflineOptions, OptimizerConfig
    from llm_agents.methods.symbolic_ppo import SymbolicPPO, SymbolicPPOConfig
    from llm_agents.methods.twosome import TWOSOME
    from llm_agents.methods.value_fit import ValueFitConfig

__all__ = [
    "DPO",
    "DRRN",
    "GLAM",
    "POAD",
    "PPO",
    "PRO",
    "TWOSOME",
    "ALoL",
    "Cloning",
    "DRRNConfig",
    "GLAMConfig",
    "LoadedAgent",
    "MotifAgent",
    "MotifPPOConfig",
    "MotifReward",
    "OfflineModule",
    "OfflineOptions",
    "OnlinePPO",
    "OptimizerConfig",
    "PPOConfig",
    "ResponsePPOConfig",
    "RewardTraining",
    "SymbolicPPO",
    "SymbolicPPOConfig",
    "TokenPPOConfig",
    "ValueFitConfig",
    "WorldAgent",
    "has_base",
    "is_agent",
    "load_agent",
    "load_network_agent",
    "read_agent",
]

__getattr__, __dir__ = on_first_use(__name__, __file__)
