"""Offline data: readers, truncation rules, samplers and the data modules around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_agents.public_names import on_first_use

if TYPE_CHECKING:
    from llm_agents.data.babyai_trajectories import (
        AgentTrajectories,
        BotTrajectories,
        DAggerTrajectories,
    )
    from llm_agents.data.base import DropReport, Example, collate_prompts, collate_tokens
    from llm_agents.data.cloning import CloningData
    from llm_agents.data.comet import CometData
    from llm_agents.data.comet_preparation import CometPreparation, CometRules
    from llm_agents.data.contrast import ContrastPreparation
    from llm_agents.data.held_out import HeldOut
    from llm_agents.data.hha import HHAData
    from llm_agents.data.module import OfflineDataModule
    from llm_agents.data.motif import MotifData
    from llm_agents.data.motif_annotation import MotifAnnotation
    from llm_agents.data.motif_collection import MotifCollection
    from llm_agents.data.motif_layout import MotifPairs
    from llm_agents.data.preparation import Preparation
    from llm_agents.data.reading import read_examples
    from llm_agents.data.reddit import RedditData
    from llm_agents.data.reddit_preparation import RedditPreparation, RedditRules
    from llm_agents.data.sampling import StepSampler, StepShape
    from llm_agents.data.selection import PromptSplit, RowRules, split_by_prompt
    from llm_agents.data.streams import BatchStream, EvaluationStream
    from llm_agents.data.templates import stop_strings, strip_generated
    from llm_agents.data.token_limit import TokenLimit
    from llm_agents.data.wow import WowData
    from llm_agents.data.wow_preparation import LabelScores, WowPreparation, WowRules

__all__ = [
    "AgentTrajectories",
    "BatchStream",
    "BotTrajectories",
    "CloningData",
    "CometData",
    "CometPreparation",
    "CometRules",
    "ContrastPreparation",
    "DAggerTrajectories",
    "DropReport",
    "EvaluationStream",
    "Example",
    "HHAData",
    "HeldOut",
    "LabelScores",
    "MotifAnnotation",
    "MotifCollection",
    "MotifData",
    "MotifPairs",
    "OfflineDataModule",
    "Preparation",
    "PromptSplit",
    "RedditData",
    "RedditPreparation",
    "RedditRules",
    "RowRules",
    "StepSampler",
    "StepShape",
    "TokenLimit",
    "WowData",
    "WowPreparation",
    "WowRules",
    "collate_prompts",
    "collate_tokens",
    "read_examples",
    "split_by_prompt",
    "stop_strings",
    "strip_generated",
]

__getattr__, __dir__ = on_first_use(__name__, __file__)
