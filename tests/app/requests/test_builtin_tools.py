"""The built-in tools `shell` and `apply_patch` in requests: tools, their choice, their items, and bad input."""

from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.capabilities import check_capabilities
from antiphon.engine.protocol import Capabilities, EngineInfo
from antiphon.events.builtin_calls import ApplyPatchCall, CreateFile, ShellAction, ShellCall
from antiphon.events.inputs import (
    InputFunctionCall,
    InputFunctionOutput,
    InputPatchCall,
    InputPatchOutput,
    InputShellCall,
    InputShellOutput,
)
from antiphon.harmony.prompt.builtin_items import show_builtin_calls
from tests.app.requests.request_builders import read_chat_spec, read_responses_spec, summarize_error
from tests.harmony.parser_helpers import NOW, load_token_format

SHELL: dict[str, Any] = {"type": "shell"}
PATCH: dict[str, Any] = {"type": "apply_patch"}
RUN: dict[str, Any] = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
HI = {"role": "user", "content": "hi"}
SHELL_CALL = {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}}
EXIT = {"type": "exit", "exit_code": 0}
SHELL_OUTPUT = {
    "type": "shell_call_output",
    "call_id": "c1",
    "output": [{"stdout": "a", "stderr": "", "outcome": EXIT}],
}
PATCH_CALL = {"type": "apply_patch_call", "call_id": "c2", "operation": {"type": "delete_file", "path": "a"}}
LOCAL_CALL = {"type": "local_shell_call", "call_id": "c5", "action": {"type": "exec", "command": ["ls"], "env": {}}}
PATCH_OUTPUT = {"type": "apply_patch_call_output", "call_id": "c2", "status": "completed"}


def test_tools_are_offered_and_echoed_as_sent() -> None:
    environment = {"type": "local", "skills": [{"name": "pdf", "description": "Reads\nPDFs.", "path": "/s/pdf"}]}
    tools = [{**SHELL, "environment": environment}, PATCH, RUN]
    spec = read_responses_spec(tools=tools)
    assert [(tool.model_name, tool.builtin, tool.kind) for tool in spec.prompt_input.tools] == [
        ("builtin__shell", "shell", "function"),
        ("apply_patch", "apply_patch", "custom"),
        ("shell", None, "function"),
    ]
    assert spec.base_response.tools[:2] == tuple(tools[:2])
    shell = spec.prompt_input.tools.find_builtin("shell")
    assert shell is not None and shell.description.endswith("- pdf: Reads PDFs. (/s/pdf)") and shell.local_shell


def test_a_skill_cannot_begin_a_line_of_its_own() -> None:
    skill = {"name": "a\n- b", "description": "x\r\n# y", "path": "p\nq"}
    tools = [{**SHELL, "environment": {"type": "local", "skills": [skill] * 200}}]
    shell = read_responses_spec(tools=tools).prompt_input.tools.find_builtin("shell")
    assert shell is not None and shell.description.count("\n") == 201


@pytest.mark.parametrize("environment", [None, {}, {"type": "local"}, {"type": "local", "skills": None}], ids=str)
def test_environment_may_be_missing_or_null(environment: Any) -> None:
    spec = read_responses_spec(tools=[{**SHELL, "environment": environment}])
    shell = spec.prompt_input.tools.find_builtin("shell")
    assert shell is not None and shell.local_shell == (environment is not None)
    assert spec.base_response.tools == ({**SHELL, "environment": environment},)


@pytest.mark.parametrize(
    ("choice", "allowed", "mode"),
    [
        (SHELL, {"builtin__shell"}, "required"),
        (PATCH, {"apply_patch"}, "required"),
        ({"type": "function", "name": "shell"}, {"shell"}, "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [SHELL, {"type": "function", "name": "shell"}]},
         {"builtin__shell", "shell"}, "auto"),
    ],
)  # fmt: skip
def test_tool_choice(choice: dict[str, Any], allowed: set[str], mode: str) -> None:
    spec = read_responses_spec(tools=[SHELL, PATCH, RUN], tool_choice=choice)
    assert (spec.prompt_input.tool_choice, spec.prompt_input.allowed_tools) == (mode, allowed)


