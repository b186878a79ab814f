"""Reader of the calls of built-in tools, behind the reader of any dialect.

A dialect's reader emits such a call as it emits any other: `Call`, pieces of JSON or of raw text, `Close`. This reader
replaces the pieces by the content of the call. Text that is not a call of its tool never becomes half an item: the call
stays open, and `call_failed` tells that it can no longer be completed.
"""

from collections.abc import Sequence

from msgspec import structs

from antiphon.events.items import Logprob
from antiphon.harmony.calls.builtin.arguments import ArgumentsReader
from antiphon.harmony.calls.builtin.code import CodeReader
from antiphon.harmony.calls.builtin.patch import PatchReader
from antiphon.harmony.calls.builtin.shell import ShellReader
from antiphon.harmony.calls.builtin.whole import LocalShellReader, ToolSearchReader
from antiphon.harmony.format import OutputReader, PromptInput
from antiphon.harmony.parsing.tape import MalformedText
from antiphon.harmony.tools import ToolTable, UnofferedCall
from antiphon.state.segments import Arguments, Call, Close, Segment, ToolKind

_READERS: dict[ToolKind, type[ArgumentsReader]] = {
    "shell": ShellReader,
    "apply_patch": PatchReader,
    "local_shell": LocalShellReader,
    "tool_search": ToolSearchReader,
    "code_interpreter": CodeReader,
}


def read_builtin_calls(reader: OutputReader, prompt_input: PromptInput) -> OutputReader:
    """Returns a reader of calls of built-in tools around `reader`; `reader` itself if none is offered."""
    tools = prompt_input.tools
    is_read = any(tool.builtin or (tool.server and tool.server.kind in _READERS) for tool in tools)
    return BuiltinCallReader(reader, tools) if is_read else reader


class BuiltinCallReader:
    """Passes on the segments of `reader`, except for calls of built-in tools, which it reads."""

    def __init__(self, reader: OutputReader, tools: ToolTable) -> None:
        self._reader = reader
        shell = tools.find_builtin("shell")
        self._local_shell = shell is not None and shell.local_shell
        self._call: ArgumentsReader | None = None
        self._failed = False

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens read so far that began inside reasoning."""
        return self._reader.reasoning_tokens

    @property
    def call_failed(self) -> bool:
        """True if an open call can no longer be completed."""
        return self._failed or self._reader.call_failed

    @property
    def unoffered_calls(self) -> list[UnofferedCall]:
        """Notes about calls of tools that were not offered. The caller that takes them empties the list."""
        return self._reader.unoffered_calls

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob | None] = ()) -> list[Segment]:
        """Parses more tokens. `logprobs` is empty or has one entry per token."""
        return self._convert(self._reader.feed(tokens, logprobs))

    def finish(self, *, natural: bool) -> list[Segment]:
        """Ends the output and returns what was held back. `natural`: the model ended it; otherwise it was cut off."""
        return self._convert(self._reader.finish(natural=natural))

    def _convert(self, segments: list[Segment]) -> list[Segment]:
        converted: list[Segment] = []
        for segment in segments:
            if self._failed:
                break
            try:
                self._convert_segment(segment, converted)
            except MalformedText:
                self._failed = True
        return converted

    def _convert_segment(self, segment: Segment, converted: list[Segment]) -> None:
        call = self._call
        if call is not None and type(segment) is Arguments:
            call.feed(segment.text, converted)
        elif call is not None and type(segment) is Close:
            self._call = None
            call.finish(converted)
        elif type(segment) is Call and segment.kind in _READERS:
            reader = _READERS[segment.kind]
            self._call = reader(structs.replace(segment, local=self._local_shell))
            self._call.begin(converted)
        else:
            converted.append(segment)
