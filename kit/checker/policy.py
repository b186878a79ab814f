"""The output against the settings of the request: tools, their choice, JSON formats, log-probabilities."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antiphon.kit.checker.items import CALL_TYPES
from antiphon.kit.checker.shapes import as_list, as_objects
from antiphon.kit.findings import FindingList, quote

Item = Mapping[str, Any]
ECHOED_KEYS = (
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "previous_response_id",
    "instructions",
    "store",
    "background",
    "truncation",
    "safety_identifier",
    "prompt_cache_key",
)
"""Fields of a request that the response repeats."""
CALL_TOOL_TYPES = {"function_call": "function", "custom_tool_call": "custom"}


def check_policy(request: Mapping[str, Any] | None, response: Mapping[str, Any], findings: FindingList) -> None:
    """Checks the output of a terminal response. Settings that the request lacks are read from the response."""
    settings = dict(response) | {key: value for key, value in (request or {}).items() if value is not None}
    output = [item for item in as_list(response.get("output")) if isinstance(item, dict)]
    calls = [item for item in output if item.get("type") in CALL_TYPES]
    is_completed = response.get("status") == "completed"
    _check_echo(request or {}, response, findings)
    _check_tool_choice(settings, calls, is_completed, findings)
    _check_known_tools(settings, calls, findings)
    if settings.get("parallel_tool_calls") is False and len(calls) > 1:
        findings.add("parallel-calls", "at most one call", f"{len(calls)} calls")
    limit = settings.get("max_tool_calls")
    if isinstance(limit, int) and len(calls) > limit:
        findings.add("too-many-calls", f"at most max_tool_calls, {limit}", f"{len(calls)} calls")
    for call in calls:
        if call.get("type") == "function_call" and call.get("status", "completed") == "completed":
            _check_arguments(call, findings)
    if is_completed:
        _check_text_format(settings, output, findings)
    check_logprobs(settings, request, output, findings)


def _check_echo(request: Mapping[str, Any], response: Mapping[str, Any], findings: FindingList) -> None:
    for key in ECHOED_KEYS:
        value = request.get(key)
        if value is not None and key in response and response[key] != value:
            findings.add("echo-differs", quote(value), quote(response[key]), f"response.{key}")
    asked = [tool.get("name") for tool in as_list(request.get("tools")) if isinstance(tool, dict)]
    echoed = [tool.get("name") for tool in as_list(response.get("tools")) if isinstance(tool, dict)]
    if asked != echoed and request.get("tools") is not None and "tools" in response:
        findings.add("echo-differs", quote(asked), quote(echoed), "response.tools")


def _check_tool_choice(
    settings: Mapping[str, Any], calls: Sequence[Item], is_completed: bool, findings: FindingList
) -> None:
    choice = settings.get("tool_choice", "auto")
    mode = choice.get("mode", "auto") if isinstance(choice, dict) else choice
    if mode == "none" and calls:
        findings.add("tool-choice-none", "no call", f"{len(calls)} calls")
    if mode == "required" and not calls and is_completed:
        findings.add("tool-choice-required", "a call", "none")
    if not isinstance(choice, dict):
        return
    is_named = choice.get("type") in ("function", "custom")
    if is_named and not calls and is_completed:
        findings.add("tool-choice-required", f"a call of {choice.get('name')}", "none")
    if is_named or choice.get("type") == "allowed_tools":
        chosen = [choice] if is_named else as_list(choice.get("tools"))
        allowed = [tool.get("name") for tool in chosen if isinstance(tool, dict)]
        for call in calls:
            if call.get("name") not in allowed:
                findings.add("tool-not-allowed", f"one of {quote(allowed)}", quote(call.get("name")))


def _check_known_tools(settings: Mapping[str, Any], calls: Sequence[Item], findings: FindingList) -> None:
    tools = list(_list_tools([*as_list(settings.get("tools")), *_list_added_tools(settings)]))
    for call in calls:
        name, namespace = call.get("name"), call.get("namespace")
        kind = CALL_TOOL_TYPES[call["type"]]
        if (kind, namespace, name) in tools:
            continue
        label = f"{call['type']} {call.get('id')}"
        if any(known == name for _, _, known in tools):
            near = ", ".join(f"{tool[0]} {tool[2]}, namespace {tool[1]}" for tool in tools if tool[2] == name)
            findings.add("tool-form", near, f"{kind} {name}, namespace {namespace}", label)
        else:
            findings.add("tool-unknown", f"one of {quote([known for _, _, known in tools])}", quote(name), label)


def _list_added_tools(settings: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the tools that items of the input add: those of lite models, and those that a search has found."""
    for item in as_list(settings.get("input")):
        if isinstance(item, dict) and item.get("type") in ("additional_tools", "tool_search_output"):
            yield from as_list(item.get("tools"))


