"""What Motif's reward model may look at beside the message: the bottom line and the map.

The released code has these branches, but its reward training could not run them: it never loaded
the map, and centered the crop on scaled coordinates. Here the crop is centered on the hero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NUM_GLYPHS = 5976
NUM_STATS = 27
MAP_SHAPE = (21, 79)

_SCALES = {0: 1 / 79, 1: 1 / 21, 13: 1e-3, 19: 1e-2, 20: 1e-3, 21: 1.0} | dict.fromkeys(
    (3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 16, 18, 22), 0.1
)
_LARGEST = 5.0


def scaled_stats(blstats: Tensor) -> Tensor:
    """Return the bottom line as a network reads it.

        clamp(blstats · scale, ±5)

    Score, depth, dungeon, condition and alignment have a scale of 0: they are hidden.

    Args:
        blstats: ``[…, 27]`` integer, as the game gives it.

    Returns:
        ``[…, 27]`` float32.

    Example:
        >>> scaled_stats(torch.tensor([79, 21, 18] + [0] * 24))[:3].tolist()
        [1.0, 1.0, 0.0]
    """
    if blstats.shape[-1] != NUM_STATS:
        raise ValueError(f"expected `blstats` of shape (…, 27), got {tuple(blstats.shape)}")
    scales = torch.zeros(NUM_STATS, dtype=torch.float64, device=blstats.device)
    for index, scale in _SCALES.items():
        scales[index] = scale
    return (blstats.double() * scales).clamp(-_LARGEST, _LARGEST).float()


class StatsBranch(nn.Module):
    """Two linear layers with ReLU over the scaled bottom line.

    Args:
        width: Units of each.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.size = width
        self.layers = nn.Sequential(
            nn.Linear(NUM_STATS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, blstats: Tensor) -> Tensor:
        """Return ``[M, width]`` from ``[M, 27]``."""
        found: Tensor = self.layers(scaled_stats(blstats))
        return found


class MapBranch(nn.Module):
    """Convolutions over glyph embeddings: of the whole map at stride 2, or around the hero.

    Every layer has a kernel of 3, a padding of 1 and ELU; all have 16 channels but the last, which
    has 8. What lies outside the map around the hero is 0.

    Args:
        embedding: Of the glyphs, ``[5976, width]``; shared by both kinds of branch.
        crop: Side of the square around the hero; None reads the whole map.
        num_layers: Convolutions.
    """

    def __init__(self, embedding: nn.Embedding, crop: int | None, num_layers: int) -> None:
        super().__init__()
        if num_layers < 1 or (crop is not None and crop < 1):
            raise ValueError(f"expected layers and a crop of at least 1, got {num_layers}, {crop}")
        self.crop = crop
        self._embedding = (embedding,)  # belongs to the encoder
        channels = [int(embedding.embedding_dim), *[16] * (num_layers - 1), 8]
        stride = 1 if crop else 2
        layers: list[nn.Module] = []
        for i in range(num_layers):
            layers += [
                nn.Conv2d(channels[i], channels[i + 1], 3, stride=stride, padding=1),
                nn.ELU(),
            ]
        self.layers = nn.Sequential(*layers)
        height, width = (crop, crop) if crop else MAP_SHAPE
        for _ in range(0 if crop else num_layers):
            height, width = (height + 1) // 2, (width + 1) // 2
        self.size = 8 * height * width

    def forward(self, glyphs: Tensor, position: Tensor) -> Tensor:
        """Return ``[M, size]``.

        Args:
            glyphs: ``[M, 21, 79]`` integer.
            position: ``[M, 2]`` int64, column x and row y of the hero.
        """
        embedding = self._embedding[0]
        if self.crop is None:
            states = embedding(glyphs.long())
        else:
            seen, is_inside = cropped(glyphs.long(), position, self.crop)
            states = embedding(seen) * is_inside[..., None]
        found: Tensor = self.layers(states.movedim(-1, 1)).flatten(1)
        return found


def cropped(glyphs: Tensor, position: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return the square of cells around the hero.

    Args:
        glyphs: ``[M, 21, 79]``.
        position: ``[M, 2]`` int64, column x and row y of the hero.
        side: The square begins ``side // 2`` cells above and left of the hero.

    Returns:
        ``[M, side, side]`` glyphs, and the same shape bool, True = on the map.
    """
    offsets = torch.arange(side, device=glyphs.device) - side // 2
    columns = position[:, 0, None, None] + offsets[None, None, :]
    rows = position[:, 1, None, None] + offsets[None, :, None]
    height, width = glyphs.shape[1:]
    is_inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    batch = torch.arange(len(glyphs), device=glyphs.device)[:, None, None]
    seen = glyphs[batch, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return seen, is_inside
