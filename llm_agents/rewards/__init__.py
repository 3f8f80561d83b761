"""Judges of text, each a `llm_agents.types.Reward`; and Motif's reward of game messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_agents.public_names import on_first_use

if TYPE_CHECKING:
    from llm_agents.rewards.annotation_backends import AnnotationBackend, PolicyBackend
    from llm_agents.rewards.annotation_choice import ChoiceAnnotator
    from llm_agents.rewards.annotation_generated import GeneratedAnnotator
    from llm_agents.rewards.annotation_pointwise import PointwiseAnnotator
    from llm_agents.rewards.annotation_server import ServerBackend
    from llm_agents.rewards.annotation_vllm import VLLMBackend
    from llm_agents.rewards.annotator import (
        Annotator,
        RandomAnnotator,
        ReturnAnnotator,
        ScoreAnnotator,
    )
    from llm_agents.rewards.attributes import AttributeReward
    from llm_agents.rewards.classifier import ClassifierReward, TextFormat
    from llm_agents.rewards.combined import SumReward
    from llm_agents.rewards.comet import CometCritic
    from llm_agents.rewards.comet_conversion import CometCriticConversion
    from llm_agents.rewards.diversity import DiversityReward
    from llm_agents.rewards.function import CallableReward
    from llm_agents.rewards.hha import (
        GPTNeoXRewardConfig,
        GPTNeoXRewardModel,
        OpenAssistantReward,
    )
    from llm_agents.rewards.motif import EpisodeReward, MessageReward, ShapingConfig
    from llm_agents.rewards.policy import PolicyReward
    from llm_agents.rewards.tasks import TASKS, TaskReward

__all__ = [
    "TASKS",
    "AnnotationBackend",
    "Annotator",
    "AttributeReward",
    "CallableReward",
    "ChoiceAnnotator",
    "ClassifierReward",
    "CometCritic",
    "CometCriticConversion",
    "DiversityReward",
    "EpisodeReward",
    "GPTNeoXRewardConfig",
    "GPTNeoXRewardModel",
    "GeneratedAnnotator",
    "MessageReward",
    "OpenAssistantReward",
    "PointwiseAnnotator",
    "PolicyBackend",
    "PolicyReward",
    "RandomAnnotator",
    "ReturnAnnotator",
    "ScoreAnnotator",
    "ServerBackend",
    "ShapingConfig",
    "SumReward",
    "TaskReward",
    "TextFormat",
    "VLLMBackend",
]

__getattr__, __dir__ = on_first_use(__name__, __file__)
