"""Motif's intrinsic reward at play: a trained reward of messages, remembered message by message.

A game's messages repeat, and the reward of a message never changes. So each is computed once, all
new ones of a step in one pass, and looked up by its bytes ever after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm_agents.entries import MESSAGE_REWARD_FILE
from llm_agents.errors import UserError
from llm_agents.functional.shaping import QUANTILE_LEVELS, RewardStatistics, count_decay
from llm_agents.policies.message_files import (
    MessageRewardInfo,
    load_message_scorer,
)
from llm_agents.policies.message_language import LanguageMessageScorer
from llm_agents.policies.message_scorer import MESSAGE_SIZE, MessageScorer
from llm_agents.policies.model_digest import text_model_version
from llm_agents.rewards.folder import file_digest, locate_folder
from llm_agents.types import MessageObservations
from llm_agents.whole_files import write_tensors

_ROUNDING = 1e-5

Floats = NDArray[np.float32]
Observations = NDArray[np.uint8] | Mapping[str, NDArray[Any]]
"""Messages ``[E, 256]``, or arrays by observation key, ``message`` among them."""


@dataclass(frozen=True)
class ShapingConfig:
    """How a raw reward becomes an intrinsic one; the defaults are Motif's published runs.

    Args:
        threshold_quantile: Messages up to this quantile of the distinct training messages get
            nothing: 0.05, 0.1, … 0.95; null or 0 is no threshold.
        round_threshold: Round the threshold to two decimals, as the release stores it.
        count_exponent: The n-th occurrence in an episode is divided by n to this power.
        normalize: False leaves the raw reward's mean and scale as they are.
    """

    threshold_quantile: float | None = 0.5
    round_threshold: bool = False
    count_exponent: float = 3.0
    normalize: bool = True

    def __post_init__(self) -> None:
        level = self.threshold_quantile
        if level and not any(abs(known - level) < 1e-9 for known in QUANTILE_LEVELS):
            raise UserError(
                f"expected `threshold_quantile` of 0.05, 0.1, … 0.95, or null (or 0) for no "
                f"threshold, got {level}"
            )
        if not self.count_exponent >= 0:
            raise UserError(f"expected `count_exponent` from 0, got {self.count_exponent}")


class MessageReward:
    """A trained, frozen reward of game messages.

    Args:
        scorer: The network.
        statistics: Of its weights.
        name: Short name for logs and tables.
        version: Changes whenever a raw reward may change.
        shaping: From raw to intrinsic.
        cache: Folder where raw rewards are kept between runs; None keeps them in memory alone.
        batch_size: New messages a pass.

    Attributes:
        info: What training said, if the reward was loaded from a folder.
    """

    def __init__(
        self,
        scorer: MessageScorer,
        statistics: RewardStatistics,
        *,
        name: str = "motif",
        version: str = "1",
        shaping: ShapingConfig | None = None,
        cache: Path | None = None,
        batch_size: int = 256,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"expected `batch_size` of at least 1, got {batch_size}")
        self.scorer = scorer.requires_grad_(False).eval()
        self.statistics, self.shaping = statistics, shaping or ShapingConfig()
        self.name, self.version, self.batch_size = name, version, batch_size
        self.info: MessageRewardInfo | None = None
        self._cache = cache
        self._places: dict[bytes, int] = {}
        self._raw = np.zeros(0, np.float32)
        self._shaped = np.zeros(0, np.float32)
        self._decay = count_decay(
            torch.arange(1, 257), exponent=self.shaping.count_exponent
        ).numpy()
        if cache is not None and self.is_remembered and self._cache_file.is_file():
            self._remember(*self._read_cache())

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        threshold_quantile: float | None = 0.5,
        round_threshold: bool = False,
        count_exponent: float = 3.0,
        normalize: bool = True,
        base: str | None = None,
        revision: str | None = None,
        cache: str | None = None,
        batch_size: int = 256,
        device: str | None = None,
    ) -> Self:
        """Load a reward of messages from its folder or from the Hub.

        Args:
            path: Folder that `MotifReward` wrote, or a Hub id of one.
            threshold_quantile: See `ShapingConfig`.
            round_threshold: Likewise.
            count_exponent: Likewise.
            normalize: Likewise.
            base: Of a language model: the same weights elsewhere.
            revision: Revision of the reward on the Hub.
            cache: Folder where raw rewards are kept between runs.
            batch_size: New messages a pass.
            device: Where the network runs; the accelerator by default, if there is one.
        """
        folder = locate_folder(path, marker=MESSAGE_REWARD_FILE, revision=revision)
        info = MessageRewardInfo.read(folder)
        scorer = load_message_scorer(folder, info, base=base)
        files = [folder / MESSAGE_REWARD_FILE, *sorted(folder.glob("*.safetensors"))]
        version = file_digest(*files)
        if isinstance(scorer, LanguageMessageScorer):  # its base lies elsewhere
            policy = scorer.policy
            version = f"{version}-{text_model_version(policy.model, policy.tokenizer)}"
        reward = cls(
            scorer.to(device or ("cuda" if torch.cuda.is_available() else "cpu")),
            info.statistics,
            name=info.name,
            version=version,
            shaping=ShapingConfig(threshold_quantile, round_threshold, count_exponent, normalize),
            cache=None if cache is None else Path(cache),
            batch_size=batch_size,
        )
        reward.info = info
        return reward

    @property
    def is_remembered(self) -> bool:
        """Return whether a message alone decides its reward."""
        return self.scorer.keys == ("message",)

    @property
    def num_remembered(self) -> int:
        """Return how many distinct messages have a remembered reward."""
        return len(self._places)

    @property
    def threshold(self) -> float:
        """Return what a normalized reward must exceed."""
        shaping = self.shaping
        return self.statistics.threshold(
            shaping.threshold_quantile, rounded=shaping.round_threshold
        )

    def raw(self, observations: Observations) -> Floats:
        """Return ``[E]`` raw rewards of E observations."""
        if not self.is_remembered:
            return self._compute(observations)
        places = self._find(message_keys(messages_of(observations)))
        return self._raw[places]

    def normalized(self, observations: Observations) -> Floats:
        """Return ``[E]`` normalized rewards: neither threshold nor count."""
        return self._normalize(self.raw(observations))

    def shaped(self, observations: Observations) -> Floats:
        """Return ``[E]`` normalized rewards, 0 where they don't exceed the threshold."""
        if not self.is_remembered:
            return self._shape(self._compute(observations))
        return self.shaped_by_key(message_keys(messages_of(observations)))

    def shaped_by_key(self, keys: Sequence[bytes]) -> Floats:
        """Return what `shaped` does, for messages given as 256 bytes each."""
        places = self._find(keys)
        return self._shaped[places]

    def decay(self, counts: NDArray[np.int64]) -> Floats:
        """Return ``[E]``: what the counts, 1 or more, divide by."""
        if counts.size and int(counts.max()) > len(self._decay):
            upto = torch.arange(1, 2 * int(counts.max()) + 1)
            self._decay = count_decay(upto, exponent=self.shaping.count_exponent).numpy()
        return self._decay[counts - 1]

    def episodes(self, num_games: int) -> EpisodeReward:
        """Return the intrinsic reward of games that are played side by side."""
        return EpisodeReward(self, num_games)

    # --- from raw to shaped

    def _normalize(self, raw: Floats) -> Floats:
        """Return normalized rewards; without normalization, the raw ones."""
        if not self.shaping.normalize:
            return raw
        spread = self.statistics.variance**0.5
        found: Floats = ((raw - self.statistics.mean) / spread).astype(np.float32)
        return found

    def _shape(self, raw: Floats) -> Floats:
        """Return normalized rewards with 0 up to the threshold; the comparison is strict.

        The message at the quantile itself must not pass, though its reward, computed in another
        batch than when the quantile was, may be larger in the last digit.
        """
        spread = self.statistics.variance**0.5
        z = (raw.astype(np.float64) - self.statistics.mean) / spread
        margin = 0.0 if self.shaping.round_threshold else _ROUNDING
        return np.where(z > self.threshold + margin, self._normalize(raw), np.float32(0))

    # --- memory

    def _find(self, keys: Sequence[bytes]) -> NDArray[np.int64]:
        """Return where each message's reward is kept, once the new ones are computed."""
        get = self._places.get
        found = [get(key, -1) for key in keys]
        if -1 in found:
            new = list(dict.fromkeys(key for key in keys if key not in self._places))
            messages = np.frombuffer(b"".join(new), np.uint8).reshape(-1, MESSAGE_SIZE)
            self._remember(new, self._compute(messages))
            found = [self._places[key] for key in keys]
        return np.array(found, np.int64)

    def _remember(self, keys: Sequence[bytes], raw: Floats) -> None:
        """Keep the rewards of new messages."""
        start = len(self._places)
        if start + len(keys) > len(self._raw):  # in steps: appending one by one would copy all
            room = np.zeros(start + 2 * len(keys) + 256, np.float32)
            self._raw = np.concatenate((self._raw[:start], room))
            self._shaped = np.concatenate((self._shaped[:start], room))
        self._places |= {key: start + number for number, key in enumerate(keys)}
        self._raw[start : start + len(keys)] = raw
        self._shaped[start : start + len(keys)] = self._shape(raw)

    def _compute(self, observations: Observations) -> Floats:
        """Return ``[E]`` raw rewards from the network."""
        parts = observations if isinstance(observations, Mapping) else {"message": observations}
        missing = [key for key in self.scorer.keys if key not in parts]
        if missing:
            raise UserError(
                f"the reward {self.name!r} looks at {', '.join(self.scorer.keys)}, the "
                f"observations hold {', '.join(parts)}: collect {', '.join(missing)} too"
            )
        tensors = {key: torch.from_numpy(np.array(parts[key])) for key in self.scorer.keys}
        tensors["message"] = torch.from_numpy(np.array(parts["message"]))
        found = self.scorer.score(MessageObservations(**tensors), self.batch_size)
        return found.numpy()

    # --- the file

    @property
    def _cache_file(self) -> Path:
        """Return where raw rewards of these weights are kept."""
        if self._cache is None:
            raise ValueError("expected a cache folder: give one to the constructor")
        return self._cache / f"message-rewards-{self.version}.safetensors"

    def save_cache(self) -> Path | None:
        """Write the raw rewards, together with those that another process wrote; None without one.

        The file is whole whenever it exists.
        """
        if self._cache is None or not self.is_remembered or not self._places:
            return None
        path = self._cache_file
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            keys, raw = list(self._places), self._raw[: len(self._places)]
            if path.is_file():  # what is there stays: batches differ in the last digit
                known, their_raw = self._read_cache()
                there = set(known)
                new = [place for place, key in enumerate(keys) if key not in there]
                keys, raw = known + [keys[i] for i in new], np.concatenate((their_raw, raw[new]))
            messages = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, MESSAGE_SIZE)
            write_tensors(
                path,
                {
                    "message": torch.from_numpy(messages.copy()),
                    "raw": torch.from_numpy(np.ascontiguousarray(raw)),
                },
                metadata={"version": self.version},
                survives_power_loss=True,
            )
        return path

    def _read_cache(self) -> tuple[list[bytes], Floats]:
        """Return messages and raw rewards of the file."""
        path = self._cache_file
        cure = f"delete {path}, its rewards are computed again"
        try:
            with safe_open(path, framework="pt") as file:
                version = (file.metadata() or {}).get("version")
                message, raw = file.get_tensor("message"), file.get_tensor("raw")
        except (SafetensorError, OSError) as error:
            raise UserError(f"the remembered rewards can't be read ({error}): {cure}") from error
        if version != self.version or message.shape != (len(raw), MESSAGE_SIZE):
            raise UserError(f"the remembered rewards are of version {version}: {cure}")
        return message_keys(message.numpy()), raw.numpy()


