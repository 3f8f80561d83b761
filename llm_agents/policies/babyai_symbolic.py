"""BabyAI's own network: it sees 7 × 7 cells as numbers, reads the mission, and remembers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from llm_agents.errors import UserError
from llm_agents.policies.word_vocabulary import NOTHING, WORDS, WordVocabulary

VIEW = (7, 7, 3)
"""Columns, rows, and type, colour and state of a cell."""

KINDS = (11, 6, 3)
"""Types, colours and states that there are."""

Norm = Literal["batch", "group"]
Eyes = Literal["film", "plain"]
Encoding = Literal["numbers", "one_hot"]


class SymbolicOutput(NamedTuple):
    """What the network says of B situations.

    Args:
        log_probs: ``[B, A]`` of the actions.
        values: ``[B]``.
        memory: ``[B, M]``, what is remembered afterwards.
    """

    log_probs: Tensor
    values: Tensor
    memory: Tensor


class SymbolicDecisions(NamedTuple):
    """An agent's answers to E situations.

    Args:
        actions: ``[E]`` int64.
        log_probs: ``[E]`` float32, of these actions.
        values: ``[E]`` float32, of the situations.
        memory: ``[E, M]`` float32, what is remembered afterwards.
    """

    actions: Tensor
    log_probs: Tensor
    values: Tensor
    memory: Tensor


class _FiLM(nn.Module):
    """Two convolutions whose result the mission scales and shifts, feature by feature."""

    def __init__(self, features: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, 3, padding=1)
        self.first_norm = _norm(norm, features)
        self.second = nn.Conv2d(features, features, 3, padding=1)
        self.scale = nn.Linear(features, features)
        self.shift = nn.Linear(features, features)
        self.second_norm = _norm(norm, features)

    def forward(self, seen: Tensor, mission: Tensor) -> Tensor:
        """Return ``[B, F, h, w]`` from as much and ``[B, F]``."""
        seen = self.second(self.first_norm(self.first(seen)).relu())
        scale, shift = self.scale(mission), self.shift(mission)
        seen = seen * scale[:, :, None, None] + shift[:, :, None, None]
        found: Tensor = self.second_norm(seen).relu()
        return found


class _FilmedEyes(nn.Module):
    """BabyAI's: convolutions and maxima over ever larger parts of the view, steered twice."""

    def __init__(self, channels: int, features: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, features, 2, padding=1),
            _norm(norm, features),
            nn.MaxPool2d(2),  # before the ReLU: the same, on a quarter of the numbers
            nn.ReLU(),
            nn.Conv2d(features, features, 3, padding=1),
            _norm(norm, features),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        self.films = nn.ModuleList([_FiLM(features, norm) for _ in range(2)])
        self.pool = nn.MaxPool2d(2)

    def forward(self, images: Tensor, mission: Tensor) -> Tensor:
        """Return ``[B, F]`` from ``[B, C, 7, 7]`` and ``[B, F]``."""
        seen = self.stem(images)
        for film in self.films:
            seen = film(seen, mission)
        pooled: Tensor = self.pool(seen).relu()
        return pooled.flatten(1)


