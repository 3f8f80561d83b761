"""Networks: `LanguagePolicy` and its parts."""

from __future__ import annotations

from llm_agents.policies.backbone import LoraConfig, build_optimizer
from llm_agents.policies.language_policy import LanguagePolicy

__all__ = ["LanguagePolicy", "LoraConfig", "build_optimizer"]
