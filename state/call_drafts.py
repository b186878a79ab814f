"""Drafts of calls: of functions, of custom tools, and of the built-in tools that the client runs."""

import msgspec
from msgspec import UNSET

from antiphon.events import stream as ev
from antiphon.events.builtin_calls import (
    ApplyPatchCall,
    LocalShellAction,
    LocalShellCall,
    PatchOperation,
    ShellAction,
    ShellCall,
    create_operation,
)
from antiphon.events.hosted import ToolSearchCall
from antiphon.events.items import CustomToolCall, FunctionCall, Status
from antiphon.events.response import OutputItem
from antiphon.state.drafts import ItemDraft, OutputSettings
from antiphon.state.emitter import EventEmitter, ItemPosition
from antiphon.state.segments import Arguments, Call, Setting, ToolKind

CALL_ID_PREFIXES: dict[ToolKind, str] = {
    "function": "fc",
    "custom": "ctc",
    "shell": "sh",
    "apply_patch": "apc",
    "local_shell": "lsh",
    "tool_search": "tsc",
    "mcp": "mcp",
    "mcp_approval": "mcpr",
    "web_search": "ws",
    "code_interpreter": "ci",
    "file_search": "fs",
}
"""Prefix of an item's id by the kind of call."""


def create_call_draft(
    call: Call, position: ItemPosition, emitter: EventEmitter, call_id: str, settings: OutputSettings
) -> "CallDraft":
    """Returns the draft of a call."""
    match call.kind:
        case "apply_patch":
            return PatchCallDraft(position, emitter, call, call_id, emits_diffs=settings.patch_diffs)
        case "shell":
            return ShellCallDraft(position, emitter, call, call_id)
        case "local_shell":
            return LocalShellDraft(position, emitter, call, call_id)
        case "tool_search":
            return ToolSearchDraft(position, emitter, call, call_id)
        case "custom":
            return CustomCallDraft(position, emitter, call, call_id)
        case _:
            return FunctionCallDraft(position, emitter, call, call_id)


class CallDraft(ItemDraft):
    """Base of the drafts of calls. An unfinished call never gets `output_item.done`: half a command must not run."""

    def __init__(self, position: ItemPosition, emitter: EventEmitter, call: Call, call_id: str) -> None:
        super().__init__(position, emitter)
        self._call, self._call_id = call, call_id

    def open(self) -> None:
        """Emits the call with its name and call id."""
        self._emit_item(ev.ItemAdded, self._build_item("in_progress"))

    def freeze(self) -> OutputItem | None:
        """Returns the call with the text emitted so far, and emits no done event."""
        return self._build_item("incomplete")

    def _build_item(self, status: Status) -> OutputItem:
        raise NotImplementedError


class TextCallDraft(CallDraft):
    """Base of the drafts whose text is passed on as it arrives."""

    _delta: type[ev.ArgumentsDelta] | type[ev.CustomInputDelta]

    def grow(self, text: str) -> None:
        """Emits a delta of the arguments or of the input."""
        self._text.append(text)
        (item_id, output_index), number = self._position, self._emitter.next_number
        self._emitter.add_event(
            self._delta(sequence_number=number, item_id=item_id, output_index=output_index, delta=text)
        )


class FunctionCallDraft(TextCallDraft):
    """A function call. Its text is JSON."""

    _delta = ev.ArgumentsDelta

    def close(self, status: Status) -> FunctionCall:
        """Finishes the arguments and the item. A call without arguments gets `{}`, because clients parse them."""
        if not "".join(self._text).strip():
            self.grow("{}")
        item = self._build_item(status)
        self._emitter.emit_at(self._position, ev.ArgumentsDone, name=item.name, arguments=item.arguments)
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: Status) -> FunctionCall:
        return FunctionCall(
            id=self._position.item_id,
            call_id=self._call_id,
            name=self._call.name,
            arguments="".join(self._text),
            status=status,
            namespace=self._call.namespace or UNSET,
            is_async=self._call.is_async or UNSET,
        )


class CustomCallDraft(TextCallDraft):
    """A call of a custom tool. Its text is the raw input."""

    _delta = ev.CustomInputDelta

    def close(self, status: Status) -> CustomToolCall:
        """Finishes the input and the item."""
        item = self._build_item(status)
        self._emitter.emit_at(self._position, ev.CustomInputDone, input=item.input)
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: Status) -> CustomToolCall:
        return CustomToolCall(
            id=self._position.item_id,
            call_id=self._call_id,
            name=self._call.name,
            input="".join(self._text),
            status=status,
            namespace=self._call.namespace or UNSET,
            is_async=self._call.is_async or UNSET,
        )


