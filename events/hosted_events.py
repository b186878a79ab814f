"""Events that tools run by a server say, and audio.

This server says none of them; they are here so that a stream recorded elsewhere decodes.
"""

from typing import Any

from msgspec import UNSET

from antiphon.events.base import Event, ItemEvent


class AudioDeltaEvent(Event, frozen=True, kw_only=True, tag="response.audio.delta"):
    """Audio: delta."""

    delta: str


class AudioDoneEvent(Event, frozen=True, kw_only=True, tag="response.audio.done"):
    """Audio: done."""


class AudioTranscriptDeltaEvent(Event, frozen=True, kw_only=True, tag="response.audio.transcript.delta"):
    """Audio: transcript: delta."""

    delta: str


class AudioTranscriptDoneEvent(Event, frozen=True, kw_only=True, tag="response.audio.transcript.done"):
    """Audio: transcript: done."""


class CodeInterpreterCallCodeDeltaEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.delta"
):
    """Code interpreter call code: delta."""

    delta: str


class CodeInterpreterCallCodeDoneEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.done"
):
    """Code interpreter call code: done."""

    code: str


class CodeInterpreterCallCompletedEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.completed"
):
    """Code interpreter call: completed."""


class CodeInterpreterCallInProgressEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.in_progress"
):
    """Code interpreter call: in progress."""


class CodeInterpreterCallInterpretingEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.interpreting"
):
    """Code interpreter call: interpreting."""


class CompactionCompactingEvent(ItemEvent, frozen=True, kw_only=True, tag="response.compaction.compacting"):
    """Compaction: compacting."""


class FileSearchCallCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.completed"):
    """File search call: completed."""


class FileSearchCallInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.in_progress"):
    """File search call: in progress."""


class FileSearchCallSearchingEvent(ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.searching"):
    """File search call: searching."""


class ShellCallCommandAddedEvent(Event, frozen=True, kw_only=True, tag="response.shell_call_command.added"):
    """Shell call command: added."""

    command: str
    command_index: int
    output_index: int


class ShellCallCommandDeltaEvent(Event, frozen=True, kw_only=True, tag="response.shell_call_command.delta"):
    """Shell call command: delta."""

    command_index: int
    delta: str
    output_index: int
    obfuscation: Any = UNSET


class ShellCallCommandDoneEvent(Event, frozen=True, kw_only=True, tag="response.shell_call_command.done"):
    """Shell call command: done."""

    command: str
    command_index: int
    output_index: int


class ShellCallOutputContentDeltaEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.delta"
):
    """Shell call output content: delta."""

    command_index: int
    delta: Any


class ShellCallOutputContentDoneEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.done"
):
    """Shell call output content: done."""

    command_index: int
    output: Any


class WebSearchCallCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.completed"):
    """Web search call: completed."""


class WebSearchCallInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.in_progress"):
    """Web search call: in progress."""


class WebSearchCallSearchingEvent(ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.searching"):
    """Web search call: searching."""


class ImageGenerationCallCompletedEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.completed"
):
    """Image generation call: completed."""


class ImageGenerationCallGeneratingEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.generating"
):
    """Image generation call: generating."""


class ImageGenerationCallInProgressEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.in_progress"
):
    """Image generation call: in progress."""


class ImageGenerationCallPartialImageEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.partial_image"
):
    """Image generation call: partial image."""

    partial_image_b64: str
    partial_image_index: int
    background: Any = UNSET
    output_format: Any = UNSET
    quality: Any = UNSET
    size: Any = UNSET


class McpCallArgumentsDeltaEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """Mcp call arguments: delta."""

    delta: str


class McpCallArgumentsDoneEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"):
    """Mcp call arguments: done."""

    arguments: str


class McpCallCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.completed"):
    """Mcp call: completed."""


class McpCallFailedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.failed"):
    """Mcp call: failed."""


class McpCallInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.in_progress"):
    """Mcp call: in progress."""


class McpListToolsCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.completed"):
    """Mcp list tools: completed."""


class McpListToolsFailedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.failed"):
    """Mcp list tools: failed."""


class McpListToolsInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.in_progress"):
    """Mcp list tools: in progress."""


HostedEvent = (
    AudioDeltaEvent
    | AudioDoneEvent
    | AudioTranscriptDeltaEvent
    | AudioTranscriptDoneEvent
    | CodeInterpreterCallCodeDeltaEvent
    | CodeInterpreterCallCodeDoneEvent
    | CodeInterpreterCallCompletedEvent
    | CodeInterpreterCallInProgressEvent
    | CodeInterpreterCallInterpretingEvent
    | CompactionCompactingEvent
    | FileSearchCallCompletedEvent
    | FileSearchCallInProgressEvent
    | FileSearchCallSearchingEvent
    | ShellCallCommandAddedEvent
    | ShellCallCommandDeltaEvent
    | ShellCallCommandDoneEvent
    | ShellCallOutputContentDeltaEvent
    | ShellCallOutputContentDoneEvent
    | WebSearchCallCompletedEvent
    | WebSearchCallInProgressEvent
    | WebSearchCallSearchingEvent
    | ImageGenerationCallCompletedEvent
    | ImageGenerationCallGeneratingEvent
    | ImageGenerationCallInProgressEvent
    | ImageGenerationCallPartialImageEvent
    | McpCallArgumentsDeltaEvent
    | McpCallArgumentsDoneEvent
    | McpCallCompletedEvent
    | McpCallFailedEvent
    | McpCallInProgressEvent
    | McpListToolsCompletedEvent
    | McpListToolsFailedEvent
    | McpListToolsInProgressEvent
)
