"""Small networks on a language model's hidden states, and the files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.state_mlp import StateMLP
from llm_agents.policies.state_value import StateValueHead
from llm_agents.whole_files import read_described, write_json, write_tensors

_FORMAT_VERSION = 1

Pooling = Literal["last", "summary"]


class ValueHead(nn.Module):
    """Value of a prompt: one learned query attends over the prompt's hidden states.

        V = max_value · σ(w · dropout(attention(query, h, h)) + b),   h = dropout(hidden)

    The authors' head has no key mask, so that a prompt's value changes with the padding around it;
    here padding is never seen. In eval mode dropout is off and two calls give the same value.

    Args:
        hidden_size: H, divisible by `num_heads`.
        num_heads: Attention heads.
        max_value: Upper bound of the values: the number of summed rewards in [0, 1].
        dropout: Share of hidden units dropped in training, before and after the attention.

    References:
        A-LoL, section 3.2 (Baheti et al., 2023); the authors' code, ``SequenceValueHead``.
        Differs: key mask.
    """

    def __init__(
        self, hidden_size: int, num_heads: int = 8, max_value: float = 1.0, dropout: float = 0.1
    ) -> None:
        if hidden_size % num_heads:
            raise ValueError(
                f"expected `hidden_size` divisible by num_heads = {num_heads}, got {hidden_size}: "
                "choose another number of heads"
            )
        if not max_value > 0:
            raise ValueError(f"expected `max_value` above 0, got {max_value}")
        super().__init__()
        self.config: dict[str, int | float] = {
            "hidden_size": hidden_size,
            "num_heads": num_heads,
            "max_value": max_value,
            "dropout": dropout,
        }
        self.max_value = max_value
        self.query = nn.Parameter(torch.randn(hidden_size))
        self.attention = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)
        self.output = nn.Linear(hidden_size, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the values of prompts.

        Args:
            hidden: ``[B, Q, H]`` hidden states after the final norm, at prompt positions.
            mask: ``[B, Q]`` bool, True = real token; at least one a row, padding anywhere.

        Returns:
            ``[B]`` float32 in (0, max_value).
        """
        hidden = _checked(hidden, mask, self.query.shape[0])
        hidden = self.dropout(hidden.detach()).to(
            self.query.dtype
        )  # the language model learns nothing
        query = self.query.expand(len(hidden), 1, -1)
        context, _ = self.attention(
            query, hidden, hidden, key_padding_mask=~mask, need_weights=False
        )
        score: Tensor = self.output(self.dropout(context[:, 0]))
        return self.max_value * torch.sigmoid(score[:, 0])


class RewardHead(nn.Module):
    """Reward of a response: a small network on hidden states.

        r = w · z + b                                   or, with a `width`,
        r = w · dropout(gelu(U · dropout(z) + u)) + b,  z = (features − center) / spread

    The reward is unbounded, as a classifier's logit is; a sigmoid belongs to the caller.

    Args:
        hidden_size: H.
        dropout: Share of units dropped in training.
        pooling: What it reads: the state of the response's ``last`` token, or the ``summary``:
            those of the prompt's last token, the response's mean and its last token.
        width: Hidden units; None for a linear function.
    """

    center: Tensor
    spread: Tensor

    def __init__(
        self,
        hidden_size: int,
        dropout: float = 0.0,
        pooling: Pooling = "last",
        width: int | None = None,
    ) -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise UserError(f"expected `pooling` last or summary, got {pooling!r}")
        if width is not None and width < 1:
            raise UserError(f"expected a head `width` of at least 1, or null, got {width}")
        self.config: dict[str, int | float | str | None] = {
            "hidden_size": hidden_size,
            "dropout": dropout,
            "pooling": pooling,
            "width": width,
        }
        self.hidden_size, self.pooling = hidden_size, pooling
        self.num_features = hidden_size if pooling == "last" else 3 * hidden_size
        self.register_buffer("center", torch.zeros(self.num_features))
        self.register_buffer("spread", torch.ones(self.num_features))
        self.dropout = nn.Dropout(dropout)
        self.hidden = None if width is None else nn.Linear(self.num_features, width)
        self.output = nn.Linear(width or self.num_features, 1)
        nn.init.normal_(self.output.weight, std=(self.output.in_features + 1) ** -0.5)
        nn.init.zeros_(self.output.bias)

    def standardize(self, features: Tensor) -> None:
        """Take centre and spread of the features from a sample of them.

        Args:
            features: ``[N, F]``, N ≥ 2; a constant feature keeps a spread of 1.
        """
        spread = features.std(0, correction=0)
        self.center.copy_(features.mean(0))
        self.spread.copy_(torch.where(spread > 0, spread, 1.0))

    def features(self, hidden: Tensor, mask: Tensor, prompt_end: Tensor | None = None) -> Tensor:
        """Return what the head reads.

        Args:
            hidden: ``[B, T, H]`` hidden states after the final norm, at response positions.
            mask: ``[B, T]`` bool, True = real token; at least one a row, padding anywhere.
            prompt_end: ``[B, H]`` state of the prompt's last token, for ``summary``.

        Returns:
            ``[B, H]``, or ``[B, 3H]`` for ``summary``, float32.

        Raises:
            ValueError: A shape is wrong, a row is empty, or `prompt_end` is missing.
        """
        hidden = _checked(hidden, mask, self.hidden_size).to(self.output.weight.dtype)
        positions = torch.arange(mask.shape[1], device=mask.device)
        last = positions.masked_fill(~mask, -1).amax(dim=1)
        state = hidden[torch.arange(len(hidden), device=hidden.device), last]
        if self.pooling == "last":
            return state
        if prompt_end is None or prompt_end.shape != state.shape:
            raise ValueError(
                f"expected `prompt_end` of shape {tuple(state.shape)} for pooling summary, got "
                f"{None if prompt_end is None else tuple(prompt_end.shape)}"
            )
        mean = hidden.sum(1) / mask.sum(1, keepdim=True)
        return torch.cat((prompt_end.to(state.dtype), mean, state), 1)

    def of_features(self, features: Tensor) -> Tensor:
        """Return ``[B]`` float32 rewards from ``[B, F]`` `features`."""
        standard = self.dropout((features - self.center) / self.spread)
        if self.hidden is not None:
            standard = self.dropout(nn.functional.gelu(self.hidden(standard)))
        score: Tensor = self.output(standard)
        return score[:, 0]

    def forward(self, hidden: Tensor, mask: Tensor, prompt_end: Tensor | None = None) -> Tensor:
        """Return ``[B]`` float32 rewards of responses; the arguments are those of `features`."""
        return self.of_features(self.features(hidden, mask, prompt_end))


