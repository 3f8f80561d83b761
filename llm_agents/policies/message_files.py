"""The folder of a trained reward of game messages: JSON beside safetensors, never a pickle.

=============================  ===================================================================
``message_reward.json``        statistics, thresholds, what it was trained on, which network
``message_encoder.safetensors``  the weights of Motif's network, or else
``reward_head.*``, ``adapter_*``  head and adapter of a language model
=============================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_file

from llm_agents.entries import MESSAGE_REWARD_FILE
from llm_agents.errors import UserError
from llm_agents.functional.shaping import QUANTILE_LEVELS, RewardStatistics
from llm_agents.policies.heads import RewardHead, load_head
from llm_agents.policies.language_policy import LanguagePolicy
from llm_agents.policies.message_encoder import WEIGHTS_FILE, MessageEncoder
from llm_agents.policies.message_language import HEAD_NAME, LanguageMessageScorer
from llm_agents.policies.message_scorer import MessageScorer
from llm_agents.whole_files import read_json, write_json

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class MessageRewardInfo:
    """What `message_reward.json` holds.

    Args:
        name: Short name for logs and tables.
        scorer: Class of the network and its arguments.
        statistics: Mean, variance and quantiles of *these* weights.
        step: Optimizer step of the weights.
        annotator: Whose preferences it learned.
        dataset: Digest of the training pairs and their preferences.
        num_pairs: Training pairs.
        num_messages: Distinct training messages.
        outcome: What training said: which weights were kept, and their validation.
    """

    name: str
    scorer: Mapping[str, Any]
    statistics: RewardStatistics
    step: int
    annotator: str
    dataset: str
    num_pairs: int
    num_messages: int
    outcome: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Write ``message_reward.json``, whole or not at all."""
        values = {"format_version": _FORMAT_VERSION, **asdict(self)}
        values["statistics"]["levels"] = list(QUANTILE_LEVELS)
        write_json(folder / MESSAGE_REWARD_FILE, values)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote.

        Raises:
            UserError: The file is missing, was written by something else, or a number is wrong.
        """
        path = folder / MESSAGE_REWARD_FILE
        if not path.is_file():
            raise UserError(
                f"expected `{MESSAGE_REWARD_FILE}` in `{folder}`: give the folder that "
                "the training of a reward model (`MotifReward`) wrote"
            )
        values = read_json(path)
        version = values.pop("format_version", None)
        wanted = {field.name for field in fields(cls)}
        if version != _FORMAT_VERSION or set(values) != wanted:
            raise UserError(
                f"expected `{path}` in format {_FORMAT_VERSION} with {sorted(wanted)}, got format "
                f"{version}: it was written by another version, or is no reward of messages"
            )
        try:
            statistics = values["statistics"]
            levels = tuple(statistics.pop("levels"))
            if levels != QUANTILE_LEVELS:
                raise ValueError(f"quantiles at other levels than 0.05, 0.1, … 0.95: {levels}")
            statistics["quantiles"] = tuple(statistics["quantiles"])
            values["statistics"] = RewardStatistics(**statistics)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise UserError(f"the `statistics` in `{path}` are damaged: {error}") from error
        return cls(**values)


def save_message_reward(scorer: MessageScorer, info: MessageRewardInfo, folder: Path) -> None:
    """Write weights and description to a folder, which is made if it isn't there.

    Args:
        scorer: The network.
        info: Its `scorer` is replaced by the network's own description.
        folder: The description comes last: whoever finds it finds the weights too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scorer.save(folder)
    values = {field.name: getattr(info, field.name) for field in fields(info)}
    MessageRewardInfo(**{**values, "scorer": scorer.describe()}).write(folder)


def load_message_scorer(
    folder: Path, info: MessageRewardInfo, *, base: str | None = None
) -> MessageScorer:
    """Return the network of a folder, frozen and in eval mode on the CPU.

    Args:
        folder: What `save_message_reward` wrote.
        info: Its description.
        base: Base model in place of the recorded one: the same weights elsewhere.

    Raises:
        UserError: Files are missing, or not of this network.
    """
    described = dict(info.scorer)
    kind = described.pop("class", None)
    if kind == MessageEncoder.__name__:
        scorer: MessageScorer = _load_encoder(folder, described)
    elif kind == LanguageMessageScorer.__name__:
        scorer = _load_language(folder, described, base)
    else:
        raise UserError(
            f"`{folder / MESSAGE_REWARD_FILE}` names the network {kind!r}: this version knows "
            f"{MessageEncoder.__name__} and {LanguageMessageScorer.__name__}"
        )
    return scorer.requires_grad_(False).eval()


def _load_encoder(folder: Path, described: dict[str, Any]) -> MessageEncoder:
    """Return Motif's network with its weights."""
    path = folder / WEIGHTS_FILE
    try:
        encoder = MessageEncoder(**described)
        encoder.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError, TypeError) as error:
        raise UserError(
            f"expected the weights of {described} in `{path}`: {error}; copy the folder again"
        ) from error
    return encoder


def _load_language(
    folder: Path, described: dict[str, Any], base: str | None
) -> LanguageMessageScorer:
    """Return a language model with its adapter and head."""
    has_adapter = (folder / "adapter_config.json").is_file()
    is_whole = (folder / "config.json").is_file()  # all weights trained
    if bool(described["has_adapter"]) != (has_adapter or is_whole):
        raise UserError(f"expected an adapter in `{folder}` exactly where one was trained")
    policy = LanguagePolicy.from_pretrained(
        str(folder) if is_whole else base or described["base"],
        adapter=str(folder) if has_adapter else None,
        revision=described["revision"] if base is None and not is_whole else None,
        trainable=False,
    )
    scorer = LanguageMessageScorer(
        policy,
        prompt=described["prompt"],
        pooling=described["pooling"],
        max_tokens=described["max_tokens"],
    )
    head = load_head(folder, HEAD_NAME, policy.hidden_size)
    if not isinstance(head, RewardHead):
        raise UserError(f"expected a reward head in `{folder}`, got {type(head).__name__}")
    scorer.head = head
    return scorer
