"""What every formula checks before it computes: equal shapes, boolean masks, float inputs."""

from __future__ import annotations

import torch
from torch import Tensor


def check_rank(name: str, tensor: Tensor, axes: str) -> None:
    """Raise unless `tensor` has as many axes as `axes` names, e.g. ``"[B, T]"``."""
    rank = axes.count(",") + 1
    if tensor.dim() != rank:
        raise ValueError(
            f"expected `{name}` of shape {axes}, got {tuple(tensor.shape)}: "
            f"give it {rank} {'axis' if rank == 1 else 'axes'}"
        )


def check_shape(name: str, tensor: Tensor, shape: torch.Size, like: str, cure: str) -> None:
    """Raise unless `tensor` has exactly `shape`, which is that of `like`; nothing is broadcast."""
    if tensor.shape != shape:
        raise ValueError(
            f"expected `{name}` of shape {tuple(shape)} like {like}, "
            f"got {tuple(tensor.shape)}: {cure}"
        )


def check_mask(name: str, mask: Tensor, values: Tensor, like: str) -> None:
    """Raise unless `mask` is boolean and has the shape of `values`, whose name is `like`."""
    if mask.dtype != torch.bool:
        raise TypeError(f"expected `{name}` of dtype torch.bool, got {mask.dtype}: call .bool()")
    check_shape(name, mask, values.shape, f"`{like}`", "give one mask entry for each value")


def check_per_row(name: str, tensor: Tensor, rows: int, like: str) -> None:
    """Raise unless `tensor` is ``[rows]``: ``[B, 1]`` is a fault, not a broadcast."""
    cure = f"give one value for each row{', call .squeeze(-1)' if tensor.dim() == 2 else ''}"
    check_shape(name, tensor, torch.Size([rows]), f"the rows of `{like}`", cure)


def full_precision(tensor: Tensor) -> Tensor:
    """Return `tensor` as float32, or unchanged if it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
