"""Finds and replaces the images and files in the items of a conversation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from antiphon.app.base.blob_urls import SCREENSHOT_TYPES
from antiphon.events.inputs import (
    AnyInput,
    HostedInput,
    InputCustomOutput,
    InputFile,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputPart,
)

MediaPart = InputImage | InputFile
ReplacePart = Callable[[MediaPart], Sequence[InputPart]]


def find_media(items: Iterable[AnyInput]) -> Iterator[MediaPart]:
    """Yields the images and files of items, in order, repeated ones too. A screenshot is an image."""
    for item in items:
        for part in _parts(item):
            if isinstance(part, InputImage | InputFile):
                yield part


def replace_media(items: Iterable[AnyInput], replace: ReplacePart) -> tuple[AnyInput, ...]:
    """Returns the items with other parts in the place of each image and file. Those without any stay the same."""
    return tuple(_replace_in(item, replace) for item in items)


def _replace_in(item: AnyInput, replace: ReplacePart) -> AnyInput:
    parts = _parts(item)
    if not any(isinstance(part, InputImage | InputFile) for part in parts):
        return item
    changed: list[Any] = []
    for part in parts:
        changed += replace(part) if isinstance(part, InputImage | InputFile) else (part,)
    if isinstance(item, HostedInput):
        return _replace_screenshot(item, changed)
    if isinstance(item, InputMessage):
        return structs.replace(item, content=tuple(changed))
    return structs.replace(item, output=tuple(changed))


def _replace_screenshot(item: HostedInput, parts: Sequence[InputPart]) -> HostedInput:
    """Returns the item with the URL of the image that takes the place of its screenshot."""
    (part,) = parts
    if not isinstance(part, InputImage) or part.image_url is None:
        return item
    output = {**item.payload["output"], "image_url": part.image_url}
    return structs.replace(item, payload={**item.payload, "output": output})


def _parts(item: AnyInput) -> Sequence[Any]:
    if isinstance(item, HostedInput):
        return _read_screenshot(item)
    if isinstance(item, InputMessage):
        return item.content if isinstance(item.content, tuple) else ()
    if isinstance(item, InputFunctionOutput | InputCustomOutput):
        return item.output if isinstance(item.output, tuple) else ()
    return ()


def _read_screenshot(item: HostedInput) -> Sequence[InputImage]:
    """Returns the screenshot that a `computer_call_output` holds. Nothing has checked the item."""
    output = item.payload.get("output")
    if (
        item.kind != "computer_call_output"
        or not isinstance(output, dict)
        or output.get("type") not in SCREENSHOT_TYPES
    ):
        return ()
    url, file_id, detail = (_read_text(output.get(key)) for key in ("image_url", "file_id", "detail"))
    return (InputImage(image_url=url, file_id=file_id, detail=detail),) if url or file_id else ()


def _read_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
