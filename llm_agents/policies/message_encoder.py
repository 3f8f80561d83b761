"""Motif's reward network: a small convolutional encoder of game messages.

Paper: arXiv 2310.00166, section 3.2; the architecture is the released one, 306,945 parameters,
without the value and action heads that its reward model carried along unused. It is exact about one
thing and faster for it: a message ends in zeros, whose part of every layer is one column, computed
once for the whole batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.message_branches import NUM_GLYPHS, MapBranch, StatsBranch
from llm_agents.policies.message_scorer import (
    MESSAGE_SIZE,
    MessageScorer,
    ObservationKey,
    check_messages,
)
from llm_agents.types import MessageObservations
from llm_agents.whole_files import write_tensors

WEIGHTS_FILE = "message_encoder.safetensors"

MessageModel = Literal["lt_cnn", "lt_cnn_small", "none"]


class _Plan(NamedTuple):
    """Sizes of a message branch.

    Args:
        length: Bytes that it reads.
        embedding: Width of a byte's embedding.
        channels: Of every convolution.
        layers: Kernel of each convolution, and whether a pooling by 3 follows.
        output: Units after the convolutions.
        hidden: Units of the two layers on top of all branches; None takes the encoder's.
    """

    length: int
    embedding: int
    channels: int
    layers: tuple[tuple[int, bool], ...]
    output: int
    hidden: tuple[int, int] | None


_PLANS = {
    "lt_cnn": _Plan(
        MESSAGE_SIZE,
        32,
        64,
        ((7, True), (7, True), (3, False), (3, False), (3, False), (3, True)),
        128,
        None,
    ),
    "lt_cnn_small": _Plan(128, 16, 32, ((7, True), (7, True), (3, True)), 32, (32, 32)),
}
_POOL = 3


class _Columns(NamedTuple):
    """Columns of a layer: the first ones of each row, and the one that all others are equal to.

    Args:
        first: ``[M, C, n]``.
        rest: ``[C]``, columns n to `total`, the same in every row.
        total: Columns of the whole layer.
    """

    first: Tensor
    rest: Tensor
    total: int

    def upto(self, count: int) -> Tensor:
        """Return ``[M, C, count]``: the first `count` columns, whichever they are."""
        known = self.first.shape[2]
        if count <= known:
            return self.first[:, :, :count]
        more = self.rest[None, :, None].expand(len(self.first), -1, count - known)
        return torch.cat((self.first, more), 2)


class MessageBranch(nn.Module):
    """Byte embeddings, convolutions and a linear layer.

    Args:
        plan: Its sizes.
    """

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self.plan, self.size = plan, plan.output
        self.embedding = nn.Embedding(256, plan.embedding, padding_idx=0)
        self.convolutions = nn.ModuleList()
        channels, columns = plan.embedding, plan.length
        for kernel, pooled in plan.layers:
            self.convolutions.append(nn.Conv1d(channels, plan.channels, kernel))
            channels, columns = plan.channels, columns - kernel + 1
            columns = columns // _POOL if pooled else columns
        self.output = nn.Linear(channels * columns, plan.output)

    def forward(self, message: Tensor) -> Tensor:
        """Return ``[M, size]`` from ``[M, 256]`` bytes."""
        codes = message[:, : self.plan.length]
        used = (codes != 0).any(0).nonzero()
        count = int(used[-1]) + 1 if len(used) else 1
        states = _Columns(
            self.embedding(codes[:, :count].long()).transpose(1, 2),
            self.embedding.weight[0].detach(),
            self.plan.length,
        )
        for convolution, (_, pooled) in zip(self.convolutions, self.plan.layers, strict=True):
            assert isinstance(convolution, nn.Conv1d)  # a ModuleList forgets it
            states = _convolved(states, convolution)
            states = _pooled(states) if pooled else states
        flat = states.upto(states.total).flatten(1)
        return torch.relu(self.output(flat))


def _convolved(states: _Columns, layer: nn.Conv1d) -> _Columns:
    """Return the columns after a convolution without padding and a ReLU."""
    kernel = layer.kernel_size[0]
    total = states.total - kernel + 1
    count = min(states.first.shape[2], total)
    first = layer(states.upto(count + kernel - 1))
    rest = layer(states.rest[None, :, None].expand(1, -1, kernel))[0, :, 0]
    return _Columns(torch.relu(first), torch.relu(rest), total)


def _pooled(states: _Columns) -> _Columns:
    """Return the columns after taking the largest of every three; a remainder is dropped."""
    total = states.total // _POOL
    count = min(-(-states.first.shape[2] // _POOL), total)
    first = nn.functional.max_pool1d(states.upto(count * _POOL), _POOL)
    return _Columns(first, states.rest, total)


class MessageEncoder(MessageScorer):
    """From what a NetHack screen says to a raw reward.

    Branches are concatenated in the order bottom line, crop, map, message; two linear layers give
    the features, a ReLU and a linear layer the reward.

    Args:
        message_model: The message's branch: Motif's (``lt_cnn``), a smaller one that reads 128
            bytes, or none.
        use_blstats: Also read the bottom line.
        use_crop: Also read the map around the hero.
        use_glyphs: Also read the whole map.
        embedding_dim: Width of a glyph's embedding and of the bottom line's layers.
        hidden_dim: H, the features; the layer below has half as many units.
        crop_dim: Side of the crop.
        num_layers: Convolutions of crop and map.
    """

    def __init__(
        self,
        message_model: MessageModel = "lt_cnn",
        use_blstats: bool = False,
        use_crop: bool = False,
        use_glyphs: bool = False,
        embedding_dim: int = 128,
        hidden_dim: int = 512,
        crop_dim: int = 16,
        num_layers: int = 2,
    ) -> None:
        super().__init__()
        self.config: dict[str, object] = {
            "message_model": message_model,
            "use_blstats": use_blstats,
            "use_crop": use_crop,
            "use_glyphs": use_glyphs,
            "embedding_dim": embedding_dim,
            "hidden_dim": hidden_dim,
            "crop_dim": crop_dim,
            "num_layers": num_layers,
        }
        plan = _PLANS.get(message_model)
        if plan is None and message_model != "none":
            raise UserError(
                f"expected `message_model` of {', '.join(_PLANS)} or none, got {message_model!r}"
            )
        if min(embedding_dim, hidden_dim // 2, crop_dim, num_layers) < 1:
            raise UserError(f"expected sizes of at least 1 (`hidden_dim` 2), got {self.config}")
        self.keys = _keys(message_model, use_blstats or use_crop, use_crop or use_glyphs)
        self.stats = StatsBranch(embedding_dim) if use_blstats else None
        self.glyph_embedding = self.crop = self.map = None
        if use_crop or use_glyphs:
            glyphs = self.glyph_embedding = nn.Embedding(NUM_GLYPHS, embedding_dim)
            self.crop = MapBranch(glyphs, crop_dim, num_layers) if use_crop else None
            self.map = MapBranch(glyphs, None, num_layers) if use_glyphs else None
        self.message = None if plan is None else MessageBranch(plan)
        branches = (self.stats, self.crop, self.map, self.message)
        size = sum(branch.size for branch in branches if branch is not None)
        if not size:
            raise UserError("an encoder without a message branch needs another: set `use_blstats`")
        middle, self.hidden_size = (plan and plan.hidden) or (hidden_dim // 2, hidden_dim)
        self.features = nn.Sequential(
            nn.Linear(size, middle), nn.ReLU(), nn.Linear(middle, self.hidden_size)
        )
        self.reward = nn.Linear(self.hidden_size, 1)
        self.apply(_initialize)

    def hidden_states(self, observations: MessageObservations) -> Tensor:
        """Return ``[M, H]`` features, before any activation."""
        check_messages(observations.message)
        found: list[Tensor] = []
        if self.stats is not None:
            found.append(self.stats(_needed(observations.blstats, "blstats")))
        if self.crop is not None:
            position = _needed(observations.blstats, "blstats")[:, :2].long()
            found.append(self.crop(_needed(observations.glyphs, "glyphs"), position))
        if self.map is not None:
            glyphs = _needed(observations.glyphs, "glyphs")
            found.append(self.map(glyphs, glyphs.new_zeros(len(glyphs), 2)))
        if self.message is not None:
            found.append(self.message(observations.message))
        features: Tensor = self.features(torch.cat(found, 1))
        return features

    def forward(self, observations: MessageObservations) -> Tensor:
        """Return ``[M]`` raw rewards."""
        reward: Tensor = self.reward(torch.relu(self.hidden_states(observations)))
        return reward[:, 0]

    def describe(self) -> dict[str, object]:
        """Return the class and the arguments of the constructor."""
        return {"class": type(self).__name__, **self.config}

    def save(self, folder: Path) -> None:
        """Write ``message_encoder.safetensors``."""
        write_tensors(folder / WEIGHTS_FILE, self.state_dict())


def _keys(model: MessageModel, stats: bool, screen: bool) -> tuple[ObservationKey, ...]:
    """Return what an encoder looks at."""
    wanted: dict[ObservationKey, bool] = {
        "message": model != "none",
        "blstats": stats,
        "glyphs": screen,
    }
    return tuple(key for key, is_wanted in wanted.items() if is_wanted)


def _needed(part: Tensor | None, name: str) -> Tensor:
    """Return a part of the observation, or raise if it is not there."""
    if part is None:
        raise ValueError(f"expected `{name}` in the observations: this encoder looks at it")
    return part


def _initialize(module: nn.Module) -> None:
    """Start linear and two-dimensional layers as the release does; others keep PyTorch's start."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.orthogonal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
