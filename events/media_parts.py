"""Finds the images and files in input items: in messages, in outputs of calls and of MCP calls, and as screenshots."""

from collections.abc import Sequence

from antiphon.events.hosted_inputs import InputMcpCall
from antiphon.events.inputs import (
    AnyInput,
    HostedInput,
    InputCustomOutput,
    InputFile,
    InputFunctionOutput,
    InputImage,
    InputMessage,
)
from antiphon.events.result_images import split_output

MediaPart = InputImage | InputFile


def list_media(item: AnyInput) -> Sequence[MediaPart]:
    """Returns the images and files of an item, in order. A screenshot is an image."""
    content: object = ()
    if isinstance(item, HostedInput):
        screenshot = read_screenshot(item)
        return () if screenshot is None else (screenshot,)
    if isinstance(item, InputMessage):
        content = item.content
    elif isinstance(item, InputFunctionOutput | InputCustomOutput):
        content = item.output
    elif isinstance(item, InputMcpCall):
        content = split_output(item.output or "")
    return [part for part in content if isinstance(part, MediaPart)] if isinstance(content, tuple) else ()


def read_screenshot(item: HostedInput) -> InputImage | None:
    """Returns the screenshot that a `computer_call_output` holds; None for other items. Nothing has checked the item.

    The type of the output is "computer_screenshot" as OpenAI's clients send it, or "input_image" as LangChain does.
    """
    output = item.payload.get("output")
    if item.kind != "computer_call_output" or not isinstance(output, dict):
        return None
    url, file_id, detail = (_read_text(output.get(key)) for key in ("image_url", "file_id", "detail"))
    return InputImage(image_url=url, file_id=file_id, detail=detail) if url or file_id else None


def _read_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
