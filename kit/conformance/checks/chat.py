"""The same turn through Chat Completions: the request in its words, and whether the answers agree."""

from collections.abc import Mapping
from typing import Any

from antiphon.kit.chat.comparison import compare_chat
from antiphon.kit.chat.stream import read_chat_sse
from antiphon.kit.checker.terminal import UNSTABLE_KEYS
from antiphon.kit.conformance.checks.context import CheckContext
from antiphon.kit.conformance.exchanges import CHAT_PATH, RESPONSES_PATH, check_arrival, read_stream
from antiphon.kit.findings import FindingList, quote_start
from antiphon.kit.json_values import Json, as_list, as_text

SHARED_FIELDS = ("model", "temperature", "top_p", "parallel_tool_calls", "presence_penalty", "frequency_penalty")
"""Fields of both APIs with one meaning."""


def compare_with_chat(context: CheckContext, findings: FindingList) -> None:
    """Checks that a chat stream says what the Responses stream says, at temperature 0.

    A server that answers the same request to Responses in two ways is not compared, which is remarked.
    """
    body = {key: value for key, value in context.exchange.request.items() if key != "stream_options"}
    body |= {"temperature": 0, "stream": True}
    first, second = (_run_turn(context, body) for _ in range(2))
    if first is None or second is None or _without_ids(first) != _without_ids(second):
        context.remarks.append("not compared with chat: two equal requests at temperature 0 got different answers")
        return
    request = to_chat_request(body)
    reply = context.send("POST", CHAT_PATH, request)
    if reply.status in (404, 405, 501):
        context.remarks.append(f"not compared with chat: POST {CHAT_PATH} gets {reply.status}")
        return
    check_arrival(reply, findings)
    if reply.status != 200 or not reply.is_stream:
        actual = f"{reply.status} {reply.content_type}: {quote_start(reply.body)}"
        findings.add("http-status", "200 and a stream", actual)
    else:
        chat = read_chat_sse(reply.body, request)
        findings.extend(chat.finish())
        compare_chat(second, chat, findings)


def to_chat_request(body: Mapping[str, Any]) -> Json:
    """Returns the chat request that means the same as a Responses request."""
    request: Json = {key: body[key] for key in SHARED_FIELDS if key in body}
    request |= {"stream": True, "stream_options": {"include_usage": True}, "messages": _list_messages(body)}
    if "max_output_tokens" in body:
        request["max_tokens"] = body["max_output_tokens"]
    if "tools" in body:
        request["tools"] = [_nest_tool(tool) for tool in body["tools"]]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        request["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif choice is not None:
        request["tool_choice"] = choice
    form = (body.get("text") or {}).get("format")
    if form is not None and form.get("type") == "json_schema":
        inner = {key: value for key, value in form.items() if key != "type"}
        request["response_format"] = {"type": "json_schema", "json_schema": inner}
    elif form is not None:
        request["response_format"] = form
    return request


def _list_messages(body: Mapping[str, Any]) -> list[Json]:
    messages: list[Json] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    sent = body.get("input")
    for item in sent if isinstance(sent, list) else [{"role": "user", "content": sent}]:
        content = item.get("content")
        if isinstance(content, list):
            content = "".join(as_text(part.get("text")) for part in content)
        messages.append({"role": item.get("role"), "content": content})
    return messages


def _nest_tool(tool: Mapping[str, Any]) -> Json:
    kind = str(tool.get("type"))
    return {"type": kind, kind: {key: value for key, value in tool.items() if key != "type"}}


def _run_turn(context: CheckContext, body: Json) -> Json | None:
    reply = context.send("POST", RESPONSES_PATH, body)
    return read_stream(reply.body, body, FindingList()).value if reply.status == 200 else None


def _without_ids(response: Mapping[str, Any]) -> object:
    """Returns the output and the usage without what differs between any two responses."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(entry) for key, entry in value.items() if key not in UNSTABLE_KEYS}
        return [strip(entry) for entry in value] if isinstance(value, list) else value

    usage = response.get("usage")
    counts = [usage.get("input_tokens"), usage.get("output_tokens")] if isinstance(usage, dict) else []
    return strip(as_list(response.get("output"))), counts, response.get("status")