class _PlainEyes(nn.Module):
    """Two convolutions whose places all count, and one linear layer that the mission steers."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten()
        )
        self.linear = nn.Linear(64 * 9, features)
        self.scale = nn.Linear(features, features)
        self.shift = nn.Linear(features, features)

    def forward(self, images: Tensor, mission: Tensor) -> Tensor:
        """Return ``[B, F]`` from ``[B, C, 7, 7]`` and ``[B, F]``."""
        seen: Tensor = self.linear(self.stem(images))
        steered: Tensor = seen * (1 + self.scale(mission)) + self.shift(mission)
        return steered.relu()


class BabyAISymbolic(nn.Module):
    """A convolutional network that the mission steers (FiLM), with a recurrent memory.

        image → eyes(mission) → LSTM → actor, critic

    Args:
        num_actions: A.
        features: Of every layer but the hidden ones of actor and critic.
        vocabulary_size: Numbers that the words of missions may have, given as they are met.
        eyes: ``film`` as released: its maxima forget where things are but for what convolutions
            make of it. ``plain`` is smaller and forgets nothing.
        encoding: How cells are shown: ``numbers`` as released, where a colour's number has a size
            that means nothing, or ``one_hot``.
        norm: Of ``film``. ``batch`` as released: in training the statistics are those of the
            present batch, so that rollout and update differ a little. ``group`` has as many
            parameters, and none of that.

    References:
        Chevalier-Boisvert et al., ICLR 2019 (arXiv 1810.08272), ``expert_filmcnn``; GLAM's
        comparison, with 1,068,103 parameters for 6 actions.
    """

    def __init__(
        self,
        num_actions: int = 6,
        features: int = 128,
        vocabulary_size: int = 100,
        eyes: Eyes = "film",
        encoding: Encoding = "numbers",
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        self.config: dict[str, int | str] = {
            "num_actions": num_actions,
            "features": features,
            "vocabulary_size": vocabulary_size,
            "eyes": eyes,
            "encoding": encoding,
            "norm": norm,
        }
        for name, value, known in (("eyes", eyes, Eyes), ("encoding", encoding, Encoding)):
            if value not in get_args(known):
                raise UserError(f"expected `{name}` {' or '.join(get_args(known))}, got {value!r}")
        self.encoding = encoding
        self.num_actions, self.memory_size = num_actions, 2 * features
        self.vocabulary = WordVocabulary(vocabulary_size, WORDS)
        self.embedding = nn.Embedding(vocabulary_size, features)
        self.reader = nn.GRU(features, features, batch_first=True)
        channels = VIEW[2] if encoding == "numbers" else sum(KINDS)
        self.eyes = (
            _FilmedEyes(channels, features, norm)
            if eyes == "film"
            else _PlainEyes(channels, features)
        )
        self.memory = nn.LSTMCell(features, features)
        self.actor = _hidden(features, num_actions)
        self.critic = _hidden(features, 1)
        self.apply(_initialize)

    def missions(self, texts: Sequence[str]) -> Tensor:
        """Return ``[D, F]``: what the reader makes of each text."""
        encoded = [self.vocabulary.encode(text) for text in texts]
        lengths = [max(1, len(ids)) for ids in encoded]
        padded = torch.full((len(texts), max(lengths)), NOTHING)
        for row, ids in enumerate(encoded):
            padded[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        packed = pack_padded_sequence(
            self.embedding(padded.to(self.embedding.weight.device)),
            torch.tensor(lengths),
            batch_first=True,
            enforce_sorted=False,
        )
        read: Tensor = self.reader(packed)[1][0]
        return read

    def see(self, images: Tensor, missions: Tensor) -> Tensor:
        """Return ``[B, F]``: what images show to someone with these missions.

        Args:
            images: ``[B, 7, 7, 3]`` integer.
            missions: ``[B, F]``, of `missions`.
        """
        if self.encoding == "one_hot":
            images = _one_hot(images)
        found: Tensor = self.eyes(images.permute(0, 3, 1, 2).float(), missions)
        return found

    def remember(self, seen: Tensor, memory: Tensor) -> Tensor:
        """Return ``[B, M]`` from what is seen, ``[B, F]``, and remembered, ``[B, M]``."""
        hidden, cell = self.memory(seen, memory.chunk(2, 1))
        return torch.cat((hidden, cell), 1)

    def decide(self, memory: Tensor) -> SymbolicOutput:
        """Return what follows from memories ``[B, M]`` of the present."""
        hidden = memory[:, : self.memory_size // 2]
        values: Tensor = self.critic(hidden)
        return SymbolicOutput(self.actor(hidden).log_softmax(-1), values[:, 0], memory)

    def forward(self, images: Tensor, missions: Sequence[str], memory: Tensor) -> SymbolicOutput:
        """Return what the network says of situations.

        Args:
            images: ``[B, 7, 7, 3]`` integer.
            missions: B texts.
            memory: ``[B, M]``; zeros know nothing.
        """
        distinct = list(dict.fromkeys(missions))
        places = {text: row for row, text in enumerate(distinct)}
        rows = torch.tensor([places[text] for text in missions], device=images.device)
        return self.decide(self.remember(self.see(images, self.missions(distinct)[rows]), memory))

    def get_extra_state(self) -> dict[str, Any]:
        """Return the words: without them the weights mean nothing."""
        return {"words": list(self.vocabulary.words)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the words that belong to the weights."""
        self.vocabulary.restore(state["words"])


def _one_hot(images: Tensor) -> Tensor:
    """Return ``[B, 7, 7, 20]``: a 1 for the type, the colour and the state of each cell."""
    parts = [
        nn.functional.one_hot(images[..., channel].long(), count)
        for channel, count in enumerate(KINDS)
    ]
    return torch.cat(parts, -1)


def _norm(norm: Norm, features: int) -> nn.Module:
    """Return a layer that keeps features at mean 0 and deviation 1."""
    if norm == "batch":
        return nn.BatchNorm2d(features)
    if norm != "group":
        raise UserError(f"expected `norm` batch or group, got {norm!r}")
    return nn.GroupNorm(min(8, features), features)


def _hidden(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with one hidden layer of 64 units."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs))


def _initialize(module: nn.Module) -> None:
    """Give linear layers rows of length 1 and no bias."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight)
        with torch.no_grad():
            module.weight.div_(module.weight.norm(dim=1, keepdim=True))
        nn.init.zeros_(module.bias)
