"""The folders of agents: what tells that there is one, and those of agents without a base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file
from torch import Tensor

from llm_agents.entries import AGENT_FILE
from llm_agents.errors import UserError
from llm_agents.policies.babyai_symbolic import BabyAISymbolic
from llm_agents.policies.drrn import DRRNetwork
from llm_agents.types import Choice, Decisions
from llm_agents.whole_files import read_json, write_json, write_tensors

AGENT_FORMAT = 1
NETWORK_FILE, NETWORK_SETTINGS = "network.safetensors", "network.json"


@runtime_checkable
class WorldAgent(Protocol):
    """A module that plays text worlds, and can be kept.

    Attributes:
        outcome: After a run: which weights were kept, and of which step.
    """

    outcome: dict[str, float | int | str]

    def act(self, choices: Sequence[Choice], generator: torch.Generator) -> Decisions:
        """Return a decision for each choice."""

    def state_values(self, choices: Sequence[Choice]) -> Tensor:
        """Return ``[E]`` float32: the value of each prompt."""

    def description(self) -> dict[str, Any]:
        """Return the constructor's plain arguments that acting depends on."""

    def save_pretrained(self, folder: Path | str) -> None:
        """Write what acting needs to a folder."""


def write_agent(
    folder: Path | str,
    *,
    method: str,
    options: Mapping[str, Any],
    base: str | None = None,
    revision: str | None = None,
) -> None:
    """Write what says which agent a folder holds.

    Args:
        folder: Made if it isn't there.
        method: Name of its class.
        options: Plain arguments of its class that acting depends on.
        base: Name of its language model; None for an agent without one.
        revision: Of the language model on the Hub.
    """
    described = {
        "format_version": AGENT_FORMAT,
        "method": method,
        "base": base,
        "revision": revision,
        "options": dict(options),
    }
    write_json(Path(folder) / AGENT_FILE, described)


def save_network(network: DRRNetwork | BabyAISymbolic, folder: Path | str) -> None:
    """Write the weights of a small network, and beside them its sizes and words.

    Args:
        network: On any device; its extra state, if it has one, is plain data.
        folder: Made if it isn't there.
    """
    folder = Path(folder)
    state = network.state_dict()
    extra = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    write_json(folder / NETWORK_SETTINGS, {"config": dict(network.config), "extra": extra})
    weights = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    write_tensors(folder / NETWORK_FILE, weights)


def read_network_config(folder: Path | str) -> dict[str, Any]:
    """Return the arguments of the class of a saved network.

    Raises:
        UserError: The files are missing.
    """
    config: dict[str, Any] = _settings(folder)["config"]
    return config


def load_network(network: DRRNetwork | BabyAISymbolic, folder: Path | str) -> None:
    """Give a network the weights and words that `save_network` wrote; the words are final.

    Raises:
        UserError: The files are missing, or of a network of another shape.
    """
    extra = _settings(folder)["extra"]
    weights = load_file(Path(folder) / NETWORK_FILE)
    try:
        network.load_state_dict({**weights, **extra})
    except RuntimeError as error:
        raise UserError(f"the weights in {folder} are of another network: {error}") from error
    network.vocabulary.is_frozen = True


def _settings(folder: Path | str) -> dict[str, Any]:
    """Return what stands beside the weights."""
    for name in (NETWORK_SETTINGS, NETWORK_FILE):
        if not (Path(folder) / name).is_file():
            raise UserError(f"expected the network of an agent in {folder}: {name} is missing")
    return read_json(Path(folder) / NETWORK_SETTINGS)
