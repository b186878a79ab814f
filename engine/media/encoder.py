"""Encodes one picture: the arrays of its preparation → the rows that take the place of its soft tokens."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphon.engine.forward.pictures import ImageFeatures
from antiphon.engine.media.vision_tower import find_blocks

MAIN_NAMES = ("pixel_values", "image_patches")
"""Names of the array with the pixels."""


class EncodingCancelled(Exception):  # noqa: N818  no error
    """No sequence needs the picture any more."""


class ImageEncoder:
    """Runs the model's own `get_image_features`. A picture is encoded alone, so that no other one changes its bits.

    `between_blocks` is called before each block of the tower; it may raise.
    """

    def __init__(self, model: PreTrainedModel, towers: Sequence[nn.Module]) -> None:
        body: Any = model.base_model
        self._body = body
        self._device = model.device
        self._names = set(inspect.signature(body.get_image_features).parameters) - {"kwargs"}
        floats = [each for tower in towers for each in tower.parameters() if each.is_floating_point() and each.numel()]
        self._dtype = floats[0].dtype if floats else model.dtype
        self._features_dtype = model.dtype
        self.between_blocks: Callable[[], None] = lambda: None
        for block in find_blocks(towers):
            block.register_forward_pre_hook(lambda *_: self.between_blocks())

    @torch.inference_mode()
    def encode(self, arrays: dict[str, Tensor], rows: int) -> ImageFeatures:
        """Returns the features. Raises `ValueError` if the arrays give another number of `rows`."""
        unknown = set(arrays) - self._names
        if unknown or not set(MAIN_NAMES) & set(arrays):
            raise ValueError(f"the encoder takes the arrays {sorted(self._names)}, not {sorted(arrays)}")
        arguments = {
            name: array.to(self._device, self._dtype if array.is_floating_point() else None)
            for name, array in arrays.items()
        }
        output = self._body.get_image_features(**arguments, return_dict=True)
        pooled = self._flatten(output.pooler_output)
        if len(pooled) != rows:
            raise ValueError(f"{len(pooled)} rows of features instead of {rows}")
        layers = getattr(output, "deepstack_features", None) or ()
        deepstack = tuple(self._flatten(layer) for layer in layers)
        is_list = not isinstance(output.pooler_output, Tensor)
        return ImageFeatures(pooled, deepstack, type(output), is_list)

    def _flatten(self, features: Tensor | Iterable[Tensor]) -> Tensor:
        """Returns the rows of one or several tensors as one tensor."""
        joined = torch.cat([part.reshape(-1, part.shape[-1]) for part in features])
        return joined.to(self._features_dtype)
