"""The output against the settings of the request: tools, their choice, JSON formats, log-probabilities."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antiphon.kit.checker.formats import check_arguments, check_text_format
from antiphon.kit.checker.hosted import HOSTED_CALL_TYPES
from antiphon.kit.checker.items import CALL_TYPES
from antiphon.kit.checker.output_text import check_messages
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonItem, as_list, as_objects, as_text

ToolKey = tuple[str, str | None, str | None]
"""Kind, namespace and name of a tool."""
ECHOED_KEYS = (
    "tool_choice parallel_tool_calls temperature top_p top_logprobs presence_penalty frequency_penalty "
    "max_output_tokens max_tool_calls metadata previous_response_id instructions store background truncation "
    "safety_identifier prompt_cache_key"
).split()
"""Fields of a request that the response repeats."""
UNINVITED_KEYS = ("instructions", "previous_response_id", "conversation")
"""Keys of a response that are null unless the request has them: they say what the model has read."""
LIMITS = ("parallel_tool_calls", "tool_choice", "max_tool_calls")
"""Settings that a known request decides alone. What the response says of them is compared, not believed."""
SINGLE_PRECISION = 1e-6
"""Relative error of a number that a server keeps in 32 bits."""
CALL_TOOL_TYPES = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "local_shell_call": "local_shell",
}
"""Types of tools by the calls of theirs that the client runs."""
TOOL_TYPE_OF_CALL = {
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_interpreter",
    "image_generation_call": "image_generation",
}
"""Beginnings of the types of tools by the calls of theirs that the server runs. Previews and versions follow."""
APPROVAL = "mcp_approval_request"
MCP_TYPES = ("mcp_call", APPROVAL, "mcp_list_tools")
"""Items that belong to an mcp tool by its `server_label`."""


def check_policy(request: Mapping[str, Any] | None, response: Mapping[str, Any], findings: FindingList) -> None:
    """Checks the output of a terminal response. Settings that the request lacks are read from the response."""
    settings = _join_settings(request, response)
    output = as_objects(response.get("output"))
    calls = [item for item in output if item.get("type") in CALL_TYPES]
    hosted_calls = [item for item in output if item.get("type") in HOSTED_CALL_TYPES]
    is_completed = response.get("status") == "completed"
    if request is not None:
        _check_echo(request, response, findings)
        _check_uninvited(request, response, findings)
    _check_secrets(response, findings)
    _check_tool_choice(settings, output, is_completed, findings)
    if settings.get("parallel_tool_calls") is False:
        _check_parallel(output, findings)
    limit = settings.get("max_tool_calls")
    if isinstance(limit, int) and len(hosted_calls) > limit:
        findings.add("too-many-calls", f"at most max_tool_calls, {limit}", f"{len(hosted_calls)} hosted calls")
    _check_calls(settings, response, calls, findings)
    _check_hosted_calls(settings, output, findings)
    if is_completed:
        check_text_format(settings.get("text"), output, findings)
    check_messages(settings, request, output, findings)


def _join_settings(request: Mapping[str, Any] | None, response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that count: those of the request, and of the response where it may know better."""
    if request is None:
        return dict(response)
    echoed = dict(response)
    if "prompt" not in request:  # a stored prompt has settings of its own
        echoed = {key: value for key, value in echoed.items() if key not in LIMITS}
    return echoed | {key: value for key, value in request.items() if value is not None}


def _check_echo(request: Mapping[str, Any], response: Mapping[str, Any], findings: FindingList) -> None:
    for key in ECHOED_KEYS:
        value = request.get(key)
        if value is not None and key in response and not _is_same(response[key], value):
            findings.add("echo-differs", quote(value), quote(response[key]), f"response.{key}")
    asked = [tool.get("name", tool.get("server_label")) for tool in as_objects(request.get("tools"))]
    echoed = [tool.get("name", tool.get("server_label")) for tool in as_objects(response.get("tools"))]
    if asked != echoed and request.get("tools") is not None and "tools" in response:
        findings.add("echo-differs", quote(asked), quote(echoed), "response.tools")
    formats = [_read_format(each) for each in (request, response)]
    if None not in formats and formats[0] != formats[1]:
        findings.add("echo-differs", quote(formats[0]), quote(formats[1]), "response.text.format")
    conversations = [_read_conversation(each) for each in (request, response)]
    if conversations[0] is not None and conversations[0] != conversations[1]:
        findings.add("echo-differs", quote(conversations[0]), quote(conversations[1]), "response.conversation")


def _check_uninvited(request: Mapping[str, Any], response: Mapping[str, Any], findings: FindingList) -> None:
    """Reports settings that the response has, though the request has none."""
    for key in UNINVITED_KEYS:
        if request.get(key) is None and response.get(key) not in (None, "") and "prompt" not in request:
            findings.add("echo-uninvited", "null, as the request has none", quote(response[key]), f"response.{key}")
    if request.get("store") is None and response.get("store") is False:
        findings.add("store-off", "true, the default", "false", "response.store")


