"""Networks: `LanguagePolicy` and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_agents.public_names import on_first_use

if TYPE_CHECKING:
    from llm_agents.policies.backbone import LoraConfig, build_optimizer
    from llm_agents.policies.language_policy import LanguagePolicy
    from llm_agents.policies.message_encoder import MessageEncoder
    from llm_agents.policies.message_language import LanguageMessageScorer
    from llm_agents.policies.message_scorer import MessageScorer
    from llm_agents.policies.nethack import NetHackNetwork, ReleaseNetwork, SmallNetwork
    from llm_agents.policies.nethack_files import is_nethack_agent, load_nethack_network
    from llm_agents.policies.nethack_player import NetworkPlayer

__all__ = [
    "LanguageMessageScorer",
    "LanguagePolicy",
    "LoraConfig",
    "MessageEncoder",
    "MessageScorer",
    "NetHackNetwork",
    "NetworkPlayer",
    "ReleaseNetwork",
    "SmallNetwork",
    "build_optimizer",
    "is_nethack_agent",
    "load_nethack_network",
]

__getattr__, __dir__ = on_first_use(__name__, __file__)
