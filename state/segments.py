"""Segments: the meaning that a dialect reads from a model's tokens, and the input of the machine.

A dialect produces segments in the order in which the model generated their tokens. They carry no sequence numbers and
no ids minted by this server: those belong to the machine.
"""

from typing import Any, Literal, get_args

from msgspec import Struct

from antiphon.events.builtin_calls import PatchKind
from antiphon.events.hosted import HostedItem, McpCallError
from antiphon.events.items import Annotation, Compaction, Logprob, Phase

SettingName = Literal["timeout_ms", "max_output_length"]
HostedToolKind = Literal["mcp", "web_search", "code_interpreter", "file_search"]
"""Kinds of calls that the server runs."""
ToolKind = Literal[
    "function", "custom", "shell", "apply_patch", "local_shell", "tool_search", "mcp_approval", HostedToolKind
]
HOSTED_TOOL_KINDS: frozenset[ToolKind] = frozenset(get_args(HostedToolKind))
Execution = Literal["client", "server"]
"""Who runs a search among deferred tools."""


class PlacedLogprob(Struct, frozen=True, gc=False):
    """A token's log-probability, and the offset of the token's first character in the segment's text.

    A token that only completes a character begun by an earlier token has the offset of that character.
    """

    offset: int
    logprob: Logprob


class Think(Struct, frozen=True, gc=False):
    """A delta of reasoning."""

    text: str


class Say(Struct, frozen=True, gc=False):
    """A delta of text for the user. `phase` is None if the dialect does not know it. `logprobs` is sorted by offset."""

    text: str
    phase: Phase | None = None
    logprobs: tuple[PlacedLogprob, ...] = ()


class Refuse(Struct, frozen=True, gc=False):
    """A delta of a refusal."""

    text: str


class Cite(Struct, frozen=True, gc=False):
    """A source for the text of the open message; with `length`, for its last `length` characters.

    With `length`, the machine fills in the annotation's offsets: it alone knows where in the text the characters are.
    """

    annotation: Annotation
    length: int | None = None


class Call(Struct, frozen=True, gc=False):
    """The start of a tool call. `call_id` is the model's own; if it is None, the machine mints one.

    `local` belongs to a call of `shell` whose tool names the client's environment; `operation` and `path` to a call of
    `apply_patch`. `is_async`: the client may send the output later than in the next request. `server_label` belongs to
    a call of an MCP server's tool, `approval_request_id` to one that the client has approved, `container_id` to a call
    of `code_interpreter`. A call of kind `mcp_approval` is not run: it becomes a request to approve it. `execution`
    belongs to a call of `tool_search`: the server answers its own at once, with a `CompleteItem`. `is_invented`: the
    server that `server_label` names was not offered with such a tool, so the call fails without being made.
    """

    name: str
    kind: ToolKind = "function"
    call_id: str | None = None
    namespace: str | None = None
    is_async: bool = False
    local: bool = False
    operation: PatchKind = "update_file"
    path: str = ""
    server_label: str = ""
    approval_request_id: str | None = None
    container_id: str = ""
    execution: Execution = "client"
    is_invented: bool = False


class Arguments(Struct, frozen=True, gc=False):
    """A delta of the open call: of its arguments (JSON text), of a custom tool's raw input, of a patch's diff.

    In a call of `shell`, `index` is the number of the command that the text belongs to; a new one begins a command.
    """

    text: str
    index: int | None = None


class Setting(Struct, frozen=True, gc=False):
    """A setting of the open call of `shell`, besides its commands."""

    name: SettingName
    value: int


class Close(Struct, frozen=True, gc=False):
    """The end of the open item, which is complete: the dialect has seen what ends it."""


class Compact(Struct, frozen=True, gc=False):
    """The start of a compaction, during which the model writes a summary that is not part of the output."""


class Result(Struct, frozen=True, gc=False):
    """The end of what the server did: the content of the open compaction."""

    encrypted_content: str


class McpResult(Struct, frozen=True, gc=False, tag=True):
    """The end of a call of an MCP server's tool: its output, or why it failed."""

    output: str | None = None
    error: McpCallError | None = None


class WebSearchResult(Struct, frozen=True, gc=False, tag=True):
    """The end of a web search. `action` is a JSON object that tells what was done, with its sources."""

    action: dict[str, Any]
    is_failed: bool = False


class CodeResult(Struct, frozen=True, gc=False, tag=True):
    """The end of a run of code. `logs` is what it printed."""

    logs: str
    is_failed: bool = False


class FileSearchResult(Struct, frozen=True, gc=False, tag=True):
    """The end of a search in files. `results` are JSON objects, the best first."""

    queries: tuple[str, ...]
    results: tuple[dict[str, Any], ...] = ()
    is_failed: bool = False


class CompleteItem(Struct, frozen=True, gc=False):
    """An item that is complete from its start. The machine mints its id if that is empty."""

    item: Compaction | HostedItem


CallResult = McpResult | WebSearchResult | CodeResult | FileSearchResult
Segment = (
    Think | Say | Refuse | Cite | Call | Arguments | Setting | Close | Compact | Result | CallResult | CompleteItem
)
