"""Events of hosted tools, which a server runs itself, and of audio output.

This server emits none of them. The classes exist so that a stream recorded elsewhere decodes.
"""

from typing import Any

from msgspec import UNSET

from antiphon.events.base import Event, ItemEvent


class AudioDeltaEvent(Event, frozen=True, kw_only=True, tag="response.audio.delta"):
    """A delta of the audio output."""

    delta: str


class AudioDoneEvent(Event, frozen=True, kw_only=True, tag="response.audio.done"):
    """The end of the audio output."""


class AudioTranscriptDeltaEvent(Event, frozen=True, kw_only=True, tag="response.audio.transcript.delta"):
    """A delta of the audio output's transcript."""

    delta: str


class AudioTranscriptDoneEvent(Event, frozen=True, kw_only=True, tag="response.audio.transcript.done"):
    """The end of the audio output's transcript."""


class CodeInterpreterCallCodeDeltaEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.delta"
):
    """A delta of a code interpreter call's code."""

    delta: str


class CodeInterpreterCallCodeDoneEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.done"
):
    """The complete code of a code interpreter call."""

    code: str


class CodeInterpreterCallCompletedEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.completed"
):
    """A code interpreter call has completed."""


class CodeInterpreterCallInProgressEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.in_progress"
):
    """A code interpreter call is in progress."""


class CodeInterpreterCallInterpretingEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.interpreting"
):
    """A code interpreter call is running its code."""


class CompactionCompactingEvent(ItemEvent, frozen=True, kw_only=True, tag="response.compaction.compacting"):
    """A compaction is in progress."""


class FileSearchCallCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.completed"):
    """A file search call has completed."""


class FileSearchCallInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.in_progress"):
    """A file search call is in progress."""


class FileSearchCallSearchingEvent(ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.searching"):
    """A file search call is searching."""


class ShellCallOutputContentDeltaEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.delta"
):
    """A delta of a shell call's output."""

    command_index: int
    delta: Any


class ShellCallOutputContentDoneEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.done"
):
    """The complete output of a shell call."""

    command_index: int
    output: Any


class WebSearchCallCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.completed"):
    """A web search call has completed."""


class WebSearchCallInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.in_progress"):
    """A web search call is in progress."""


class WebSearchCallSearchingEvent(ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.searching"):
    """A web search call is searching."""


class ImageGenerationCallCompletedEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.completed"
):
    """An image generation call has completed."""


class ImageGenerationCallGeneratingEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.generating"
):
    """An image generation call is generating an image."""


class ImageGenerationCallInProgressEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.in_progress"
):
    """An image generation call is in progress."""


class ImageGenerationCallPartialImageEvent(
    ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.partial_image"
):
    """A partial image of an image generation call."""

    partial_image_b64: str
    partial_image_index: int
    background: Any = UNSET
    output_format: Any = UNSET
    quality: Any = UNSET
    size: Any = UNSET


class McpCallArgumentsDeltaEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """A delta of an MCP call's arguments."""

    delta: str


class McpCallArgumentsDoneEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"):
    """The complete arguments of an MCP call."""

    arguments: str


class McpCallCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.completed"):
    """An MCP call has completed."""


class McpCallFailedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.failed"):
    """An MCP call has failed."""


class McpCallInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.in_progress"):
    """An MCP call is in progress."""


class McpListToolsCompletedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.completed"):
    """A listing of an MCP server's tools has completed."""


class McpListToolsFailedEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.failed"):
    """A listing of an MCP server's tools has failed."""


class McpListToolsInProgressEvent(ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.in_progress"):
    """A listing of an MCP server's tools is in progress."""


ToolRunBegun = (
    CodeInterpreterCallInterpretingEvent
    | FileSearchCallSearchingEvent
    | McpCallArgumentsDoneEvent
    | WebSearchCallSearchingEvent
)
"""Events that tell what the server is about to run. A store commits them before the tool is called."""
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
