"""Prepares a picture for a model: scales it to its budget of tokens, and has the family's processor make arrays of it.

Within the budget, the processor gets the picture at its own size, so the arrays are transformers' own. Families that
cut pictures into tiles get fewer tiles; others get a smaller picture. Some take the same number of tokens for all.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image

from antiphon.app.sandbox.media.image_headers import MediaFaultError
from antiphon.app.sandbox.media.image_processors import LoadedProcessor
from antiphon.app.sandbox.media.messages import FaultReply, TokenBudget

MAX_RATIO = 200
"""Largest ratio of the sides. Qwen's and GLM's processors refuse more."""
PATCH_NAMES = ("image_grid_thw", "grid_thws", "image_grid_hws")
TEXT_NAMES = frozenset({"rows", "cols", "num_patches"})
"""Results of processors besides the arrays of the model, from which the replacement text is written."""
_COMPANION = 32
"""Side in pixels of the second picture of a prompt with several, which only tells the processor that there is one."""

Changes = dict[str, Any]
"""Arguments that make a processor return fewer tokens."""


def prepare_image(
    loaded: LoadedProcessor, image: Image.Image, budget: TokenBudget, num_images: int
) -> tuple[Image.Image, Changes, Mapping[str, np.ndarray], str]:
    """Returns the picture as the processor got it, the changes, the arrays and the replacement text."""
    check_ratio(*image.size)
    size, changes = plan_size(loaded, image.size, budget)
    if size != image.size:
        image = scale_image(image, size)
    try:
        outputs, replacement = _run_processor(loaded, image, changes, num_images)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  processors raise many types for sizes that they do not take
        raise _size_fault(*image.size) from None
    unused = TEXT_NAMES | set(loaded.processor.unused_input_names)
    arrays = {name: _to_array(value) for name, value in outputs.items() if name not in unused}
    return image, changes, arrays, replacement


def scale_image(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Returns a smaller picture."""
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)


def plan_size(
    loaded: LoadedProcessor | None, size: tuple[int, int], budget: TokenBudget
) -> tuple[tuple[int, int], Changes]:
    """Returns the width and height at which a picture keeps its budget, and the changes that this needs besides.

    Raises `MediaFaultError` if the processor takes no picture of this shape.
    """
    size = _shrink_to_pixels(size, budget)
    if loaded is None:
        return size, {}
    full = count_tokens(loaded, size, {})
    if full <= budget.max_tokens:
        return size, {}
    best: tuple[int, Changes] = (full, {})
    for changes in _list_changes(loaded):
        count = count_tokens(loaded, size, changes)
        if count < best[0]:
            best = count, changes
        if count <= budget.max_tokens:
            return size, changes
    if best[1]:
        return size, best[1]
    return _bisect_size(lambda tried: count_tokens(loaded, tried, {}), size, budget.max_tokens), {}


def count_tokens(loaded: LoadedProcessor, size: tuple[int, int], changes: Changes) -> int:
    """Returns how many tokens a picture takes. Raises `MediaFaultError` if the processor does not take its size."""
    width, height = size
    try:
        if not hasattr(loaded.processor, "_get_num_multimodal_tokens"):
            return _count_by_tiles(loaded, size, changes)
        counts = loaded.processor._get_num_multimodal_tokens(image_sizes=[(height, width)], **changes)
        return int(counts["num_image_tokens"][0])
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  as above
        raise _size_fault(width, height) from None


def _count_by_tiles(loaded: LoadedProcessor, size: tuple[int, int], changes: Changes) -> int:
    """Returns the tokens of a family that counts tiles only, from the text that it writes for them."""
    width, height = size
    counted = loaded.image_processor.get_number_of_image_patches(height, width, dict(changes))
    patches, rows, columns = counted if isinstance(counted, tuple) else (counted, 0, 0)
    tiles = {"num_local_patches": [patches - 1], "rows": [[rows]], "cols": [[columns]]}  # one tile shows the whole
    replacement: str = loaded.processor.replace_image_token(tiles, image_idx=0)
    return replacement.count(loaded.facts.soft_token)


