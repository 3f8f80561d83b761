"""Loading what was trained, by name, folder or Hub id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from llm_agents.entries import ADAPTER_CONFIG, REWARD_FILE, is_whole_model, kind_of
from llm_agents.errors import UserError
from llm_agents.methods import LoadedAgent, has_base, is_agent, load_agent, load_network_agent
from llm_agents.policies import LanguagePolicy
from llm_agents.policies.bundled import ALIASES
from llm_agents.policies.nethack_files import is_nethack_agent, load_nethack_network
from llm_agents.policies.nethack_player import NetworkPlayer
from llm_agents.rewards import MessageReward, PolicyReward
from llm_agents.zoo.hub import find_folder, recorded_base

Pretrained = LanguagePolicy | PolicyReward | MessageReward | LoadedAgent | NetworkPlayer
"""What `load_pretrained` returns."""


def load_pretrained(
    name: str,
    *,
    base: str | None = None,
    revision: str | None = None,
    trainable: bool = False,
    quantization: Literal["nf4", "int8"] | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: str | None = None,
) -> Pretrained:
    """Load a language policy, a reward model or an agent, ready to use.

    Args:
        name: Zoo name (``lightning zoo list``), folder, Hub id, or the alias of a base model.
            Adapters written by plain PEFT will do, and so will whole models.
        base: Base model to use in place of the recorded one: the same weights elsewhere.
        revision: Revision on the Hub.
        trainable: Leave the adapter trainable; a policy or its agent only.
        quantization: Load the base in 4 or 8 bits.
        dtype: Type of the base's weights.
        device: Where it runs; the accelerator by default, if there is one.

    Returns:
        In evaluation mode: a `PolicyReward` for a reward model and a `MessageReward` for one of
        game messages; for an agent an object with `act` (`play_pretrained` lets it play); else a
        `LanguagePolicy`.

    Raises:
        UserError: Nothing of that name was found, its base is not known, or an option means
            nothing for what was found.
    """
    options = _Options(base, trainable, quantization, dtype, device)
    if name in ALIASES or is_whole_model(Path(name)):
        return _policy(None, replace(options, base=base or name))
    folder = find_folder(name, revision=revision)
    if is_whole_model(folder):
        return _policy(None, replace(options, base=base or name, revision=revision))
    kind = kind_of(folder)
    if kind == "policy":
        return _policy(folder, options)
    if kind == "agent":
        return _agent(folder, options)
    if trainable:
        raise UserError(f"`{name}` is a reward model, which is loaded frozen: drop `trainable`")
    if (folder / REWARD_FILE).is_file():
        return PolicyReward.from_pretrained(
            str(folder), base=base, quantization=quantization, dtype=dtype, device=options.target
        )
    options.refuse(name, "quantization", "dtype")
    return MessageReward.from_pretrained(str(folder), base=base, device=options.target)


def load_policy(
    name: str,
    *,
    base: str | None = None,
    revision: str | None = None,
    trainable: bool = False,
    quantization: Literal["nf4", "int8"] | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: str | None = None,
) -> LanguagePolicy:
    """Load the language policy of a name: of an agent the model that it thinks with.

    Args: As for `load_pretrained`.

    Raises:
        UserError: There is none of that name, or it is a reward or an agent without a language
            model.
    """
    options = _Options(base, trainable, quantization, dtype, device)
    if name in ALIASES or is_whole_model(Path(name)):
        return _policy(None, replace(options, base=base or name))
    folder = find_folder(name, revision=revision)
    if is_whole_model(folder):
        return _policy(None, replace(options, base=base or name, revision=revision))
    if kind_of(folder) == "reward":
        raise UserError(f"expected a policy, but `{name}` is a reward model, which judges text")
    if is_nethack_agent(folder) or (is_agent(folder) and not has_base(folder)):
        raise UserError(f"expected a policy, but the agent `{name}` has no language model")
    return _policy(folder, options)


@dataclass(frozen=True)
class _Options:
    """How something is loaded; see `load_pretrained`; `revision` is that of a whole model."""

    base: str | None
    trainable: bool
    quantization: Literal["nf4", "int8"] | None
    dtype: Literal["float32", "bfloat16", "float16"]
    device: str | None
    revision: str | None = None

    @property
    def target(self) -> str:
        """Return where it is to run."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def refuse(self, name: str, *options: str) -> None:
        """Raise if an option was given that means nothing for what was found.

        Raises:
            UserError: Names the option.
        """
        for option in options:
            default = {"trainable": False, "dtype": "float32"}.get(option)
            if getattr(self, option) != default:
                raise UserError(
                    f"`{name}` is a network of its own, not an adapter of a language model: drop "
                    f"`{option}`"
                )


def _policy(folder: Path | None, options: _Options) -> LanguagePolicy:
    """Load a base model with the adapter in a folder, if there is one."""
    base = options.base
    if folder is not None and not (folder / ADAPTER_CONFIG).is_file():
        base, folder = str(_whole_model(folder)), None
    chosen, base_revision = str(base), options.revision
    if not base and folder is not None:
        chosen, base_revision = recorded_base(folder)
    policy = LanguagePolicy.from_pretrained(
        chosen,
        adapter=str(folder) if folder is not None else None,
        revision=base_revision,
        quantization=options.quantization,
        dtype=options.dtype,
        trainable=options.trainable,
    )
    if options.quantization is None:  # quantized weights are placed when they are loaded
        policy = policy.to(options.target)
    return policy.eval()


def _agent(folder: Path, options: _Options) -> LoadedAgent | NetworkPlayer:
    """Load an agent with what it thinks with."""
    if is_agent(folder) and has_base(folder):
        return load_agent(folder, _policy(folder, options))
    options.refuse(folder.name, "base", "trainable", "quantization", "dtype")
    if is_nethack_agent(folder):
        return NetworkPlayer(load_nethack_network(folder).to(options.target))
    return load_network_agent(folder).to(options.target)


def _whole_model(folder: Path) -> Path:
    """Return the folder of an agent of which all weights were trained.

    Raises:
        UserError: It is an agent without a language model.
    """
    if not (folder / "config.json").is_file():
        raise UserError(
            f"the agent in `{folder}` has no language model: play it with `lightning evaluate`"
        )
    return folder
