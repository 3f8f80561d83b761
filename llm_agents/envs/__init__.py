"""Worlds that speak text; no policy in here."""

from __future__ import annotations

from llm_agents.envs.adapted import AdaptedWorld
from llm_agents.envs.babyai import BabyAIText
from llm_agents.envs.babyai_prompts import BabyAIPrompt
from llm_agents.envs.base import Observation, Step, TextEnv
from llm_agents.envs.case_study import CaseStudy
from llm_agents.envs.nethack import NetHackGame, make_nethack
from llm_agents.envs.nethack_tasks import NetHackRules
from llm_agents.envs.nethack_text import NetHackText
from llm_agents.envs.nethack_vector import NetHackVector
from llm_agents.envs.overcooked import Overcooked
from llm_agents.envs.prompts import Moment, PromptBuilder
from llm_agents.envs.registry import make_world, world_names
from llm_agents.envs.virtualhome_entertainment import Entertainment
from llm_agents.envs.virtualhome_food import FoodPreparation

__all__ = [
    "AdaptedWorld",
    "BabyAIPrompt",
    "BabyAIText",
    "CaseStudy",
    "Entertainment",
    "FoodPreparation",
    "Moment",
    "NetHackGame",
    "NetHackRules",
    "NetHackText",
    "NetHackVector",
    "Observation",
    "Overcooked",
    "PromptBuilder",
    "Step",
    "TextEnv",
    "make_nethack",
    "make_world",
    "world_names",
]
