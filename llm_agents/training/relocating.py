"""Recipes on a machine that never trained anything: where the rewards that they name are here.

An entry of the zoo names its reward as ``checkpoints/NAME``, and it is found wherever the zoo is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_agents.entries import is_hub_id
from llm_agents.errors import UserError
from llm_agents.rewards import MessageReward
from llm_agents.whole_files import sha256
from llm_agents.zoo.hub import find_folder
from llm_agents.zoo.integrity import HASHES_FILE
from llm_agents.zoo.layout import entry_folder, is_entry, read_json

log = logging.getLogger(__name__)


def relocated(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of a reward with folders that are not here replaced by the zoo's.

    A recipe names ``checkpoints/NAME`` as it lay beside the training; on another machine the zoo
    has it under its name, wherever that is.

    Args:
        section: `class_path` and `init_args`; parts of a sum are looked through, too.
    """
    return {key: _relocated(value, key) for key, value in section.items()}


def _relocated(value: Any, key: str) -> Any:  # noqa: ANN401  (a recipe's content)
    """Return a part of the section with its paths replaced."""
    if isinstance(value, Mapping):
        return {name: _relocated(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_relocated(inner, key) for inner in value]
    if key != "path" or not isinstance(value, str) or Path(value).expanduser().exists():
        return value
    folder, _, name = value.rstrip("/").rpartition("/")
    if Path(folder).name != "checkpoints":
        return value
    found = str(find_folder(name))
    log.info("`%s` is not here: taking the zoo's `%s`", value, name)
    return found


def named_by_the_zoo(recipe: str, checkpoints: Path) -> str:
    """Return a recipe whose paths are those of the zoo's entries, where these are the same weights.

    A run names the reward that paid it, or the adapter that it began with, as it lay beside it;
    nobody else has that folder.

    Args:
        recipe: Text of a recipe.
        checkpoints: Folder of the entries.
    """
    known = {
        tuple(sorted(read_json(path).items())): path.parent.name
        for path in sorted(checkpoints.glob(f"*/{HASHES_FILE}"))
    }

    def named(match: re.Match[str]) -> str:
        folder = entry_folder(Path(match["path"].strip("'\"")))
        if not is_entry(folder):
            return match[0]
        digests = tuple((path.name, sha256(path)) for path in sorted(folder.glob("*.safetensors")))
        name = known.get(digests)
        return match[0] if name is None else f"{match['key']}checkpoints/{name}"

    place = r"^(?P<key>\s*(?:- )?(?:path|adapter): )(?P<path>\S+)$"
    return re.sub(place, named, recipe, flags=re.MULTILINE)


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
        moved = relocated(reward)
        path = (moved.get("init_args") or {}).get("path")
        if isinstance(path, str) and not _is_here(path):
            log.warning(
                "the reward of messages that `%s` was paid by is not here (%s): it plays without, "
                "and no intrinsic return is shown; `--reward` gives another",
                name,
                path,
            )
            moved = {}
        arguments["reward"] = moved or None
    return {**section, "init_args": arguments}


def _is_here(path: str) -> bool:
    """Return whether a reward can be loaded: from a folder, the zoo, or, if asked, the Hub."""
    if Path(path).expanduser().is_dir() or (is_hub_id(path) and not path.startswith("runs/")):
        return True
    try:
        find_folder(path)
    except UserError:
        return False
    return True
