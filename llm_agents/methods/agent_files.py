"""Trained agents as folders: adapter or network, heads, and what acting depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_agents.entries import AGENT_FILE
from llm_agents.errors import UserError
from llm_agents.methods.agent_folder import (
    AGENT_FORMAT,
    load_network,
    read_network_config,
)
from llm_agents.methods.cloning import Cloning
from llm_agents.methods.drrn import DRRN, DRRNConfig
from llm_agents.methods.glam import GLAM
from llm_agents.methods.online_ppo import CRITIC, OnlinePPO
from llm_agents.methods.poad import POAD
from llm_agents.methods.symbolic_ppo import SymbolicPPO
from llm_agents.methods.twosome import TWOSOME
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.babyai_symbolic import BabyAISymbolic
from llm_agents.policies.drrn import DRRNetwork
from llm_agents.policies.heads import load_head
from llm_agents.policies.state_value import StateValueHead
from llm_agents.whole_files import read_described

LoadedAgent = OnlinePPO | Cloning | DRRN | SymbolicPPO

_WITH_BASE: dict[str, type[TWOSOME] | type[POAD] | type[GLAM] | type[Cloning]] = {
    "Cloning": Cloning,
    "GLAM": GLAM,
    "POAD": POAD,
    "TWOSOME": TWOSOME,
}
_WITHOUT_BASE = ("DRRN", "SymbolicPPO")


def is_agent(folder: Path | str) -> bool:
    """Return whether `folder` holds an agent rather than a bare adapter."""
    return (Path(folder) / AGENT_FILE).is_file()


def read_agent(folder: Path | str) -> dict[str, Any]:
    """Return what was written of an agent: method, base and options.

    Raises:
        UserError: The file is missing, or not of this version.
    """
    path = Path(folder) / AGENT_FILE
    if not path.is_file():
        raise UserError(f"no agent in {folder}: {AGENT_FILE} is missing")
    known = (*_WITH_BASE, *_WITHOUT_BASE)
    return read_described(
        path, "method", what="an agent of method", known=known, version=AGENT_FORMAT
    )


def has_base(folder: Path | str) -> bool:
    """Return whether the agent in `folder` is a language model's, rather than a network alone."""
    return read_agent(folder)["method"] in _WITH_BASE


def load_agent(folder: Path | str, policy: LanguagePolicy, **options: Any) -> OnlinePPO | Cloning:  # noqa: ANN401  (as the methods' constructors take them)
    """Return the language model's agent that was saved to `folder`, ready to act.

    Args:
        folder: Where `save_pretrained` wrote it.
        policy: Loaded with the folder's adapter.
        options: Acting options that take the place of the saved ones, such as ``behaviour: list``,
            which is how the papers evaluate every method.

    Raises:
        UserError: The folder's files are missing, of another version, or of another base.
    """
    described = read_agent(folder)
    if described["method"] in _WITHOUT_BASE:
        raise ValueError("expected an agent with a language model: call load_network_agent")
    agent = _WITH_BASE[described["method"]](policy, **{**described["options"], **options})
    if isinstance(agent, GLAM):
        agent.load_heads(folder)
    elif isinstance(agent, OnlinePPO):
        head = load_head(folder, CRITIC, policy.hidden_size)
        if not isinstance(head, StateValueHead):
            raise UserError(f"expected a StateValueHead in {folder}, got {type(head).__name__}")
        agent.critic = head.to(policy.device)
    return agent.eval()


def load_network_agent(folder: Path | str) -> DRRN | SymbolicPPO:
    """Return the agent without a language model that was saved to `folder`, on the CPU.

    Raises:
        UserError: The folder's files are missing, of another version, or of another network.
    """
    described = read_agent(folder)
    config = read_network_config(folder)
    agent: DRRN | SymbolicPPO
    if described["method"] == "DRRN":
        agent = DRRN(DRRNetwork(**config), DRRNConfig(**described["options"]["settings"]))
    elif described["method"] == "SymbolicPPO":
        agent = SymbolicPPO(BabyAISymbolic(**config))
    else:
        raise ValueError("expected an agent without a language model: call load_agent")
    load_network(agent.network, folder)
    return agent.eval()
