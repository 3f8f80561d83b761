"""Worlds that speak text; no policy in here."""

from __future__ import annotations

from llm_agents.envs.base import Observation, Step, TextEnv
from llm_agents.envs.case_study import CaseStudy
from llm_agents.envs.overcooked import Overcooked
from llm_agents.envs.prompts import Moment, PromptBuilder
from llm_agents.envs.registry import make_world, world_names
from llm_agents.envs.virtualhome_entertainment import Entertainment
from llm_agents.envs.virtualhome_food import FoodPreparation

__all__ = [
    "CaseStudy",
    "Entertainment",
    "FoodPreparation",
    "Moment",
    "Observation",
    "Overcooked",
    "PromptBuilder",
    "Step",
    "TextEnv",
    "make_world",
    "world_names",
]
