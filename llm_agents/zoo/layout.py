"""The folder of what was trained: what lies in it, and how it is written.

=============================  =================================================================
``adapter_config.json``        as PEFT writes it
``adapter_model.safetensors``  as PEFT writes it
``<name>_head.safetensors``    a head's weights, with ``<name>_head.json``
``reward.json``                only in a reward of answers: text format and range
``message_reward.json``        only in a reward of game messages, with ``message_encoder.*``
``agent.json``                 only in an agent: method, and what acting depends on
``network.safetensors``        an agent without a language model, with ``network.json``
``nethack_agent.*``            an agent of NetHack
``llm_agents.json``            what PEFT has no place for: exact base, method, task, heads
``recipe.yaml``                the resolved recipe
``results.json``               measured numbers, with ``results.png``
``replay.html``                an episode of an agent; also ``replay.mp4`` or ``replay.gif``
``provenance.json``            commit, packages and machine that it was trained with
``hashes.json``                SHA-256 of each file with weights
``hub.json``                   in place of large weights: Hub id, revision, SHA-256 of each file
``pulled.json``                where `lightning pull` found it, at which commit
``README.md``                  the card
=============================  =================================================================
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llm_agents import __version__
from llm_agents.entries import (
    ADAPTER_CONFIG,
    AGENT_FILE,
    INFO_FILE,
    MESSAGE_REWARD_FILE,
    NETHACK_FILE,
    POINTER_FILE,
    REWARD_FILE,
    Kind,
    entry_folder,
    is_entry,
    kind_of,
)
from llm_agents.errors import UserError

if TYPE_CHECKING:
    from llm_agents.data.templates import Template
    from llm_agents.evaluation import Results
    from llm_agents.policies import LanguagePolicy
    from llm_agents.policies.heads import Head

log = logging.getLogger(__name__)

ADAPTER_WEIGHTS = "adapter_model.safetensors"
RECIPE_FILE = "recipe.yaml"
PULLED_FILE = "pulled.json"
CARD_FILE = "README.md"

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "AGENT_FILE",
    "CARD_FILE",
    "INFO_FILE",
    "MESSAGE_REWARD_FILE",
    "NETHACK_FILE",
    "POINTER_FILE",
    "PULLED_FILE",
    "RECIPE_FILE",
    "REWARD_FILE",
    "AdapterInfo",
    "Kind",
    "entry_folder",
    "is_entry",
    "kind_of",
    "load_heads",
    "read_json",
    "replace_folder",
    "save_pretrained",
    "write_json",
]


@dataclass(frozen=True)
class AdapterInfo:
    """What `llm_agents.json` holds.

    Args:
        base: The base that the adapter was trained on, as the recipe named it.
        revision: Revision of the base on the Hub.
        method: Method or objective that trained it.
        task: What it was trained on.
        template: How its prompts are written.
        heads: Names of the heads beside the adapter.
        package_version: Version of this package that wrote it.
    """

    base: str
    revision: str | None = None
    method: str | None = None
    task: str | None = None
    template: str | None = None
    heads: tuple[str, ...] = field(default_factory=tuple)
    package_version: str = __version__

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read a folder's description; None if it has none, as a folder written by PEFT."""
        path = folder / INFO_FILE
        if not path.is_file():
            return None
        values = read_json(path)
        unknown = sorted(set(values) - {entry.name for entry in fields(cls)})
        if unknown:
            log.warning(
                "`%s` was written by llm-agents %s, this is %s: ignoring %s; upgrade to read them",
                path,
                values.get("package_version", "of an unknown version"),
                __version__,
                ", ".join(unknown),
            )
        if not isinstance(values.get("base"), str):
            raise UserError(f"expected a text under `base` in `{path}`, got {values.get('base')!r}")
        kept: dict[str, Any] = {key: values[key] for key in values if key not in unknown}
        return cls(**{**kept, "heads": tuple(kept.get("heads", ()))})

    def write(self, folder: Path) -> None:
        """Write the description into a folder."""
        write_json(folder / INFO_FILE, asdict(self))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or say what is wrong with the file."""
    try:
        values = json.loads(path.read_text(encoding="utf8"))
    except json.JSONDecodeError as error:
        raise UserError(f"`{path}` is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"expected an object in `{path}`, got {type(values).__name__}")
    return values


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf8")


def save_pretrained(
    folder: str | Path,
    policy: LanguagePolicy,
    *,
    heads: Mapping[str, Head] | None = None,
    method: str | None = None,
    task: str | None = None,
    template: Template | None = None,
    recipe: str | None = None,
    results: Results | None = None,
) -> Path:
    """Write an adapter, its heads and what is known about them to a folder.

    Everything is written under a temporary name and renamed, so that the folder is whole or absent;
    an older folder of that name is replaced, and lost only once the new one is whole.

    Args:
        folder: Its name becomes the adapter's name.
        policy: A policy with an adapter.
        heads: Heads by name, such as ``value_head``.
        method: Method or objective that trained it.
        task: What it was trained on.
        template: How its prompts are written.
        recipe: The resolved recipe, as YAML.
        results: Measured numbers, without which it can't be published.

    Returns:
        The folder.
    """
    from llm_agents.evaluation import write_results
    from llm_agents.policies.heads import save_head

    folder = Path(folder)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    policy.save_adapter(unfinished)
    for name, head in (heads or {}).items():
        save_head(head, unfinished, name)
    AdapterInfo(
        base=policy.base,
        revision=policy.revision,
        method=method,
        task=task,
        template=template,
        heads=tuple(heads or ()),
    ).write(unfinished)
    if recipe is not None:
        (unfinished / RECIPE_FILE).write_text(recipe, encoding="utf8")
    if results is not None:
        write_results(unfinished, results)
    replace_folder(unfinished, folder)
    return folder


def replace_folder(new: Path, folder: Path) -> None:
    """Rename the folder `new` to `folder`, in place of what is there."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_heads(folder: str | Path, hidden_size: int | None = None) -> dict[str, Head]:
    """Return the heads in a folder by name, in evaluation mode."""
    from llm_agents.policies.heads import load_head

    folder = Path(folder)
    names = sorted(path.stem for path in folder.glob("*_head.safetensors"))
    return {name: load_head(folder, name, hidden_size) for name in names}
