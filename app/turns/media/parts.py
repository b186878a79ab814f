"""Finds and replaces the images and files in the items of a conversation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from antiphon.app.base.blob_urls import screenshot_url
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
        if isinstance(item, HostedInput):
            url = screenshot_url(item)
            if url is not None:
                yield InputImage(image_url=url)
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
    if isinstance(item, InputMessage):
        return structs.replace(item, content=tuple(changed))
    return structs.replace(item, output=tuple(changed))


def _parts(item: AnyInput) -> Sequence[Any]:
    if isinstance(item, InputMessage):
        return item.content if isinstance(item.content, tuple) else ()
    if isinstance(item, InputFunctionOutput | InputCustomOutput):
        return item.output if isinstance(item.output, tuple) else ()
    return ()