SHELL_REFUSED = "Only the environment 'local' is supported: this server runs no shell."
REFUSED: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"tools": [{**SHELL, "environment": {"type": "container_auto"}}]}, ("invalid_value", "tools[0].environment.type", SHELL_REFUSED)),
    ({"tools": [PATCH, {**SHELL, "environment": {"type": "container_reference", "container_id": "c"}}]},
     ("invalid_value", "tools[1].environment.type", SHELL_REFUSED)),
    ({"tools": [{**SHELL, "environment": {"type": "moon"}}]}, ("invalid_value", "tools[0].environment.type", SHELL_REFUSED)),
    ({"tools": [{**SHELL, "environment": {"type": None}}]}, ("missing_required_parameter", "tools[0].environment.type", None)),
    ({"tools": [{**SHELL, "environment": "local"}]}, ("invalid_type", "tools[0].environment", None)),
    ({"tools": [{**SHELL, "environment": {"type": "local", "skills": [{"name": "a"}]}}]},
     ("missing_required_parameter", "tools[0].environment.skills[0].description", None)),
    ({"tools": [SHELL, SHELL]}, ("invalid_value", "tools[1].type", "Invalid 'tools[1].type': Duplicate tool 'shell'. Send it once.")),
    ({"tools": [PATCH], "tool_choice": SHELL}, (None, "tool_choice", "Tool choice 'shell' not found in 'tools' parameter.")),
    ({"tools": [SHELL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [PATCH]}},
     (None, "tool_choice", "Tool choice 'apply_patch' not found in 'tools' parameter.")),
    ({"tools": [SHELL], "tool_choice": {"type": "local_shell"}}, ("invalid_value", "tool_choice.type", None)),
    ({"tools": [SHELL], "tool_choice": {"type": "tool_search"}}, ("invalid_value", "tool_choice.type", None)),
    ({"input": [HI, SHELL_OUTPUT]}, (None, "input", "No tool call found for shell call output with call_id c1.")),
    ({"input": [HI, SHELL_CALL]}, (None, "input", "No tool output found for shell call c1.")),
    ({"input": [HI, PATCH_OUTPUT]}, (None, "input", "No tool call found for apply patch call output with call_id c2.")),
    ({"input": [HI, PATCH_CALL]}, (None, "input", "No tool output found for apply patch call c2.")),
    ({"input": [HI, SHELL_CALL, {"type": "function_call_output", "call_id": "c1", "output": "x"}]},
     (None, "input", "No tool call found for function call output with call_id c1.")),
    ({"input": [HI, {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}, SHELL_OUTPUT]},
     (None, "input", "No tool call found for shell call output with call_id c1.")),
    ({"input": [HI, {**SHELL_CALL, "action": {}}]}, ("missing_required_parameter", "input[1].action.commands", None)),
    ({"input": [HI, {**SHELL_CALL, "action": {"commands": [1]}}]}, ("invalid_type", "input[1].action.commands[0]", None)),
    ({"input": [SHELL_CALL, {**SHELL_OUTPUT, "output": [{"stdout": "a", "outcome": {"type": "exit", "exit_code": "0"}}]}]},
     ("invalid_type", "input[1].output[0].outcome.exit_code", None)),
    ({"input": [SHELL_CALL, {**SHELL_OUTPUT, "output": [{"stdout": "a"}]}]},
     ("missing_required_parameter", "input[1].output[0].outcome", None)),
    ({"input": [{**PATCH_CALL, "operation": {"type": "move_file", "path": "a"}}]}, ("invalid_value", "input[0].operation.type", None)),
    ({"input": [{**PATCH_CALL, "operation": {"type": "create_file", "path": "a"}}]},
     ("missing_required_parameter", "input[0].operation.diff", None)),
    ({"input": [PATCH_CALL, {**PATCH_OUTPUT, "status": "done"}]}, ("invalid_value", "input[1].status", None)),
    ({"tools": [{"type": "computer"}], "tool_choice": {"type": "computer"}}, ("unsupported_parameter", "tool_choice", None)),
    ({"tools": [{**RUN, "allowed_callers": ["programmatic"]}]},
     ("unsupported_value", "tools[0].allowed_callers", "This server runs no programs. Add 'direct'.")),
    ({"tools": [{**RUN, "allowed_callers": []}]}, ("unsupported_value", "tools[0].allowed_callers", None)),
    ({"tools": [RUN], "tool_choice": {"type": "programmatic_tool_calling"}}, (None, "tool_choice", None)),
    ({"input": [HI, {"type": "local_shell_call_output", "id": "c9", "output": "x"}]},
     (None, "input", "No tool call found for local shell call output with call_id c9.")),
    ({"input": [HI, LOCAL_CALL]}, (None, "input", "No tool output found for local shell call c5.")),
    ({"input": [{**LOCAL_CALL, "action": {"type": "exec"}}]}, ("missing_required_parameter", "input[0].action.command", None)),
    ({"input": [{"id": "msg_1", **HI}, {"id": "msg_1", **HI}]},
     (None, "input", "Duplicate item found with id msg_1. Remove duplicate items from your input and try again.")),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), REFUSED)
def test_bad_input_is_named(body: dict[str, Any], expected: tuple[Any, ...]) -> None:
    with pytest.raises(ApiError) as caught:
        read_responses_spec(**body)
    error, (code, param, message) = caught.value, expected
    assert (error.status, error.code, error.param) == (400, code, param), summarize_error(error)
    assert message is None or error.message == message


