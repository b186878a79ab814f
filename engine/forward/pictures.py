"""Pictures of a sequence for one pass: features, positions, and blocks that attend both ways."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class ImageFeatures(NamedTuple):
    """The features of one picture, a row for each of its soft tokens.

    `pooled` (rows, hidden) take the place of the embeddings of these tokens; each of `deepstack` (rows, hidden) is
    added after one of the first layers. `output_class` is the class in which the model expects them, as a list of
    tensors or as one tensor with a batch of one.
    """

    pooled: Tensor
    deepstack: tuple[Tensor, ...]
    output_class: Any
    as_list: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in (self.pooled, *self.deepstack))


class FeatureRows(NamedTuple):
    """The rows from `first` to `end` of the features of a picture."""

    features: ImageFeatures
    first: int
    end: int


class PassPictures(NamedTuple):
    """Pictures of a sequence as far as the tokens of one pass need them.

    `rows` belong to the soft tokens among them, in their order. `positions` (n,) or (3, n) are those of the rotary
    embedding; None if they are the places in the sequence. `visible_ends` (n,) has for each token the number of keys of
    the sequence that it sees in layers where a picture attends both ways; None if these are its own and all before it.
    `soft_places` are the indices of the soft tokens among those of the pass.
    """

    rows: tuple[FeatureRows, ...] = ()
    positions: np.ndarray | None = None
    visible_ends: Tensor | None = None
    soft_places: Sequence[int] = ()

    def split(self, count: int) -> list["PassPictures | None"]:
        """Returns the part of each of the `count` tokens of the pass."""
        parts: list[PassPictures | None] = []
        single = iter(
            FeatureRows(features, row, row + 1) for features, first, end in self.rows for row in range(first, end)
        )
        for index in range(count):
            positions = None if self.positions is None else self.positions[..., index : index + 1]
            rows = (next(single),) if index in self.soft_places else ()
            parts.append(PassPictures(rows, positions, soft_places=(0,) if rows else ()))
        return parts


def join_rows(rows: Sequence[FeatureRows]) -> dict[str, Any]:
    """Returns the argument `mm_encoder_outputs` for a pass with these rows, in the order of their tokens."""
    like = rows[0].features
    pooled = torch.cat([features.pooled[first:end] for features, first, end in rows])
    fields: dict[str, Any] = {"pooler_output": [pooled] if like.as_list else pooled[None]}
    if like.deepstack:
        layers = zip(
            *([layer[first:end] for layer in features.deepstack] for features, first, end in rows), strict=True
        )
        fields["deepstack_features"] = [[torch.cat(parts)] for parts in layers]
    return {"image": like.output_class(**fields)}


def place_positions(places: Sequence[int], parts: Sequence[tuple[int, PassPictures]], device: torch.device) -> Tensor:
    """Returns the position ids of a row of tokens: (1, n), or (3, 1, n) if they differ in time, height and width.

    `places` are the places of the tokens in their sequences, `parts` the first token and the pictures of the
    sequences that have some.
    """
    own = [(first, part.positions) for first, part in parts if part.positions is not None]
    flat = all(positions.ndim == 1 or bool((positions == positions[0]).all()) for _, positions in own)
    row = np.asarray(places, np.int64)[None] if flat else np.tile(np.asarray(places, np.int64), (3, 1))
    for first, positions in own:
        row[:, first : first + positions.shape[-1]] = positions[0] if flat and positions.ndim > 1 else positions
    tensor = torch.from_numpy(row).to(device)
    return tensor if flat else tensor[:, None]