Head = ValueHead | RewardHead | StateValueHead | StateMLP
_CLASSES: dict[str, type[Head]] = {
    "ValueHead": ValueHead,
    "RewardHead": RewardHead,
    "StateMLP": StateMLP,
    "StateValueHead": StateValueHead,
}


def save_head(head: Head, folder: Path | str, name: str) -> None:
    """Write `head` to ``folder/name.safetensors`` and ``folder/name.json``.

    Args:
        head: Head to write, on any device.
        folder: Made if it isn't there.
        name: File name without ending, such as ``value_head``.
    """
    folder = Path(folder)
    write_tensors(folder / f"{name}.safetensors", head.state_dict())
    described = {"class": type(head).__name__, "format_version": _FORMAT_VERSION, **head.config}
    write_json(folder / f"{name}.json", described)


def load_head(folder: Path | str, name: str, hidden_size: int | None = None) -> Head:
    """Read the head that `save_head` wrote, in eval mode on the CPU.

    Args:
        folder: Where it was written.
        name: File name without ending.
        hidden_size: Size of the hidden states that it is to read; unchecked if None.

    Raises:
        UserError: The files are missing, were written by something else, or the sizes disagree.
    """
    description, weights = Path(folder) / f"{name}.json", Path(folder) / f"{name}.safetensors"
    for file in (description, weights):
        if not file.is_file():
            raise UserError(f"no head {name!r} in {folder}: {file.name} is missing")
    config = read_described(
        description, "class", what="a head of class", known=_CLASSES, version=_FORMAT_VERSION
    )
    kind = config.pop("class")
    del config["format_version"]
    if hidden_size is not None and config["hidden_size"] != hidden_size:
        raise UserError(
            f"the head {name!r} in {folder} reads hidden states of size {config['hidden_size']}, "
            f"the model gives {hidden_size}: it was trained on another base"
        )
    head = _CLASSES[kind](**config)
    head.load_state_dict({**_defaults(head), **load_file(weights)})
    return head.eval()


def _defaults(head: Head) -> dict[str, Tensor]:
    """Return the buffers of a fresh head: files from before they existed hold none."""
    return dict(head.named_buffers())


def _checked(hidden: Tensor, mask: Tensor, hidden_size: int) -> Tensor:
    """Check shapes and return `hidden` with zeros under padding, which may hold anything."""
    if hidden.dim() != 3 or hidden.shape[-1] != hidden_size:
        raise ValueError(
            f"expected `hidden` of shape (B, L, {hidden_size}), got {tuple(hidden.shape)}"
        )
    if mask.shape != hidden.shape[:2]:
        raise ValueError(
            f"expected `mask` of shape {tuple(hidden.shape[:2])} like `hidden`, "
            f"got {tuple(mask.shape)}"
        )
    if not bool(mask.any(dim=1).all()):
        row = int((~mask.any(dim=1)).nonzero()[0, 0])
        raise ValueError(f"expected at least one True a row in `mask`, row {row} has none")
    return hidden.masked_fill(~mask[:, :, None], 0)
