"""Convolutions over pictures of windows that compute what repeats once, and draw nothing.

A picture is 12 × 12 characters of 6 × 6 pixels, there are few kinds of colored characters, and most
of what surrounds a hero is blank, wall or floor. So the same small pictures come again and again:

- the first convolution (8 × 8 pixels, stride 4) covers 2 × 2 characters in each place, in one of
  nine positions; each combination of four characters is computed once, as a sum of what each of
  them contributes;
- the second one covers 4 × 4 of these places; each combination of sixteen is computed once;
- equal windows are computed once.

The parameters are those of the convolutions, and so are results and gradients, but for rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from llm_agents.policies.nethack_sharing import distinct_rows, renumber
from llm_agents.policies.nethack_types import WINDOW
from llm_agents.policies.nethack_window import CELL, NUM_KINDS, glyph_atlas, pictures, tiles

KERNEL, STRIDE = 8, 4
PLACES = (WINDOW * CELL - KERNEL) // STRIDE + 1
"""Results of the first convolution in a row: 17."""

PATCHES = (PLACES - 4) // 2 + 1
"""Results of the second convolution in a row: 7."""

OFFSETS = (0, 4, 2)
"""Pixels of a character above the kernel, in places 0, 1, 2; then it begins anew."""

_ROLES = 2 * len(OFFSETS)
_PHASES = len(OFFSETS) ** 2


class WindowEncoder(nn.Module):
    """Three convolutions over the picture of a window, and a layer on what they give.

        3 → 32, 8 × 8, stride 4;  32 → 64, 4 × 4, stride 2;  64 → 128, 3 × 3, stride 2;
        1152 → `width`;  ELU after each

    Args:
        width: Units of the last layer.

    References:
        Motif (arXiv 2310.00166), as released: its policy's image branch.
    """

    glyphs: Tensor
    kernel_pixels: Tensor
    place_cells: Tensor
    place_phases: Tensor
    phase_roles: Tensor
    patch_places: Tensor

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Conv2d(3, 32, KERNEL, STRIDE)
        self.second = nn.Conv2d(32, 64, 4, 2)
        self.third = nn.Conv2d(64, 128, 3, 2)
        self.output = nn.Linear(128 * 9, width)
        # Drawings differ between versions of the font's library: an agent keeps those it learnt on.
        self.register_buffer("glyphs", torch.from_numpy(glyph_atlas().copy()))
        for name, table in _geometry().items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, window: Tensor) -> Tensor:
        """Return ``[N, width]`` from windows ``[N, 144]``."""
        if window.device.type == "cpu":
            shared = distinct_rows(window)
            maps = self._shared_maps(window[shared.first].long())
            return self._on_maps(maps).index_select(0, shared.kinds)
        # Looking for what is equal would wait for the device, and drawing is cheap there.
        return self.drawn(window)

    def drawn(self, window: Tensor) -> Tensor:
        """Return the same as `forward`, by drawing the pictures and convolving them."""
        maps = nn.functional.elu(self.first(pictures(window, self.glyphs)))
        return self._on_maps(nn.functional.elu(self.second(maps)))

    def _on_maps(self, maps: Tensor) -> Tensor:
        """Return ``[n, width]`` from ``[n, 64, 7, 7]``."""
        maps = nn.functional.elu(self.third(maps))
        return nn.functional.elu(self.output(maps.flatten(1)))

    def _shared_maps(self, window: Tensor) -> Tensor:
        """Return ``[n, 64, 7, 7]``, what the first two convolutions give."""
        squares, square_of_cell = _squares(window)
        first = nn.functional.elu(self._first_of_squares(squares))
        place_kinds = square_of_cell.index_select(1, self.place_cells) * _PHASES
        place_kinds = place_kinds + self.place_phases
        patches = place_kinds.index_select(1, self.patch_places).view(-1, 16)
        shared = distinct_rows(patches)
        parts = first.index_select(0, patches[shared.first].flatten()).view(-1, 16 * 32)
        weight = self.second.weight.permute(0, 2, 3, 1).reshape(64, -1)
        second = nn.functional.elu(nn.functional.linear(parts, weight, self.second.bias))
        maps = second.index_select(0, shared.kinds).view(-1, PATCHES, PATCHES, 64)
        return maps.permute(0, 3, 1, 2)

    def _first_of_squares(self, squares: Tensor) -> Tensor:
        """Return ``[C · 9, 32]``, the first convolution on 2 × 2 characters in nine positions.

        Args:
            squares: ``[C, 4]``, kinds of the characters: upper left and right, lower left and
                right.
        """
        kinds, places = renumber(squares, NUM_KINDS)
        drawn = tiles(kinds, self.glyphs).view(len(kinds), -1)
        weight = self.first.weight.reshape(32 * 3, -1) @ self.kernel_pixels  # [96, 36 · 36]
        weight = weight.view(32, 3, _ROLES**2, CELL**2).permute(1, 3, 2, 0)
        table = drawn @ weight.reshape(3 * CELL**2, -1)
        summands = places[:, None] * _ROLES**2 + self.phase_roles  # [C, 9, 4]
        total: Tensor = _SumOfRows.apply(  # type: ignore[no-untyped-call]  # torch's own
            table.view(-1, 32), summands.view(-1, 4)
        )
        assert self.first.bias is not None
        return total + self.first.bias


class _SumOfRows(torch.autograd.Function):
    """Sums of four rows of a table."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:  # noqa: ANN401  (torch's own)
        """Return ``[M, C]`` from ``[R, C]`` `table` and ``[M, 4]`` `index`."""
        ctx.save_for_backward(index)
        ctx.num_rows = len(table)
        return nn.functional.embedding_bag(index, table, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (torch's own)
        """Return the table's gradient; torch's own sorts the index first."""
        (index,) = ctx.saved_tensors
        found = grad.new_zeros(ctx.num_rows, grad.shape[1])
        for column in index.unbind(1):
            found.index_add_(0, column, grad)
        return found, None


def _squares(window: Tensor) -> tuple[Tensor, Tensor]:
    """Find the combinations of 2 × 2 characters that occur.

    Args:
        window: ``[n, 144]`` int64.

    Returns:
        ``[C, 4]``, kinds of their characters; ``[n, 144]``, the combination whose upper left
        character is here, for the cells of the first eleven rows and columns.
    """
    kinds, cells = renumber(window, NUM_KINDS)
    cells = cells.view(-1, WINDOW, WINDOW)
    num = len(kinds)
    pairs, cells = renumber(cells[:, :-1] * num + cells[:, 1:], num * num)
    both, cells = renumber(cells[..., :-1] * len(pairs) + cells[..., 1:], len(pairs) ** 2)
    left, right = pairs[both // len(pairs)], pairs[both % len(pairs)]
    corners = torch.stack([left // num, right // num, left % num, right % num], 1)
    padded = nn.functional.pad(cells, (0, 1, 0, 1))
    return kinds[corners], padded.view(-1, WINDOW * WINDOW)


def _geometry() -> dict[str, Tensor]:
    """Return how kernels, places and characters correspond.

    Returns:
        ``kernel_pixels`` ``[64, 36 · 36]``, 1 where a pixel of the kernel lies on a pixel of a
        character, for each of 36 ways; a *role* is an offset and a half, upper or lower, and a way
        is a role of rows and one of columns. The others are int64: ``place_cells``
        ``[289]``, the upper left of the characters of each place; ``place_phases`` ``[289]``, its
        position; ``phase_roles`` ``[9, 4]``, the roles of four characters in each position, row and
        column as one number. ``patch_places`` ``[49 · 16]``, the places of each patch.
    """
    rows = torch.zeros(KERNEL, _ROLES, CELL)
    for number, start in enumerate(OFFSETS):
        for row in range(KERNEL):
            half, inside = divmod(start + row, CELL)
            rows[row, 2 * number + half, inside] = 1
    cell = torch.arange(PLACES) * STRIDE // CELL
    phase = torch.arange(PLACES) % len(OFFSETS)
    role = 2 * torch.arange(len(OFFSETS))[:, None] + torch.arange(2)  # [3, 2]
    corner = torch.arange(PATCHES)[:, None] * 2 + torch.arange(4)  # [7, 4]
    return {
        "kernel_pixels": torch.einsum("arp,bsq->abrspq", rows, rows).reshape(KERNEL**2, -1),
        "place_cells": (cell[:, None] * WINDOW + cell).flatten(),
        "place_phases": (phase[:, None] * len(OFFSETS) + phase).flatten(),
        "phase_roles": (role[:, None, :, None] * _ROLES + role[None, :, None, :]).reshape(-1, 4),
        "patch_places": (corner[:, None, :, None] * PLACES + corner[None, :, None, :]).flatten(),
    }
