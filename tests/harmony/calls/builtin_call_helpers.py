"""Calls of built-in tools: written as a model of each dialect does, and read back as items."""

import json
from typing import Any

import pytest

from antiphon.events.tools import FunctionTool, PatchTool, ShellEnvironment, ShellTool
from antiphon.harmony.calls.builtin.patch import PatchReader
from antiphon.harmony.calls.builtin.shell import ShellReader
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Arguments, Call, Close, Segment, Setting
from tests.harmony import parser_helpers
from tests.harmony.dialect_outputs import CALLING_DIALECTS

TOOLS = ToolTable.from_request([ShellTool(environment=ShellEnvironment()), PatchTool()])
PROMPT = PromptInput(tools=TOOLS)
EACH_DIALECT = pytest.mark.parametrize("name", [*(dialect.name for dialect in CALLING_DIALECTS), "gpt-oss"])


def read_items(segments: list[Segment]) -> list[Any]:
    """Returns (commands, settings) of each closed shell call, (kind, path, diff) of each closed patch, `...` for an open one."""
    items: list[Any] = []
    operation: Call | None = None
    for segment in segments:
        match segment:
            case Call(kind="shell"):
                items.append(...)
                commands, settings, operation = dict[int, str](), dict[str, int](), None
            case Call(kind="apply_patch"):
                items.append(...)
                operation, diff = segment, ""
            case Arguments(text, None):
                diff += text
            case Arguments(text, index):
                commands[index] = commands.get(index, "") + text
            case Setting(name, value):
                settings[name] = value
            case Close() if items and items[-1] is ... and operation is not None:
                items[-1] = (operation.operation, operation.path, diff)
            case Close() if items and items[-1] is ...:
                items[-1] = (list(commands.values()), settings)
    return items


def read_output(
    model_format: ModelFormat, tokens: Any, cuts: Any = (), *, natural: bool = True
) -> tuple[list[Any], bool]:
    reader = model_format.create_reader(RenderedPrompt((), ""), PROMPT)
    segments = [segment for chunk in parser_helpers.split_at(tokens, cuts) for segment in reader.feed(chunk)]
    segments += reader.finish(natural=natural)
    return read_items(segments), reader.call_failed


def write_call(name: str, tool: str, arguments: str) -> str:
    """Returns the call as a model of the dialect writes it; a patch in JSON where the dialect has no raw text."""
    if name == "gpt-oss":
        return f"<|channel|>commentary to=functions.{tool}<|message|>{arguments}<|call|>"
    spec = TOOLS.find_tool(tool)
    assert spec is not None
    texts = [text for form in DIALECTS[name].calls if (text := form.write_calls([(spec, arguments)])) is not None]
    if texts:
        return texts[0].rstrip("\n")  # of a call without a closer
    as_function = next(iter(ToolTable.from_request([FunctionTool(name=tool)])))
    return next(
        filter(
            None, (form.write_calls([(as_function, json.dumps({"input": arguments}))]) for form in DIALECTS[name].calls)
        )
    )


def read_arguments(reader: Any, text: str, cuts: Any = ()) -> list[Any]:
    """Returns the items that a reader of arguments finds. Raises `MalformedText`."""
    segments: list[Segment] = []
    reader.begin(segments)
    for piece in parser_helpers.split_at(text, cuts):
        reader.feed("".join(piece), segments)
    reader.finish(segments)
    return read_items(segments)


def read_shell(text: str, cuts: Any = ()) -> list[Any]:
    return read_arguments(ShellReader(Call("shell", "shell")), text, cuts)


def read_patch(text: str, cuts: Any = ()) -> list[Any]:
    return read_arguments(PatchReader(Call("apply_patch", "apply_patch")), text, cuts)
