"""The model zoo: adapters, reward models and agents by name, in folders and on the Hub."""

from __future__ import annotations

from llm_agents.zoo.foreign import recipe_of
from llm_agents.zoo.hub import Pretrained, load_policy, load_pretrained, pull
from llm_agents.zoo.layout import AdapterInfo, load_heads, save_pretrained
from llm_agents.zoo.publishing import PublishReport, publish
from llm_agents.zoo.registry import Entry, list_entries, print_entries, show

__all__ = [
    "AdapterInfo",
    "Entry",
    "Pretrained",
    "PublishReport",
    "list_entries",
    "load_heads",
    "load_policy",
    "load_pretrained",
    "print_entries",
    "publish",
    "pull",
    "recipe_of",
    "save_pretrained",
    "show",
]
