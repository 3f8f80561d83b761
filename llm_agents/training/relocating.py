"""Recipes on a machine that never trained anything: where the entries that they name are here.

An entry of the zoo names its reward, its judge and its start as ``zoo:NAME``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from llm_agents.entries import find_entry, is_hub_id, is_of_here
from llm_agents.errors import UserError
from llm_agents.rewards import MessageReward
from llm_agents.zoo.hub import find_folder

log = logging.getLogger(__name__)


def reward_called(name: str) -> MessageReward:
    """Return the reward of messages of a zoo name, folder or Hub id.

    Raises:
        UserError: Nothing of that name was found, or it is no reward of messages.
    """
    return MessageReward.from_pretrained(str(find_folder(name)))


def without_missing_reward(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the data section of an agent, without its reward if that is not on this machine.

    An agent needs its reward to learn, not to play. Leaving it out is said.

    Args:
        section: `class_path` and `init_args`.
        name: The agent, for the message.
    """
    arguments = dict(section.get("init_args") or {})
    reward = arguments.get("reward")
    if isinstance(reward, Mapping):
        path = (reward.get("init_args") or {}).get("path")
        if isinstance(path, str) and not _is_here(path):
            log.warning(
                "the reward of messages that `%s` was paid by is not here (%s): it plays without, "
                "and no intrinsic return is shown; `--reward` gives another",
                name,
                path,
            )
            arguments["reward"] = None
    return {**section, "init_args": arguments}


def _is_here(path: str) -> bool:
    """Return whether a reward can be loaded: from a folder, the zoo, or, if asked, the Hub."""
    if find_entry(path) is not None or (is_hub_id(path) and not is_of_here(path)):
        return True
    try:
        find_folder(path)
    except UserError:
        return False
    return True