def _list_tools(tools: Sequence[Any], namespace: str | None = None) -> Iterator[tuple[str, str | None, Any]]:
    for tool in tools:
        if not isinstance(tool, dict):
            continue
        if tool.get("type") == "namespace":
            yield from _list_tools(as_list(tool.get("tools")), tool.get("name"))
        elif tool.get("type") in ("function", "custom"):
            yield tool["type"], namespace, tool.get("name")


def _check_arguments(call: Item, findings: FindingList) -> None:
    label = f"{call['type']} {call.get('id')}"
    arguments = call.get("arguments")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else None
    except ValueError:
        findings.add("arguments-not-json", "a JSON object", quote(arguments), label)
        return
    if not isinstance(value, dict):
        findings.add("arguments-not-object", "a JSON object", quote(arguments), label)


def _check_text_format(settings: Mapping[str, Any], output: Sequence[Item], findings: FindingList) -> None:
    text = settings.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    kind = form.get("type", "text") if isinstance(form, dict) else "text"
    if kind == "text":
        return
    for item in output:
        for part in as_list(item.get("content")) if item.get("type") == "message" else []:
            content = part.get("text") if isinstance(part, dict) else None
            if not isinstance(content, str):
                continue
            try:
                json.loads(content)
            except ValueError:
                findings.add("text-not-json", f"JSON, as text.format {kind} asks", quote(content), str(item.get("id")))


def check_logprobs(
    settings: Mapping[str, Any], request: Mapping[str, Any] | None, output: Sequence[Item], findings: FindingList
) -> None:
    """Checks the log-probabilities of the messages: whether they were requested, and each entry."""
    count = settings.get("top_logprobs") or 0
    included = "message.output_text.logprobs" in as_list((request or {}).get("include"))
    for item in output:
        for part in as_list(item.get("content")) if item.get("type") == "message" else []:
            if not isinstance(part, dict) or part.get("type") != "output_text":
                continue
            entries, label = as_list(part.get("logprobs")), str(item.get("id"))
            if request is not None and (count or included) and part.get("text") and not entries:
                findings.add("logprobs-missing", "an entry for each token", "none", label)
            if request is not None and not count and not included and entries:
                findings.add("logprobs-unrequested", "no entries", f"{len(entries)}", label)
            for entry in entries:
                _check_entry(entry, count, label, findings)


def _check_entry(entry: Any, count: int, label: str, findings: FindingList) -> None:
    if not isinstance(entry, dict):
        findings.add("logprob-entry", "an object", quote(entry), label)
        return
    tops = as_objects(entry.get("top_logprobs"))
    for each in [entry, *tops]:
        token, logprob, spelled = each.get("token"), each.get("logprob"), each.get("bytes")
        if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, int | float):
            findings.add("logprob-entry", "a token and a number", quote(each), label)
            continue
        if logprob > 0:
            findings.add("logprob-positive", "a logarithm of at most 0", quote(logprob), label)
        if isinstance(spelled, list) and "\ufffd" not in token and spelled != list(token.encode(errors="replace")):
            findings.add("logprob-bytes", f"the bytes of {quote(token)}", quote(spelled), label)
    values = [top["logprob"] for top in tops if isinstance(top.get("logprob"), int | float)]
    if values != sorted(values, reverse=True):
        findings.add("logprob-order", "top_logprobs from the most likely down", quote(values), label)
    if len(tops) > count:
        findings.add("logprob-count", f"at most {count} top_logprobs", str(len(tops)), label)
