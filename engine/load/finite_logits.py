"""Refuses a model whose logits or weights are not finite numbers, and finds the weight that is the cause."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.checkpoint.files import find_weight_files
from antiphon.engine.errors import LoadError

ELEMENTS_PER_PART = 1 << 22
"""Elements of a weight that are checked at a time."""


def check_finite(logits: Tensor, model: PreTrainedModel) -> None:
    """Raises `LoadError` if a row of logits (rows, vocabulary) holds NaN, or no finite number.

    A model may suppress tokens by logits of minus infinity. Other rows are those of a damaged checkpoint.
    """
    if not logits.isnan().any() and logits.isfinite().any(-1).all():
        return
    name = model.name_or_path or type(model).__name__
    weight = next(_find_broken_weights(Path(model.name_or_path)), None) if model.name_or_path else None
    if weight is not None:
        raise LoadError(
            f"{name}: the weight {weight} holds NaN or infinity, so the model computes no finite logits; "
            "fetch the model again, or choose another one"
        )
    is_half = model.dtype == torch.float16
    raise LoadError(
        f"{name}: the model computes no finite logits in {str(model.dtype).removeprefix('torch.')}; "
        + ("use --dtype bfloat16 or float32" if is_half else "fetch the model again, or choose another one")
    )


def check_finite_weights(place: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raises `LoadError` if one of the named weights holds NaN or infinity. `place`: where they come from."""
    for name, weight in weights:
        if not _is_finite(weight):
            raise LoadError(
                f"{place}: the weight {name} holds NaN or infinity; fetch the model again, or choose another one"
            )


def _find_broken_weights(folder: Path) -> Iterator[str]:
    """Yields the names of weights in the safetensors files of a folder that hold NaN or infinity."""
    try:
        for path in find_weight_files(folder):
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118  the file is no mapping
                    if not _is_finite(file.get_tensor(key)):
                        yield key
    except (LoadError, OSError, SafetensorError):  # weights in another format, which have no such names
        return


def _is_finite(weight: Tensor) -> bool:
    if not weight.is_floating_point():
        return True
    weight = weight.detach()
    return all(bool(part.float().isfinite().all()) for part in torch.split(weight.flatten(), ELEMENTS_PER_PART))