def _check_secrets(response: Mapping[str, Any], findings: FindingList) -> None:
    """Reports what the client sent for the tool's server alone."""
    for tool in as_objects(response.get("tools")):
        for key in ("headers", "authorization"):
            if tool.get("type") == "mcp" and tool.get(key):
                subject = f"tools {tool.get('server_label')} {key}"
                findings.add("echo-secret", f"no {key} of an mcp tool", "a value", subject)


def _is_same(echoed: object, asked: object) -> bool:
    numbers = [each for each in (echoed, asked) if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == 2:
        return math.isclose(numbers[0], numbers[1], rel_tol=SINGLE_PRECISION)
    return echoed == asked


def _read_format(settings: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Returns the type and the name of the text's format."""
    text = settings.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    return (form.get("type"), form.get("name")) if isinstance(form, dict) else None


def _read_conversation(settings: Mapping[str, Any]) -> Any:
    value = settings.get("conversation")
    return value.get("id") if isinstance(value, dict) else value


def _check_tool_choice(
    settings: Mapping[str, Any], output: Sequence[JsonItem], is_completed: bool, findings: FindingList
) -> None:
    """Checks the calls against `tool_choice`. It binds the first round; `none` and the allowed tools bind all."""
    choice = settings.get("tool_choice", "auto")
    mode = choice.get("mode", "auto") if isinstance(choice, dict) else choice
    calls = [item for item in output if as_text(item.get("type")).endswith("_call") or item.get("type") == APPROVAL]
    chosen = [call for call in calls if not call.get("approval_request_id")]  # an earlier turn has chosen the others
    if mode == "none" and chosen:
        findings.add("tool-choice-none", "no call", f"{len(chosen)} calls")
    if mode == "required" and not calls and is_completed:
        findings.add("tool-choice-required", "a call", "none")
    if not isinstance(choice, dict):
        return
    if choice.get("type") == "allowed_tools":
        _check_allowed(chosen, as_objects(choice.get("tools")), findings)
    elif choice.get("type") in CALL_TOOL_TYPES.values():
        client_calls = [call for call in calls if call.get("type") in CALL_TYPES]
        _check_named(client_calls, client_calls, choice, is_completed, findings)
    elif choice.get("type") == "mcp" or as_text(choice.get("type")).startswith(tuple(TOOL_TYPE_OF_CALL.values())):
        _check_named(calls, chosen[:1], choice, is_completed, findings)


def _check_named(
    calls: Sequence[JsonItem],
    bound_calls: Sequence[JsonItem],
    choice: JsonItem,
    is_completed: bool,
    findings: FindingList,
) -> None:
    """Checks the calls of a turn whose first round must call the tool `choice`."""
    if not calls and is_completed:
        findings.add("tool-choice-required", f"a call of {_name_tool(choice)}", "none")
    _check_allowed(bound_calls, [choice], findings)


def _check_allowed(calls: Sequence[JsonItem], tools: Sequence[JsonItem], findings: FindingList) -> None:
    for call in calls:
        kind = as_text(call.get("type"))
        if kind not in (*CALL_TYPES, *HOSTED_CALL_TYPES, APPROVAL) or any(_is_call_of(call, tool) for tool in tools):
            continue
        name = call.get("name", CALL_TOOL_TYPES.get(kind, TOOL_TYPE_OF_CALL.get(kind)))
        findings.add("tool-not-allowed", f"one of {quote([_name_tool(tool) for tool in tools])}", quote(name))


def _is_call_of(call: JsonItem, tool: JsonItem) -> bool:
    """Returns whether an item is a call of a tool, or of one that a `tool_choice` names."""
    kind, tool_type = as_text(call.get("type")), as_text(tool.get("type"))
    if kind in MCP_TYPES:
        is_server = tool_type == "mcp" and tool.get("server_label") == call.get("server_label")
        return is_server and tool.get("name") in (None, call.get("name"))
    if kind in TOOL_TYPE_OF_CALL:
        return tool_type.startswith(TOOL_TYPE_OF_CALL[kind])
    if tool_type == "mcp" or kind not in CALL_TOOL_TYPES:
        return False
    return bool(call.get("name", CALL_TOOL_TYPES[kind]) == tool.get("name", tool_type))


def _name_tool(tool: JsonItem) -> Any:
    return tool.get("name") or tool.get("server_label") or tool.get("type")


def _check_parallel(output: Sequence[JsonItem], findings: FindingList) -> None:
    """Checks that each pass of the model has one call. A call that the client runs or approves ends the last pass."""
    count = 0
    for item in output:
        if item.get("type") in (*CALL_TYPES, APPROVAL) or (count and item.get("type") in HOSTED_CALL_TYPES):
            count += 1
    if count > 1:
        findings.add("parallel-calls", "at most one call", f"{count} calls")


def _check_hosted_calls(settings: Mapping[str, Any], output: Sequence[JsonItem], findings: FindingList) -> None:
    """Checks that the tools of hosted calls are known, and the arguments of calls that ran or wait for approval."""
    tools = as_objects([*as_list(settings.get("tools")), *_list_added_tools([settings.get("input"), output])])
    for call in output:
        kind, label = as_text(call.get("type")), f"{call.get('type')} {call.get('id')}"
        if kind not in (*MCP_TYPES, *TOOL_TYPE_OF_CALL):
            continue
        matching = [tool for tool in tools if _is_call_of(call, tool)]
        name = call.get("name")
        if not matching:
            known = [_name_tool(tool) for tool in tools]
            findings.add("tool-unknown", f"one of {quote(known)}", quote(call.get("server_label", kind)), label)
        elif name is not None and not _may_call(call, name, matching):
            findings.add("tool-not-allowed", quote(matching[0].get("allowed_tools")), quote(name), label)
        if kind == APPROVAL or (kind == "mcp_call" and call.get("status", "completed") == "completed"):
            check_arguments(call.get("arguments"), None, label, findings)


def _may_call(call: JsonItem, name: str, tools: Sequence[JsonItem]) -> bool:
    """Returns whether one of the tools allows a call, or the protocol refused it: then nothing has run."""
    error = call.get("error")
    is_refused = isinstance(error, dict) and error.get("type") == "mcp_protocol_error"
    return (call.get("status") == "failed" and is_refused) or any(
        _allows(tool.get("allowed_tools"), name) for tool in tools
    )


def _allows(allowed: Any, name: str) -> bool:
    """Returns whether `allowed_tools` of an mcp tool lets a name pass. What it says of read-only tools is not known."""
    names = allowed.get("tool_names") if isinstance(allowed, dict) else allowed
    return not isinstance(names, list) or name in names


def _check_calls(
    settings: Mapping[str, Any], response: Mapping[str, Any], calls: Sequence[JsonItem], findings: FindingList
) -> None:
    """Checks that the tools of the calls are known, and the arguments of whole calls."""
    added = _list_added_tools([settings.get("input"), response.get("output")])
    tools = dict(_list_tools([*as_list(settings.get("tools")), *added]))
    echoed = dict(_list_tools(as_list(response.get("tools"))))
    for call in calls:
        key = (CALL_TOOL_TYPES[call["type"]], _read_name(call, "namespace"), _read_name(call, "name"))
        label = f"{call['type']} {call.get('id')}"
        if key not in tools:
            _report_unknown(key, list(tools), label, findings)
        if call.get("type") == "function_call" and call.get("status", "completed") == "completed":
            tool = tools.get(key)
            if tool is not None and tool.get("strict") is None:  # the server may have a default
                tool = tool | {"strict": echoed.get(key, {}).get("strict")}
            check_arguments(call.get("arguments"), tool, label, findings)


def _report_unknown(key: ToolKey, tools: Sequence[ToolKey], label: str, findings: FindingList) -> None:
    kind, namespace, name = key
    if name is not None and any(known == name for _, _, known in tools):
        near = ", ".join(f"{tool[0]} {tool[2]}, namespace {tool[1]}" for tool in tools if tool[2] == name)
        findings.add("tool-form", near, f"{kind} {name}, namespace {namespace}", label)
    else:
        known_names = [known or builtin for builtin, _, known in tools]
        findings.add("tool-unknown", f"one of {quote(known_names)}", quote(name or kind), label)


def _list_added_tools(item_lists: Sequence[object]) -> Iterator[Any]:
    """Yields the tools that items of input and output add: those of lite models, and those that a search has found."""
    for item in (item for items in item_lists for item in as_objects(items)):
        if item.get("type") in ("additional_tools", "tool_search_output"):
            yield from as_list(item.get("tools"))


def _list_tools(tools: Sequence[Any], namespace: str | None = None) -> Iterator[tuple[ToolKey, dict[str, Any]]]:
    """Yields the tools that the client runs, those in namespaces among them. Built-in ones have no name."""
    for tool in as_objects(tools):
        if tool.get("type") == "namespace":
            yield from _list_tools(as_list(tool.get("tools")), _read_name(tool, "name"))
        elif tool.get("type") in CALL_TOOL_TYPES.values():
            name = _read_name(tool, "name")
            yield (tool["type"], namespace, name), tool
            if tool.get("defer_loading") is True and namespace is None:  # OpenAI gives one that was found its own name
                yield (tool["type"], name, name), tool


def _read_name(value: Mapping[str, Any], key: str) -> str | None:
    return name if isinstance(name := value.get(key), str) else None