class ShellCallDraft(CallDraft):
    """A call of `shell`. Its commands are emitted one after the other, its settings only with the finished item."""

    def __init__(self, position: ItemPosition, emitter: EventEmitter, call: Call, call_id: str) -> None:
        super().__init__(position, emitter, call, call_id)
        self._commands: list[str] = []  # those that have ended
        self._num_begun = 0
        self._settings: dict[str, int] = {}

    def apply(self, segment: Arguments | Setting) -> None:
        """Emits a delta of a command, or keeps a setting. A new `index` ends the command before and begins one."""
        if isinstance(segment, Setting):
            self._settings[segment.name] = segment.value
            return
        if not self._is_command_open or segment.index not in (None, self._num_begun - 1):
            self._begin_command()
        if segment.text:
            self._grow_command(segment.text)

    @property
    def _is_command_open(self) -> bool:
        return self._num_begun > len(self._commands)

    def _begin_command(self) -> None:
        self._end_command()
        self._emitter.emit(
            ev.ShellCommandAdded,
            output_index=self._position.output_index,
            command_index=self._num_begun,
            command="",
        )
        self._num_begun += 1

    def _grow_command(self, text: str) -> None:
        self._text.append(text)
        self._emitter.add_event(
            ev.ShellCommandDelta(
                sequence_number=self._emitter.next_number,
                output_index=self._position.output_index,
                command_index=len(self._commands),
                delta=text,
            )
        )

    def _end_command(self) -> None:
        if not self._is_command_open:
            return
        command = "".join(self._text)
        self._emitter.emit(
            ev.ShellCommandDone,
            output_index=self._position.output_index,
            command_index=len(self._commands),
            command=command,
        )
        self._commands.append(command)
        self._text.clear()

    def close(self, status: Status) -> ShellCall:
        """Finishes the last command and the item."""
        self._end_command()
        item = self._build_item(status)
        self._emit_item(ev.ItemDone, item)
        return item

    def freeze(self) -> ShellCall:
        """Returns the call with the commands emitted so far, without its settings, which were not."""
        self._settings.clear()
        return self._build_item("incomplete")

    def _build_item(self, status: Status) -> ShellCall:
        open_command = ["".join(self._text)] if self._is_command_open else []
        fields = {"environment": {"type": "local"}} if self._call.local else {}
        return ShellCall(
            id=self._position.item_id,
            status=status,
            action=ShellAction(commands=(*self._commands, *open_command), **self._settings),
            call_id=self._call_id,
            **fields,
        )


class PatchCallDraft(TextCallDraft):
    """The change of one file. Its diff is emitted with the finished item and, with `emits_diffs`, while it grows.

    Clients know no status `incomplete` of the item, so a frozen one is in progress, as it was emitted.
    """

    def __init__(
        self, position: ItemPosition, emitter: EventEmitter, call: Call, call_id: str, *, emits_diffs: bool
    ) -> None:
        super().__init__(position, emitter, call, call_id)
        self._emits_diffs = emits_diffs

    def grow(self, text: str) -> None:
        """Keeps a delta of the diff, and emits it with `emits_diffs`. The removal of a file has none."""
        if self._call.operation == "delete_file":
            return
        self._text.append(text)
        if self._emits_diffs:
            self._emitter.emit_at(self._position, ev.PatchDiffDelta, delta=text)

    def close(self, status: Status) -> ApplyPatchCall:  # noqa: ARG002  # a patch is never cut: the table freezes calls
        """Finishes the diff and the item."""
        diff = "".join(self._text)
        if self._emits_diffs and self._call.operation != "delete_file":
            self._emitter.emit_at(self._position, ev.PatchDiffDone, diff=diff)
        item = ApplyPatchCall(
            id=self._position.item_id, status="completed", call_id=self._call_id, operation=self._operation(diff)
        )
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: Status) -> ApplyPatchCall:  # noqa: ARG002  # as above
        diff = "".join(self._text) if self._emits_diffs else ""
        return ApplyPatchCall(
            id=self._position.item_id, status="in_progress", call_id=self._call_id, operation=self._operation(diff)
        )

    def _operation(self, diff: str) -> PatchOperation:
        return create_operation(self._call.operation, self._call.path, diff)


class WholeCallDraft(TextCallDraft):
    """Base of the drafts of calls that are emitted as a whole. Their arguments, as JSON, are read at their end."""

    def grow(self, text: str) -> None:
        """Keeps a delta of the arguments."""
        self._text.append(text)


class ToolSearchDraft(WholeCallDraft):
    """A search among deferred tools, which the client or the server runs."""

    def close(self, status: Status) -> ToolSearchCall:
        """Finishes the item. Raises `msgspec.DecodeError` for arguments that are no JSON."""
        item = self._build_call(status, msgspec.json.decode("".join(self._text) or "{}"))
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: Status) -> ToolSearchCall:
        return self._build_call(status, {})

    def _build_call(self, status: Status, arguments: object) -> ToolSearchCall:
        return ToolSearchCall(
            id=self._position.item_id,
            status=status,
            arguments=arguments,
            call_id=self._call_id,
            execution=self._call.execution,
        )


class LocalShellDraft(WholeCallDraft):
    """A call of `local_shell`."""

    def close(self, status: Status) -> LocalShellCall:
        """Finishes the item. Raises `msgspec.DecodeError` for arguments that are not those of the tool."""
        item = self._build_call(status, msgspec.json.decode("".join(self._text), type=LocalShellAction))
        self._emit_item(ev.ItemDone, item)
        return item

    def _build_item(self, status: Status) -> LocalShellCall:
        return self._build_call(status, LocalShellAction(command=()))

    def _build_call(self, status: Status, action: LocalShellAction) -> LocalShellCall:
        return LocalShellCall(id=self._position.item_id, status=status, action=action, call_id=self._call_id)
