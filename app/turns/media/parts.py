"""Finds and replaces the images and files in the items of a conversation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from msgspec import structs

from antiphon.events.hosted_inputs import InputMcpCall
from antiphon.events.inputs import AnyInput, HostedInput, InputFile, InputImage, InputMessage, InputPart
from antiphon.events.media_parts import MediaPart, list_media

ReplacePart = Callable[[MediaPart], Sequence[InputPart]]


def find_media(items: Iterable[AnyInput]) -> Iterator[MediaPart]:
    """Yields the images and files of items, in order, repeated ones too."""
    return chain.from_iterable(map(list_media, items))


def replace_media(items: Iterable[AnyInput], replace: ReplacePart) -> tuple[AnyInput, ...]:
    """Returns the items with other parts in the place of each image and file. Those without any stay the same."""
    return tuple(_replace_in(item, replace) if list_media(item) else item for item in items)


def _replace_in(item: Any, replace: ReplacePart) -> AnyInput:
    if isinstance(item, HostedInput):
        return _replace_screenshot(item, replace)
    if isinstance(item, InputMcpCall):
        return item  # its pictures are stored already
    name = "content" if isinstance(item, InputMessage) else "output"
    changed: list[InputPart] = []
    for part in getattr(item, name):
        changed += replace(part) if isinstance(part, InputImage | InputFile) else (part,)
    replaced: AnyInput = structs.replace(item, **{name: tuple(changed)})
    return replaced


def _replace_screenshot(item: HostedInput, replace: ReplacePart) -> HostedInput:
    """Returns the item with the URL of the image that takes the place of its screenshot."""
    ((part,),) = map(replace, list_media(item))
    if not isinstance(part, InputImage) or part.image_url is None:
        return item
    output = {**item.payload["output"], "image_url": part.image_url}
    return structs.replace(item, payload={**item.payload, "output": output})
