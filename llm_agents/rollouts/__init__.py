"""Online batches: TorchRL collects experience from text worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_agents.public_names import on_first_use

if TYPE_CHECKING:
    from llm_agents.rollouts.collector import RolloutCollector
    from llm_agents.rollouts.datamodule import TextRollouts
    from llm_agents.rollouts.nethack import NetHackRollouts
    from llm_agents.rollouts.nethack_worlds import NetHackWorlds
    from llm_agents.rollouts.playing import play
    from llm_agents.rollouts.prompted import PromptedWorld
    from llm_agents.rollouts.statistics import EpisodeStatistics
    from llm_agents.rollouts.symbolic import SymbolicRollouts, play_symbolic
    from llm_agents.rollouts.worlds import TextWorlds

__all__ = [
    "EpisodeStatistics",
    "NetHackRollouts",
    "NetHackWorlds",
    "PromptedWorld",
    "RolloutCollector",
    "SymbolicRollouts",
    "TextRollouts",
    "TextWorlds",
    "play",
    "play_symbolic",
]

__getattr__, __dir__ = on_first_use(__name__, __file__)
