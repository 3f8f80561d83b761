"""Pictures of the part of the terminal around the hero."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_agents.policies.nethack_types import WINDOW

CELL = 6
"""Pixels of a character, both ways."""

NUM_KINDS = 256 * 16
"""Kinds of colored characters."""

PALETTE = (
    (0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0),
    (0, 0, 128), (128, 0, 128), (0, 128, 128), (128, 128, 128),
    (192, 192, 192), (255, 0, 0), (0, 255, 0), (255, 255, 0),
    (0, 0, 255), (255, 0, 255), (0, 255, 255), (255, 255, 255),
)  # fmt: skip
"""Red, green and blue of the sixteen terminal colors."""


@cache
def glyph_atlas() -> NDArray[np.uint8]:
    """Draw the 256 codes, white on black.

    Printable characters of Latin-1 in a monospace font at size 9, each scaled to 6 × 6 by area.
    Differs from Motif's release: DejaVu Sans Mono, which comes with matplotlib and from which its
    font, Hack, was made; no character hangs over into its neighbour's cell.

    Returns:
        ``[256, 6, 6]``.
    """
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSansMono.ttf", 9)
    _, top, _, bottom = font.getbbox("Ågj|")
    width, height = round(font.getlength("M")), int(bottom - top)
    cells = []
    for code in range(256):
        cell = Image.new("L", (width, height))
        if chr(code).isprintable():
            ImageDraw.Draw(cell).text((0, -top), chr(code), fill=255, font=font)
        cells.append(cell.resize((CELL, CELL), Image.Resampling.BOX))
    return np.stack([np.asarray(cell) for cell in cells])


def tiles(kinds: Tensor, glyphs: Tensor) -> Tensor:
    """Draw kinds of colored characters.

    Args:
        kinds: ``[U]`` integer, 256 · color + code.
        glyphs: ``[256, 6, 6]`` uint8, see `glyph_atlas`.

    Returns:
        ``[U, 3, 6, 6]`` float32 in [0, 1].
    """
    palette = torch.tensor(PALETTE, dtype=torch.float32, device=kinds.device) / 255
    codes = kinds.long()
    gray = glyphs[codes & 255].float() / 255
    return palette[codes >> 8][:, :, None, None] * gray[:, None]


def pictures(window: Tensor, glyphs: Tensor) -> Tensor:
    """Draw windows.

    Args:
        window: ``[N, 144]`` integer, 256 · color + code.
        glyphs: ``[256, 6, 6]`` uint8.

    Returns:
        ``[N, 3, 72, 72]`` float32 in [0, 1].
    """
    drawn = tiles(window.flatten(), glyphs).view(-1, WINDOW, WINDOW, 3, CELL, CELL)
    return drawn.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, WINDOW * CELL, WINDOW * CELL)
