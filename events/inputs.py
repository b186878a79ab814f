"""Client input: input items and their parts.

Optional keys accept null, since SDKs resend objects with every key present; unknown keys of items are ignored for the
same reason. `app.requests` decides the `type` of an object without one (`{"role", "content"}`, `{"id"}`).
"""

from typing import Any, ClassVar, Literal

from msgspec import field

from antiphon.events.base import InputItem
from antiphon.events.builtin_calls import LocalShellAction, PatchOperation, ShellAction, ShellOutput
from antiphon.events.hosted_inputs import AnyHostedInput
from antiphon.events.items import Part, Phase, ReasoningText, SummaryText

Role = Literal["assistant", "system", "developer", "user"]


class InputText(Part, frozen=True, kw_only=True, tag="input_text"):
    """Text of a user message, a system message or a tool output."""

    text: str


class InputImage(Part, frozen=True, kw_only=True, tag="input_image"):
    """An image, by data URL, URL or file id."""

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(Part, frozen=True, kw_only=True, tag="input_file"):
    """A file, by content, URL or id."""

    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None
    detail: str | None = None


class InputAudio(Part, frozen=True, kw_only=True, tag="input_audio"):
    """An audio input."""

    input_audio: Any = None


class OutputTextInput(Part, frozen=True, kw_only=True, tag="output_text"):
    """Text that the model generated earlier, sent back by the client."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class RefusalInput(Part, frozen=True, kw_only=True, tag="refusal"):
    """A refusal that the model generated earlier, sent back by the client."""

    refusal: str


InputPart = InputText | InputImage | InputFile | InputAudio | OutputTextInput | RefusalInput
ToolOutputPart = InputText | InputImage | InputFile | InputAudio


class InputMessage(InputItem, frozen=True, kw_only=True, tag="message"):
    """A message of any role; a string is one text part."""

    role: Role
    content: str | tuple[InputPart, ...]
    phase: Phase | None = None
    status: str | None = None


class InputReasoning(InputItem, frozen=True, kw_only=True, tag="reasoning"):
    """Earlier reasoning: raw (`content`), sealed (`encrypted_content`) or only summarized (`summary`)."""

    summary: tuple[SummaryText, ...] | None = ()
    content: tuple[ReasoningText, ...] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class InputCall(InputItem, frozen=True, kw_only=True):
    """An earlier call of a tool."""

    label: ClassVar[str]
    """Name of the kind of call in error messages."""
    call_id: str


class InputOutput(InputItem, frozen=True, kw_only=True):
    """The output of a call."""

    label: ClassVar[str]
    """Name of the kind of call in error messages."""
    call_id: str


class InputFunctionCall(InputCall, frozen=True, kw_only=True, tag="function_call"):
    """An earlier call of a function tool."""

    label = "function call"
    name: str
    arguments: str
    namespace: str | None = None
    is_async: bool | None = field(default=None, name="async")
    """True if the conversation may continue before the output is there."""
    status: str | None = None


class InputFunctionOutput(InputOutput, frozen=True, kw_only=True, tag="function_call_output"):
    """The output of a function call."""

    label = "function call"
    output: str | tuple[ToolOutputPart, ...]
    status: str | None = None


class InputCustomCall(InputCall, frozen=True, kw_only=True, tag="custom_tool_call"):
    """An earlier call of a custom tool."""

    label = "custom tool call"
    name: str
    input: str
    namespace: str | None = None
    is_async: bool | None = field(default=None, name="async")
    status: str | None = None


class InputCustomOutput(InputOutput, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    """The output of a custom tool call."""

    label = "custom tool call"
    output: str | tuple[ToolOutputPart, ...]
    status: str | None = None


class InputShellCall(InputCall, frozen=True, kw_only=True, tag="shell_call"):
    """An earlier call of the built-in tool `shell`."""

    label = "shell call"
    action: ShellAction
    environment: Any = None
    status: str | None = None


class InputShellOutput(InputOutput, frozen=True, kw_only=True, tag="shell_call_output"):
    """The outputs of a shell call: one for each command that was run."""

    label = "shell call"
    output: tuple[ShellOutput, ...]
    max_output_length: int | None = None
    status: str | None = None


class InputPatchCall(InputCall, frozen=True, kw_only=True, tag="apply_patch_call"):
    """An earlier call of the built-in tool `apply_patch`: the change of one file."""

    label = "apply patch call"
    operation: PatchOperation
    status: str | None = None


class InputPatchOutput(InputOutput, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    """The outcome of a patch."""

    label = "apply patch call"
    status: Literal["completed", "failed"]
    output: str | None = None


class InputLocalShellCall(InputCall, frozen=True, kw_only=True, tag="local_shell_call"):
    """An earlier call of the built-in tool `local_shell`."""

    label = "local shell call"
    action: LocalShellAction
    status: str | None = None


class InputLocalShellOutput(InputOutput, frozen=True, kw_only=True, tag="local_shell_call_output"):
    """The output of a local shell call. Some clients give the id of the call as `id` only."""

    label = "local shell call"
    output: str
    status: str | None = None


class InputToolSearchCall(InputCall, frozen=True, kw_only=True, tag="tool_search_call"):
    """An earlier search among deferred tools, by the client or by the server."""

    label = "tool search call"
    arguments: Any = None
    execution: Literal["client", "server"] = "client"
    status: str | None = None


class InputToolSearchOutput(InputOutput, frozen=True, kw_only=True, tag="tool_search_output"):
    """The tools that a search found. They can be called from here on."""

    label = "tool search call"
    tools: tuple[Any, ...]
    execution: Literal["client", "server"] = "client"
    status: str | None = None


class ItemReference(InputItem, frozen=True, kw_only=True, tag="item_reference"):
    """A reference to a stored item, by id."""


class AdditionalToolsInput(InputItem, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools added to those of the request. Some clients send their whole list this way."""

    role: str = "developer"
    tools: tuple[Any, ...] = ()


class CompactionInput(InputItem, frozen=True, kw_only=True, tag="compaction"):
    """An earlier compaction, sent back by the client."""

    encrypted_content: str


class ConfigurationUpdate(InputItem, frozen=True, kw_only=True, tag="configuration_update"):
    """New settings of the conversation, which hold until the next update. They are JSON values, as in a request."""

    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None


class HostedInput(InputItem, frozen=True, kw_only=True, tag="hosted"):
    """An item of a tool that this server does not know. It is kept for listing, and not shown to the model.

    `kind` is its wire type; the tag `hosted` never appears on the wire.
    """

    kind: str
    payload: dict[str, Any]


AnyInput = (
    InputMessage
    | InputReasoning
    | InputFunctionCall
    | InputFunctionOutput
    | InputCustomCall
    | InputCustomOutput
    | InputShellCall
    | InputShellOutput
    | InputPatchCall
    | InputPatchOutput
    | InputLocalShellCall
    | InputLocalShellOutput
    | InputToolSearchCall
    | InputToolSearchOutput
    | ItemReference
    | AdditionalToolsInput
    | CompactionInput
    | ConfigurationUpdate
    | AnyHostedInput
    | HostedInput
)

HOSTED_ITEM_TYPES = frozenset(
    """agent_message computer_call computer_call_output context_compaction image_generation_call program
    program_output""".split()
)
"""Wire types that become a `HostedInput`."""
