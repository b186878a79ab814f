"""Batches of pictures and of what they show, drawn anew from the seed and the batch's number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from training.pictures.drawing import COLOURS, SHAPES, Scene, draw_picture, draw_scene
from training.pictures.tower import PATCH, cut_patches

SQUARE_SHARE = 0.75
"""Share of batches whose pictures are square. The others train the shapes that `GRIDS` lists."""
SQUARE = (8, 8)
GRIDS = ((8, 10), (10, 8), (8, 12), (12, 8), (6, 12), (12, 6))
"""Rows and columns of patches that the processor makes of pictures that are not square."""
STRIPS = tuple((2, length) for length in (24, 32, 44, 60, 80, 100, 120, 136))
"""Rows and columns of patches of pictures that are 6 to 200 times as wide as high. Nothing in them is recognizable."""
UNKNOWN = -100
"""Label of what a picture does not have; `cross_entropy` ignores it."""
LABEL_SIZES = {"colour": len(COLOURS), "ground": len(COLOURS), "shape": len(SHAPES), "digit": 10}
"""Number of values of each label."""

PictureBatch = tuple[Tensor, tuple[int, int], list[Scene]]
"""Patches [batch, patches, values], rows and columns of patches, and the scenes."""


def draw_batch(seed: int, number: int, size: int) -> PictureBatch:
    """Draws one batch. It depends only on the arguments."""
    random = np.random.default_rng([seed, number])
    grid = SQUARE if random.random() < SQUARE_SHARE else GRIDS[random.integers(len(GRIDS))]
    scenes = [draw_scene(random) for _ in range(size)]
    pictures = np.stack([draw_picture(random, scene, grid[0] * PATCH, grid[1] * PATCH) for scene in scenes])
    return cut_patches(pictures), grid, scenes


def label_scenes(scenes: list[Scene]) -> dict[str, Tensor]:
    """Returns the labels, each [batch]. A picture without a known figure has a shape only."""
    names, known = list(COLOURS), [scene.shape != "other" for scene in scenes]
    rows = {
        "colour": [names.index(scene.colour) if seen else UNKNOWN for scene, seen in zip(scenes, known, strict=True)],
        "ground": [names.index(scene.ground) if seen else UNKNOWN for scene, seen in zip(scenes, known, strict=True)],
        "shape": [SHAPES.index(scene.shape) for scene in scenes],
        "digit": [UNKNOWN if scene.digit is None else scene.digit for scene in scenes],
    }
    return {name: torch.tensor(row) for name, row in rows.items()}


class PictureBatches(IterableDataset[PictureBatch]):
    """Endless stream of batches, from batch number `first` on."""

    def __init__(self, seed: int, size: int, first: int = 0) -> None:
        self.seed, self.size, self.first = seed, size, first

    def __iter__(self) -> Iterator[PictureBatch]:
        """Yields one batch after another, without end."""
        torch.set_num_threads(1)
        number = self.first
        while True:
            yield draw_batch(self.seed, number, self.size)
            number += 1
