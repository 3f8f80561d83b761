"""NetHack networks as folders: weights, and what builds the network again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from llm_agents.entries import NETHACK_FILE
from llm_agents.errors import UserError
from llm_agents.policies.nethack import NetHackNetwork, ReleaseNetwork, SmallNetwork
from llm_agents.whole_files import read_described, write_json, write_tensors

NETHACK_WEIGHTS = "nethack_agent.safetensors"

_FORMAT_VERSION = 1
_NETWORKS: dict[str, type[ReleaseNetwork] | type[SmallNetwork]] = {
    "ReleaseNetwork": ReleaseNetwork,
    "SmallNetwork": SmallNetwork,
}


def save_nethack_network(
    network: NetHackNetwork, folder: Path | str, details: Mapping[str, Any]
) -> None:
    """Write a network to `folder`.

    Args:
        network: On any device.
        folder: Made if it isn't there; the files are whole whenever they exist.
        details: Kept beside the description, as JSON values.
    """
    folder = Path(folder)
    write_tensors(folder / NETHACK_WEIGHTS, network.state_dict())
    described = {
        "format_version": _FORMAT_VERSION,
        "class": type(network).__name__,
        "options": network.describe(),
        **details,
    }
    write_json(folder / NETHACK_FILE, described)


def is_nethack_agent(folder: Path | str) -> bool:
    """Return whether `folder` holds a network that plays NetHack."""
    return (Path(folder) / NETHACK_FILE).is_file()


def read_nethack_agent(folder: Path | str) -> dict[str, Any]:
    """Return what `save_nethack_network` wrote beside the weights.

    Raises:
        UserError: The file is missing, or not of this version.
    """
    path = Path(folder) / NETHACK_FILE
    if not path.is_file():
        raise UserError(f"no NetHack agent in {folder}: {NETHACK_FILE} is missing")
    return read_described(
        path, "class", what="a network of class", known=_NETWORKS, version=_FORMAT_VERSION
    )


def load_nethack_network(folder: Path | str) -> NetHackNetwork:
    """Return the network that was saved to `folder`, in eval mode on the CPU.

    Raises:
        UserError: The folder's files are missing, damaged, or of another version.
    """
    described = read_nethack_agent(folder)
    path = Path(folder) / NETHACK_WEIGHTS
    if not path.is_file():
        raise UserError(f"no NetHack agent in {folder}: {NETHACK_WEIGHTS} is missing")
    network = _NETWORKS[described["class"]](**described["options"])
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{path} doesn't hold the network's weights: {error}") from error
    return network.eval()