def test_items_are_read_in_every_form_that_libraries_send() -> None:
    items = [
        # openai-agents: no status of the output; the AI SDK with store: whole items without nulls, and item references
        {**SHELL_CALL, "id": "sh_1", "status": "completed", "environment": None,
         "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        {**SHELL_OUTPUT, "status": "completed", "max_output_length": 100},
        {"type": "item_reference", "id": "apc_1"},
        {"type": "apply_patch_call_output", "call_id": "c3", "status": "failed", "output": "no such file"},
        {"id": "sh_2"},
        {"type": "shell_call_output", "call_id": "c4", "output": [{"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
                                                                  {"outcome": {"type": "exit", "exit_code": 1 << 63}}]},
    ]  # fmt: skip
    stored: dict[str, msgspec.Struct] = {
        "apc_1": ApplyPatchCall(
            id="apc_1", status="completed", call_id="c3", operation=CreateFile(path="a", diff="+x\n")
        ),
        "sh_2": ShellCall(id="sh_2", status="completed", call_id="c4", action=ShellAction(commands=("ls",))),
    }
    spec = read_responses_spec(stored, input=[HI, *items])
    kinds = [type(item) for item in spec.input_items[1:]]
    assert kinds == [
        InputShellCall,
        InputShellOutput,
        InputPatchCall,
        InputPatchOutput,
        InputShellCall,
        InputShellOutput,
    ]


@pytest.mark.parametrize(
    ("call", "output"),
    [
        (SHELL_CALL, SHELL_OUTPUT), (PATCH_CALL, PATCH_OUTPUT),
        (LOCAL_CALL, {"type": "local_shell_call_output", "call_id": "c5", "output": "x"}),
    ],
    ids=lambda item: str(item["type"]),
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["hermes", "mistral", "gpt-oss"])
def test_output_that_is_sent_twice_is_shown_behind_its_call(
    call: dict[str, Any], output: dict[str, Any], dialect: str
) -> None:
    spec = read_responses_spec(input=[HI, call, output, output])
    shown = show_builtin_calls(spec.prompt_input.items, spec.prompt_input.tools)[1:]
    assert shown[0].call_id == shown[1].call_id and {item.call_id for item in shown} == {call["call_id"]}  # type: ignore[union-attr]
    prompt = load_token_format(dialect).render_prompt(spec.prompt_input, now=NOW)
    assert prompt.tokens


def test_output_item_is_read_back_as_it_was_sent() -> None:
    call = ShellCall(id="sh_1", status="completed", call_id="c1", action=ShellAction(commands=("a",), timeout_ms=1))
    spec = read_responses_spec(input=[msgspec.to_builtins(call), SHELL_OUTPUT])
    item = spec.input_items[0]
    assert isinstance(item, InputShellCall) and item.action == call.action and item.id == "sh_1"


def test_turn_has_a_grammar_and_no_constraint_of_the_client() -> None:
    spec = read_responses_spec(tools=[SHELL, PATCH])
    assert spec.prompt_input.needs_grammar and not spec.prompt_input.promises_grammar
    assert spec.constraints == ()
    assert not read_responses_spec(tools=[SHELL], tool_choice="none").prompt_input.needs_grammar


def test_patch_changes_one_file_if_calls_are_not_parallel() -> None:
    for parallel, single in ((False, True), (True, False), (None, False)):
        spec = read_responses_spec(tools=[PATCH], parallel_tool_calls=parallel)
        tool = spec.prompt_input.tools.find_builtin("apply_patch")
        assert tool is not None and tool.single_file is single


def test_engine_without_grammars_gets_the_tools_unless_one_is_required() -> None:
    info = EngineInfo(max_model_len=10, vocab_size=2, capabilities=Capabilities(grammar=False))
    check_capabilities(read_responses_spec(tools=[SHELL, PATCH]), info.capabilities, constraint_param="text.format")
    spec = read_responses_spec(tools=[SHELL], tool_choice=SHELL)
    with pytest.raises(ApiError) as caught:
        check_capabilities(spec, info.capabilities, constraint_param="text.format")
    assert caught.value.param == "tool_choice"


def test_chat_has_none_of_these_tools() -> None:
    with pytest.raises(ApiError) as caught:
        read_chat_spec(tools=[SHELL])
    assert caught.value.param == "tools[0].type"


@pytest.mark.parametrize("key", ["call_id", "id"])
def test_output_of_a_local_shell_names_its_call_by_either_id(key: str) -> None:
    output = {"type": "local_shell_call_output", key: "c5", "output": "a.txt"}
    spec = read_responses_spec(tools=[{"type": "local_shell"}], input=[HI, LOCAL_CALL, output])
    assert [tool.builtin for tool in spec.prompt_input.tools] == ["local_shell"]
    call, result = show_builtin_calls(spec.prompt_input.items, spec.prompt_input.tools)[1:]
    assert call == InputFunctionCall(call_id="c5", name="local_shell", arguments='{"command": ["ls"]}')
    assert result == InputFunctionOutput(call_id="c5", output="a.txt")


def test_tool_that_may_be_called_directly_is_offered() -> None:
    spec = read_responses_spec(tools=[{**RUN, "allowed_callers": ["direct", "programmatic"], "output_schema": {}}])
    assert [tool.name for tool in spec.prompt_input.tools] == ["shell"]
