"""Trained agents as folders: adapter, critic, and what acting depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_agents.errors import UserError
from llm_agents.methods.online_ppo import AGENT_FILE, AGENT_FORMAT, CRITIC, OnlinePPO
from llm_agents.methods.poad import POAD
from llm_agents.methods.twosome import TWOSOME
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.heads import load_head
from llm_agents.policies.state_value import StateValueHead

_METHODS: dict[str, type[TWOSOME] | type[POAD]] = {"TWOSOME": TWOSOME, "POAD": POAD}


def is_agent(folder: Path | str) -> bool:
    """Return whether `folder` holds an agent rather than a bare adapter."""
    return (Path(folder) / AGENT_FILE).is_file()


def read_agent(folder: Path | str) -> dict[str, Any]:
    """Return what `OnlinePPO.save_pretrained` wrote of an agent: method, base and options.

    Raises:
        UserError: The file is missing, or not of this version.
    """
    path = Path(folder) / AGENT_FILE
    if not path.is_file():
        raise UserError(f"no agent in {folder}: {AGENT_FILE} is missing")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    method, version = found.get("method"), found.get("format_version")
    if method not in _METHODS or version != AGENT_FORMAT:
        raise UserError(
            f"{path} describes an agent of method {method!r}, format {version!r}: this version "
            f"reads {', '.join(_METHODS)}, format {AGENT_FORMAT}; upgrade llm-agents"
        )
    return found


def load_agent(folder: Path | str, policy: LanguagePolicy, **options: Any) -> OnlinePPO:  # noqa: ANN401  (as the methods' constructors take them)
    """Return the agent that was saved to `folder`, ready to act.

    Args:
        folder: Where `OnlinePPO.save_pretrained` wrote it.
        policy: Loaded with the folder's adapter.
        options: Acting options that take the place of the saved ones, such as ``behaviour: list``,
            which is how the papers evaluate every method.

    Raises:
        UserError: The folder's files are missing, of another version, or of another base.
    """
    described = read_agent(folder)
    head = load_head(folder, CRITIC, policy.hidden_size)
    if not isinstance(head, StateValueHead):
        raise UserError(f"expected a StateValueHead in {folder}, got {type(head).__name__}")
    agent = _METHODS[described["method"]](policy, **{**described["options"], **options})
    agent.critic = head.to(policy.device)
    return agent.eval()
