"""Earlier calls of built-in tools, as the model reads them: like calls of other tools, with outputs as text.

Adjacent patches become one call, because a model writes the changes of several files as one. So the prompt repeats what
the model wrote, and the engine finds it in its prefix cache.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.events.builtin_calls import CreateFile, DeleteFile, PatchOperation, ShellExit, ShellTimeout
from antiphon.events.inputs import (
    AdditionalToolsInput,
    AnyInput,
    InputCall,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputLocalShellCall,
    InputLocalShellOutput,
    InputMessage,
    InputOutput,
    InputPatchCall,
    InputPatchOutput,
    InputShellCall,
    InputShellOutput,
    InputToolSearchCall,
    InputToolSearchOutput,
)
from antiphon.harmony.prompt.messages import is_instruction
from antiphon.harmony.prompt.tool_instructions import NO_PARAMETERS
from antiphon.harmony.tools import ToolTable

_BUILTIN_ITEMS = (
    InputShellCall
    | InputShellOutput
    | InputPatchCall
    | InputPatchOutput
    | InputLocalShellCall
    | InputLocalShellOutput
    | InputToolSearchCall
    | InputToolSearchOutput
    | AdditionalToolsInput
)


def show_builtin_calls(items: Sequence[AnyInput], tools: ToolTable) -> tuple[AnyInput, ...]:
    """Returns the items with those of built-in tools as calls and outputs of functions and custom tools."""
    if not any(isinstance(item, _BUILTIN_ITEMS) for item in items):
        return tuple(items)
    return tuple(_BuiltinItems(items, tools).convert_items())


class _PatchRun(Struct):
    """Adjacent patches, shown as one call, and their outputs. `is_answered`: the outputs have been shown."""

    calls: list[InputPatchCall]
    outputs: list[InputPatchOutput]
    is_answered: bool = False


class _BuiltinItems:
    """Converts the items of one conversation."""

    def __init__(self, items: Sequence[AnyInput], tools: ToolTable) -> None:
        self._items, self._tools, self._has_begun = items, tools, False
        self._shell_name, self._patch_name = tools.builtin_name_of("shell"), tools.builtin_name_of("apply_patch")
        self._search_name = tools.builtin_name_of("tool_search")
        self._local_shell_name = tools.builtin_name_of("local_shell")
        self._shell_calls = {item.call_id: item for item in items if isinstance(item, InputShellCall)}
        self._run_of_call: dict[str, _PatchRun] = {}
        self._find_runs()

    def _find_runs(self) -> None:
        run: _PatchRun | None = None  # the one that the next item continues
        for item in self._items:
            if isinstance(item, InputPatchCall):
                run = run or _PatchRun([], [])
                run.calls.append(item)
                self._run_of_call[item.call_id] = run
                continue
            run = None
            if isinstance(item, InputPatchOutput) and item.call_id in self._run_of_call:
                self._run_of_call[item.call_id].outputs.append(item)

    def convert_items(self) -> Iterator[AnyInput]:
        """Yields the items that the model reads."""
        for item in self._items:
            self._has_begun = self._has_begun or begins_conversation(item)
            if isinstance(item, InputCall):
                yield from self._convert_call(item)
            elif isinstance(item, InputOutput):
                yield from self._convert_output(item)
            elif not isinstance(item, AdditionalToolsInput):
                yield item
            elif self._has_begun or self._is_loaded(item):
                yield InputMessage(role="user", content=describe_loaded_tools(item.tools, self._tools))

    def _is_loaded(self, item: AdditionalToolsInput) -> bool:
        """Tells whether a tool of the item is not in the list of tools: a compaction inside the turn has moved it."""
        keys = ((tool["name"], namespace) for tool, namespace in list_found_tools(item.tools))
        found = (self._tools.find_tool(self._tools.model_name_of(*key)) for key in keys)
        return any(tool is not None and tool.is_loaded for tool in found)

    def _convert_call(self, item: AnyInput) -> Iterator[AnyInput]:
        match item:
            case InputShellCall():
                arguments = _write_commands(item)
                yield InputFunctionCall(call_id=item.call_id, name=self._shell_name, arguments=arguments)
            case InputLocalShellCall():
                arguments = _write_action(item)
                yield InputFunctionCall(call_id=item.call_id, name=self._local_shell_name, arguments=arguments)
            case InputToolSearchCall():
                arguments = json.dumps(item.arguments or {}, ensure_ascii=False)
                yield InputFunctionCall(call_id=item.call_id, name=self._search_name, arguments=arguments)
            case InputPatchCall():
                calls = self._run_of_call[item.call_id].calls
                if calls[0] is item:
                    patch = write_patch([call.operation for call in calls])
                    yield InputCustomCall(call_id=item.call_id, name=self._patch_name, input=patch)
            case _:
                yield item

    def _convert_output(self, item: AnyInput) -> Iterator[AnyInput]:
        match item:
            case InputShellOutput():
                text = _write_shell_output(item, self._shell_calls.get(item.call_id))
                yield InputFunctionOutput(call_id=item.call_id, output=text)
            case InputLocalShellOutput():
                yield InputFunctionOutput(call_id=item.call_id, output=item.output)
            case InputToolSearchOutput():
                yield InputFunctionOutput(call_id=item.call_id, output=describe_loaded_tools(item.tools, self._tools))
            case InputPatchOutput():
                yield from self._convert_patch_output(item)
            case _:
                yield item

    def _convert_patch_output(self, item: InputPatchOutput) -> Iterator[AnyInput]:
        run = self._run_of_call.get(item.call_id)
        if run is None:
            yield InputCustomOutput(call_id=item.call_id, output=_write_outcome(item))
        elif not run.is_answered:
            run.is_answered = True
            text = _write_outcome(item) if len(run.calls) == 1 else _write_outcomes(run)
            yield InputCustomOutput(call_id=run.calls[0].call_id, output=text)


def begins_conversation(item: AnyInput) -> bool:
    """Tells whether tools that follow this item are shown in the conversation, and not in the list of tools."""
    return not (is_instruction(item) or isinstance(item, AdditionalToolsInput))


def describe_loaded_tools(tools: Sequence[Any], table: ToolTable) -> str:
    """Returns the definitions of tools as the model reads them where they were loaded: a line of JSON for each."""
    lines = [json.dumps(_define_tool(*entry, table), ensure_ascii=False) for entry in list_found_tools(tools)]
    return "\n".join(("These tools can be called from here on:", *lines)) if lines else "No tools were found."


def list_found_tools(tools: Sequence[Any], namespace: str | None = None) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yields the definition and the namespace of each tool in those that were loaded.

    Tools of an MCP server are defined like functions, in a namespace of its label. Nothing has checked its entry.
    """
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from list_found_tools(tool.get("tools", ()), tool.get("name"))
        elif tool.get("type") in ("function", "custom"):
            yield tool, namespace
        elif tool.get("type") == "mcp" and isinstance(label := tool.get("server_label"), str):
            listed = tool.get("tools")
            for each in listed if isinstance(listed, list | tuple) else ():
                if isinstance(each, dict) and isinstance(each.get("name"), str):
                    yield {**each, "type": "function", "parameters": each.get("input_schema")}, label


