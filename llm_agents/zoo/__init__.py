"""The model zoo: adapters, reward models and agents by name, in folders and on the Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_agents.public_names import on_first_use

if TYPE_CHECKING:
    from llm_agents.zoo.foreign import recipe_of
    from llm_agents.zoo.hub import pull
    from llm_agents.zoo.layout import AdapterInfo, load_heads, save_pretrained
    from llm_agents.zoo.loader import Pretrained, load_policy, load_pretrained
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

__getattr__, __dir__ = on_first_use(__name__, __file__)
