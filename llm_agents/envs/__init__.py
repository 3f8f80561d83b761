"""Worlds that speak text; no policy in here."""

from __future__ import annotations

from llm_agents.envs.base import Observation, Step, TextEnv

__all__ = ["Observation", "Step", "TextEnv"]