def _define_tool(tool: dict[str, Any], namespace: str | None, table: ToolTable) -> dict[str, Any]:
    definition = {"name": table.model_name_of(tool["name"], namespace), "description": tool.get("description") or ""}
    if tool["type"] == "custom":
        return {**definition, "input": "raw text"}
    return {**definition, "parameters": tool.get("parameters") or NO_PARAMETERS}


def write_patch(operations: Sequence[PatchOperation]) -> str:
    """Returns the operations as one patch."""
    return "".join(("*** Begin Patch\n", *map(_write_operation, operations), "*** End Patch"))


def _write_operation(operation: PatchOperation) -> str:
    if isinstance(operation, DeleteFile):
        return f"*** Delete File: {operation.path}\n"
    verb = "Add" if isinstance(operation, CreateFile) else "Update"
    line_end = "" if operation.diff.endswith("\n") else "\n"
    return f"*** {verb} File: {operation.path}\n{operation.diff}{line_end}"


def _write_commands(call: InputShellCall) -> str:
    action = call.action
    settings = {"timeout_ms": action.timeout_ms, "max_output_length": action.max_output_length}
    arguments = {"commands": action.commands} | {key: value for key, value in settings.items() if value is not None}
    return json.dumps(arguments, ensure_ascii=False)


def _write_action(call: InputLocalShellCall) -> str:
    """Returns the arguments in the order of the schema, without those that the model left out."""
    action = msgspec.to_builtins(call.action)
    keys = ("command", "timeout_ms", "working_directory", "env")
    return json.dumps({key: action[key] for key in keys if action.get(key)}, ensure_ascii=False)


def _write_shell_output(item: InputShellOutput, call: InputShellCall | None) -> str:
    """Returns what the commands printed, cut to the length that the model asked for.

    Several commands are repeated, each before what it printed. One is not, as in the outputs of other command tools.
    """
    commands = call.action.commands if call and len(call.action.commands) > 1 else ()
    lines: list[str] = []
    for index, output in enumerate(item.output):
        lines += [f"$ {commands[index]}"] if index < len(commands) else []
        lines += [output.stdout.rstrip("\n")] if output.stdout else []
        lines += ["[stderr]", output.stderr.rstrip("\n")] if output.stderr else []
        if isinstance(output.outcome, ShellExit) and output.outcome.exit_code:
            lines.append(f"[exit code {output.outcome.exit_code}]")
        elif isinstance(output.outcome, ShellTimeout):
            lines.append("[timed out]")
    text, limit = "\n".join(lines), item.max_output_length or (call.action.max_output_length if call else None)
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} more characters were left out]"


def _write_outcomes(run: _PatchRun) -> str:
    paths = {call.call_id: call.operation.path for call in run.calls}
    return "\n".join(f"{paths[output.call_id]}: {_write_outcome(output)}" for output in run.outputs)


def _write_outcome(item: InputPatchOutput) -> str:
    return f"{item.status}: {item.output}" if item.output else item.status