def check_ratio(width: int, height: int) -> None:
    """Raises `MediaFaultError` for a strip, which some processors refuse and others enlarge to gigabytes."""
    ratio = -(-max(width, height) // min(width, height))
    if ratio > MAX_RATIO:
        raise MediaFaultError(FaultReply("too_small", "ratio", ratio, MAX_RATIO, width, height))


def _size_fault(width: int, height: int) -> MediaFaultError:
    return MediaFaultError(FaultReply("too_small", "size", min(width, height), 0, width, height))


def _shrink_to_pixels(size: tuple[int, int], budget: TokenBudget) -> tuple[int, int]:
    width, height = size
    scale = 1.0
    if budget.max_side:
        scale = min(scale, budget.max_side / max(width, height))
    if budget.max_pixels:
        scale = min(scale, (budget.max_pixels / (width * height)) ** 0.5)
    if scale >= 1:
        return size
    # A side is never rounded to so little that the ratio grows beyond what processors take.
    return max(int(width * scale), -(-int(height * scale) // MAX_RATIO), 1), max(
        int(height * scale), -(-int(width * scale) // MAX_RATIO), 1
    )


def _list_changes(loaded: LoadedProcessor) -> Iterator[Changes]:
    """Yields what makes a family return fewer tokens if a smaller picture does not, from the mildest on."""
    processor = loaded.image_processor
    if (soft_tokens := getattr(processor, "max_soft_tokens", None)) is not None:
        yield from ({"max_soft_tokens": count} for count in (560, 280, 140, 70) if count < soft_tokens)
    elif getattr(processor, "do_image_splitting", False) and (tile := getattr(processor, "max_image_size", None)):
        edge = tile["longest_edge"] if "longest_edge" in tile else tile["height"]
        most = int(getattr(processor, "size", {}).get("longest_edge") or 4 * edge) // edge
        yield from ({"size": {"longest_edge": count * edge}} for count in range(most - 1, 0, -1))
        yield {"do_image_splitting": False}
    elif (tiles := getattr(processor, "max_patches", None)) and getattr(processor, "crop_to_patches", True):
        least = getattr(processor, "min_patches", 1) or 1
        yield from ({"max_patches": count, "min_patches": min(least, count)} for count in range(tiles - 1, 0, -1))
        yield {"crop_to_patches": False}


def _bisect_size(count: Callable[[tuple[int, int]], int], size: tuple[int, int], max_tokens: int) -> tuple[int, int]:
    """Returns the largest size in the same shape that has at most `max_tokens`, or one that has the fewest."""
    width, height = size
    long = max(size)

    def scale(side: int) -> tuple[int, int]:
        least = -(-side // MAX_RATIO)
        return max(least, round(width * side / long)), max(least, round(height * side / long))

    low, high = 1, long
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(count, scale(middle), max_tokens):
            low = middle
        else:
            high = middle
    if low > 1 or _fits(count, scale(1), max_tokens):
        return scale(low)
    halves = [size, *(scale(long >> power) for power in range(1, 5) if long >> power)]
    return min(halves, key=count)


def _fits(count: Callable[[tuple[int, int]], int], size: tuple[int, int], max_tokens: int) -> bool:
    try:
        return count(size) <= max_tokens
    except MediaFaultError:
        return True  # smaller than the processor takes, so the search continues above


def _run_processor(
    loaded: LoadedProcessor, image: Image.Image, changes: Changes, num_images: int
) -> tuple[dict[str, Any], str]:
    """Returns what the processor makes of one picture, and its replacement text."""
    processor = loaded.processor
    images: list[Any] = [image]
    is_counted = loaded.facts.depends_on_count and num_images > 1
    if is_counted:
        images = [[image, Image.new("RGB", (_COMPANION, _COMPANION))]]
    images = processor.prepare_inputs_layout(images=images, text=None)[0]
    options = processor._merge_kwargs(return_tensors="np", **changes)["images_kwargs"]
    outputs, replacements = processor._process_images(images, **options)
    values = dict(outputs)
    if is_counted:
        values = {name: value if name == "batch_num_images" else value[:1] for name, value in values.items()}
    return values, replacements[0]


def _to_array(value: object) -> np.ndarray:
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return np.stack(value)
    return np.asarray(value)