class IntrinsicStep(NamedTuple):
    """What the intrinsic reward says of E observations.

    Args:
        rewards: ``[E]`` float32: normalized, cut below the threshold, divided by the counts' power.
        shaped: ``[E]`` float32, before the counts; 0 is below the threshold.
        counts: ``[E]`` int64, occurrences of the message in its episode, this one among them.
    """

    rewards: Floats
    shaped: Floats
    counts: NDArray[np.int64]


class EpisodeReward:
    """Motif's intrinsic reward of games played side by side, with each game's counts of messages.

    Messages are counted by their exact bytes, the empty one like any other, from 1 in each episode.

    Args:
        reward: Of messages.
        num_games: E.
    """

    def __init__(self, reward: MessageReward, num_games: int) -> None:
        if num_games < 1:
            raise ValueError(f"expected at least one game, got {num_games}")
        self.reward = reward
        self._counts: list[dict[bytes, int]] = [{} for _ in range(num_games)]

    @property
    def num_games(self) -> int:
        """Return E."""
        return len(self._counts)

    def __call__(
        self,
        observations: Observations,
        *,
        starts: NDArray[np.bool_] | None = None,
        games: NDArray[np.int64] | None = None,
    ) -> IntrinsicStep:
        """Count the messages of observations and return their intrinsic rewards.

        Call it once for every observation, those at resets among them. Where a game's last
        observation of an episode is to earn something too, call it with that (`games` says whose it
        is) before the call with the first one of the next episode.

        Args:
            observations: Of all E games, or of those in `games`.
            starts: ``[E]``, True = the first observation of an episode: counts begin anew.
            games: Which games the observations are of; None is all of them in order.
        """
        messages = messages_of(observations)
        tables = self._counts if games is None else [self._counts[game] for game in games]
        if len(tables) != len(messages) or (starts is not None and len(starts) != len(tables)):
            raise ValueError(
                f"expected observations of {len(tables)} games and a start for each, got "
                f"{len(messages)} and {None if starts is None else len(starts)}"
            )
        if starts is not None:
            for table, is_start in zip(tables, starts.tolist(), strict=True):
                if is_start:
                    table.clear()
        keys = message_keys(messages)
        counts = np.empty(len(keys), np.int64)
        for place, (table, key) in enumerate(zip(tables, keys, strict=True)):
            counts[place] = table[key] = table.get(key, 0) + 1
        if self.reward.is_remembered:
            shaped = self.reward.shaped_by_key(keys)
        else:
            shaped = self.reward.shaped(observations)
        return IntrinsicStep(shaped * self.reward.decay(counts), shaped, counts)

    def message_counts(self, game: int) -> dict[bytes, int]:
        """Return how often each message has occurred in a game's present episode."""
        return dict(self._counts[game])

    def reset(self) -> None:
        """Begin all games anew, as after a resumption, when every game starts another episode."""
        for table in self._counts:
            table.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the counts of all games as tensors."""
        places: dict[bytes, int] = {}
        rows = [
            (game, places.setdefault(key, len(places)), count)
            for game, table in enumerate(self._counts)
            for key, count in table.items()
        ]
        messages = np.frombuffer(b"".join(places), np.uint8).reshape(-1, MESSAGE_SIZE)
        return {
            "message": torch.from_numpy(messages.copy()),
            "rows": torch.tensor(rows, dtype=torch.int64).reshape(-1, 3),
            "num_games": torch.tensor(self.num_games),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with saved counts.

        Raises:
            UserError: They are of another number of games.
        """
        if int(state["num_games"]) != self.num_games:
            raise UserError(
                f"the checkpoint counts the messages of {int(state['num_games'])} games, this run "
                f"plays {self.num_games}: resume with as many games"
            )
        keys = message_keys(state["message"].numpy())
        self.reset()
        for game, place, count in state["rows"].tolist():
            self._counts[game][keys[place]] = count


def message_keys(messages: NDArray[np.uint8]) -> list[bytes]:
    """Return the bytes of each of ``[E, 256]`` messages."""
    if messages.ndim != 2 or messages.shape[1] != MESSAGE_SIZE or messages.dtype != np.uint8:
        raise ValueError(
            f"expected messages of shape (E, {MESSAGE_SIZE}) and dtype uint8, got "
            f"{messages.shape} and {messages.dtype}"
        )
    joined = messages.tobytes()
    return [joined[i : i + MESSAGE_SIZE] for i in range(0, len(joined), MESSAGE_SIZE)]


def messages_of(observations: Observations) -> NDArray[np.uint8]:
    """Return the messages of observations."""
    return observations["message"] if isinstance(observations, Mapping) else observations
