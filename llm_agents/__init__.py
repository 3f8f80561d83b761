"""Reinforcement learning with language models: five published systems on one backbone.

The public names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from llm_agents.messages import quieten, show_by_default

if TYPE_CHECKING:
    from llm_agents.data import CloningData, HHAData, MotifData, OfflineDataModule
    from llm_agents.methods import (
        DPO,
        DRRN,
        GLAM,
        POAD,
        PPO,
        PRO,
        TWOSOME,
        ALoL,
        Cloning,
        MotifReward,
        OptimizerConfig,
        PPOConfig,
        RewardTraining,
        SymbolicPPO,
    )
    from llm_agents.policies import LanguagePolicy, LoraConfig
    from llm_agents.rewards import CallableReward, MessageReward, PolicyReward
    from llm_agents.rollouts import SymbolicRollouts, TextRollouts
    from llm_agents.training.agents import load_player
    from llm_agents.training.pretrained import evaluate, play_pretrained
    from llm_agents.training.progress import RunProgress
    from llm_agents.types import GenerationConfig, Turn
    from llm_agents.zoo import load_pretrained

__version__ = "0.1.0"

__all__ = [
    "DPO",
    "DRRN",
    "GLAM",
    "POAD",
    "PPO",
    "PRO",
    "TWOSOME",
    "ALoL",
    "CallableReward",
    "Cloning",
    "CloningData",
    "GenerationConfig",
    "HHAData",
    "LanguagePolicy",
    "LoraConfig",
    "MessageReward",
    "MotifData",
    "MotifReward",
    "OfflineDataModule",
    "OptimizerConfig",
    "PPOConfig",
    "PolicyReward",
    "RewardTraining",
    "RunProgress",
    "SymbolicPPO",
    "SymbolicRollouts",
    "TextRollouts",
    "Turn",
    "evaluate",
    "load_player",
    "load_pretrained",
    "play_pretrained",
]

_HOMES = {
    "ALoL": "llm_agents.methods",
    "CallableReward": "llm_agents.rewards",
    "Cloning": "llm_agents.methods",
    "CloningData": "llm_agents.data",
    "DPO": "llm_agents.methods",
    "DRRN": "llm_agents.methods",
    "GLAM": "llm_agents.methods",
    "GenerationConfig": "llm_agents.types",
    "HHAData": "llm_agents.data",
    "LanguagePolicy": "llm_agents.policies",
    "LoraConfig": "llm_agents.policies",
    "MessageReward": "llm_agents.rewards",
    "MotifData": "llm_agents.data",
    "MotifReward": "llm_agents.methods",
    "OfflineDataModule": "llm_agents.data",
    "OptimizerConfig": "llm_agents.methods",
    "POAD": "llm_agents.methods",
    "PPO": "llm_agents.methods",
    "PPOConfig": "llm_agents.methods",
    "PRO": "llm_agents.methods",
    "PolicyReward": "llm_agents.rewards",
    "RewardTraining": "llm_agents.methods",
    "RunProgress": "llm_agents.training.progress",
    "SymbolicPPO": "llm_agents.methods",
    "SymbolicRollouts": "llm_agents.rollouts",
    "TWOSOME": "llm_agents.methods",
    "TextRollouts": "llm_agents.rollouts",
    "Turn": "llm_agents.types",
    "evaluate": "llm_agents.training.pretrained",
    "load_player": "llm_agents.training.agents",
    "load_pretrained": "llm_agents.zoo",
    "play_pretrained": "llm_agents.training.pretrained",
}


def __getattr__(name: str) -> object:
    """Import the public name `name` from its home module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, "__version__"]


show_by_default()
quieten()
