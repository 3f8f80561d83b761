"""The model zoo: adapters and reward models by name, in folders and on the Hub."""

from __future__ import annotations

from llm_agents.zoo.hub import load_pretrained, pull
from llm_agents.zoo.layout import AdapterInfo, load_heads, save_pretrained
from llm_agents.zoo.publishing import PublishReport, publish
from llm_agents.zoo.registry import Entry, entries_table, list_entries, print_entries, show

__all__ = [
    "AdapterInfo",
    "Entry",
    "PublishReport",
    "entries_table",
    "list_entries",
    "load_heads",
    "load_pretrained",
    "print_entries",
    "publish",
    "pull",
    "save_pretrained",
    "show",
]
